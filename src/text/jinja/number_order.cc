// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/number_order.h"

#include <cmath>
#include <cstdint>

namespace spillway::jinja {

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral())
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  if (a.is_integral() != b.is_integral()) {
    const bool swapped = b.is_integral();
    const int64_t integer = swapped ? b.integer() : a.integer();
    const double number = swapped ? a.number() : b.number();
    if (std::isfinite(number) && std::fabs(number) < 9.2e18) {
      const auto whole = static_cast<int64_t>(number);  // rounded towards zero
      int order = integer < whole ? -1 : integer > whole ? 1 : 0;
      const double rest = number - static_cast<double>(whole);
      if (order == 0) order = rest > 0 ? -1 : rest < 0 ? 1 : 0;
      return swapped ? -order : order;
    }
  }
  const double x = a.number();
  const double y = b.number();
  return x < y ? -1 : x > y ? 1 : 0;
}

bool has_nan(const Value& a, const Value& b) {
  return std::isnan(a.number()) || std::isnan(b.number());
}

}  // namespace spillway::jinja
