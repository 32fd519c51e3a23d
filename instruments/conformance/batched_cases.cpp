// SPDX-License-Identifier: Apache-2.0
//
// Rows by expert with a count of each, quantized and back, and the gated activation between two
// GEMMs, byte for byte: every scheme, input dtype and scale layout, counts from none to all, rows
// beyond a count poisoned.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "switchyard/quantize_batched.h"
#include "switchyard/scale_layout.h"

#include "conformance/arena.h"
#include "conformance/check_case.h"
#include "conformance/exchange_values.h"
#include "conformance/pairwise.h"
#include "conformance/scheme_list.h"
#include "core/random.h"
#include "quant/exp.h"
#include "quant/scalar.h"

namespace switchyard::conformance {
namespace {

using reference::QuantizedRows;
using reference::Table;

enum class Form : std::uint8_t { kBatched, kSilu, kSiluBatched, kFused, kFusedBatched };
constexpr std::array<const char*, 5> kFormNames{"quantize_batched", "silu_mul", "silu_mul_batched",
                                                "silu_mul_fused", "silu_mul_fused_batched"};

struct BatchedCase {
  Form form = Form::kBatched;
  QuantScheme scheme;
  DType dtype = DType::kBF16;
  std::int64_t num_experts = 1;
  std::int64_t capacity = 0;
  std::int64_t hidden = 0;  ///< of a quantized row
  ScaleLayout layout = ScaleLayout::kRowMajor;
  bool is_static = false;  ///< the scale of a tensor is given

  bool has_counts() const { return form != Form::kSilu && form != Form::kFused; }
  bool is_activated() const { return form != Form::kBatched; }
  bool is_fused() const { return form == Form::kFused || form == Form::kFusedBatched; }
  bool needs_scale() const { return is_static || scheme.needs_tensor_scale(); }
  bool has_scales() const {
    if (!scheme.is_quantized() || scheme.is_simulated()) return false;
    return scheme.group != ScaleGroup::kTensor || !is_activated();
  }
  std::int64_t num_scales() const {
    return scheme.group == ScaleGroup::kTensor ? 1 : switchyard::num_scales(scheme, hidden);
  }
  std::int64_t scale_rows() const { return scheme.group == ScaleGroup::kTensor ? 1 : capacity; }
};

constexpr float kGiven = 0.0371f;
constexpr float kGivenTwoLevel = 448.0f * 6.0f / 4.5f;

float power_of_two_ceil(float x) {
  int exponent = 0;
  const float fraction = std::frexp(x, &exponent);
  return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

// vLLM's fused kernel by its formula; blocks of e4m3.
QuantizedRows quantize_fused(const QuantScheme& scheme, const Table<float>& y) {
  const std::int64_t block = scheme.block;
  const std::int64_t num = (y.cols + block - 1) / block;
  const bool is_packed = scheme.scale_format == ScaleFormat::kE8M0Packed;
  QuantizedRows rows{Table<std::uint8_t>(y.rows, y.cols), Table<float>(y.rows, num), {}};
  if (is_packed) rows.packed_scales = Table<std::uint32_t>(y.rows, (num + 3) / 4);
  for (std::int64_t r = 0; r < y.rows; ++r) {
    for (std::int64_t b = 0; b < num; ++b) {
      const std::int64_t end = std::min((b + 1) * block, y.cols);
      float amax = 1e-10f;
      for (std::int64_t i = b * block; i < end; ++i) amax = std::fmax(amax, std::fabs(y(r, i)));
      float scale = amax * (1.0f / 448.0f);
      if (is_packed) scale = power_of_two_ceil(scale);
      rows.scales(r, b) = scale;
      if (is_packed) {
        rows.packed_scales(r, b / 4) |= (std::bit_cast<std::uint32_t>(scale) >> 23)
                                        << static_cast<unsigned>(8 * (b % 4));
      }
      for (std::int64_t i = b * block; i < end; ++i) {
        rows.elements(r, i) = reference::e4m3_from_f32(y(r, i) * (1.0f / scale), 0xFE);
      }
    }
  }
  return rows;
}

// One call: inputs, outputs, and what the oracle makes of the first rows of each expert.
class BatchedRun {
 public:
  BatchedRun(const BatchedCase& test, std::uint64_t seed) : test_(test), seed_(seed) {
    make_counts();
    make_input();
    q_ = Tensor(stored_dtype(test.scheme, test.dtype), shape(test.hidden));
    std::memset(q_.data(), 0x5A, q_.view().num_bytes());
    if (!test.is_activated()) y_ = Tensor(test.dtype, shape(test.hidden));
    if (!test.has_scales()) return;
    const DType dtype = scale_dtype(test.scheme);
    scales_ = test.has_counts() ? make_batched_scales(dtype, test.layout, test.num_experts,
                                                      test.scale_rows(), test.num_scales())
                                : make_scales(dtype, test.layout, test.capacity, test.num_scales());
  }

  void call(Arena& arena) const {
    const float& value = test_.scheme.needs_tensor_scale() ? kGivenTwoLevel : kGiven;
    const TensorView given = test_.needs_scale() ? TensorView::of(&value, {1}) : TensorView{};
    const TensorView counts = TensorView::of(counts_.data(), {test_.num_experts});
    const auto rule = test_.is_fused() ? ActivationScale::kFused : ActivationScale::kScheme;
    const TensorView x = arena.in(x_);
    const TensorView num_rows = arena.in(counts);
    const TensorView q = arena.out(q_);
    const TensorView scales = arena.out(scales_.view);
    if (!test_.is_activated()) {
      quantize_batched(x, num_rows, test_.scheme, q, scales, arena.stream(), arena.in(given));
      const bool is_nvfp4 = test_.scheme.needs_tensor_scale();
      dequantize(q, scales, test_.scheme, arena.out(y_), arena.stream(),
                 is_nvfp4 ? arena.in(given) : TensorView{});
    } else if (test_.has_counts()) {
      silu_mul_quantize_batched(x, num_rows, test_.scheme, q, scales, arena.stream(), rule,
                                arena.in(given));
    } else {
      silu_mul_quantize(x, test_.scheme, q, scales, arena.stream(), rule, arena.in(given));
    }
    arena.finish();
  }

  void check() const {
    const std::size_t row_bytes =
        test_.scheme.is_simulated()
            ? static_cast<std::size_t>(test_.hidden * bits_of(test_.dtype) / 8)
            : element_row_bytes(test_.scheme, test_.hidden);
    Bytes want_q(q_.view().num_bytes(), std::byte{0x5A});
    Bytes want_scales(scales_.memory.view().has_value() ? scales_.memory.view().num_bytes() : 0);
    for (std::int64_t e = 0; e < test_.num_experts; ++e) {
      const QuantizedRows rows = quantized(e);
      const Bytes codes =
          test_.scheme.is_simulated()
              ? encode(test_.dtype, rounded(test_.dtype, reference::dequantize(test_.scheme, rows)))
              : stored_bytes(test_.scheme, rows);
      const auto first = static_cast<std::size_t>(e * test_.capacity) * row_bytes;
      std::copy(codes.begin(), codes.end(), want_q.begin() + static_cast<std::ptrdiff_t>(first));
      if (test_.has_scales()) place_scales(e, rows, want_scales);
      if (!test_.is_activated()) check_dequantized(e, rows);
    }
    expect_same_bytes("elements", {q_.as<std::byte>(), q_.view().num_bytes()}, want_q, 1,
                      std::max<std::size_t>(1, row_bytes));
    if (!test_.has_scales()) return;
    expect_same_bytes("scales", {scales_.memory.as<std::byte>(), want_scales.size()}, want_scales,
                      1, 1);
  }

 private:
  // The first rows of an expert; the others have no scales.
  void check_dequantized(std::int64_t expert, const QuantizedRows& rows) const {
    const Bytes want =
        encode(test_.dtype, rounded(test_.dtype, reference::dequantize(test_.scheme, rows)));
    const std::int64_t row_bytes = test_.hidden * bits_of(test_.dtype) / 8;
    expect_same_bytes("dequantized elements",
                      {y_.as<std::byte>() + expert * test_.capacity * row_bytes, want.size()}, want,
                      1, static_cast<std::size_t>(std::max<std::int64_t>(1, row_bytes)));
  }

  std::vector<std::int64_t> shape(std::int64_t columns) const {
    if (!test_.has_counts()) return {test_.capacity, columns};
    return {test_.num_experts, test_.capacity, columns};
  }

  void make_counts() {
    for (std::int64_t e = 0; e < test_.num_experts; ++e) {
      const auto bits = random_bits(seed_ + 7, static_cast<std::uint64_t>(e));
      const auto most = static_cast<std::uint64_t>(test_.capacity);
      const std::uint64_t count = bits % 3 == 0 ? most : (bits >> 8) % (most + 1);
      counts_.push_back(static_cast<std::int32_t>(test_.has_counts() ? count : most));
    }
  }

  // Rows beyond the count are infinite: whoever reads them shows it in a scale.
  void make_input() {
    const std::int64_t width = test_.is_activated() ? 2 * test_.hidden : test_.hidden;
    x_ = Tensor(test_.dtype, shape(width));
    values_ = Table<float>(test_.num_experts * test_.capacity, width);
    for (std::int64_t row = 0; row < values_.rows; ++row) {
      const std::int64_t count = counts_[static_cast<std::size_t>(row / test_.capacity)];
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t at = row * width + i;
        auto x = static_cast<float>(random_normal(seed_, static_cast<std::uint64_t>(at)));
        x = std::ldexp(x, static_cast<int>(i / 48 % 5) - 2);
        if (row % test_.capacity >= count) x = std::numeric_limits<float>::infinity();
        scalar::store(x_.data(), test_.dtype, at, x);
        values_(row, i) = scalar::load(x_.data(), test_.dtype, at);
      }
    }
  }

  // The rows of an expert as they are quantized.
  Table<float> rows_of(std::int64_t expert) const {
    Table<float> rows(counts_[static_cast<std::size_t>(expert)], test_.hidden);
    for (std::int64_t n = 0; n < rows.rows; ++n) {
      const auto row = values_.row(expert * test_.capacity + n);
      for (std::int64_t i = 0; i < test_.hidden; ++i) {
        const float x = row[static_cast<std::size_t>(i)];
        const float up = test_.is_activated() ? row[static_cast<std::size_t>(test_.hidden + i)] : 0;
        rows(n, i) = test_.is_activated() ? silu_mul(x, up) : x;
      }
    }
    return rows;
  }

  QuantizedRows quantized(std::int64_t expert) const {
    const Table<float> rows = rows_of(expert);
    if (test_.is_fused()) return quantize_fused(test_.scheme, rows);
    const float value = test_.scheme.needs_tensor_scale() ? kGivenTwoLevel : kGiven;
    return reference::quantize(test_.scheme, rows,
                               test_.needs_scale() ? std::optional(value) : std::nullopt);
  }

  void place_scales(std::int64_t expert, const QuantizedRows& rows, Bytes& memory) const {
    const auto unit = static_cast<std::size_t>(bits_of(scale_dtype(test_.scheme)) / 8);
    const std::int64_t num = test_.num_scales();
    const std::int64_t count = counts_[static_cast<std::size_t>(expert)];
    if (test_.scheme.group == ScaleGroup::kTensor) {
      if (count == 0) return;
      const float scale = rows.scales(0, 0);
      std::memcpy(memory.data() + static_cast<std::size_t>(expert) * unit, &scale, unit);
      return;
    }
    const Bytes stored = scale_bytes(test_.scheme, rows);
    for (std::int64_t n = 0; n < count; ++n) {
      for (std::int64_t s = 0; s < num; ++s) {
        const std::int64_t to =
            scale_index(test_.layout, test_.capacity, num, expert * test_.capacity + n, s);
        std::memcpy(memory.data() + static_cast<std::size_t>(to) * unit,
                    stored.data() + static_cast<std::size_t>(n * num + s) * unit, unit);
      }
    }
  }

  const BatchedCase& test_;
  std::uint64_t seed_;
  std::vector<std::int32_t> counts_;
  Tensor x_;
  Table<float> values_;
  Tensor q_;
  Tensor y_;  ///< from q_
  OwnedScales scales_;
};

void add(Cases& cases, const std::string& device, const BatchedCase& test) {
  const std::string scheme = name_of(test.scheme);
  const char* form = kFormNames[static_cast<std::size_t>(test.form)];
  CheckCase result;
  result.group = "batched";
  result.name = fmt::format("batched/{}{}/{}/{}/L{}xC{}xH{}/{}{}", name_part(device), form, scheme,
                            switchyard::name_of(test.dtype), test.num_experts, test.capacity,
                            test.hidden, name_of(test.layout), test.is_static ? "/static" : "");
  result.row = scheme;
  result.column = column_part(device) + form;
  result.device = device;
  result.body = [test, device](const Group&, std::uint64_t seed) {
    const BatchedRun run(test, seed * 1000);
    Arena arena(device_of(device), kCaseBytes);
    run.call(arena);
    run.check();
    return Agreement{};
  };
  cases.push_back(std::move(result));
}

constexpr std::array kDTypes{DType::kBF16, DType::kF16, DType::kF32};
constexpr std::array<std::int64_t, 11> kHidden{0, 1, 2, 7, 16, 34, 128, 258, 640, 1154, 2048};
constexpr std::array<std::int64_t, 4> kCapacities{1, 5, 33, 130};
constexpr std::array<std::int64_t, 3> kExperts{1, 3, 8};

enum Factor : std::size_t { kForm, kScheme, kType, kH, kC, kL, kLayout, kStatic };

void make_possible(const std::vector<QuantScheme>& schemes, Levels& levels) {
  const auto form = static_cast<Form>(levels[kForm]);
  const bool is_fused = form == Form::kFused || form == Form::kFusedBatched;
  const auto at = [&](const QuantScheme& scheme) {
    return static_cast<std::size_t>(std::ranges::find(schemes, scheme) - schemes.begin());
  };
  if (is_fused)
    levels[kScheme] = at(levels[kScheme] % 2 == 0 ? schemes::kFp8Block : schemes::kFp8Ue8m0);
  const bool is_activated = form != Form::kBatched;
  // Between GEMMs nothing is simulated.
  if (is_activated && schemes[levels[kScheme]].is_simulated())
    levels[kScheme] = at(schemes::kMxfp8);
  const QuantScheme& scheme = schemes[levels[kScheme]];
  const bool is_tensor = scheme.group == ScaleGroup::kTensor;
  if (scheme.dtype == DType::kE2M1 && kHidden[levels[kH]] % 2 != 0) --levels[kH];
  levels[kStatic] = !is_tensor ? 0 : is_activated ? 1 : levels[kStatic];
  if (form == Form::kSilu || form == Form::kFused) levels[kL] = 0;
  levels[kLayout] %= layouts_of(scheme).size();
}

}  // namespace

void add_batched_cases(Cases& cases) {
  const std::vector<QuantScheme> schemes = quantized_schemes();
  const Levels num_levels{kFormNames.size(),
                          schemes.size(),
                          kDTypes.size(),
                          kHidden.size(),
                          kCapacities.size(),
                          kExperts.size(),
                          4,
                          2};
  const auto possible = [&](Levels& levels) { make_possible(schemes, levels); };
  for (const char* device : kDevices) {
    for (const Levels& l : cover_pairs(num_levels, possible)) {
      const QuantScheme& scheme = schemes[l[kScheme]];
      add(cases, device,
          {static_cast<Form>(l[kForm]), scheme, kDTypes[l[kType]], kExperts[l[kL]],
           kCapacities[l[kC]], kHidden[l[kH]], layouts_of(scheme)[l[kLayout]], l[kStatic] == 1});
    }
  }
}

}  // namespace switchyard::conformance
