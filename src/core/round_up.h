// SPDX-License-Identifier: Apache-2.0
//
// round_up.h: divisions that round up, for hosts and kernels; sizes that may overflow: bytes.h.
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
