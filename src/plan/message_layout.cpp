// SPDX-License-Identifier: Apache-2.0

#include "plan/message_layout.h"

#include <algorithm>

#include "core/bytes.h"
#include "plan/parts.h"

namespace switchyard {

MessageLayout make_message_layout(const WindowLayout& window, std::int32_t num_experts,
                                  bool takes_all, bool lists_tokens) {
  const WindowShape& shape = window.shape;
  const auto ranks = static_cast<std::size_t>(shape.num_ranks);
  const auto tokens = static_cast<std::size_t>(shape.max_tokens);
  const auto topk = static_cast<std::size_t>(shape.num_topk);
  const std::size_t all_tokens = checked_mul(ranks, tokens);
  const std::size_t choices = checked_mul(tokens, topk);
  (void)checked_mul(checked_mul(all_tokens, topk + 1), std::size_t{16});  // what follows fits

  MessageLayout layout;
  const RoutingMessage largest{num_experts,  shape.num_topk, shape.max_tokens,
                               lists_tokens, true,           shape.sends_weights};
  layout.routing_bytes = align_up(largest.size_bytes(), kRowAlignment);

  // A token goes to at most one rank for each of its choices.
  const std::size_t rows = takes_all ? tokens : checked_mul(tokens, std::min(ranks, topk));
  const std::size_t columns = shape.keeps_every_choice ? topk : 1;
  const std::size_t headers = checked_mul(ranks, kReturnHeaderBytes);
  const auto returned = [&](std::size_t num_rows) {
    return checked_add(checked_mul(num_rows, window.combine_row_stride), headers);
  };
  const std::size_t weights = shape.sends_weights ? choices * sizeof(float) : 0;

  Parts parts;
  layout.headers_out = parts.add(checked_mul(ranks, kMessageHeaderBytes));
  layout.routing_out =
      parts.add(lists_tokens ? checked_mul(ranks, layout.routing_bytes) : layout.routing_bytes);
  layout.rows_out = parts.add(
      std::max(checked_mul(rows, window.row_stride), returned(checked_mul(all_tokens, columns))));
  layout.weights_out = parts.add(checked_mul(ranks, weights));
  layout.headers_in = parts.add(checked_mul(ranks, kMessageHeaderBytes));
  layout.routing_in = parts.add(checked_mul(ranks, layout.routing_bytes));
  layout.rows_in = parts.add(
      std::max(checked_mul(all_tokens, window.row_stride),
               returned(checked_mul(tokens, static_cast<std::size_t>(window.num_columns())))));
  layout.weights_in = parts.add(weights);
  layout.total_bytes = parts.total();
  return layout;
}

}  // namespace switchyard
