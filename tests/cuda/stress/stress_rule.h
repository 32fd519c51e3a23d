// SPDX-License-Identifier: Apache-2.0
//
// stress_rule.h: what every byte of a step must be, as pure functions of seed, step, source, token
// and place, for both processors. No code of the exchange is used here.
//
// The elements of a row start with two words that name it: {source, token} and {step}. The words
// after them are hashes. In forms other than kMade one 16-byte unit in eight consists mostly of
// words that the wire reserves, and some rows of nothing else. Results are small integers and
// weights powers of two, so sums are exact in any order.
#pragma once

#include <cstdint>

#include "stress_shape.h"

namespace switchyard::test {

/// Returns choice k of a token. In sixteen steps eight are uniform; the others favor low experts,
/// omit choices, use one expert or one rank for all, no expert, or repeat experts within a token.
SWITCHYARD_HOST_DEVICE constexpr std::int32_t stress_id(const StressShape& s, std::uint32_t step,
                                                        int source, int token, int k) {
  // Coprime to any number of experts: there are few ranks, and num_local is a power of two.
  constexpr std::uint32_t kStrides[8] = {1, 67, 71, 73, 79, 83, 89, 97};
  const std::uint32_t key = step_key(s, step, StressSalt::kIds);
  const auto num_experts = static_cast<std::uint32_t>(s.num_experts());
  const auto num_local = static_cast<std::uint32_t>(s.num_local);
  const auto choice = static_cast<std::uint32_t>(k);
  const std::uint32_t name = token_name(source, token);
  const std::uint32_t h = stress_hash(key, name, 0);
  const std::uint32_t offset = choice * kStrides[h >> 29];
  const std::uint32_t uniform = (h % 0x10000u + offset) % num_experts;
  const bool allows_twice = s.layout != Layout::kBatched;
  const std::uint32_t other = stress_hash(key, name, 1 + choice);
  switch (key % 16) {
    case 8:
    case 9: {
      const std::uint32_t low = (h % num_experts) * (h / 0x10000u % num_experts) / num_experts;
      return static_cast<std::int32_t>((low + choice) % num_experts);
    }
    case 10:
      if (choice > 0 && !allows_twice) return -1;
      return static_cast<std::int32_t>(key / 16 % num_experts);
    case 11: return -1;
    case 12: {
      const std::uint32_t rank = key / 16 % static_cast<std::uint32_t>(s.num_ranks);
      if (choice >= num_local) return -1;
      return static_cast<std::int32_t>(rank * num_local + (h % 0x10000u + offset) % num_local);
    }
    case 13: return static_cast<std::int32_t>(allows_twice ? other % num_experts : uniform);
    case 14:
    case 15: return other % 8 < 3 ? -1 : static_cast<std::int32_t>(uniform);
    default: return static_cast<std::int32_t>(uniform);
  }
}

/// Returns 1, 2, -1 or -2.
SWITCHYARD_HOST_DEVICE constexpr float stress_weight(const StressShape& s, std::uint32_t step,
                                                     int source, int token, int k) {
  const std::uint32_t h = stress_hash(step_key(s, step, StressSalt::kWeights),
                                      token_name(source, token), static_cast<std::uint32_t>(k));
  const float size = (h & 1) != 0 ? 2.0f : 1.0f;
  return (h & 2) != 0 ? -size : size;
}

/// Whose ids count in a step: those of an earlier one where the step dispatches again. `slot` says
/// how many tokens ranks have.
struct StressRouting {
  std::uint32_t step = 0;
  std::uint32_t slot = 0;
};

/// Returns choice k of a token, or -1 if its expert drops it: an expert accepts the `capacity`
/// choices of the largest weights, of equal ones the first.
SWITCHYARD_HOST_DEVICE constexpr std::int32_t stress_kept_id(const StressShape& s,
                                                             const StressRouting& routing,
                                                             int source, int token, int k) {
  const std::uint32_t step = routing.step;
  const std::int32_t id = stress_id(s, step, source, token, k);
  if (s.capacity == 0 || id < 0) return id;
  const float weight = stress_weight(s, step, source, token, k);
  std::int32_t num_ahead = 0;
  bool is_before = true;
  for (int rank = 0; rank < s.num_ranks; ++rank) {
    const auto num_tokens = static_cast<int>(stress_tokens(s, routing.slot, rank));
    for (int t = 0; t < num_tokens; ++t) {
      for (int other = 0; other < s.num_topk; ++other) {
        if (rank == source && t == token && other == k) {
          is_before = false;
          continue;
        }
        if (stress_id(s, step, rank, t, other) != id) continue;
        const float theirs = stress_weight(s, step, rank, t, other);
        if (theirs > weight || (theirs == weight && is_before)) ++num_ahead;
      }
    }
  }
  return num_ahead < s.capacity ? id : -1;
}

/// Returns choice k as token-major rows report it: kCompact knows local experts only.
SWITCHYARD_HOST_DEVICE constexpr std::int32_t stress_row_id(const StressShape& s,
                                                            const StressRouting& routing,
                                                            int source, int token, int k) {
  const std::int32_t id = stress_kept_id(s, routing, source, token, k);
  if (s.layout != Layout::kCompact) return id;
  const std::int32_t local = id - s.rank * s.num_local;
  return id >= 0 && local >= 0 && local < s.num_local ? local : -1;
}

/// Returns one of the two words that the wire reserves, or `other` in one case of four.
SWITCHYARD_HOST_DEVICE constexpr std::uint32_t reserved_or(std::uint32_t which,
                                                           std::uint32_t other) {
  if (which % 4 == 0) return other;
  return which % 4 == 1 ? 0xFFFFFFFEu : 0xFFFFFFFFu;
}

/// Returns element h in form kMade, an integer from -15 to 15. The last element of each block is
/// 448, which makes the block's scale 1. The first 16 elements encode the row's two words, four
/// bits each.
SWITCHYARD_HOST_DEVICE constexpr std::int32_t made_element(std::uint32_t key, std::uint32_t name,
                                                           std::uint32_t step, std::uint32_t h) {
  if (h % kMadeBlock == kMadeBlock - 1) return 448;
  if (h < 16) {
    const std::uint32_t word = h < 8 ? name : step;
    return static_cast<std::int32_t>(word >> (4 * (h % 8)) & 15u);
  }
  const std::uint32_t bits = stress_hash(key, name, h / 4) >> (8 * (h % 4));
  const auto size = static_cast<std::int32_t>(bits & 15u);
  return (bits & 16u) != 0 ? -size : size;
}

SWITCHYARD_HOST_DEVICE constexpr std::uint32_t bf16_of_whole(std::int32_t x) {
  if (x == 0) return 0;
  const std::uint32_t sign = x < 0 ? 0x8000u : 0u;
  auto size = static_cast<std::uint32_t>(x < 0 ? -x : x);
  std::uint32_t exponent = 127 + 7;
  while (size < 128) size *= 2, --exponent;
  while (size >= 256) size /= 2, ++exponent;  // 448 loses no bits here
  return sign | exponent << 7 | (size & 127u);
}

SWITCHYARD_HOST_DEVICE constexpr std::uint32_t e4m3_of_whole(std::int32_t x) {
  if (x == 0) return 0;
  const std::uint32_t sign = x < 0 ? 0x80u : 0u;
  auto size = static_cast<std::uint32_t>(x < 0 ? -x : x);
  std::uint32_t exponent = 7 + 3;
  while (size < 8) size *= 2, --exponent;
  while (size >= 16) size /= 2, ++exponent;
  return sign | exponent << 3 | (size & 7u);
}

/// Returns word w of a token as dispatch receives it or, if `arrives`, as it arrives.
SWITCHYARD_HOST_DEVICE constexpr std::uint32_t stress_word(const StressShape& s, std::uint32_t key,
                                                           std::uint32_t step, int source,
                                                           int token, std::uint32_t w,
                                                           bool arrives) {
  const std::uint32_t name = token_name(source, token);
  if (s.form == StressForm::kMade) {
    std::uint32_t word = 0;
    const std::uint32_t per_word = arrives ? 4 : 2;
    for (std::uint32_t i = 0; i < per_word; ++i) {
      const std::int32_t x = made_element(key, name, step, per_word * w + i);
      word |= arrives ? e4m3_of_whole(x) << (8 * i) : bf16_of_whole(x) << (16 * i);
    }
    return word;
  }
  if (w < 2) return w == 0 ? name : step;
  const std::uint32_t own = stress_hash(key, name, w);
  const std::uint32_t unit = stress_hash(key + 1, name, w / 4);
  if (unit % 8 == 0) return reserved_or(unit >> (8 + 2 * (w % 4)), own);
  return stress_hash(key + 2, name, 0) % 16 == 0 ? 0xFFFFFFFFu : own;
}

/// Returns the bits of a scale.
SWITCHYARD_HOST_DEVICE constexpr std::uint32_t stress_scale(const StressShape& s,
                                                            std::uint32_t step, int source,
                                                            int token, int index) {
  if (s.form == StressForm::kMade) return 0x3F800000u;
  const std::uint32_t key = step_key(s, step, StressSalt::kScales);
  const std::uint32_t h =
      stress_hash(key, token_name(source, token), static_cast<std::uint32_t>(index));
  if (s.form == StressForm::kStoredFp4) {
    const std::uint32_t unit =
        stress_hash(key + 1, token_name(source, token), static_cast<std::uint32_t>(index) / 16);
    return unit % 4 == 0 ? 0xFFu : h & 0xFFu;
  }
  return h % 4 == 0 ? reserved_or(h >> 2, h) : h;
}

SWITCHYARD_HOST_DEVICE constexpr std::uint32_t stress_payload(const StressShape& s,
                                                              std::uint32_t step, int source,
                                                              int token, std::uint32_t w) {
  const std::uint32_t h =
      stress_hash(step_key(s, step, StressSalt::kPayload), token_name(source, token), w);
  return h % 4 == 0 ? reserved_or(h >> 2, h) : h;
}

/// Returns the bits of the weight that the rank of choice k returns.
SWITCHYARD_HOST_DEVICE constexpr std::uint32_t stress_returned(const StressShape& s,
                                                               std::uint32_t step, int source,
                                                               int token, int k) {
  const std::uint32_t h = stress_hash(step_key(s, step, StressSalt::kReturned),
                                      token_name(source, token), static_cast<std::uint32_t>(k));
  return 0x3F800000u | (h & 0x7FFFFFu);  // from 1 to 2
}

/// Returns element h of the result of choice k or, in token-major layouts, of the row at rank k.
/// The four bytes of a hash are four elements, from -16 to 15.
SWITCHYARD_HOST_DEVICE constexpr std::int32_t result_of(std::uint32_t four, std::uint32_t h) {
  return static_cast<std::int32_t>(four >> (8 * (h % 4)) & 31u) - 16;
}

SWITCHYARD_HOST_DEVICE constexpr std::uint32_t four_results(std::uint32_t key, int source,
                                                            int token, int k, std::uint32_t four) {
  return stress_hash(key, token_name(source, token), static_cast<std::uint32_t>(k) << 24 | four);
}

}  // namespace switchyard::test
