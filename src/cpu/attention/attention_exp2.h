// SPDX-License-Identifier: Apache-2.0
// Factors of a polynomial for 2^r, |r| <= 1/2, whose relative error is below 3e-7: ln(2)^k / k!,
// the highest power first.
#pragma once

namespace spillway {

inline constexpr float kExp2Factors[] = {1.54035304e-4F,
                                         1.33335581e-3F,
                                         9.61812911e-3F,
                                         5.55041087e-2F,
                                         2.40226507e-1F,
                                         6.93147181e-1F,
                                         1};

}  // namespace spillway
