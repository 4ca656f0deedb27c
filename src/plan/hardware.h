// SPDX-License-Identifier: Apache-2.0
// What a machine can do, in figures that a cost model needs: measured by `spillway profile`, or
// published. A file that a person can read; machines that ship with the program have names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/split_curve.h"
#include "tensor/dtype.h"
#include "tensor/kv_format.h"

namespace spillway {

// A rate that depends on a size: bytes of a transfer, tokens of a product, heads. Between two
// points by the logarithms of both; before the first and behind the last as there.
class RateCurve {
 public:
  RateCurve() = default;
  explicit RateCurve(double rate) : points_{{1, rate}} {}
  // By size, growing; sizes and rates above 0.
  explicit RateCurve(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {}

  double at(double size) const;
  double best() const;
  RateCurve times(double factor) const;
  bool empty() const { return points_.empty(); }
  const std::vector<std::pair<double, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;
};

// A GPU with its memory, or the host's processors with theirs.
struct Processor {
  std::string name = {};
  uint64_t memory_bytes = 0;
  int threads = 0;              // that the rates are of, where it is the host; 0: not known
  double read_bytes_per_s = 0;  // of its memory
  double flop_per_s = 0;        // of large products of 16-bit matrices
  double launch_s = 0;          // what an op takes, however small
  // FLOP/s of a product by the weights' type and tokens; of types that are not there by memory and
  // flop_per_s.
  std::map<DType, RateCurve> linear = {};
  // What is left of these rates, by tokens, where matrices are as small as `small_elements`: a
  // large processor is not filled by them. Those of `linear` are of `large_elements`. 0: all of it.
  RateCurve small_share = {};
  double small_elements = 0, large_elements = 0;
  // Bytes of KV per second in decoding, by its type and by the query heads that share a key's:
  // they multiply more for the same bytes. Of other types as fast as memory.
  std::map<KvType, RateCurve> attention = {};
  double prompt_attention_flop_per_s = 0;  // 0: a quarter of flop_per_s
  // Bytes of 16-bit results a second where quantized weights are expanded before every product; 0:
  // products read them as they are.
  double dequantize_bytes_per_s = 0;
  // Elements per second of an MLP's activation with an exponential in it; 0: as good as free.
  double activations_per_s = 0;
};

struct Hardware {
  std::string name;    // of the file
  std::string source;  // what is measured and what is published, in words
  // The day on which all of it was measured on the machine itself; empty: it was not.
  std::string measured;
  std::optional<Processor> gpu;
  Processor host;
  // The GPU computes in the host's memory: there is one tier, and nothing to move.
  bool unified = false;
  // Bytes per second between host and GPU memory by the bytes of a transfer, when nothing else
  // moves, and what is left of them while the CPU reads as fast as it can; and of the CPU's rates
  // while the link is busy.
  RateCurve to_device, to_host;
  double link_beside_cpu = 1, cpu_beside_link = 1;
  // At most this where KV and quantized weights come out of memory that is not pinned, through a
  // copy; 0: all of it is pinned.
  double pageable_to_device = 0;
  double transfer_s = 0;  // what a transfer takes, however small
  // What it takes to hand the CPU something in the middle of a step and have it back, beside bytes
  // and the work itself; 0: as two transfers.
  double meeting_s = 0;
  double pin_bytes_per_s = 0;  // taking host memory that the device copies from; 0: not known
  double disk_read = 0, disk_write = 0;
  double disk_access_s = 0;  // what a read or write takes, however small
  uint64_t disk_bytes = 0;
  // Of models that were measured here, with this many threads (`spillway profile MODEL`).
  std::vector<SplitCurve> splits = {};

  bool has_device() const { return gpu.has_value() && !unified; }
  const Processor& device() const { return gpu ? *gpu : host; }
  // Bytes per second of a transfer to the device; kPageable: of KV or quantized weights.
  enum class Source : uint8_t { kPinned, kPageable };
  double to_device_rate(double bytes, Source from) const;
};

// The host's processors where only so many threads compute: each has its part of all rates.
Processor with_threads(Processor host, int threads);

// Seconds of a product of `tokens` rows with a matrix of `elements` that take `bytes`.
double linear_seconds(const Processor& on, DType type, double tokens, double elements,
                      double bytes);
// Seconds of decode attention that reads `bytes` of KV, where `group` query heads share a key's.
double attention_seconds(const Processor& on, KvType type, double group, double bytes);
double prompt_attention_seconds(const Processor& on, double flop);

// Throws kInvalidArgument naming the field (and `where`) for anything that is not such a file.
Hardware parse_hardware(std::string_view text, const std::string& where);
std::string hardware_to_json(const Hardware& hardware);

// Throws kInvalidArgument as parse_hardware() does, also for what cannot be read.
Hardware read_hardware_file(const std::filesystem::path& path);
// A file, or one that ships by its name; throws kInvalidArgument, naming those that ship.
Hardware read_hardware(const std::string& file_or_name);
// Names of the shipped machines that people are offered.
std::vector<std::string> shipped_hardware();
// The shipped one that is most like a machine with this GPU ("": none): by the words of its name,
// then by what memory there is. Never fails.
Hardware nearest_hardware(std::string_view gpu_name, uint64_t gpu_memory, uint64_t host_memory);

}  // namespace spillway
