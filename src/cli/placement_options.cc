// SPDX-License-Identifier: Apache-2.0
#include "cli/placement_options.h"

#include <CLI/CLI.hpp>

#include "base/byte_units.h"
#include "base/error.h"

namespace spillway {
namespace {

constexpr auto kGroup = "Placement";

}  // namespace

uint64_t parse_memory(const std::string& text, const char* option) {
  const auto bytes = try_parse_bytes(text);
  SPW_CHECK(bytes && *bytes >= 0, kInvalidArgument, "{} is '{}'; give a size such as 16GiB", option,
            text);
  return static_cast<uint64_t>(*bytes);
}

void PlacementOptions::add_to(CLI::App& command, bool several_plans) {
  command
      .add_option("--host-memory", host_memory,
                  "most host memory to use, such as 100GiB (default: what is free)")
      ->group(kGroup);
  command
      .add_option("--disk-memory", disk_memory,
                  "most disk space for weights, KV and activations, such as 200GiB")
      ->capture_default_str()
      ->group(kGroup);
  command.add_option("--disk-dir", disk_dir, "folder for it (default: that of temporary files)")
      ->group(kGroup);
  command
      .add_option("--pin-memory", pin_memory,
                  "most host memory with weights to keep in place for the GPU, such as 8GiB; more "
                  "comes through staging buffers (default: all, where the system allows it)")
      ->group(kGroup);
  add_plan_to(command, several_plans);
}

void PlacementOptions::add_plan_to(CLI::App& command, bool several_plans) {
  auto* const plan = command.add_option(
      "--plan", plans,
      several_plans ? "what goes where: a JSON file; several are measured one after the other"
                    : "what goes where: a JSON file");
  plan->group(kGroup);
  if (!several_plans) plan->expected(1);
  command
      .add_option("--weights", weights,
                  "percent of the weights on GPU, host and disk, such as 20,80,0")
      ->group(kGroup);
  command
      .add_option(
          "--embeddings", embeddings,
          "where embeddings and head are: gpu or host (rows looked up there, the head moved "
          "in)")
      ->group(kGroup);
  command.add_option("--kv", kv, "percent of the KV cache on GPU, host and disk")->group(kGroup);
  command
      .add_option("--activations", activations,
                  "percent of the activations between layers on GPU, host and disk")
      ->group(kGroup);
  command
      .add_option("--attention", attention,
                  "where KV in host memory is attended to: cpu, gpu (moved in) or auto")
      ->group(kGroup);
  command
      .add_option("--cpu-attention", cpu_attention,
                  "with auto: percent of its sequences that the CPU takes, the GPU the others")
      ->check(CLI::Range(0.0, 100.0))
      ->group(kGroup);
  command
      .add_option("--cpu-linear", cpu_linear,
                  "percent of the weights off the GPU that the CPU multiplies, "
                  "while the others come to the GPU: 66, or by tokens that go through a layer "
                  "together: 1:66,64:50 (default: so that both end together)")
      ->group(kGroup);
  command
      .add_option("--micro-batch", micro_batch,
                  "sequences that go through a layer together (default: all)")
      ->check(CLI::Range(1, 1 << 20))
      ->group(kGroup);
  command
      .add_option("--micro-batches", micro_batches,
                  "micro-batches in a block: that many times --micro-batch sequences are at "
                  "work together (default: all)")
      ->check(CLI::Range(1, 1 << 20))
      ->group(kGroup);
  command
      .add_option(
          "--schedule", schedule,
          "continuous (default): a sequence that ends is replaced at once; zigzag: blocks that "
          "begin together; diagonal: as continuous, a few at a time; row: one micro-batch "
          "after the other")
      ->group(kGroup);
}

std::optional<Plan> PlacementOptions::try_explicit_plan(size_t which) const {
  const bool by_hand =
      !weights.empty() || !embeddings.empty() || !kv.empty() || !activations.empty();
  if (which >= plans.size() && !by_hand) return kept;
  Plan plan = which < plans.size() ? read_plan(plans[which]) : Plan();
  if (!weights.empty()) plan.weights = parse_shares(weights, "--weights");
  if (!embeddings.empty()) plan.embeddings = parse_embeddings(embeddings, "--embeddings");
  if (!kv.empty()) plan.kv = parse_shares(kv, "--kv");
  if (!activations.empty()) plan.activations = parse_shares(activations, "--activations");
  return plan;
}

GivenFields PlacementOptions::given() const {
  GivenFields fields;
  if (!schedule.empty()) fields.schedule = parse_schedule(schedule);
  if (!attention.empty()) fields.attention = parse_attention_place(attention);
  if (cpu_attention >= 0) fields.cpu_attention = cpu_attention / 100;
  if (!cpu_linear.empty()) fields.cpu_linear = parse_cpu_linear(cpu_linear, "--cpu-linear");
  if (micro_batch > 0) fields.micro_batch = micro_batch;
  if (micro_batches > 0) fields.micro_batches = micro_batches;
  fields.overlap = !no_overlap;
  return fields;
}

uint64_t PlacementOptions::disk_bytes() const { return parse_memory(disk_memory, "--disk-memory"); }

uint64_t PlacementOptions::pinned_bytes() const {
  return pin_memory.empty() ? ~uint64_t{0} : parse_memory(pin_memory, "--pin-memory");
}

std::filesystem::path PlacementOptions::disk_folder() const {
  if (!disk_dir.empty()) return disk_dir;
  return std::filesystem::temp_directory_path();
}

}  // namespace spillway
