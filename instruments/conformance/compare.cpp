// SPDX-License-Identifier: Apache-2.0

#include "conformance/compare.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "quant/scalar.h"

namespace switchyard::conformance {
namespace {

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (std::size_t i = bytes.size(); i > 0; --i) {
    text += fmt::format("{:02X}", static_cast<unsigned>(bytes[i - 1]));
  }
  return text;
}

void expect_same_shape(std::string_view what, const TensorView& got,
                       const reference::Table<float>& want) {
  expect(got.num_elements() == want.rows * want.cols && got.is_contiguous(),
         "{} is {}, expected [{}, {}]", what, got.describe(), want.rows, want.cols);
}

}  // namespace

void expect_same_bytes(std::string_view what, std::span<const std::byte> got,
                       std::span<const std::byte> want, std::size_t unit, std::size_t columns) {
  expect(got.size() == want.size(), "{} has {} bytes, expected {}", what, got.size(), want.size());
  const auto at = std::mismatch(got.begin(), got.end(), want.begin()).first;
  if (at == got.end()) return;
  const std::size_t i = static_cast<std::size_t>(at - got.begin()) / unit;
  const std::size_t num = std::max<std::size_t>(1, columns);
  throw Difference(fmt::format("{}[{}, {}] has the bits {}, expected {}", what, i / num, i % num,
                               hex(got.subspan(i * unit, unit)),
                               hex(want.subspan(i * unit, unit))));
}

void expect_same_bits(std::string_view what, const TensorView& got,
                      const reference::Table<float>& want) {
  expect_same_shape(what, got, want);
  const auto unit = static_cast<std::size_t>(bits_of(got.dtype()) / 8);
  std::vector<std::byte> bytes(want.data.size() * unit);
  for (std::size_t i = 0; i < want.data.size(); ++i) {
    scalar::store(bytes.data(), got.dtype(), static_cast<std::int64_t>(i), want.data[i]);
  }
  expect_same_bytes(what, {got.as<std::byte>(), got.num_bytes()}, bytes, unit,
                    static_cast<std::size_t>(want.cols));
}

Agreement expect_close(std::string_view what, const TensorView& got,
                       const reference::Table<float>& want, double bound) {
  expect_same_shape(what, got, want);
  Agreement agreement{false, 0, bound};
  for (std::size_t i = 0; i < want.data.size(); ++i) {
    const double x = scalar::load(got.data(), got.dtype(), static_cast<std::int64_t>(i));
    const double y = want.data[i];
    const bool both_nan = std::isnan(x) && std::isnan(y);
    const double error = both_nan || x == y ? 0 : std::abs(x - y) / (1 + std::abs(y));
    // Written so that NaN fails.
    expect(error <= bound, "{}[{}, {}] is {}, expected {} within {} * (1 + |want|)", what,
           static_cast<std::int64_t>(i) / want.cols, static_cast<std::int64_t>(i) % want.cols, x, y,
           bound);
    agreement.max_error = std::max(agreement.max_error, error);
  }
  return agreement;
}

}  // namespace switchyard::conformance
