// SPDX-License-Identifier: Apache-2.0
//
// dispatch_header.h: what a rank says to another with each dispatch, and what kinds of messages
// there are.
#pragma once

#include <cstdint>

#include "switchyard/exchange_config.h"

#include "core/fail.h"
#include "engine/messages.h"
#include "plan/message_layout.h"

namespace switchyard {

enum class MessageKind : std::uint8_t { kHeader, kRouting, kRows, kWeights };

/// A tag says which operation a message is of: ranks may receive two handles in another order than
/// they were sent.
inline int message_tag(std::uint64_t call, MessageKind kind) {
  constexpr std::uint64_t kKinds = 4;
  constexpr std::uint64_t kCalls = (MessageChannel::kMaxTag + 1) / kKinds;
  return static_cast<int>(call % kCalls * kKinds) + static_cast<int>(kind);
}

struct DispatchHeader {
  std::uint64_t routing_call = 0;
  std::int64_t num_tokens = 0;
  std::int64_t max_tokens = 0;
  std::int64_t num_rows = 0;     ///< that follow
  std::int64_t num_entries = 0;  ///< of the routing that follows
  float tensor_scale = 1.0f;
  bool has_ids = false;
  bool has_weights = false;
  bool routing_only = false;

  RoutingMessage routing(const ExchangeConfig& config, bool is_list) const {
    return {config.num_experts, config.num_topk, num_entries, is_list, has_ids, has_weights};
  }
};
static_assert(sizeof(DispatchHeader) <= kMessageHeaderBytes);

/// Errors: kInternal for numbers that cannot be.
inline void check_header(const ExchangeConfig& config, int source, const DispatchHeader& header) {
  const std::int64_t most = config.max_tokens_per_rank;
  const auto is_within = [](std::int64_t value, std::int64_t limit) {
    return value >= 0 && value <= limit;
  };
  require(
      is_within(header.num_tokens, most) && is_within(header.num_rows, header.num_tokens) &&
          is_within(header.num_entries, header.num_tokens) &&
          (config.sends_weights || !header.has_weights),
      Errc::kInternal,
      "dispatch: rank {} announces {} tokens, {} rows and {} entries, max_tokens_per_rank is {}",
      source, header.num_tokens, header.num_rows, header.num_entries, most);
}

}  // namespace switchyard
