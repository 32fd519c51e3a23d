// SPDX-License-Identifier: Apache-2.0
//
// host_counts.h: tells the host how many rows a dispatch brings, as soon as all ranks have
// announced theirs and before the rows themselves have come.
//
// Letters: P ranks, L local experts.
#pragma once

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

/// In pinned host memory; the arrays are those of one allocation (HostCountWords::num_bytes).
struct HostCountWords {
  std::uint64_t* call = nullptr;            ///< [1]: written last; 0: not there yet
  std::int32_t* num_dropped = nullptr;      ///< [1]
  std::int32_t* rows_per_rank = nullptr;    ///< [P]
  std::int32_t* rows_per_expert = nullptr;  ///< [L]

  HostCountWords() = default;
  HostCountWords(void* memory, std::int32_t num_ranks)
      : call(static_cast<std::uint64_t*>(memory)),
        num_dropped(reinterpret_cast<std::int32_t*>(call + 1)),
        rows_per_rank(num_dropped + 1),
        rows_per_expert(rows_per_rank + num_ranks) {}
  static std::size_t num_bytes(std::int32_t num_ranks, std::int32_t num_local) {
    return sizeof(std::uint64_t) +
           (1 + static_cast<std::size_t>(num_ranks) + static_cast<std::size_t>(num_local)) *
               sizeof(std::int32_t);
  }
};

struct HostCountsArgs : ExchangeBase {
  const std::byte* window = nullptr;          ///< this rank's
  const std::int32_t* num_dropped = nullptr;  ///< [1]
  HostCountWords to;
};

/// One CTA, which waits for the announcements of all ranks. `behind_send`: the kernel ahead in the
/// stream is the send part of the same dispatch; counting then starts before its rows have left.
/// With watch.failed set it ends at once, and the words stay as they are; see launch_dispatch.
void launch_host_counts(const HostCountsArgs& args, bool behind_send, CUstream_st* stream);

}  // namespace switchyard::cuda
