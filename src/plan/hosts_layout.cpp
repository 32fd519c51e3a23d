// SPDX-License-Identifier: Apache-2.0

#include "plan/hosts_layout.h"

#include <algorithm>

#include "core/bytes.h"
#include "plan/parts.h"

namespace switchyard {

HostsLayout make_hosts_layout(const WindowLayout& window, const HostNumbers& numbers,
                              bool takes_all) {
  const WindowShape& shape = window.shape;
  const auto tokens = static_cast<std::size_t>(shape.max_tokens);
  const auto topk = static_cast<std::size_t>(shape.num_topk);
  const auto columns = static_cast<std::size_t>(window.num_columns());
  const std::size_t others = numbers.num_hosts - 1;
  const std::size_t weights = shape.sends_weights ? checked_mul(tokens, topk * sizeof(float)) : 0;
  const auto ranks = static_cast<std::size_t>(shape.num_ranks);

  HostsLayout layout;
  layout.window = window;
  layout.num_parts = numbers.max_forwarded;
  const RoutingMessage largest{0,     shape.num_topk, shape.max_tokens,
                               false, true,           shape.sends_weights};
  layout.routing_bytes = align_up(largest.size_bytes(), kRowAlignment);

  Parts in_part;
  in_part.add(kLineBytes * (1 + numbers.max_host_size));
  layout.routing_in_part = in_part.add(std::max(layout.routing_bytes, weights));
  const std::size_t returned = checked_mul(checked_mul(tokens, columns), window.combine_row_stride);
  layout.rows_in_part = in_part.add(std::max(checked_mul(tokens, window.row_stride), returned));
  layout.part_bytes = in_part.total();
  const std::size_t num_parts =
      checked_mul(static_cast<std::size_t>(shape.num_sets), layout.num_parts);
  layout.window_bytes = checked_add(window.total_bytes, checked_mul(num_parts, layout.part_bytes));

  // A token goes to at most one host for each of its choices.
  const std::size_t crossing = checked_mul(tokens, takes_all ? others : std::min(others, topk));
  const std::size_t headers = checked_mul(ranks, kReturnHeaderBytes);
  const std::size_t sent_on = checked_mul(
      layout.num_parts, checked_add(returned, numbers.max_host_size * kReturnHeaderBytes));
  Parts own;
  layout.headers_out = own.add(numbers.num_hosts * kMessageHeaderBytes);
  layout.routing_out = own.add(layout.routing_bytes);
  layout.rows_out = own.add(std::max(checked_mul(crossing, window.row_stride), sent_on));
  layout.weights_out = own.add(checked_mul(layout.num_parts, weights));
  layout.headers_in = own.add(checked_mul(layout.num_parts, kMessageHeaderBytes));
  layout.rows_in = own.add(
      checked_add(std::max(returned, checked_mul(crossing, window.combine_row_stride)), headers));
  layout.weights_in = own.add(weights);
  layout.private_bytes = own.total();
  return layout;
}

}  // namespace switchyard
