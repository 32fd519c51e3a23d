// SPDX-License-Identifier: Apache-2.0
//
// round_up.h: division and alignment that round up, for host and device. They do not check for
// overflow; bytes.h has checked arithmetic.
#pragma once

namespace switchyard {

template <typename T>
constexpr T cdiv(T a, T b) {
  return (a + b - 1) / b;
}

template <typename T>
constexpr T align_up(T value, T alignment) {
  return cdiv(value, alignment) * alignment;
}

}  // namespace switchyard
