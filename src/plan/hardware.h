// SPDX-License-Identifier: Apache-2.0
// Describes what a machine can do in the figures that the cost model needs: measured by `spillway
// profile`, or published. They are stored in a JSON file that people can read. Machines that ship
// with the program have names.
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

// A rate that depends on a size: bytes of a transfer, tokens of a product, or heads. Between two
// points it is interpolated by the logarithms of size and rate; outside it is the rate of the
// nearest end.
class RateCurve {
 public:
  RateCurve() = default;
  explicit RateCurve(double rate) : points_{{1, rate}} {}
  // Points must have increasing sizes; sizes and rates are above 0.
  explicit RateCurve(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {}

  double at(double size) const;
  double best() const;
  RateCurve times(double factor) const;
  bool empty() const { return points_.empty(); }
  const std::vector<std::pair<double, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;
};

// A GPU with its memory, or the host's CPU with host memory.
struct Processor {
  std::string name = {};
  uint64_t memory_bytes = 0;
  int threads = 0;              // for the host: the threads for which the rates hold; 0: not known
  double read_bytes_per_s = 0;  // rate of reads from its memory
  double flop_per_s = 0;        // for large products of 16-bit matrices
  double launch_s = 0;          // the fixed cost of an op
  // FLOP/s of a product by the weights' type and the number of tokens. Types that are missing here
  // are priced by memory rate and flop_per_s.
  std::map<DType, RateCurve> linear = {};
  // The factor on these rates, by tokens, for matrices with `small_elements` elements, which do not
  // fill a large processor. The rates in `linear` are those of matrices with `large_elements`. 0:
  // sizes make no difference.
  RateCurve small_share = {};
  double small_elements = 0, large_elements = 0;
  // Bytes of KV per second in decoding, by the KV's type and by the query heads that share a key
  // head, because those do more arithmetic for the same bytes. A type that is missing here is read
  // at the memory's rate.
  std::map<KvType, RateCurve> attention = {};
  double prompt_attention_flop_per_s = 0;  // 0: a quarter of flop_per_s
  // Bytes of 16-bit results per second if quantized weights are expanded before every product; 0:
  // products read them directly.
  double dequantize_bytes_per_s = 0;
  // Elements per second of an MLP activation that has an exponential in it; 0: its time is not
  // counted.
  double activations_per_s = 0;
};

struct Hardware {
  std::string name;    // the file's own name for the machine
  std::string source;  // says in words what was measured and what was published
  // The day on which everything was measured on the machine itself; empty: it was not.
  std::string measured;
  std::optional<Processor> gpu;
  Processor host;
  // The GPU computes in host memory: there is one tier, and nothing is copied.
  bool unified = false;
  // Bytes per second between host and GPU memory, by the bytes of a transfer, while nothing else
  // moves. `link_beside_cpu` is the factor on them while the CPU reads as fast as it can, and
  // `cpu_beside_link` the factor on the CPU's rates while the link is busy.
  RateCurve to_device, to_host;
  double link_beside_cpu = 1, cpu_beside_link = 1;
  // The most bytes per second for KV and quantized weights if they are copied from memory that is
  // not pinned; 0: all of it is pinned.
  double pageable_to_device = 0;
  double transfer_s = 0;  // the fixed cost of a transfer
  // The fixed cost of giving work to the CPU in the middle of a step and getting the results back,
  // besides the bytes and the work itself; 0: that of two transfers.
  double meeting_s = 0;
  // Rate of pinning host memory that the device copies from; 0: not known.
  double pin_bytes_per_s = 0;
  double disk_read = 0, disk_write = 0;
  double disk_access_s = 0;  // the fixed cost of a read or write
  uint64_t disk_bytes = 0;
  // Measurements of models on this machine, with this many threads (`spillway profile MODEL`).
  std::vector<SplitCurve> splits = {};

  bool has_device() const { return gpu.has_value() && !unified; }
  const Processor& device() const { return gpu ? *gpu : host; }
  // Returns the bytes per second of a transfer to the device. kPageable is for KV and quantized
  // weights.
  enum class Source : uint8_t { kPinned, kPageable };
  double to_device_rate(double bytes, Source from) const;
};

// Returns the host's CPU with only `threads` threads: all rates are scaled in proportion.
Processor with_threads(Processor host, int threads);

// Returns the seconds of a product of `tokens` rows with a matrix of `elements` elements that take
// `bytes` bytes.
double linear_seconds(const Processor& on, DType type, double tokens, double elements,
                      double bytes);
// Returns the seconds of decode attention that reads `bytes` of KV, if `group` query heads share a
// key head.
double attention_seconds(const Processor& on, KvType type, double group, double bytes);
double prompt_attention_seconds(const Processor& on, double flop);

// Throws kInvalidArgument, naming `where` and the field, for text that is not a machine's file.
Hardware parse_hardware(std::string_view text, const std::string& where);
std::string hardware_to_json(const Hardware& hardware);

// Throws kInvalidArgument like parse_hardware(), and also if the file cannot be read.
Hardware read_hardware_file(const std::filesystem::path& path);
// Reads a file, or a machine that ships with the program by its name. Throws kInvalidArgument,
// listing the names of those.
Hardware read_hardware(const std::string& file_or_name);
// Returns the names of the shipped machines that are offered to users.
std::vector<std::string> shipped_hardware();
// Returns the shipped machine that is most similar to one with this GPU ("": none), by the words of
// the GPU's name, then by the size of its memory; without a GPU, by the size of host memory. Never
// fails.
Hardware nearest_hardware(std::string_view gpu_name, uint64_t gpu_memory, uint64_t host_memory);

}  // namespace spillway
