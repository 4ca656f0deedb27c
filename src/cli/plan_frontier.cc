// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_frontier.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace spillway {
namespace {

constexpr double kWidth = 640, kHeight = 420, kMargin = 60;

// Maps values of a range to positions on a logarithmic axis, which ends at whole powers of ten.
struct Axis {
  double low, high, begin, end;

  static Axis over(double least, double most, double begin, double end) {
    const double low = std::floor(std::log10(least)), high = std::ceil(std::log10(most));
    return {low, high > low ? high : low + 1, begin, end};
  }
  double at(double value) const {
    return begin + (std::log10(value) - low) / (high - low) * (end - begin);
  }
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string frontier_svg(const std::vector<FrontierPoint>& points, const std::string& title) {
  double soonest = 1e300, latest = 0, slowest = 1e300, fastest = 0;
  for (const FrontierPoint& point : points) {
    const Prediction& p = point.found.predicted;
    soonest = std::min(soonest, p.latency_s);
    latest = std::max(latest, p.latency_s);
    slowest = std::min(slowest, p.generated_tokens_per_s);
    fastest = std::max(fastest, p.generated_tokens_per_s);
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n"
      "<text x=\"{2}\" y=\"24\" font-size=\"14\">{3}</text>\n",
      kWidth, kHeight, kMargin, escaped(title));
  if (points.empty()) return svg + "</svg>\n";
  const Axis x = Axis::over(soonest, latest, kMargin, kWidth - kMargin / 2);
  const Axis y = Axis::over(slowest, fastest, kHeight - kMargin, kMargin / 1.5);
  for (double power = x.low; power <= x.high; ++power) {
    const double at = x.at(std::pow(10, power));
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#ddd\"/>\n"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g} s</text>\n",
        at, y.begin, y.end, y.begin + 18, std::pow(10, power));
  }
  for (double power = y.low; power <= y.high; ++power) {
    const double at = y.at(std::pow(10, power));
    svg += fmt::format(
        "<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" stroke=\"#ddd\"/>\n"
        "<text x=\"{3}\" y=\"{0:.1f}\" text-anchor=\"end\">{4:g}</text>\n",
        at, x.begin, x.end, x.begin - 6, std::pow(10, power));
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">latency of a block</text>\n",
                     (x.begin + x.end) / 2, kHeight - 14);
  svg += fmt::format("<text x=\"14\" y=\"{}\">tokens/s</text>\n", y.end - 10);
  std::string line;
  for (const FrontierPoint& point : points) {
    const Prediction& p = point.found.predicted;
    const double px = x.at(p.latency_s), py = y.at(p.generated_tokens_per_s);
    if (point.best) line += fmt::format("{:.1f},{:.1f} ", px, py);
    svg += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n"
        "<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
        px, py, point.best ? "#1f6fb2" : "#bbb", px + 7, py + 4, point.found.size.sequences);
  }
  svg += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"#1f6fb2\"/>\n", line);
  return svg + "</svg>\n";
}

}  // namespace spillway
