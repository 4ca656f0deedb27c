// SPDX-License-Identifier: Apache-2.0
#include "cli/session_flags.h"

#include "cli/command_line.h"
#include "cli/value_check.h"

namespace spillway {
namespace {

// The default of what the planner finds if no option says it.
constexpr auto kPlanned = "the planner's choice";

void add_memory_flags(Command& command, PlacementOptions& options) {
  command
      .add_option("--host-memory", options.host_memory, "most host memory to use, such as 100GiB")
      ->placeholder("BYTES")
      ->default_text("what is free")
      ->group(HelpGroup::kMemory);
  command
      .add_option("--disk-memory", options.disk_memory,
                  "most disk space for weights, KV and hidden states, such as 200GiB")
      ->placeholder("BYTES")
      ->group(HelpGroup::kMemory);
  command.add_option("--disk-dir", options.disk_dir, "folder for what goes to disk")
      ->placeholder("DIR")
      ->default_text("the folder for temporary files")
      ->group(HelpGroup::kMemory);
  command
      .add_option("--pin-memory", options.pin_memory,
                  "most host memory with weights that is pinned for the GPU, such as 8GiB; more "
                  "goes through staging buffers")
      ->placeholder("BYTES")
      ->default_text("as much as the system allows")
      ->group(HelpGroup::kMemory);
}

void add_tuning_flags(Command& command, TuningOptions& options) {
  auto* given =
      command
          .add_option("--tuning", options.file, "choose kernels by the measurements in this file")
          ->placeholder("FILE")
          ->default_text("those of this machine")
          ->group(HelpGroup::kSpeed);
  command
      .add_flag("--no-tuning", options.off, "choose kernels as if spillway profile had never run")
      ->excludes(given)
      ->group(HelpGroup::kSpeed);
  command
      .add_flag("--tune", options.measure,
                "measure first what is not known yet of this machine (45 s), and of how CPU and "
                "GPU share this model (15 s), and keep it; not with --deterministic")
      ->group(HelpGroup::kSpeed);
}

}  // namespace

void add_compress_weights_flag(Command& command, ComputeOptions& options) {
  command
      .add_flag("--compress-weights", options.compress_weights,
                "quantize F32, F16 and BF16 matrices to 4 bits (groups of 64) while loading")
      ->group(HelpGroup::kCompression);
}

void add_compute_flags(Command& command, ComputeOptions& options) {
  command
      .add_option("--kv-type", options.kv_type,
                  "type of the KV cache: f32, f16, bf16, int8, int4, or auto (f32 for F32 models, "
                  "else f16)")
      ->placeholder("TYPE")
      ->group(HelpGroup::kCompression);
  command
      .add_flag("--compress-kv", options.compress_kv, "KV cache in 4 bits, as --kv-type int4 does")
      ->group(HelpGroup::kCompression);
  command
      .add_option("--attention-topk", options.attention_topk,
                  "while generating, attend only to this share of the context, such as 0.1: for "
                  "each head, the positions with the largest scores")
      ->placeholder("SHARE")
      ->default_text("all of it")
      ->group(HelpGroup::kCompression);
  command.add_option("--chunk", options.chunk, "most tokens in one step; longer prompts are cut")
      ->check(in_range(1, 1 << 20))
      ->default_text(
          "512, on a GPU 2048 and for long contexts up to 8192, or what there is memory for")
      ->group(HelpGroup::kSpeed);
}

void add_kv_store_flags(Command& command, KvStoreOptions& options) {
  auto* const dir =
      command
          .add_option("--kv-dir", options.dir,
                      "keep KV of prompts and answers in this folder: equal beginnings are not "
                      "computed again, also by later processes with the same model and settings")
          ->placeholder("DIR")
          ->group(HelpGroup::kKvCache);
  command
      .add_option("--kv-dir-size", options.dir_size,
                  "with --kv-dir: most disk space for it, such as 50GiB")
      ->needs(dir)
      ->placeholder("BYTES")
      ->default_text("16GiB, or half of what is free")
      ->group(HelpGroup::kKvCache);
  command
      .add_option("--kv-host-size", options.host_size,
                  "most host memory for KV that the GPU has no room for, such as 8GiB")
      ->placeholder("BYTES")
      ->default_text(
          "none; of serve 4GiB or three times the GPU's KV, at most a sixth of what is free")
      ->group(HelpGroup::kKvCache);
}

void add_plan_flags(Command& command, PlacementOptions& options, bool several_plans) {
  auto* const plan = command.add_option(
      "--plan", options.plans,
      several_plans ? "a plan file, which says what goes where; several are measured one after the "
                      "other"
                    : "a plan file, which says what goes where");
  plan->placeholder(several_plans ? "FILE ..." : "FILE")->group(HelpGroup::kPlacement);
  if (!several_plans) plan->expected(1);
  command
      .add_option("--weights", options.weights,
                  "percent of the weights on GPU, host and disk, such as 20,80,0")
      ->placeholder("GPU,HOST,DISK")
      ->default_text(kPlanned)
      ->group(HelpGroup::kPlacement);
  command
      .add_option("--embeddings", options.embeddings,
                  "home of embeddings and head: gpu, or host (rows are looked up there, the head "
                  "is copied to the GPU)")
      ->placeholder("gpu|host")
      ->default_text(kPlanned)
      ->group(HelpGroup::kPlacement);
  command
      .add_option("--kv", options.kv,
                  "percent of the sequences whose KV cache is on GPU, host and disk; of a single "
                  "sequence, of its blocks")
      ->placeholder("GPU,HOST,DISK")
      ->default_text(kPlanned)
      ->group(HelpGroup::kPlacement);
  command
      .add_option("--activations", options.activations,
                  "percent of the hidden states that wait on GPU, host and disk between layers")
      ->placeholder("GPU,HOST,DISK")
      ->default_text(kPlanned)
      ->group(HelpGroup::kPlacement);
  command
      .add_option("--attention", options.attention,
                  "what attends to KV in host memory: the cpu, the gpu (KV is copied to it), or "
                  "auto (both)")
      ->placeholder("cpu|gpu|auto")
      ->default_text(kPlanned)
      ->group(HelpGroup::kPlacement);
  command
      .add_option("--cpu-attention", options.cpu_attention,
                  "with --attention auto: percent of those sequences that the CPU takes")
      ->check(in_range(0.0, 100.0))
      ->placeholder("PERCENT")
      ->default_text("so that CPU and GPU end together")
      ->group(HelpGroup::kPlacement);
  command
      .add_option("--cpu-linear", options.cpu_linear,
                  "percent of the weights off the GPU that the CPU multiplies while the others "
                  "are copied to the GPU: 66, or by tokens that go through a layer together: "
                  "1:66,64:50")
      ->placeholder("PERCENT")
      ->default_text("so that CPU and GPU end together")
      ->group(HelpGroup::kPlacement);
  command
      .add_option("--micro-batch", options.micro_batch,
                  "sequences that go through a layer together")
      ->check(in_range(1, 1 << 20))
      ->default_text("all")
      ->group(HelpGroup::kPlacement);
  command
      .add_option("--micro-batches", options.micro_batches,
                  "micro-batches in a batch block: this many times --micro-batch sequences run "
                  "concurrently")
      ->check(in_range(1, 1 << 20))
      ->default_text("all")
      ->group(HelpGroup::kPlacement);
  command
      .add_option("--schedule", options.schedule,
                  "when sequences begin: continuous (one that ends is replaced in the next step), "
                  "zigzag (batch blocks begin together), diagonal (as continuous, a few at a "
                  "time) or row (one micro-batch after the other)")
      ->placeholder("NAME")
      ->default_text("continuous")
      ->group(HelpGroup::kPlacement);
}

void add_kv_expansion_flag(Command& command, PlacementOptions& options) {
  command
      .add_option("--kv-expansion", options.kv_expansion,
                  "layers whose KV is swapped, so that the GPU has room for more requests: a "
                  "number, off, or auto (as many as cost no time, found while it runs)")
      ->placeholder("N|off|auto")
      ->default_text("off; of serve auto, where requests may wait for memory")
      ->group(HelpGroup::kKvCache);
}

void add_swapped_layers_flag(Command& command, PlacementOptions& options) {
  command
      .add_option("--kv-expansion", options.kv_expansion,
                  "layers whose KV is swapped, so that the GPU has room for more of all KV: a "
                  "number, or off")
      ->check(ValueCheck([](const std::string& text) -> std::string {
        return text == "auto" ? "auto is for serve and batch; give a number, or off" : "";
      }))
      ->placeholder("N|off")
      ->default_text("off")
      ->group(HelpGroup::kKvCache);
}

void add_device_flags(Command& command, SessionOptions& options) {
  command
      .add_option("--device", options.device,
                  "where to compute: cpu, cuda, cuda:N, or auto (the first GPU if there is one)")
      ->placeholder("NAME")
      ->group(HelpGroup::kMemory)
      ->basic();
  command.add_option("--gpu-memory", options.gpu_memory, "most GPU memory to use, such as 16GiB")
      ->placeholder("BYTES")
      ->default_text("what is free")
      ->group(HelpGroup::kMemory)
      ->basic();
  command
      .add_option("-t,--threads", options.threads,
                  "CPU threads, or the processors to run on, such as 0-7,16; 0 = as many threads "
                  "as this process may use")
      ->placeholder("N|LIST")
      ->group(HelpGroup::kSpeed);
}

void add_loading_flags(Command& command, SessionOptions& options) {
  command
      .add_flag("--no-mmap", options.no_mmap,
                "read all weights past the page cache, instead of mapping those that can be used "
                "as they are")
      ->group(HelpGroup::kMemory);
  add_compress_weights_flag(command, options.compute);
}

void add_session_flags(Command& command, SessionOptions& options, bool several_plans) {
  command
      .add_option("-m,--model,MODEL", options.model,
                  "GGUF file, Hugging Face folder, smollm2, or dummy:NAME")
      ->required()
      ->basic();
  add_device_flags(command, options);
  command
      .add_flag("--deterministic", options.deterministic,
                "same results whatever the batch around a sequence")
      ->group(HelpGroup::kSpeed);
  add_tuning_flags(command, options.tuning);
  add_loading_flags(command, options);
  add_compute_flags(command, options.compute);
  add_memory_flags(command, options.placement);
  add_plan_flags(command, options.placement, several_plans);
}

}  // namespace spillway
