// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/crossing.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/carver.h"
#include "core/round_up.h"
#include "exchange/push/received_memory.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

// Takes offsets in a message.
class Offsets {
 public:
  std::size_t take(std::int64_t count, std::size_t bytes) {
    const std::size_t at = parts_.used_bytes();
    parts_.carve(checked_mul(static_cast<std::size_t>(count), bytes));
    return at;
  }
  std::size_t num_bytes() const { return parts_.used_bytes(); }

 private:
  Carver parts_{nullptr, kPartAlignment};
};

// Rows of a region as they cross, and their scales.
struct RowForm {
  std::int64_t elements = 0;
  std::int32_t element_bits = 0;
  std::size_t scale_bytes = 0;

  // With room for whole vectors.
  std::int64_t stride() const {
    const std::int64_t vec_bytes = std::int64_t{kVecElements} * element_bits / 8;
    return align_up(cdiv<std::int64_t>(elements, kVecElements) * vec_bytes,
                    static_cast<std::int64_t>(kUnitBytes));
  }
};

RowForm form_of(const PushLayout& layout) {
  return {layout.shape.hidden, layout.shape.element_bits, 0};
}

RowForm form_of_tokens(const PushExchangeShape& shape, bool routing_only) {
  RowForm form = form_of(shape.main);
  if (routing_only) {
    form.elements = std::min<std::int64_t>(kVecElements, form.elements);
  } else if (shape.main.shape.chunk_scale_bytes > 0 && shape.exchange.num_scales > 0) {
    const int scale_bits = bits_of(scale_dtype(shape.config.scheme));
    form.scale_bytes = static_cast<std::size_t>(shape.exchange.num_scales * scale_bits / 8);
  }
  return form;
}

// `last`: the region whose ids go along, for `num_topk` choices.
DispatchMessage message_of(const std::vector<RowForm>& forms, const PushLayout& last,
                           std::int32_t num_topk, std::int64_t max_tokens, std::int64_t num_rows) {
  const std::int64_t num_choices = max_tokens * num_topk;
  Offsets offsets;
  DispatchMessage message;
  message.num_rows = num_rows;
  message.mode = offsets.take(2, sizeof(std::uint32_t));
  message.count = message.mode + sizeof(std::uint32_t);
  message.ids = offsets.take(num_choices, sizeof(std::int32_t));
  message.weights = offsets.take(last.shape.sends_weights ? num_choices : 0, sizeof(float));
  for (const RowForm& form : forms) {
    CrossingRows& rows = message.regions.emplace_back();
    rows.stride = form.stride();
    rows.rows = offsets.take(num_rows, static_cast<std::size_t>(rows.stride));
    rows.scale_bytes = form.scale_bytes;
    if (rows.has_scales()) rows.scales = offsets.take(num_rows, form.scale_bytes);
  }
  message.num_bytes = offsets.num_bytes();
  return message;
}

bool is_whole(const RowBlock& block, std::int64_t num_rows) {
  return block.first == 0 && block.end == num_rows;
}

// A block of `num_rows` rows that begin at `at`.
MessagePiece rows_of(const RowBlock& block, std::int64_t num_rows, std::size_t at,
                     std::size_t row_bytes) {
  return {at + static_cast<std::size_t>(block.first) * row_bytes,
          static_cast<std::size_t>(block.count(num_rows)) * row_bytes};
}

// Of any call.
std::size_t largest_dispatch_bytes(const PushExchangeShape& shape, const CrossingRoom& room) {
  const std::int64_t max_tokens = shape.config.max_tokens_per_rank;
  const std::size_t bytes = dispatch_message(shape, max_tokens, false, room).num_bytes;
  if (!shape.gathers_routing) return bytes;
  return std::max(bytes, routing_message(shape, max_tokens).num_bytes);
}

}  // namespace

std::vector<RowBlock> row_blocks(std::int64_t num_rows, std::size_t num_bytes) {
  // Assumed, not measured over a network: at 50 GB/s a block takes 84 us, and what NCCL and the
  // kernels beside it take to begin is a tenth of that.
  constexpr std::size_t kBlockBytes = std::size_t{4} << 20;
  const std::int64_t rows = std::max<std::int64_t>(1, num_rows);
  const std::size_t row_bytes =
      std::max<std::size_t>(1, num_bytes / static_cast<std::size_t>(rows));
  const auto rows_of_bytes = static_cast<std::int64_t>(cdiv(kBlockBytes, row_bytes));
  const std::int64_t fewest = cdiv(rows, static_cast<std::int64_t>(kMaxRowBlocks));
  const std::int64_t count = cdiv(rows, std::max(rows_of_bytes, fewest));
  const std::int64_t rows_per_block = cdiv(rows, count);
  std::vector<RowBlock> blocks;
  for (std::int64_t first = 0; first == 0 || first < num_rows; first += rows_per_block) {
    const std::int64_t end = std::min(first + rows_per_block, num_rows);
    blocks.push_back({static_cast<std::int32_t>(first), static_cast<std::int32_t>(end)});
  }
  return blocks;
}

std::vector<RowBlock> DispatchMessage::blocks() const {
  return row_blocks(num_rows, is_routing ? 0 : num_bytes);
}

std::vector<MessagePiece> DispatchMessage::pieces(const RowBlock& block,
                                                  const ExactRows& exact) const {
  if (!exact && is_whole(block, num_rows)) return {{0, num_bytes}};
  std::vector<MessagePiece> pieces;
  if (block.first == 0) {
    const std::size_t begin = exact ? ids : mode;
    pieces.push_back({begin, regions[0].rows - begin});
  }
  for (const CrossingRows& part : regions) {
    const auto stride = static_cast<std::size_t>(part.stride);
    pieces.push_back(rows_of(block, exact.value_or(num_rows), part.rows, stride));
    if (!part.has_scales()) continue;
    pieces.push_back(rows_of(block, exact.value_or(num_rows), part.scales, part.scale_bytes));
  }
  return pieces;
}

std::vector<MessagePiece> ReturnMessage::pieces(const RowBlock& block,
                                                const ExactRows& exact) const {
  if (!exact && is_whole(block, num_rows)) return {{0, num_bytes}};
  std::vector<MessagePiece> pieces{rows_of(block, exact.value_or(num_rows), 0, row_bytes)};
  if (block.end == num_rows && num_records > 0) {
    pieces.push_back({weights, static_cast<std::size_t>(num_records) * sizeof(std::uint64_t)});
  }
  return pieces;
}

DispatchMessage dispatch_message(const PushExchangeShape& shape, std::int64_t max_tokens,
                                 bool routing_only, const CrossingRoom& room) {
  std::vector<RowForm> forms;
  if (!routing_only) {
    for (const PushLayout& payload : shape.payloads) forms.push_back(form_of(payload));
  }
  forms.push_back(form_of_tokens(shape, routing_only));
  return message_of(forms, shape.main, shape.main_topk, max_tokens, room.num_rows(max_tokens));
}

DispatchMessage routing_message(const PushExchangeShape& shape, std::int64_t max_tokens) {
  DispatchMessage message = message_of({form_of(shape.routing)}, shape.routing,
                                       shape.main_ownership.num_ranks, max_tokens, max_tokens);
  message.is_routing = true;
  return message;
}

ReturnMessage return_message(const PushExchangeShape& shape, int host_size, std::int64_t max_tokens,
                             const CrossingRoom& room) {
  const bool by_choice = shape.main.shape.keeps_every_choice;
  Offsets offsets;
  ReturnMessage message;
  message.width = by_choice ? shape.main_topk : std::min(shape.main_topk, host_size);
  if (shape.config.reduce == Reduce::kPerHost) message.width = 1;  // their sum
  message.row_bytes = static_cast<std::size_t>(message.width) * shape.main.return_stride;
  message.num_rows = room.num_rows(max_tokens);
  offsets.take(message.num_rows, message.row_bytes);
  if (shape.returns_weights) {
    message.num_records =
        static_cast<std::int64_t>(shape.weights.choices_offset / sizeof(std::uint64_t)) +
        max_tokens * shape.config.num_topk;
  }
  message.weights = offsets.take(message.num_records, sizeof(std::uint64_t));
  message.num_bytes = offsets.num_bytes();
  return message;
}

ReturnPart return_part(const PushExchangeShape& shape) {
  Offsets offsets;
  ReturnPart part;
  offsets.take(1, shape.main.total_bytes - shape.main.returns_offset);
  part.weights = offsets.take(1, shape.weights.total_bytes);
  part.num_bytes = offsets.num_bytes();
  return part;
}

std::size_t return_part_offset(const PushExchangeShape& shape, std::size_t number) {
  return checked_add(align_up(shape.window_bytes, kPartAlignment),
                     checked_mul(number, return_part(shape).num_bytes));
}

std::size_t hosts_window_bytes(const PushExchangeShape& shape, const HostMap& map) {
  return return_part_offset(shape, map.max_forwarded());
}

HostsSlotLayout hosts_slot_layout(const PushExchangeShape& shape, const HostMap& map, int rank,
                                  const CrossingRoom& room) {
  const std::int64_t max_tokens = shape.config.max_tokens_per_rank;
  const auto returned_bytes = [&](int host) {
    const auto size = static_cast<int>(map.ranks_of(host).size());
    return return_message(shape, size, max_tokens, room).num_bytes;
  };
  // Routing that goes to every rank has a choice for each.
  const std::int32_t num_topk = shape.gathers_routing
                                    ? std::max(shape.main_topk, shape.main_ownership.num_ranks)
                                    : shape.main_topk;
  const std::int64_t num_choices = checked_mul<std::int64_t>(max_tokens, num_topk);
  Offsets offsets;
  const auto take_lists = [&] {
    ListOffsets lists;
    lists.num_partials = offsets.take(max_tokens, sizeof(std::int32_t));
    lists.columns = offsets.take(num_choices, sizeof(std::int32_t));
    lists.partial_ranks = offsets.take(num_choices, sizeof(std::int32_t));
    return lists;
  };
  const int own_host = map.host_of(rank);
  const std::size_t message = largest_dispatch_bytes(shape, room);
  const bool may_pack = room.may_pack(max_tokens);
  const std::int64_t num_numbers = may_pack ? max_tokens : 0;
  HostsSlotLayout layout;
  layout.message_stride = message;
  layout.sent = offsets.take(may_pack ? map.num_hosts() - 1 : 1, message);
  layout.numbers = offsets.take((map.num_hosts() - 1) * num_numbers, sizeof(std::int32_t));
  for (std::size_t i = 0; i < map.forwarded_by(rank).size(); ++i) {
    HostsSlotLayout::Forward& forward = layout.forwards.emplace_back();
    forward.message = offsets.take(1, std::max(message, returned_bytes(own_host)));
    forward.lists = take_lists();
    forward.lists.partial_weights = offsets.take(num_choices, sizeof(float));
    forward.numbers = offsets.take(num_numbers, sizeof(std::int32_t));
  }
  if (shape.config.reduce == Reduce::kPerHost) {
    layout.of_ranks = take_lists();
    layout.of_hosts = take_lists();
    layout.sums = offsets.take(checked_mul(max_tokens, shape.config.hidden), sizeof(float));
  }
  layout.returned.assign(static_cast<std::size_t>(map.num_hosts()), 0);
  for (int host = 0; host < map.num_hosts(); ++host) {
    if (host == own_host) continue;
    layout.returned[static_cast<std::size_t>(host)] = offsets.take(1, returned_bytes(host));
  }
  layout.num_bytes = offsets.num_bytes();
  return layout;
}

}  // namespace switchyard
