// SPDX-License-Identifier: Apache-2.0
//
// stress_shape.h: the sizes of a stress case, and what the host knows of each step: how many tokens
// ranks have, what the step does, and how long ranks are held up. Pure functions of a seed.
#pragma once

#include <cstdint>

#include "switchyard/layout.h"

#include "core/host_device.h"

namespace switchyard::test {

/// What dispatch receives.
enum class StressForm : std::uint8_t {
  kPlain,      ///< bf16 with arbitrary bits
  kStored,     ///< e4m3 codes and f32 scales with arbitrary bits
  kStoredFp4,  ///< e2m1 codes and e4m3 scales with arbitrary bits
  kMade,       ///< bf16 whose e4m3 codes and scales are known
};

inline constexpr int kMaxStressRanks = 16;
inline constexpr int kMaxStressTopk = 8;
inline constexpr int kMadeBlock = 128;

/// The same on every rank except for `rank`. The experts of rank r are r * num_local + e; num_local
/// is a power of two.
struct StressShape {
  std::uint32_t seed = 1;
  std::int32_t num_ranks = 1;
  std::int32_t rank = 0;
  std::int32_t num_local = 8;
  std::int32_t num_topk = 8;
  std::int32_t max_tokens = 128;
  std::int32_t hidden = 1024;
  StressForm form = StressForm::kStored;
  Layout layout = Layout::kExpanded;
  std::int32_t capacity = 0;  ///< rows of an expert; choices beyond it are dropped; 0: all come
  std::int32_t payload_words = 0;  ///< of a payload that travels with each token
  std::uint32_t max_delay_ns = 0;  ///< longest delay at each StressPause
  bool ids_are_64_bits = false;
  bool outputs_f32 = false;
  bool returns_weights = false;  ///< each choice's weight comes home with its combine
  bool mixes_turns = false;      ///< not every step is a dispatch and its combine: StressTurn

  SWITCHYARD_HOST_DEVICE constexpr std::int32_t num_experts() const {
    return num_ranks * num_local;
  }
  SWITCHYARD_HOST_DEVICE constexpr bool is_token_major() const {
    return layout == Layout::kCompact || layout == Layout::kByRank;
  }
  /// Bytes of a token before dispatch; row_bytes() is the size of an arriving row.
  SWITCHYARD_HOST_DEVICE constexpr std::int32_t token_bytes() const {
    return form == StressForm::kStored      ? hidden
           : form == StressForm::kStoredFp4 ? hidden / 2
                                            : hidden * 2;
  }
  SWITCHYARD_HOST_DEVICE constexpr std::int32_t row_bytes() const {
    return form == StressForm::kMade ? hidden : token_bytes();
  }
  SWITCHYARD_HOST_DEVICE constexpr std::int32_t num_scales() const {
    if (form == StressForm::kPlain) return 0;
    return form == StressForm::kStoredFp4 ? (hidden + 15) / 16
                                          : (hidden + kMadeBlock - 1) / kMadeBlock;
  }
  SWITCHYARD_HOST_DEVICE constexpr std::int32_t scale_bytes() const {
    return form == StressForm::kStoredFp4 ? 1 : 4;
  }
};

/// Number of blocks of 32 tokens per source; rows are counted per block.
SWITCHYARD_HOST_DEVICE constexpr int stress_chunks(const StressShape& s) {
  return (s.max_tokens + 31) / 32;
}

SWITCHYARD_HOST_DEVICE constexpr std::uint32_t stress_hash(std::uint32_t a, std::uint32_t b,
                                                           std::uint32_t c) {
  std::uint32_t h = a * 0x9E3779B1u + b;
  h = (h ^ (h >> 15)) * 0x85EBCA77u + c;
  h = (h ^ (h >> 13)) * 0xC2B2AE3Du;
  return h ^ (h >> 16);
}

enum class StressSalt : std::uint32_t {
  kTokens = 1,
  kIds,
  kWords,
  kScales,
  kWeights,
  kResults,
  kPayload,
  kReturned,
  kTurns,
  kDelays
};

SWITCHYARD_HOST_DEVICE constexpr std::uint32_t step_key(const StressShape& s, std::uint32_t step,
                                                        StressSalt salt) {
  return stress_hash(s.seed, static_cast<std::uint32_t>(salt), step);
}

SWITCHYARD_HOST_DEVICE constexpr std::uint32_t token_name(int source, int token) {
  return static_cast<std::uint32_t>(source) << 24 | static_cast<std::uint32_t>(token);
}

/// Returns the number of tokens of a rank. `slot` is the step, or its position in the graphs: the
/// host must know this number.
SWITCHYARD_HOST_DEVICE constexpr std::int32_t stress_tokens(const StressShape& s,
                                                            std::uint32_t slot, int rank) {
  const std::uint32_t h =
      stress_hash(step_key(s, slot, StressSalt::kTokens), static_cast<std::uint32_t>(rank), 0);
  if (h % 8 == 0) return 0;
  if (h % 8 == 1) return s.max_tokens;
  return static_cast<std::int32_t>((h >> 3) % (static_cast<std::uint32_t>(s.max_tokens) + 1));
}

/// What a step does.
enum class StressTurn : std::uint8_t {
  kPair,     ///< dispatch, combine
  kRelease,  ///< dispatch, release
  kAgain,    ///< dispatch_again with the routing of the step before, combine
  kReopen,   ///< dispatch, combine, reopen, combine
};

/// Known to the host, so `slot` as in stress_tokens.
constexpr StressTurn stress_turn(const StressShape& s, std::uint32_t slot) {
  if (!s.mixes_turns) return StressTurn::kPair;
  switch (step_key(s, slot, StressSalt::kTurns) % 8) {
    case 0: return StressTurn::kRelease;
    case 1:
    case 2: return StressTurn::kAgain;
    case 3: return StressTurn::kReopen;
    default: return StressTurn::kPair;
  }
}

/// Where a step may be held up.
enum class StressPause : std::uint32_t {
  kHost,        ///< the host, before it launches a step or a graph
  kInput,       ///< before the tokens are written
  kInDispatch,  ///< between its phases
  kResults,     ///< before the rows are read and results are written
  kInCombine,   ///< between its phases
};

/// Half of all pauses take no time: ranks are in lock-step as well as apart.
SWITCHYARD_HOST_DEVICE constexpr std::uint32_t stress_delay_ns(const StressShape& s,
                                                               std::uint32_t step,
                                                               StressPause pause) {
  const std::uint32_t h =
      stress_hash(step_key(s, step, StressSalt::kDelays), static_cast<std::uint32_t>(s.rank),
                  static_cast<std::uint32_t>(pause));
  return s.max_delay_ns == 0 || (h & 1) != 0 ? 0 : (h >> 1) % (s.max_delay_ns + 1);
}

}  // namespace switchyard::test
