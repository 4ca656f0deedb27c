// SPDX-License-Identifier: Apache-2.0
#include "engine/profile_splits.h"

#include <algorithm>

#include "base/log.h"
#include "engine/hardware_choice.h"
#include "measure/measure_splits.h"

namespace spillway {

std::vector<SplitCurve> profile_splits(Device& host, Device& device, const Model& model,
                                       const std::string& name, bool again, Hardware& hardware,
                                       const std::filesystem::path& file,
                                       const SessionServices& services) {
  const auto is_of = [](const SplitShape& shape) {
    return [&shape](const SplitCurve& curve) { return curve.shape == shape; };
  };
  const std::vector<SplitShape> all = split_shapes(model);
  std::vector<SplitShape> missing;
  for (const SplitShape& shape : all) {
    if (again || std::ranges::none_of(hardware.splits, is_of(shape))) missing.push_back(shape);
  }
  if (!missing.empty()) {
    constexpr double kSecondsEach = 3;
    const auto progress =
        start_progress(services.progress, "measuring how CPU and GPU share " + name);
    MeasurePace pace(kSecondsEach * static_cast<double>(missing.size()), services.cancel,
                     [&](double share, std::string_view what) {
                       progress->update(static_cast<uint64_t>(share * 1000), 1000, what);
                     });
    const std::vector<SplitCurve> found = measure_splits(host, device, hardware, missing, {}, pace);
    for (const SplitShape& shape : missing) std::erase_if(hardware.splits, is_of(shape));
    for (const SplitCurve& curve : found) {
      hardware.splits.push_back(curve);
      log_info("{} {} x {}, {} tokens: {:.0f}% of the rows to the CPU",
               dtype_name(curve.shape.type), curve.shape.rows, curve.shape.cols, curve.tokens,
               curve.crossing() * 100);
    }
    write_hardware_file(file, hardware);
  }
  std::vector<SplitCurve> curves;
  for (const SplitCurve& curve : hardware.splits) {
    if (std::ranges::find(all, curve.shape) != all.end()) curves.push_back(curve);
  }
  return curves;
}

}  // namespace spillway
