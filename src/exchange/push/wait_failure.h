// SPDX-License-Identifier: Apache-2.0
//
// wait_failure.h: turns the record that a kernel leaves behind into the text of an error.
#pragma once

#include <cstdint>
#include <string>

#include "switchyard/error.h"

#include "cuda/exchange/watch.h"
#include "engine/control.h"

namespace switchyard {

/// Host memory that the GPU writes and reads; zero at first.
struct WatchWords {
  cuda::WaitRecord record;
  std::uint32_t abort_word;
};

/// What a record means for the rank that found it.
struct WaitFailureText {
  Errc code = Errc::kTimeout;
  Errc peers_code = Errc::kTimeout;  ///< what the other ranks throw
  bool is_own = false;               ///< the cause lies in this rank's call, not in its peers
  int culprit = -1;
  const char* function = "";  ///< "dispatch" or "combine"
  std::string what;           ///< names ranks, places and values
};

/// `between`: the rank that passes on what the record's peer sends to `rank`, or -1.
WaitFailureText describe(const cuda::WaitRecord& record, int rank, std::int64_t num_experts,
                         int between = -1);

/// Of DispatchArgs::mode: "max_tokens 128 and routing_only false".
std::string mode_text(std::uint32_t mode);

/// Where the kernel was.
WaitSite site_of(const cuda::WaitRecord& record);

/// How long kernels wait for a peer. With an `asked_ms` of 0: as long as the group, times
/// kSharedGpuPatience if ranks share the GPU, because their kernels then take turns.
inline constexpr int kSharedGpuPatience = 20;
std::int64_t kernel_timeout_ms(std::int64_t asked_ms, std::int64_t group_ms, bool is_shared_gpu);

}  // namespace switchyard
