// SPDX-License-Identifier: Apache-2.0
#include "cli/session_flags.h"

#include "cli/command_line.h"
#include "cli/value_check.h"

namespace spillway {
namespace {

constexpr auto kPlacementGroup = "Placement";

void add_placement_flags(Command& command, PlacementOptions& options, bool several_plans) {
  command
      .add_option("--host-memory", options.host_memory,
                  "most host memory to use, such as 100GiB (default: what is free)")
      ->group(kPlacementGroup);
  command
      .add_option("--disk-memory", options.disk_memory,
                  "most disk space for weights, KV and activations, such as 200GiB")
      ->capture_default_str()
      ->group(kPlacementGroup);
  command
      .add_option("--disk-dir", options.disk_dir,
                  "folder for it (default: that of temporary files)")
      ->group(kPlacementGroup);
  command
      .add_option("--pin-memory", options.pin_memory,
                  "most host memory with weights to keep in place for the GPU, such as 8GiB; more "
                  "comes through staging buffers (default: all, where the system allows it)")
      ->group(kPlacementGroup);
  add_plan_flags(command, options, several_plans);
}

void add_tuning_flags(Command& command, TuningOptions& options) {
  auto* given = command.add_option(
      "--tuning", options.file,
      "kernels by the measurements in this file; default: those of this machine");
  command.add_flag("--no-tuning", options.off, "kernels as if spillway profile had never run")
      ->excludes(given);
  command.add_flag("--tune", options.measure,
                   "measure first what is not known yet of this machine (45 s), and of how CPU and "
                   "GPU share this model (15 s), and keep it; not with --deterministic");
}

}  // namespace

void add_compress_weights_flag(Command& command, ComputeOptions& options) {
  command.add_flag("--compress-weights", options.compress_weights,
                   "quantize F32, F16 and BF16 matrices to 4 bits (groups of 64) while loading");
}

void add_compute_flags(Command& command, ComputeOptions& options) {
  command
      .add_option("--kv-type", options.kv_type,
                  "KV cache: f32, f16, bf16, int8, int4, or auto (f32 for F32 models, else f16)")
      ->capture_default_str();
  command.add_flag("--compress-kv", options.compress_kv, "KV cache in 4 bits: --kv-type int4");
  command.add_option(
      "--attention-topk", options.attention_topk,
      "while generating, attend to this share of the context, such as 0.1: per head the "
      "positions with the largest scores (default: all)");
  command
      .add_option("--chunk", options.chunk,
                  "most tokens in one step; longer prompts are cut (default: 512, on a GPU 2048 "
                  "and of long "
                  "contexts up to 8192, or what there is memory for)")
      ->check(in_range(1, 1 << 20));
}

void add_kv_store_flags(Command& command, KvStoreOptions& options) {
  auto* const dir = command.add_option("--kv-dir", options.dir,
                                       "keep KV of prompts and answers in this folder: what begins "
                                       "alike is not computed again, also "
                                       "by the next process (model and settings being the same)");
  dir->group(kPlacementGroup);
  command
      .add_option("--kv-dir-size", options.dir_size,
                  "most disk space for it, such as 50GiB (default: 16GiB, or half of what is free)")
      ->needs(dir)
      ->group(kPlacementGroup);
  command
      .add_option("--kv-host-size", options.host_size,
                  "most host memory for KV that a GPU has no room for (serve: 4GiB or three times "
                  "the GPU's, but a sixth of what is free)")
      ->group(kPlacementGroup);
}

void add_plan_flags(Command& command, PlacementOptions& options, bool several_plans) {
  auto* const plan = command.add_option(
      "--plan", options.plans,
      several_plans ? "what goes where: a JSON file; several are measured one after the other"
                    : "what goes where: a JSON file");
  plan->group(kPlacementGroup);
  if (!several_plans) plan->expected(1);
  command
      .add_option("--weights", options.weights,
                  "percent of the weights on GPU, host and disk, such as 20,80,0")
      ->group(kPlacementGroup);
  command
      .add_option(
          "--embeddings", options.embeddings,
          "where embeddings and head are: gpu or host (rows looked up there, the head moved "
          "in)")
      ->group(kPlacementGroup);
  command
      .add_option(
          "--kv", options.kv,
          "percent of the KV cache on GPU, host and disk: of the sequences, of one its blocks")
      ->group(kPlacementGroup);
  command
      .add_option("--activations", options.activations,
                  "percent of the activations between layers on GPU, host and disk")
      ->group(kPlacementGroup);
  command
      .add_option("--attention", options.attention,
                  "where KV in host memory is attended to: cpu, gpu (moved in) or auto")
      ->group(kPlacementGroup);
  command
      .add_option("--cpu-attention", options.cpu_attention,
                  "with auto: percent of its sequences that the CPU takes, the GPU the others")
      ->check(in_range(0.0, 100.0))
      ->group(kPlacementGroup);
  command
      .add_option("--cpu-linear", options.cpu_linear,
                  "percent of the weights off the GPU that the CPU multiplies, "
                  "while the others come to the GPU: 66, or by tokens that go through a layer "
                  "together: 1:66,64:50 (default: so that both end together)")
      ->group(kPlacementGroup);
  command
      .add_option("--micro-batch", options.micro_batch,
                  "sequences that go through a layer together (default: all)")
      ->check(in_range(1, 1 << 20))
      ->group(kPlacementGroup);
  command
      .add_option("--micro-batches", options.micro_batches,
                  "micro-batches in a block: that many times --micro-batch sequences are at "
                  "work together (default: all)")
      ->check(in_range(1, 1 << 20))
      ->group(kPlacementGroup);
  command
      .add_option(
          "--schedule", options.schedule,
          "continuous (default): a sequence that ends is replaced at once; zigzag: blocks that "
          "begin together; diagonal: as continuous, a few at a time; row: one micro-batch "
          "after the other")
      ->group(kPlacementGroup);
}

void add_kv_expansion_flag(Command& command, PlacementOptions& options) {
  command
      .add_option("--kv-expansion", options.kv_expansion,
                  "swapped layers, whose KV is loaded when needed, so that the GPU has room for "
                  "more requests: "
                  "a number, off (default of batch), or auto (found while it runs: as many as cost "
                  "no time; default of serve, where requests wait for room)")
      ->group(kPlacementGroup);
}

void add_swapped_layers_flag(Command& command, PlacementOptions& options) {
  command
      .add_option("--kv-expansion", options.kv_expansion,
                  "layers whose KV is swapped, so that the GPU has room for more of all KV: a "
                  "number, or off (default)")
      ->check(ValueCheck([](const std::string& text) -> std::string {
        return text == "auto" ? "auto is for serve and batch; give a number, or off" : "";
      }))
      ->group(kPlacementGroup);
}

void add_device_flags(Command& command, SessionOptions& options) {
  command
      .add_option("--device", options.device,
                  "where to compute: cpu, cuda, cuda:N, or auto: the first GPU if there is one")
      ->capture_default_str();
  command.add_option("--gpu-memory", options.gpu_memory,
                     "most GPU memory to use, such as 16GiB (default: what is free)");
  command
      .add_option(
          "-t,--threads", options.threads,
          "CPU threads, 0 = all that this process may use; or the processors to run on: 0-7,16")
      ->capture_default_str();
}

void add_loading_flags(Command& command, SessionOptions& options) {
  command.add_flag("--no-mmap", options.no_mmap,
                   "read all weights past the page cache, instead of mapping those that can be "
                   "used as they are");
  add_compress_weights_flag(command, options.compute);
}

void add_session_flags(Command& command, SessionOptions& options, bool several_plans) {
  command
      .add_option("-m,--model,MODEL", options.model,
                  "GGUF file, Hugging Face folder, smollm2, or dummy:NAME")
      ->required();
  add_device_flags(command, options);
  command.add_flag("--deterministic", options.deterministic,
                   "same results whatever the batch around a sequence");
  add_tuning_flags(command, options.tuning);
  add_loading_flags(command, options);
  add_compute_flags(command, options.compute);
  add_placement_flags(command, options.placement, several_plans);
}

}  // namespace spillway
