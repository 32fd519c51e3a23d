// SPDX-License-Identifier: Apache-2.0
//
// bytes.h: size arithmetic that never overflows silently.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/fail.h"
#include "core/round_up.h"

namespace switchyard {

template <typename T>
T checked_mul(T a, T b) {
  T result{};
  require(!__builtin_mul_overflow(a, b, &result), Errc::kInvalidArgument,
          "size: {} x {} overflows 64 bits", a, b);
  return result;
}

template <typename T>
T checked_add(T a, T b) {
  T result{};
  require(!__builtin_add_overflow(a, b, &result), Errc::kInvalidArgument,
          "size: {} + {} overflows 64 bits", a, b);
  return result;
}

}  // namespace switchyard
