// SPDX-License-Identifier: Apache-2.0
//
// watch.h: what a kernel checks while it waits for a peer, and what it leaves behind when a wait
// fails. No kernel waits without it, and none traps: it writes a record and ends.
#pragma once

#include <cstdint>

namespace switchyard::cuda {

/// Why the kernels of a rank gave up. The first reason is kept.
enum class WaitFailure : std::uint32_t {
  kNone,
  kTimeout,               ///< a peer's words did not arrive
  kAborted,               ///< the group was aborted
  kInvalidId,             ///< topk_ids: an id out of range or, in kBatched, twice in a token
  kCapacityExceeded,      ///< an expert was sent more rows than its capacity
  kNoWeights,             ///< a peer returned rows without the requested weights
  kDifferentMode,         ///< a peer dispatches with another max_tokens or routing_only
  kCombinedTwice,         ///< a combine was replayed without its dispatch
  kHostCapacityExceeded,  ///< more tokens cross to a host than a message has room for
};

enum class WaitPlace : std::uint32_t {
  kAnnouncement,
  kRow,
  kReturnedRow,
  kInput,
};

/// Stands in records for a 64-bit id that is below -1 or needs more than 32 bits.
inline constexpr std::int32_t kIdBeyond32Bits = 0x7FFFFFFF;

/// In host memory that the GPU can write. `failure` is written last.
struct WaitRecord {
  std::uint32_t failure;  ///< WaitFailure
  std::uint32_t place;    ///< WaitPlace
  std::int32_t peer;
  std::int32_t token;  ///< or row of the peer; -1: none
  std::int32_t expected;
  std::int32_t seen;
  std::uint64_t call;
  std::uint64_t waited_ns;
};

/// The GPU can address everything that these point to.
struct Watch {
  WaitRecord* record = nullptr;               ///< host
  const std::uint32_t* abort_word = nullptr;  ///< host; not 0: give up
  std::uint32_t* failed = nullptr;            ///< device; not 0: some warp of this rank gave up
  std::uint64_t timeout_ns = 0;
};

}  // namespace switchyard::cuda
