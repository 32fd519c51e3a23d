// SPDX-License-Identifier: Apache-2.0
//
// stages.h: when each CTA of an exchange's kernel reached which point, for `bench --stages`. Only a
// build with the option SWITCHYARD_STAGES records anything; in others kernels contain none of it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace switchyard::cuda {

#ifdef SWITCHYARD_STAGES
inline constexpr bool kHasStages = true;
#else
inline constexpr bool kHasStages = false;
#endif

/// What a CTA has done for the first time; kEnd: for the last time, by any warp.
enum class Stage : std::uint8_t {
  kStart,             ///< the kernels ahead have ended
  kCallKnown,         ///< all warps know the call's number
  kFirstStore,        ///< a store to a peer was issued: an announcement or a chunk
  kAnnouncementSeen,  ///< all announcements are there
  kRouteSeen,         ///< the route of a row is there
  kChunkSeen,         ///< all data of a chunk is there
  kEnd,
};
inline constexpr int kNumStages = 7;

enum class CtaRole : std::uint8_t { kNotify, kSend, kReceive, kEverything };

/// Nanoseconds of the GPU's clock; 0: never reached.
struct CtaStages {
  CtaRole role = CtaRole::kEverything;
  std::array<std::uint64_t, kNumStages> ns{};
};

/// One run of one kernel.
struct KernelStages {
  bool is_combine = false;
  std::vector<CtaStages> ctas;
};

/// Where a kernel writes: [CTAs, kNumStages], zero at first. Null: nowhere.
struct StageRecord {
  std::uint64_t* ns = nullptr;
};

}  // namespace switchyard::cuda
