// SPDX-License-Identifier: Apache-2.0
//
// push_path.h: which of two ways the rows of a call take between the GPUs of a host.
//
//   slots   rows and their words land in slots of the receiver, certify themselves, and are copied
//           to their places there (dispatch_kernel.cuh, combine_kernel.cuh)
//   direct  ranks exchange counts first and store rows straight to their places; flags follow
//           (direct_dispatch.cuh, direct_combine.cuh)
//
// All ranks must choose alike, so the choice depends on nothing but what they agree on: the
// configuration, can_be_direct() on every rank, and max_tokens of the call.
#pragma once

#include <cstdint>
#include <string>

#include "switchyard/exchange_config.h"

namespace switchyard {

/// Slots cost a third more memory traffic, direct rows cost the wait for counts. Calls whose ranks
/// have more tokens than this go directly. Measured on 2 H200, us per pair with codes given: 32.1
/// both ways at 256 tokens, 55.7 by slots and 49.4 directly at 512, 331 and 283 at 4096.
inline constexpr std::int64_t kMaxSlotTokens = 256;

/// For tests and measurements; from the setting SWITCHYARD_PUSH_PATH.
enum class PushPath : std::uint8_t {
  kAuto,    ///< direct where the exchange can, above kMaxSlotTokens
  kSlots,   ///< always slots
  kDirect,  ///< direct where the exchange can
};
/// Errors: kInvalidArgument.
PushPath parse_push_path(const std::string& text);

/// What decides whether an exchange can send rows directly, besides its GPUs. It can not:
///   over hosts, or alone in its group
///   with rows placed by expert: their places need counts per expert
///   with received memory that is taken to size in each call (exact_memory)
///   with scales by column, where the place of a scale depends on how many rows a rank gets
///   where rows do not return in bf16, or each choice's row returns (per_expert)
/// Payloads, and the routing of all ranks where it is gathered, always go through slots.
struct PathFacts {
  int num_ranks = 1;
  bool is_over_hosts = false;
  bool takes_memory_to_size = false;
  bool gpu_can = false;  ///< sm_90 or newer, with the shared memory
};
bool can_be_direct(const ExchangeConfig& config, const PathFacts& facts, PushPath asked);

/// For one call of an exchange that can: a dispatch of routing alone has no rows to speak of.
bool is_direct(PushPath asked, std::int64_t max_tokens, bool routing_only);

}  // namespace switchyard
