// SPDX-License-Identifier: Apache-2.0
//
// token_counts.h: how many tokens each rank has when several ranks split the tokens of one
// data-parallel rank (sequence parallelism, SP), or when all ranks run the same number of chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/export.h"

namespace switchyard {

/// [dp * sp] tokens of each rank: ceil(n / sp) for each data-parallel rank, sp times each.
///
/// Errors of all functions here: kInvalidArgument (a negative count, a size below 1, more than 2^24
/// ranks, sums above 2^63 - 1).
/// Source: vLLM's DPMetadata, whose function names these keep.
SWITCHYARD_API std::vector<std::int64_t> compute_sp_num_tokens(
    std::span<const std::int64_t> tokens_across_dp, std::int64_t sp_size);

/// [dp * sp] tokens of each rank in chunk `chunk` of at most max_chunk tokens. A rank that has none
/// left counts 1: all ranks run in lockstep, so it joins with a dummy token. Where zero tokens are
/// allowed, as in all classes of Switchyard, use compute_sp_num_tokens instead.
SWITCHYARD_API std::vector<std::int64_t> compute_chunked_local_num_tokens(
    std::span<const std::int64_t> tokens_across_dp, std::int64_t sp_size, std::int64_t max_chunk,
    std::int64_t chunk);

/// Tokens of all data-parallel ranks in one step, and the local sizes that the enclosing scope has
/// chosen for the exchange. Not thread-safe.
class SWITCHYARD_API TokenCounts {
 public:
  /// From the tokens of each data-parallel rank.
  explicit TokenCounts(std::vector<std::int64_t> tokens_across_dp);
  TokenCounts(const TokenCounts&) = delete;
  TokenCounts& operator=(const TokenCounts&) = delete;

  /// @{ The tokens of each data-parallel rank, and the most of them.
  std::span<const std::int64_t> tokens_across_dp() const { return tokens_across_dp_; }
  std::int64_t max_tokens_across_dp() const;
  /// @}

  /// [dp * sp] inclusive prefix sums of compute_sp_num_tokens.
  std::vector<std::int64_t> cu_tokens_across_sp(std::int64_t sp_size) const;

  /// Sets local_sizes() for its lifetime; its end restores the previous sizes.
  class SWITCHYARD_API Scope {
   public:
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    friend class TokenCounts;
    Scope(TokenCounts& counts, std::vector<std::int64_t> sizes);
    TokenCounts& counts_;
    std::vector<std::int64_t> before_;
  };

  /// @{ A scope with compute_sp_num_tokens, or compute_chunked_local_num_tokens of one chunk.
  [[nodiscard]] Scope sp_local_sizes(std::int64_t sp_size);
  [[nodiscard]] Scope chunked_sizes(std::int64_t sp_size, std::int64_t max_chunk,
                                    std::int64_t chunk);
  /// @}

  /// The sizes set by the innermost scope (vLLM: get_chunk_sizes_across_dp_rank).
  /// Errors: kInvalidArgument outside every scope.
  std::span<const std::int64_t> local_sizes() const;

 private:
  std::vector<std::int64_t> tokens_across_dp_;
  std::vector<std::int64_t> local_sizes_;
};

}  // namespace switchyard
