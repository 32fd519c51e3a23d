// SPDX-License-Identifier: Apache-2.0

#include "switchyard/token_counts.h"

#include <algorithm>
#include <utility>

#include "core/bytes.h"
#include "core/fail.h"

namespace switchyard {
namespace {

constexpr std::int64_t kMaxRanks = 1 << 24;

void check_counts(const char* function, std::span<const std::int64_t> counts) {
  for (std::size_t r = 0; r < counts.size(); ++r) {
    require(counts[r] >= 0, Errc::kInvalidArgument,
            "{}: data-parallel rank {} has {} tokens, must have at least 0", function, r,
            counts[r]);
  }
}

}  // namespace

std::vector<std::int64_t> compute_sp_num_tokens(std::span<const std::int64_t> tokens_across_dp,
                                                std::int64_t sp_size) {
  require(sp_size >= 1, Errc::kInvalidArgument,
          "compute_sp_num_tokens: sp_size is {}, must be at least 1", sp_size);
  check_counts("compute_sp_num_tokens", tokens_across_dp);
  const auto num_ranks =
      checked_mul<std::int64_t>(static_cast<std::int64_t>(tokens_across_dp.size()), sp_size);
  require(
      num_ranks <= kMaxRanks, Errc::kInvalidArgument,
      "compute_sp_num_tokens: {} data-parallel ranks x sp_size {} is {} ranks, must be at most {}",
      tokens_across_dp.size(), sp_size, num_ranks, kMaxRanks);
  std::vector<std::int64_t> sizes;
  sizes.reserve(static_cast<std::size_t>(num_ranks));
  for (const std::int64_t tokens : tokens_across_dp) {
    const std::int64_t share = tokens / sp_size + (tokens % sp_size != 0 ? 1 : 0);
    sizes.insert(sizes.end(), static_cast<std::size_t>(sp_size), share);
  }
  return sizes;
}

std::vector<std::int64_t> compute_chunked_local_num_tokens(
    std::span<const std::int64_t> tokens_across_dp, std::int64_t sp_size, std::int64_t max_chunk,
    std::int64_t chunk) {
  require(
      max_chunk >= 1 && chunk >= 0, Errc::kInvalidArgument,
      "compute_chunked_local_num_tokens: max_chunk is {} and chunk is {}, must be at least 1 and 0",
      max_chunk, chunk);
  const std::int64_t done = checked_mul(max_chunk, chunk);
  std::vector<std::int64_t> sizes = compute_sp_num_tokens(tokens_across_dp, sp_size);
  for (std::int64_t& size : sizes) {
    size = std::max<std::int64_t>(1, std::min(max_chunk, size - done));
  }
  return sizes;
}

TokenCounts::TokenCounts(std::vector<std::int64_t> tokens_across_dp)
    : tokens_across_dp_(std::move(tokens_across_dp)) {
  require(!tokens_across_dp_.empty(), Errc::kInvalidArgument,
          "token_counts: there are 0 data-parallel ranks, there must be at least 1");
  check_counts("token_counts", tokens_across_dp_);
}

std::int64_t TokenCounts::max_tokens_across_dp() const {
  return *std::max_element(tokens_across_dp_.begin(), tokens_across_dp_.end());
}

std::vector<std::int64_t> TokenCounts::cu_tokens_across_sp(std::int64_t sp_size) const {
  std::vector<std::int64_t> sums = compute_sp_num_tokens(tokens_across_dp_, sp_size);
  for (std::size_t i = 1; i < sums.size(); ++i) sums[i] = checked_add(sums[i - 1], sums[i]);
  return sums;
}

TokenCounts::Scope::Scope(TokenCounts& counts, std::vector<std::int64_t> sizes)
    : counts_(counts), before_(std::exchange(counts.local_sizes_, std::move(sizes))) {}

TokenCounts::Scope::~Scope() { counts_.local_sizes_.swap(before_); }

TokenCounts::Scope TokenCounts::sp_local_sizes(std::int64_t sp_size) {
  return Scope(*this, compute_sp_num_tokens(tokens_across_dp_, sp_size));
}

TokenCounts::Scope TokenCounts::chunked_sizes(std::int64_t sp_size, std::int64_t max_chunk,
                                              std::int64_t chunk) {
  return Scope(*this,
               compute_chunked_local_num_tokens(tokens_across_dp_, sp_size, max_chunk, chunk));
}

std::span<const std::int64_t> TokenCounts::local_sizes() const {
  require(!local_sizes_.empty(), Errc::kInvalidArgument,
          "local_sizes: no scope has set them; hold sp_local_sizes() or chunked_sizes() first");
  return local_sizes_;
}

}  // namespace switchyard
