// SPDX-License-Identifier: Apache-2.0
//
// exchange_case.h: one configuration of an exchange between GPUs, and the inputs of its calls.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/exchange.h"

#include "core/random.h"
#include "quant/bf16.h"
#include "quant/f16.h"

namespace switchyard::test {

struct Case {
  std::string name;
  int num_ranks = 2;
  ExchangeConfig config;
  std::vector<std::int64_t> num_tokens;  ///< per rank, repeated if shorter
  double none_share = 0.0;
  bool all_ones = false;  ///< tokens and results contain many words that the wire reserves
  bool splits_phases = false;
  int num_calls = 3;
  bool adds_shared = false;
  bool returns_weights = false;  ///< every combine returns weights of rows
  bool goes_again = false;       ///< after each call also: dispatch_again, reopen, and routing only
  bool ids_are_i32 = false;      ///< type of the ids on the GPU
  DType token_dtype = DType::kBF16;
  bool gives_codes = false;           ///< tokens are quantized before they are dispatched
  DType result_dtype = DType::kBF16;  ///< of the experts' rows, and of every other call's output
  int in_place = 0;  ///< results lie in combine_input: 1 on every rank, 2 on odd ranks and calls
  bool pads_output = false;        ///< the output has a row stride
  bool has_tiny = false;           ///< zeros, denormals, and weights that make them vanish
  bool tiny_tokens = false;        ///< of every other call
  int num_ctas = 0;                ///< ExchangeOptions::num_ctas
  std::int64_t host_capacity = 0;  ///< ExchangeOptions
  bool exact_messages = false;     ///< ExchangeOptions
};

inline void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Fills with values from many binades, some of them special, or with words that the wire reserves.
inline void fill(void* to, DType dtype, std::int64_t count, std::uint64_t seed, bool all_ones,
                 bool has_tiny = false) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto n = static_cast<std::uint64_t>(i);
    const auto x = static_cast<float>(random_normal(seed, n) * (1 << random_bits(seed + 1, n) % 7));
    std::uint32_t bits = bits_from_f32(x);
    if (all_ones && random_bits(seed + 2, n / 3) % 3 == 0) {
      bits = random_bits(seed + 3, n) % 4 == 0 ? 0xFFFEFFFEu : 0xFFFFFFFFu;
    }
    if (has_tiny && random_bits(seed + 8, n) % 2 == 0) {
      const std::uint64_t random = random_bits(seed + 9, n);
      const std::uint32_t sign = random % 2 == 0 ? 0 : kF32SignBit;
      bits = sign | (random % 3 == 0 ? 0 : 1 + static_cast<std::uint32_t>(random >> 8 & 3)) << 16;
      if (dtype == DType::kF32) bits = sign | (bits & ~kF32SignBit) >> 16;
    }
    if (dtype == DType::kF32) {
      static_cast<std::uint32_t*>(to)[i] = bits;
    } else if (all_ones && bits >= 0xFFFE0000u) {
      static_cast<std::uint16_t*>(to)[i] = static_cast<std::uint16_t>(bits >> 16 | (bits & 1));
    } else {
      // Tiny ones are bit patterns, which are tiny in either type.
      const bool is_tiny = (bits & ~kF32SignBit) >> 16 <= 4;
      static_cast<std::uint16_t*>(to)[i] = dtype == DType::kF16 && !is_tiny
                                               ? f16_from_f32(f32_from_bits(bits))
                                               : static_cast<std::uint16_t>(bits >> 16);
    }
  }
}

/// What a rank gives to a call, on the host.
struct Input {
  std::int64_t num_tokens = 0;
  Tensor tokens;   ///< [T, H]
  Tensor ids;      ///< [T, K] i64
  Tensor weights;  ///< [T, K]
};

// `salt` changes tokens and weights, but not the number of tokens or their ids.
inline Input make_input(const Case& c, int rank, int call, int salt = 0) {
  const ExchangeConfig& config = c.config;
  const std::int64_t topk = config.num_topk;
  const auto seed = static_cast<std::uint64_t>(1000 * call + 10 * rank);
  Input in;
  in.num_tokens = c.num_tokens[static_cast<std::size_t>(rank + call) % c.num_tokens.size()];
  in.tokens = Tensor(c.token_dtype, {in.num_tokens, config.hidden});
  in.ids = Tensor(DType::kI64, {in.num_tokens, topk});
  in.weights = Tensor(DType::kF32, {in.num_tokens, topk});
  const std::uint64_t salted = seed + static_cast<std::uint64_t>(100'000 * salt);
  fill(in.tokens.data(), c.token_dtype, in.num_tokens * config.hidden, salted, c.all_ones,
       c.tiny_tokens && call % 2 == 1);
  for (std::int64_t t = 0; t < in.num_tokens; ++t) {
    std::vector<bool> used(static_cast<std::size_t>(config.num_experts));
    for (std::int64_t k = 0; k < topk; ++k) {
      const auto at = static_cast<std::uint64_t>(t * topk + k);
      auto id = static_cast<std::int64_t>(random_bits(seed + 4, at) %
                                          static_cast<std::uint64_t>(config.num_experts));
      if (random_uniform(seed + 5, at) < c.none_share) id = -1;
      const bool wants_distinct = config.layout == Layout::kBatched;
      while (id >= 0 && wants_distinct && used[static_cast<std::size_t>(id)]) {
        id = (id + 1) % config.num_experts;
      }
      if (id >= 0) used[static_cast<std::size_t>(id)] = true;
      in.ids.as<std::int64_t>()[at] = id;
      const double weight = random_uniform(salted + 6, at);
      in.weights.as<float>()[at] = static_cast<float>(c.has_tiny ? weight * 0x1p-24 : weight);
    }
  }
  return in;
}

inline void expect_rows_equal(const Case& c, const std::vector<RowOrigin>& origins,
                              std::size_t row_bytes, const void* want,
                              std::span<const std::byte> got, const char* what) {
  for (const RowOrigin& origin : origins) {
    const auto at = static_cast<std::size_t>(origin.row) * row_bytes;
    ASSERT_LE(at + row_bytes, got.size()) << c.name << " " << what;
    const auto* want_row = static_cast<const std::byte*>(want) + at;
    if (std::memcmp(want_row, got.data() + at, row_bytes) == 0) continue;
    std::size_t b = 0;
    while (want_row[b] == got[at + b]) ++b;
    FAIL() << c.name << ": " << what << " of row " << origin.row << " (rank " << origin.rank
           << ", token " << origin.token << ", k " << origin.k << ") differ from byte " << b
           << " on: want " << static_cast<int>(want_row[b]) << ", got "
           << static_cast<int>(got[at + b]);
  }
}

inline ExchangeConfig config_of(Layout layout, const QuantScheme& scheme, Reduce reduce,
                                std::int64_t hidden = 1024) {
  ExchangeConfig config;
  config.num_experts = 12;
  config.num_topk = 4;
  config.hidden = hidden;
  config.max_tokens_per_rank = 37;
  config.layout = layout;
  config.scheme = scheme;
  config.reduce = reduce;
  return config;
}

}  // namespace switchyard::test
