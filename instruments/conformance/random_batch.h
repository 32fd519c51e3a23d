// SPDX-License-Identifier: Apache-2.0
//
// random_batch.h: inputs for the oracle. A token's values depend on the seed and its global number
// only, so one set of tokens can be split over any number of ranks.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "core/random.h"
#include "reference/reference.h"

namespace switchyard::conformance {

struct BatchShape {
  std::int32_t num_experts = 8;
  std::int32_t num_topk = 2;
  std::int64_t hidden = 16;
  double none_share = 0.0;        ///< share of slots without an expert
  bool has_duplicates = false;    ///< lets a token list an expert twice
  std::int32_t only_expert = -1;  ///< every slot names this expert; wants has_duplicates
};

/// [rows, cols] of N(0, 1), rounded to bf16.
inline reference::Table<float> random_table(std::int64_t rows, std::int64_t cols,
                                            std::uint64_t seed, float scale = 1.0f) {
  reference::Table<float> table(rows, cols);
  std::uint64_t counter = 0;
  for (float& value : table.data) {
    const auto x = static_cast<float>(random_normal(seed, counter++)) * scale;
    value = reference::round_to(DType::kBF16, x);
  }
  return table;
}

inline reference::RankInput random_tokens(const BatchShape& shape, std::int64_t num_tokens,
                                          std::uint64_t seed) {
  reference::RankInput input{random_table(num_tokens, shape.hidden, seed),
                             reference::Table<std::int32_t>(num_tokens, shape.num_topk, -1),
                             reference::Table<float>(num_tokens, shape.num_topk)};
  std::uint64_t counter = 0;
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    for (std::int64_t k = 0; k < shape.num_topk; ++k) {
      input.topk_weights(t, k) = static_cast<float>(random_uniform(seed + 1, counter++));
      const bool is_none = random_uniform(seed + 2, counter) < shape.none_share;
      bool is_new = is_none;
      std::int32_t id = -1;
      while (!is_new) {
        id = shape.only_expert >= 0
                 ? shape.only_expert
                 : static_cast<std::int32_t>(random_bits(seed + 3, counter++) %
                                             static_cast<std::uint64_t>(shape.num_experts));
        is_new = true;
        for (std::int64_t other = 0; other < k && !shape.has_duplicates; ++other) {
          is_new = is_new && input.topk_ids(t, other) != id;
        }
      }
      input.topk_ids(t, k) = id;
    }
  }
  return input;
}

/// Rows [begin, end) of a rank's input.
inline reference::RankInput slice(const reference::RankInput& input, std::int64_t begin,
                                  std::int64_t end) {
  const auto cut = [&](const auto& table) {
    auto part = table;
    part.data.assign(table.data.begin() + begin * table.cols,
                     table.data.begin() + end * table.cols);
    part.rows = end - begin;
    return part;
  };
  return {cut(input.tokens), cut(input.topk_ids), cut(input.topk_weights)};
}

/// Where rank r's tokens begin when T tokens are split unevenly over ranks; some get none.
inline std::int64_t split_point(std::int64_t num_tokens, int num_ranks, int rank) {
  if (rank == num_ranks) return num_tokens;
  return num_tokens * rank * rank / (std::int64_t{num_ranks} * num_ranks);
}

/// The tokens of `input` over `num_ranks` ranks, in order.
inline reference::Batch split(const reference::RankInput& input, std::int32_t num_experts,
                              int num_ranks) {
  reference::Batch batch{num_experts, {}};
  for (int rank = 0; rank < num_ranks; ++rank) {
    batch.ranks.push_back(slice(input, split_point(input.num_tokens(), num_ranks, rank),
                                split_point(input.num_tokens(), num_ranks, rank + 1)));
  }
  return batch;
}

/// Bits, so that NaN and signed zeros compare.
inline std::vector<std::uint32_t> bits_of_table(const reference::Table<float>& table) {
  std::vector<std::uint32_t> bits;
  for (const float value : table.data) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

}  // namespace switchyard::conformance
