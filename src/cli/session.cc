// SPDX-License-Identifier: Apache-2.0
#include "cli/session.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/byte_units.h"
#include "base/error.h"
#include "cli/interrupt.h"
#include "cli/model_catalog.h"
#include "cli/terminal.h"
#include "cpu/cpu_device.h"

namespace spillway {

void SessionOptions::add_to(CLI::App& command) {
  command.add_option("MODEL", model, "GGUF file, Hugging Face folder, smollm2, or dummy:NAME")
      ->required();
  command.add_option("--device", device, "where to compute: cpu")->capture_default_str();
  command.add_option("--threads", threads, "CPU threads; 0 = all that this process may use")
      ->capture_default_str();
  command.add_flag("--deterministic", deterministic,
                   "same results whatever the batch around a sequence");
  command.add_flag("--no-mmap", no_mmap,
                   "read the weights into memory past the page cache, instead of mapping the file");
  command.add_option("--kv-type", kv_type, "KV cache: f16, f32, or auto (f32 for F32 models)")
      ->capture_default_str();
  command.add_option("--chunk", max_step_tokens, "most tokens in one step; longer prompts are cut")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
}

std::unique_ptr<Device> make_device(const std::string& name, int threads) {
  SPW_CHECK(name == "cpu", kInvalidArgument,
            "no device '{}' here; cpu is the only one (see spillway inspect --devices)", name);
  return std::make_unique<CpuDevice>(CpuDeviceOptions{threads});
}

Session::Session(const SessionOptions& options) {
  const std::string path = resolve_model(options.model);
  device = make_device(options.device, options.threads);
  device->ops().set_deterministic(options.deterministic);

  const Stopwatch watch;
  {
    ProgressBar bar("loading " + options.model);
    WeightLoadOptions load;
    load.access = options.no_mmap ? WeightAccess::kDirect : WeightAccess::kMapped;
    load.cancel = &interrupted();
    load.progress = [&](uint64_t done, uint64_t total) {
      bar.update(done, total, fmt::format("{} of {}", format_bytes(done), format_bytes(total)));
    };
    loaded = load_model(*device, path, load);
  }
  load_seconds = watch.seconds();

  if (options.kv_type == "auto") {
    kv_dtype = default_kv_dtype(loaded->model);
  } else {
    const auto dtype = try_dtype_from_name(options.kv_type);
    SPW_CHECK(dtype == DType::kF16 || dtype == DType::kF32, kInvalidArgument,
              "--kv-type is '{}'; give f16, f32 or auto", options.kv_type);
    kv_dtype = *dtype;
  }
}

int64_t Session::context_tokens(int64_t wanted) const {
  const int64_t most = loaded->model.spec.max_context;
  SPW_CHECK(wanted >= 0 && wanted <= most, kInvalidArgument,
            "--ctx is {}; give 1 to {} (the model's context)", wanted, most);
  return wanted > 0 ? wanted : std::min<int64_t>(most, 4096);
}

KvCache Session::make_kv(int64_t tokens, int64_t sequences) {
  return make_kv_cache(*device, loaded->model.spec, kv_dtype, tokens, sequences);
}

}  // namespace spillway
