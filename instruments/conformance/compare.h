// SPDX-License-Identifier: Apache-2.0
//
// compare.h: what the library gave against what it must give. A difference is an exception that
// says where it is; what agrees only within a bound says how close it came.
#pragma once

#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "switchyard/tensor.h"

#include "reference/table.h"

namespace switchyard::conformance {

/// Wrong data.
class Difference : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws what differs. Arguments are formatted only then.
template <typename... Args>
void expect(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw Difference(fmt::format(format, std::forward<Args>(args)...));
}

/// How a result that is right agrees with the oracle.
struct Agreement {
  bool is_exact = true;                 ///< equal in every bit
  double max_error = 0;                 ///< else the largest |got - want| / (1 + |want|)
  double bound = 0;                     ///< and how large that may be
  std::string skipped{};                ///< why nothing was tried; then nothing else counts
  std::vector<std::string> left_out{};  ///< parts of the case that were not tried
  std::string heap{};                   ///< between GPUs: Exchange::heap
  bool is_shared_gpu = false;           ///< ranks shared one
};

/// Every byte; `unit` bytes make an element of a table of `columns` columns. Throws Difference.
void expect_same_bytes(std::string_view what, std::span<const std::byte> got,
                       std::span<const std::byte> want, std::size_t unit, std::size_t columns);

/// A contiguous tensor of bf16, f16 or f32 whose bits must be those of `want`, which its dtype must
/// hold exactly. Throws Difference.
void expect_same_bits(std::string_view what, const TensorView& got,
                      const reference::Table<float>& want);

/// |got - want| <= bound * (1 + |want|) for every element, as in a test with atol = rtol = bound.
/// NaN equals NaN only. Throws Difference.
Agreement expect_close(std::string_view what, const TensorView& got,
                       const reference::Table<float>& want, double bound);

}  // namespace switchyard::conformance
