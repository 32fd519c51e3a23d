// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/kernel_arguments.h"

#include <algorithm>
#include <limits>

#include "core/round_up.h"
#include "cuda/exchange/wire_form.h"

namespace switchyard {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
// Rows of bytes travel as codes of 8 bits that stay as they are, without scales.
constexpr QuantScheme kBytes = schemes::kFp8Tensor;

bool is_in_units(std::int64_t bytes) { return bytes % static_cast<std::int64_t>(kUnitBytes) == 0; }

cuda::PeerTable windows_at(const cuda::PeerTable& windows, std::size_t offset, int num_ranks) {
  cuda::PeerTable moved{};
  for (int r = 0; r < num_ranks; ++r) {
    if (windows.base[r] != nullptr) moved.base[r] = windows.base[r] + offset;
  }
  return moved;
}

PushRegion main_region(const SlotKernels& slot, const cuda::PeerTable& windows) {
  const PushExchangeShape& shape = *slot.shape;
  return {{.layout = shape.main,
           .ownership = cuda::KernelOwnership(shape.main_ownership,
                                              shape.gathers ? nullptr : slot.expert_table),
           .rank = slot.rank,
           .num_topk = shape.main_topk,
           .rows_layout = shape.config.layout,
           .reduce = shape.config.reduce,
           .state = slot.memory.state,
           .watch = slot.watch},
          windows};
}

// Every rank is one expert that every token chooses; see push_shape.h.
PushRegion gather_region(const SlotKernels& slot, const cuda::PeerTable& windows) {
  const int num_ranks = slot.shape->main_ownership.num_ranks;
  return {{.layout = slot.shape->routing,
           .ownership = cuda::KernelOwnership({num_ranks, num_ranks}),
           .rank = slot.rank,
           .num_topk = num_ranks,
           .rows_layout = Layout::kCompact,
           .reduce = Reduce::kPerRank,
           .state = slot.memory.gather.state,
           .watch = slot.watch},
          windows};
}

// Of this rank's tokens: as given, as kept, or, where every rank takes part, every rank.
cuda::GivenIds ids_of_tokens(const SlotKernels& slot, const PushDispatch& call) {
  if (slot.shape->gathers) return {slot.every_rank, false};
  if (call.is_again || slot.shape->drops) return {slot.memory.own_ids, false};
  return call.tokens.ids;
}

// A row of routing only is one vector of elements.
PushLayout layout_of_tokens(const SlotKernels& slot, const PushDispatch& call) {
  PushLayout layout = slot.main.base.layout;
  if (!call.routing_only) return layout;
  layout.shape.hidden = std::min<std::int64_t>(kVecElements, layout.shape.hidden);
  layout.num_chunks = 1;
  return layout;
}

std::uint32_t mode_of(const PushDispatch& call) {
  return static_cast<std::uint32_t>(call.max_tokens) | (call.routing_only ? cuda::kRoutingOnly : 0);
}

cuda::DispatchArgs region_args(const SlotKernels& slot, const PushDispatch& call,
                               const PushRegion& region, const QuantScheme& scheme,
                               const cuda::TokenInput& tokens, const cuda::ReceiveBuffer& to) {
  cuda::DispatchArgs args;
  static_cast<cuda::ExchangeBase&>(args) = region.base;
  args.mode = mode_of(call);
  args.scheme = scheme;
  args.tokens = tokens;
  args.received = to;
  args.sends_to = slot.sends_to;
  args.windows = region.windows;
  return args;
}

cuda::TokenInput byte_rows(const std::byte* rows, std::int64_t row_bytes, bool are_aligned,
                           const PushDispatch& call, const cuda::GivenIds& ids) {
  return {.data = rows,
          .stride = row_bytes,
          .count = call.tokens.count,
          .dtype = kBytes.dtype,
          .ids = ids,
          .are_aligned = are_aligned};
}

// A send phase by itself waits for no peer, so it does not learn whether all of them push.
DirectReturn way_of(const SlotKernels& slot, const PushCombine& call, cuda::Phases phases) {
  const cuda::ReturnInput& rows = call.results;
  if (rows.data == direct_results(slot) && rows.dtype == DType::kBF16) {
    return DirectReturn::kInPlace;
  }
  return phases == cuda::Phases::kSend ? DirectReturn::kCopies : DirectReturn::kPushes;
}

}  // namespace

SlotKernels make_slot_kernels(const SlotKernels& shared, const cuda::PeerTable& windows) {
  const PushExchangeShape& shape = *shared.shape;
  const int num_ranks = shape.main_ownership.num_ranks;
  SlotKernels slot = shared;
  slot.main = main_region(slot, windows);
  std::size_t offset = shape.main.total_bytes;
  for (std::size_t i = 0; i < shape.payloads.size(); ++i) {
    PushRegion& payload = slot.payloads.emplace_back(slot.main);
    payload.base.layout = shape.payloads[i];
    payload.base.state.counter = slot.memory.payload_counters[i];
    payload.windows = windows_at(windows, offset, num_ranks);
    offset += shape.payloads[i].total_bytes;
  }
  if (shape.gathers_routing) {
    slot.gather = gather_region(slot, windows_at(windows, offset, num_ranks));
  }
  slot.returns = slot.main.windows;
  slot.weights = windows_at(windows, shape.window_bytes - shape.weights.total_bytes, num_ranks);
  for (int r = 0; r < num_ranks; ++r) {
    if (slot.far_returns.base[r] == nullptr) continue;
    slot.returns.base[r] = slot.far_returns.base[r];
    slot.weights.base[r] = slot.far_weights.base[r];
  }
  return slot;
}

cuda::ReceiveBuffer receive_buffer(const SlotKernels& slot, const PushDispatch& call) {
  const PushExchangeShape& shape = *slot.shape;
  const ExchangeConfig& config = shape.config;
  const SlotMemory& memory = slot.memory;
  const auto row_bytes = static_cast<std::int64_t>(shape.exchange.payload_bytes);
  const bool is_by_rank = config.layout == Layout::kByRank;
  const bool is_limited =
      config.layout == Layout::kBatched || (config.capacity > 0 && !shape.gathers);
  // Where every rank gets every token, only the kernels of routing.h know the experts of rows.
  const bool has_experts = !shape.gathers;
  return {.rows = slot.received.rows,
          .row_bytes = row_bytes,
          .are_aligned = is_in_units(row_bytes),
          .capacity = is_limited ? shape.exchange.receive.capacity : kNoLimit,
          .row_alignment = config.expert_alignment,
          .source_rows = is_by_rank ? static_cast<std::int32_t>(call.max_tokens) : 0,
          .num_rows = memory.num_rows,
          .first_row = memory.first_row,
          .total_rows = memory.total_rows,
          .row_ids = has_experts ? slot.received.row_ids : nullptr,
          .row_weights = has_experts ? slot.received.row_weights : nullptr};
}

cuda::ScalePlacement scale_placement(const SlotKernels& slot, const PushDispatch& call) {
  const PushExchangeShape& shape = *slot.shape;
  const ExchangeConfig& config = shape.config;
  const ScaleGeometry block = scale_blocks(config, shape.exchange, slot.rank, call.num_rows).block;
  const std::int32_t per_chunk = cuda::scales_per_chunk(config.scheme);
  const std::int64_t num_scales = shape.exchange.num_scales;
  const std::int64_t units_per_chunk =
      shape.main.shape.chunk_scale_bytes / static_cast<std::int64_t>(kUnitBytes);
  const std::int64_t units_at_end =
      cdiv<std::int64_t>(num_scales % per_chunk * block.element_bytes, std::int64_t{kUnitBytes});
  cuda::ScalePlacement scales{
      .data = slot.received.scales,
      .block = block,
      .per_chunk = per_chunk,
      .units_per_row =
          static_cast<std::int32_t>(num_scales / per_chunk * units_per_chunk + units_at_end),
      .expert_stride = config.layout == Layout::kBatched ? block.num_bytes() : 0,
      .row_step = block.index(1, 0) * block.element_bytes,
      .step = block.index(0, 1) * block.element_bytes,
      .are_tiled = block.layout == ScaleLayout::kSwizzled};
  if (!call.routing_only) return scales;
  scales.block.num_scales = 0;
  scales.units_per_row = 0;
  return scales;
}

cuda::DispatchArgs token_args(const SlotKernels& slot, const PushDispatch& call) {
  cuda::TokenInput tokens = call.tokens;
  tokens.ids = ids_of_tokens(slot, call);
  if (slot.shape->gathers) tokens.topk_weights = nullptr;  // they travel with the ids
  cuda::DispatchArgs args = region_args(slot, call, slot.main, slot.shape->config.scheme, tokens,
                                        receive_buffer(slot, call));
  args.layout = layout_of_tokens(slot, call);
  args.scales = scale_placement(slot, call);
  return args;
}

cuda::DispatchArgs payload_args(const SlotKernels& slot, const PushDispatch& call,
                                std::size_t index) {
  const std::int64_t row_bytes = slot.shape->config.payload_bytes[index];
  const std::byte* from = call.payloads[index];
  cuda::ReceiveBuffer to = receive_buffer(slot, call);
  to.rows = slot.received.payloads[index];
  to.row_bytes = row_bytes;
  to.are_aligned = is_in_units(row_bytes);
  to.row_ids = nullptr;
  to.row_weights = nullptr;
  const bool are_aligned =
      to.are_aligned && reinterpret_cast<std::uintptr_t>(from) % kUnitBytes == 0;
  const cuda::TokenInput tokens =
      byte_rows(from, row_bytes, are_aligned, call, ids_of_tokens(slot, call));
  return region_args(slot, call, slot.payloads[index], kBytes, tokens, to);
}

cuda::DispatchArgs gather_args(const SlotKernels& slot, const PushDispatch& call) {
  const GatherMemory& memory = slot.memory.gather;
  const std::int64_t row_bytes = slot.shape->routing_row_bytes();
  const cuda::ReceiveBuffer to{.rows = memory.rows,
                               .row_bytes = row_bytes,
                               .are_aligned = is_in_units(row_bytes),
                               .capacity = kNoLimit,
                               .num_rows = memory.num_rows,
                               .total_rows = memory.total_rows};
  const cuda::TokenInput tokens =
      byte_rows(reinterpret_cast<const std::byte*>(memory.own_rows), row_bytes, to.are_aligned,
                call, {slot.every_rank, false});
  return region_args(slot, call, slot.gather, kBytes, tokens, to);
}

std::vector<cuda::DispatchArgs> regions_of(const SlotKernels& slot, const PushDispatch& call) {
  std::vector<cuda::DispatchArgs> regions;
  for (std::size_t i = 0; i < call.payloads.size(); ++i) {
    regions.push_back(payload_args(slot, call, i));
  }
  regions.push_back(token_args(slot, call));
  return regions;
}

cuda::HostCountsArgs host_counts_args(const SlotKernels& slot) {
  return {slot.main.base, slot.main.windows.base[slot.rank], slot.memory.num_dropped, slot.counts};
}

cuda::RoutingArgs routing_args(const SlotKernels& slot, const PushDispatch& call) {
  const PushExchangeShape& shape = *slot.shape;
  const ExchangeConfig& config = shape.config;
  const SlotMemory& memory = slot.memory;
  return {.ownership = cuda::KernelOwnership(shape.exchange.ownership, slot.expert_table),
          .state = memory.state,
          .watch = slot.watch,
          .rank = slot.rank,
          .num_topk = config.num_topk,
          .max_tokens = static_cast<std::int32_t>(config.max_tokens_per_rank),
          .wants_distinct = config.layout == Layout::kBatched,
          .ids = call.is_again ? cuda::GivenIds{memory.own_ids, false} : call.tokens.ids,
          .topk_weights = config.sends_weights ? call.tokens.topk_weights : nullptr,
          .num_tokens = call.tokens.count,
          .own_ids = memory.own_ids,
          .own_rows = memory.gather.own_rows,
          .rows = reinterpret_cast<std::uint32_t*>(memory.gather.rows),
          .num_rows = memory.gather.total_rows,
          .num_from = memory.gather.state.num_arrivals,
          .capacity = config.capacity > 0 ? config.capacity : kNoLimit,
          .sort = memory.gather.sort,
          .num_dropped = memory.num_dropped,
          .row_ids = shape.gathers ? slot.received.row_ids : nullptr,
          .row_weights = shape.gathers ? slot.received.row_weights : nullptr,
          .num_buffer_rows = static_cast<std::int32_t>(call.num_rows),
          .num_local = shape.exchange.ownership.count(slot.rank),
          .num_rows_of_expert = memory.num_rows_of_expert};
}

cuda::CombineArgs combine_args(const SlotKernels& slot, const PushCombine& call) {
  return {slot.main.base, slot.shape->config.combine_scheme, call.results, call.sums, {},
          slot.returns};
}

cuda::DirectDispatchArgs direct_dispatch_args(const SlotKernels& slot, const PushDispatch& call) {
  const CountParts parts = count_parts(slot.shape->direct.num_ranks, call.max_tokens);
  return {token_args(slot, call),
          slot.shape->direct,
          parts,
          cuda::FastDivisor(parts.tokens),
          cuda::FastDivisor(parts.count),
          {}};
}

std::byte* direct_results(const SlotKernels& slot) {
  return slot.main.windows.base[slot.rank] + slot.shape->direct.results_offset;
}

cuda::DirectCombineArgs direct_combine_args(const SlotKernels& slot, const PushCombine& call,
                                            cuda::Phases phases) {
  const bool reads_own = phases == cuda::Phases::kBoth;
  const int num_owners = slot.shape->main_ownership.num_ranks - (reads_own ? 1 : 0);
  return {combine_args(slot, call), slot.shape->direct, cuda::FastDivisor(num_owners),
          way_of(slot, call, phases), reads_own};
}

cuda::ReturnWeightsArgs return_weights_args(const SlotKernels& slot, const PushCombine& call) {
  const PushExchangeShape& shape = *slot.shape;
  return {.slots = shape.weights,
          .ownership = cuda::KernelOwnership(shape.exchange.ownership, slot.expert_table),
          .state = slot.memory.state,
          .watch = slot.watch,
          .rank = slot.rank,
          .num_topk = shape.config.num_topk,
          .num_columns = shape.main_topk,
          .max_tokens = static_cast<std::int32_t>(shape.config.max_tokens_per_rank),
          .row_ids = shape.gathers ? slot.received.row_ids : nullptr,
          .row_weights = call.row_weights,
          .weighs_rows = is_expert_major(shape.config.layout),
          .returned = call.returned_weights,
          .num_tokens = call.sums.num_tokens,
          .windows = slot.weights};
}

}  // namespace switchyard
