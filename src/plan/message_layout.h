// SPDX-License-Identifier: Apache-2.0
//
// message_layout.h: every byte offset in the memory from which one handle's messages are sent and
// into which they are received. Each rank has this memory for itself.
//
//   outgoing   headers   P x 64
//              routing   one part for all peers, or one for each
//              rows      of dispatch, packed by destination; or of combine, packed by owner, with
//                        16 bytes before each owner's rows; then weights that return, likewise
//   incoming   headers, routing, rows: the same by source
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/window_layout.h"

namespace switchyard {

inline constexpr std::size_t kMessageHeaderBytes = 64;
/// Before the rows that return.
inline constexpr std::size_t kReturnHeaderBytes = 16;

/// What one dispatch says of the routing of one rank to one other.
struct RoutingMessage {
  std::int32_t num_experts = 0;
  std::int32_t num_topk = 0;
  std::int64_t num_entries = 0;
  bool is_list = false;  ///< of some tokens, with counts for the rest
  bool has_ids = true;
  bool has_weights = false;

  bool lists() const { return is_list && has_ids; }
  std::size_t counts() const { return 0; }  ///< u32 [E]
  std::size_t tokens() const {              ///< i32 [entries]
    return lists() ? static_cast<std::size_t>(num_experts) * sizeof(std::uint32_t) : 0;
  }
  std::size_t weights() const {  ///< f32 [entries, K]
    return tokens() + (lists() ? static_cast<std::size_t>(num_entries) * sizeof(std::int32_t) : 0);
  }
  std::size_t ids() const {  ///< u16 [entries, K]
    return weights() + (has_weights ? num_choices() * sizeof(float) : 0);
  }
  std::size_t size_bytes() const {
    return ids() + (has_ids ? num_choices() * sizeof(std::uint16_t) : 0);
  }
  std::size_t num_choices() const {
    return static_cast<std::size_t>(num_entries) * static_cast<std::size_t>(num_topk);
  }
};

struct MessageLayout {
  std::size_t routing_bytes = 0;  ///< of the largest RoutingMessage
  std::size_t headers_out = 0;
  std::size_t routing_out = 0;
  std::size_t rows_out = 0;
  std::size_t weights_out = 0;
  std::size_t headers_in = 0;
  std::size_t routing_in = 0;
  std::size_t rows_in = 0;
  std::size_t weights_in = 0;
  std::size_t total_bytes = 0;
};

/// `takes_all`: every rank gets every token. `lists_tokens`: routing goes only to ranks concerned.
/// Errors: kInvalidArgument when a size overflows.
MessageLayout make_message_layout(const WindowLayout& window, std::int32_t num_experts,
                                  bool takes_all, bool lists_tokens);

}  // namespace switchyard
