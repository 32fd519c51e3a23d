// SPDX-License-Identifier: Apache-2.0
//
// The quantizers, byte for byte: codes, scales in every layout with their padding, and the way
// back; odd sizes, partial blocks, NaN, infinities and magnitudes of all sizes.

#include <array>
#include <cmath>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"

#include "conformance/arena.h"
#include "conformance/check_case.h"
#include "conformance/exchange_values.h"
#include "conformance/pairwise.h"
#include "conformance/scheme_list.h"
#include "core/random.h"
#include "quant/scalar.h"

namespace switchyard::conformance {
namespace {

using reference::Table;

struct QuantizeCase {
  QuantScheme scheme;
  DType dtype = DType::kBF16;
  std::int64_t num_rows = 0;
  std::int64_t hidden = 0;
  ScaleLayout layout = ScaleLayout::kRowMajor;
  bool has_specials = false;
  bool is_static = false;  ///< the scale of the tensor is given
};

// Magnitudes of 2^-36 to 2^36 that change from block to block; zeros, and now and then no number.
float element(std::uint64_t seed, std::uint64_t i, bool has_specials) {
  const auto normal = static_cast<float>(random_normal(seed, i));
  const std::uint64_t kind = random_bits(seed + 1, i) % 401;
  if (has_specials && kind == 0) return std::nanf("");
  if (has_specials && kind == 1) return -INFINITY;
  if (kind < 20) return kind % 2 == 0 ? 0.0f : -0.0f;
  return normal * std::ldexp(1.0f, static_cast<int>(i / 48 % 9) * (kind < 200 ? 1 : 3) - 12);
}

// What stored scales must be in memory of this layout, padding 0.
Bytes laid_out(const QuantizeCase& test, const Bytes& in_rows, std::int64_t num) {
  const auto unit = static_cast<std::size_t>(bits_of(scale_dtype(test.scheme)) / 8);
  Bytes memory(static_cast<std::size_t>(num_scale_elements(test.layout, test.num_rows, num)) *
               unit);
  for (std::int64_t row = 0; row < test.num_rows; ++row) {
    for (std::int64_t s = 0; s < num; ++s) {
      const auto to =
          static_cast<std::size_t>(scale_index(test.layout, test.num_rows, num, row, s));
      const auto from = static_cast<std::size_t>(row * num + s);
      std::memcpy(memory.data() + to * unit, in_rows.data() + from * unit, unit);
    }
  }
  return memory;
}

std::span<const std::byte> bytes_of(const TensorView& tensor) {
  return {tensor.as<std::byte>(), tensor.num_bytes()};
}

// Quantizes into the layout; tiles are made from rows, as after an exchange.
void quantize_into(Arena& arena, const QuantizeCase& test, const Tensor& x, const Tensor& q,
                   const OwnedScales& scales, const TensorView& given) {
  if (test.layout != ScaleLayout::kSwizzled) {
    quantize(arena.in(x), test.scheme, arena.out(q), arena.out(scales.view), arena.stream(),
             arena.in(given));
    return arena.finish();
  }
  const Tensor rows(scale_dtype(test.scheme),
                    {test.num_rows, num_scales(test.scheme, test.hidden)});
  quantize(arena.in(x), test.scheme, arena.out(q), arena.out(rows), arena.stream(),
           arena.in(given));
  arena.finish();
  relayout_scales(rows, scales.view);
}

Agreement check(Arena& arena, const QuantizeCase& test, std::uint64_t seed) {
  const QuantScheme& scheme = test.scheme;
  const bool is_tensor = scheme.group == ScaleGroup::kTensor;
  const float given = scheme.needs_tensor_scale() ? 448.0f * 6.0f / 4.5f : 0.0371f;
  const bool has_given = test.is_static || scheme.needs_tensor_scale();
  const TensorView given_view = has_given ? TensorView::of(&given, {1}) : TensorView{};
  Tensor x(test.dtype, {test.num_rows, test.hidden});
  Table<float> values(test.num_rows, test.hidden);
  for (std::size_t i = 0; i < values.data.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    scalar::store(x.data(), test.dtype, at, element(seed, i, test.has_specials));
    values.data[i] = scalar::load(x.data(), test.dtype, at);
  }
  const std::int64_t num = is_tensor ? 1 : num_scales(scheme, test.hidden);
  const Tensor q(stored_dtype(scheme, test.dtype), {test.num_rows, test.hidden});
  const OwnedScales scales =
      is_tensor ? make_scales(DType::kF32, ScaleLayout::kRowMajor, 1, 1)
                : make_scales(scale_dtype(scheme), test.layout, test.num_rows, num);
  quantize_into(arena, test, x, q, scales, given_view);

  const reference::QuantizedRows want =
      reference::quantize(scheme, values, has_given ? std::optional<float>(given) : std::nullopt);
  const Bytes back = encode(test.dtype, rounded(test.dtype, reference::dequantize(scheme, want)));
  const auto unit = static_cast<std::size_t>(bits_of(test.dtype) / 8);
  const auto columns = static_cast<std::size_t>(test.hidden);
  const Tensor y(test.dtype, {test.num_rows, test.hidden});
  if (scheme.is_simulated()) {
    expect_same_bytes("elements", bytes_of(q), back, unit, columns);
    return {};
  }
  expect_same_bytes("elements", bytes_of(q), stored_bytes(scheme, want), 1,
                    element_row_bytes(scheme, test.hidden));
  const Table<std::uint8_t> stored = reference::stored_scales(scheme, want);
  const Bytes in_rows(reinterpret_cast<const std::byte*>(stored.data.data()),
                      reinterpret_cast<const std::byte*>(stored.data.data()) + stored.data.size());
  expect_same_bytes("scales", bytes_of(scales.memory),
                    is_tensor ? in_rows : laid_out(test, in_rows, num), 1, 1);
  Tensor rows;
  if (test.layout == ScaleLayout::kSwizzled) {
    rows = unswizzle_scales(scales.view, test.num_rows, num);
  }
  dequantize(arena.in(q), arena.in(rows.view().has_value() ? rows.view() : scales.view), scheme,
             arena.out(y), arena.stream(), arena.in(given_view));
  arena.finish();
  expect_same_bytes("dequantized", bytes_of(y), back, unit, columns);
  return {};
}

void add(Cases& cases, const std::string& device, const QuantizeCase& test, bool is_quick) {
  const std::string scheme = name_of(test.scheme);
  CheckCase result;
  result.group = "quantize";
  result.name = fmt::format("quantize/{}{}/{}/T{}xH{}/{}{}{}", name_part(device), scheme,
                            name_of(test.dtype), test.num_rows, test.hidden, name_of(test.layout),
                            test.is_static ? "/static" : "", test.has_specials ? "/specials" : "");
  result.row = scheme;
  result.column = column_part(device) + name_of(test.dtype);
  result.device = device;
  result.is_quick = is_quick;
  result.body = [test, device](const Group&, std::uint64_t seed) {
    Arena arena(device_of(device), kCaseBytes);
    return check(arena, test, seed);
  };
  cases.push_back(std::move(result));
}

constexpr std::array kDTypes{DType::kBF16, DType::kF16, DType::kF32};
constexpr std::array<std::int64_t, 12> kHidden{0, 1, 2, 15, 16, 30, 34, 128, 131, 258, 1026, 2048};
constexpr std::array<std::int64_t, 6> kRows{0, 1, 3, 31, 129, 200};

}  // namespace

void add_quantize_cases(Cases& cases) {
  const std::vector<QuantScheme> schemes = quantized_schemes();
  enum Factor : std::size_t { kScheme, kType, kH, kT, kLayout, kSpecials, kStatic };
  const MakePossible make_possible = [&](Levels& levels) {
    const QuantScheme& scheme = schemes[levels[kScheme]];
    if (scheme.dtype == DType::kE2M1 && kHidden[levels[kH]] % 2 != 0) --levels[kH];
    if (scheme.group != ScaleGroup::kTensor) levels[kStatic] = 0;
    levels[kLayout] %= layouts_of(scheme).size();
  };
  const Levels num_levels{schemes.size(), kDTypes.size(), kHidden.size(), kRows.size(), 4, 2, 2};
  for (const Levels& levels : cover_pairs(num_levels, make_possible)) {
    const QuantScheme& scheme = schemes[levels[kScheme]];
    for (const char* device : kDevices)
      add(cases, device,
          {scheme, kDTypes[levels[kType]], kRows[levels[kT]], kHidden[levels[kH]],
           layouts_of(scheme)[levels[kLayout]], levels[kSpecials] == 1, levels[kStatic] == 1},
          true);
  }
  for (const QuantScheme& scheme : schemes) {
    for (const char* device : kDevices)
      add(cases, device, {scheme, DType::kBF16, 64, 7168, layouts_of(scheme).back(), false, false},
          false);
  }
}

}  // namespace switchyard::conformance
