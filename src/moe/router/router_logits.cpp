// SPDX-License-Identifier: Apache-2.0
//
// router_logits.cpp: hidden x gate^T, where every logit is one fma chain, h ascending. A chain is
// serial, so vector lanes hold experts: the gate is repacked, one slice of h at a time, into
// h-major blocks of 32 experts, and tiles of 4 tokens run over a block while it is in L1. Between
// slices the sums are stored in `logits`, which is exact. Cost: T x E x H fma and one repack of the
// gate.

#include "moe/router/router_logits.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "moe/router/router_logits.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace switchyard::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::int64_t kBlockExperts = 32;

// Continues the chains of 4 tokens and two vectors of experts. These are named variables, because
// vectors of unknown length (SVE, RVV) cannot be array elements.
template <class D>
[[maybe_unused]] HWY_INLINE void run_columns(D d, const float* HWY_RESTRICT x, std::int64_t depth,
                                             const float* HWY_RESTRICT gate,
                                             float* HWY_RESTRICT sums) {
  const std::size_t lanes = hn::Lanes(d);
  auto low0 = hn::LoadU(d, sums);
  auto low1 = hn::LoadU(d, sums + kBlockExperts);
  auto low2 = hn::LoadU(d, sums + 2 * kBlockExperts);
  auto low3 = hn::LoadU(d, sums + 3 * kBlockExperts);
  auto high0 = hn::LoadU(d, sums + lanes);
  auto high1 = hn::LoadU(d, sums + kBlockExperts + lanes);
  auto high2 = hn::LoadU(d, sums + 2 * kBlockExperts + lanes);
  auto high3 = hn::LoadU(d, sums + 3 * kBlockExperts + lanes);
  for (std::int64_t h = 0; h < depth; ++h) {
    const auto gate_low = hn::LoadU(d, gate + h * kBlockExperts);
    const auto gate_high = hn::LoadU(d, gate + h * kBlockExperts + lanes);
    const auto x0 = hn::Set(d, x[h]);
    const auto x1 = hn::Set(d, x[depth + h]);
    const auto x2 = hn::Set(d, x[2 * depth + h]);
    const auto x3 = hn::Set(d, x[3 * depth + h]);
    low0 = hn::MulAdd(x0, gate_low, low0);
    low1 = hn::MulAdd(x1, gate_low, low1);
    low2 = hn::MulAdd(x2, gate_low, low2);
    low3 = hn::MulAdd(x3, gate_low, low3);
    high0 = hn::MulAdd(x0, gate_high, high0);
    high1 = hn::MulAdd(x1, gate_high, high1);
    high2 = hn::MulAdd(x2, gate_high, high2);
    high3 = hn::MulAdd(x3, gate_high, high3);
  }
  hn::StoreU(low0, d, sums);
  hn::StoreU(low1, d, sums + kBlockExperts);
  hn::StoreU(low2, d, sums + 2 * kBlockExperts);
  hn::StoreU(low3, d, sums + 3 * kBlockExperts);
  hn::StoreU(high0, d, sums + lanes);
  hn::StoreU(high1, d, sums + kBlockExperts + lanes);
  hn::StoreU(high2, d, sums + 2 * kBlockExperts + lanes);
  hn::StoreU(high3, d, sums + 3 * kBlockExperts + lanes);
}

// sums[4][32] += x[4][depth] * gate[depth][32]
void router_tile(const float* x, std::int64_t depth, const float* gate, float* sums) {
#if HWY_NATIVE_FMA
  const hn::CappedTag<float, kBlockExperts / 2> d;
  const auto step = 2 * static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t e = 0; e < kBlockExperts; e += step) {
    run_columns(d, x, depth, gate + e, sums + e);
  }
#else
  // Without a native FMA, Highway's MulAdd rounds twice.
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t h = 0; h < depth; ++h) {
      for (std::int64_t e = 0; e < kBlockExperts; ++e) {
        float& sum = sums[r * kBlockExperts + e];
        sum = std::fma(x[r * depth + h], gate[h * kBlockExperts + e], sum);
      }
    }
  }
#endif
}

}  // namespace switchyard::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <bit>
#include <cstring>

#include "quant/rows.h"

namespace switchyard {
namespace {

HWY_EXPORT(router_tile);

constexpr std::int64_t kBlockExperts = 32;
constexpr std::int64_t kDepth = 128;
constexpr std::int64_t kTileTokens = 4;
constexpr std::int64_t kGroupTokens = 64;

// Elements [h, h + depth) of one row of a [rows, H] view.
void widen(const TensorView& view, std::int64_t row, std::int64_t h, std::int64_t depth, float* y) {
  const std::int64_t offset = row * view.stride(0) + h;
  switch (view.dtype()) {
    case DType::kBF16: return bf16_to_f32(view.as<const std::uint16_t>() + offset, depth, y);
    case DType::kF16: return f16_to_f32(view.as<const std::uint16_t>() + offset, depth, y);
    default:
      std::memcpy(y, view.as<const float>() + offset,
                  static_cast<std::size_t>(depth) * sizeof(float));
  }
}

// Packs one slice of the gate as [blocks][depth][32]; experts past the end are 0.
void pack_gate(const TensorView& gate, std::int64_t h, std::int64_t depth, float* packed) {
  float row[kDepth];
  for (std::int64_t e = 0; e < gate.shape(0); ++e) {
    widen(gate, e, h, depth, row);
    float* block = packed + e / kBlockExperts * kBlockExperts * depth + e % kBlockExperts;
    for (std::int64_t i = 0; i < depth; ++i) block[i * kBlockExperts] = row[i];
  }
}

// Continues the chains of up to 4 tokens and 32 experts. `x` holds 4 rows; results of rows past
// num_tokens are discarded.
void continue_chains(const float* x, std::int64_t num_tokens, std::int64_t depth,
                     const float* packed, std::int64_t num_experts, std::int64_t stride,
                     float* logits) {
  float sums[kTileTokens * kBlockExperts] = {};
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    std::copy_n(logits + t * stride, num_experts, sums + t * kBlockExperts);
  }
  HWY_DYNAMIC_DISPATCH(router_tile)(x, depth, packed, sums);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    std::copy_n(sums + t * kBlockExperts, num_experts, logits + t * stride);
  }
}

// Runs all experts for one group of tokens, `x` [num_tokens, depth].
void run_group(const float* x, std::int64_t num_tokens, std::int64_t depth, const float* packed,
               std::int64_t num_experts, float* logits) {
  for (std::int64_t e = 0; e < num_experts; e += kBlockExperts) {
    for (std::int64_t t = 0; t < num_tokens; t += kTileTokens) {
      continue_chains(x + t * depth, std::min(kTileTokens, num_tokens - t), depth,
                      packed + e * depth, std::min(kBlockExperts, num_experts - e), num_experts,
                      logits + t * num_experts + e);
    }
  }
}

}  // namespace

void compute_router_logits(const TensorView& hidden, const TensorView& gate, float* logits) {
  const std::int64_t num_tokens = hidden.shape(0);
  const std::int64_t num_experts = gate.shape(0);
  const std::int64_t num_blocks = (num_experts + kBlockExperts - 1) / kBlockExperts;
  std::fill_n(logits, num_tokens * num_experts, 0.0f);
  std::vector<float> packed(static_cast<std::size_t>(num_blocks * kBlockExperts * kDepth));
  std::vector<float> x(static_cast<std::size_t>(kGroupTokens * kDepth));
  for (std::int64_t h = 0; h < hidden.shape(1); h += kDepth) {
    const std::int64_t depth = std::min(kDepth, hidden.shape(1) - h);
    pack_gate(gate, h, depth, packed.data());
    for (std::int64_t t = 0; t < num_tokens; t += kGroupTokens) {
      const std::int64_t group = std::min(kGroupTokens, num_tokens - t);
      for (std::int64_t i = 0; i < group; ++i) {
        widen(hidden, t + i, h, depth, x.data() + i * depth);
      }
      run_group(x.data(), group, depth, packed.data(), num_experts, logits + t * num_experts);
    }
  }
  for (std::int64_t i = 0; i < num_tokens * num_experts; ++i) {
    if (std::isnan(logits[i])) logits[i] = std::bit_cast<float>(0x7FC00000u);
  }
}

}  // namespace switchyard
#endif  // HWY_ONCE
