// SPDX-License-Identifier: Apache-2.0
//
// The send phase of combine: what this rank returns for the tokens of others.
//   per_expert  every expert row
//   per_rank, per_host
//               one row: the sum of this rank's rows of a token, k ascending, rounded to the wire
//               type

#include <algorithm>

#include "core/bytes.h"
#include "cpu/streaming.h"
#include "exchange/check_returns.h"
#include "exchange/cpu/cpu_exchange.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

constexpr std::int64_t kInputBytes = 2;  // of an element of combine_input

}  // namespace

std::span<const Arrival> CpuExchange::arrivals_of(const Slot& slot, int source) const {
  const ReceivePlan& receive = slot.receive();
  const auto s = static_cast<std::size_t>(source);
  const auto first = static_cast<std::size_t>(receive.first_arrival[s]);
  const auto last = static_cast<std::size_t>(receive.first_arrival[s + 1]);
  return std::span(receive.arrivals).subspan(first, last - first);
}

std::span<const Placement> CpuExchange::placements_of(const Slot& slot,
                                                      const Arrival& arrival) const {
  return std::span(slot.receive().placements)
      .subspan(static_cast<std::size_t>(arrival.first), static_cast<std::size_t>(arrival.count));
}

const std::byte* CpuExchange::result_row(const Slot& slot, std::int64_t row) const {
  return slot.results.as<std::byte>() + row * config_.hidden * bits_of(slot.results.dtype()) / 8;
}

// The column of this rank's partial sum of a token in the owner's window.
std::int32_t CpuExchange::column_of(const Slot& slot, const Arrival& arrival) const {
  const std::int32_t k = arrival.count == 0 ? -1 : placements_of(slot, arrival).back().k;
  return shape_.window.column(rank_, k);
}

bool CpuExchange::is_in_wire_form(const Slot& slot) const {
  return !config_.combine_scheme.is_quantized() &&
         slot.results.dtype() == config_.combine_scheme.dtype;
}

// A result row in wire form: in place if it already has that form, else converted into share_.
const std::byte* CpuExchange::to_wire(const Slot& slot, std::int64_t row) {
  const std::byte* from = result_row(slot, row);
  if (is_in_wire_form(slot)) return from;
  quantize_row(config_.combine_scheme, from, slot.results.dtype(), config_.hidden, share_.data(),
               share_.data() + shape_.combine_scales_in_row);
  return share_.data();
}

// Puts this rank's rows of a token, k ascending, into own_sum_.
void CpuExchange::collect_own(const Slot& slot, const Arrival& arrival) {
  own_sum_.clear();
  for (std::int32_t i = arrival.first; i < arrival.first + arrival.count; ++i) {
    const Placement& p = slot.receive().placements[static_cast<std::size_t>(i)];
    own_sum_.add(result_row(slot, p.row), slot.results.dtype(), slot.weight(i));
  }
}

void CpuExchange::round_to_wire(PartialSum& sum, std::byte* row) {
  const QuantScheme& wire = config_.combine_scheme;
  if (!wire.is_quantized()) return sum.sum(row, wire.dtype);
  sum.sum(sum_.data(), DType::kF32);
  quantize_row(wire, sum_.data(), DType::kF32, config_.hidden, row,
               row + shape_.combine_scales_in_row);
}

// This rank's partial sum of a token under per_rank or per_host, in wire form.
const std::byte* CpuExchange::share_of(const Slot& slot, const Arrival& arrival) {
  if (!is_expert_major(config_.layout)) return to_wire(slot, arrival.row);
  collect_own(slot, arrival);
  round_to_wire(own_sum_, share_.data());
  return share_.data();
}

TensorView CpuExchange::combine_input(const DispatchHandle& handle) {
  Slot& slot = find(handle, Stage::kReceived, "combine_input");
  const std::int64_t rows = slot.receive().num_buffer_rows;
  const std::int64_t max_rows = std::max(rows, shape_.max_buffer_rows);
  const auto bytes =
      static_cast<std::size_t>(checked_mul(checked_mul(max_rows, config_.hidden), kInputBytes));
  if (slot.combine_input.size_bytes() < bytes) slot.combine_input = AlignedBuffer(bytes);
  if (config_.layout != Layout::kBatched) {
    return TensorView(slot.combine_input.data(), DType::kBF16, {rows, config_.hidden});
  }
  return TensorView(slot.combine_input.data(), DType::kBF16,
                    {shape_.ownership.count(rank_), shape_.receive.capacity, config_.hidden});
}

void CpuExchange::combine_send(const CombineCall& call) {
  Slot& slot = find(call.handle, Stage::kReceived, "combine");
  const TensorView& rows = call.rows;
  const TensorView& row_weights = call.options.row_weights;
  check_results(config_, slot.receive().num_buffer_rows, rows);
  check_row_weights(config_, slot.receive().num_buffer_rows, row_weights);
  if (call.options.rows_are == RowsAre::kWeighted) slot.placement_weights.clear();
  slot.copies_results = call.options.copies_inputs;
  slot.call = begin(slot, "combine", Phase::kCombineSend);
  handles_.advance(index_of(slot), Stage::kReturned);
  slot.results = rows;
  slot.returns_weights = row_weights.has_value();
  // Rows of this rank's own tokens stay where they are, for combine_receive to read them in place,
  // unless the caller wants that memory back.
  for (int i = 0; i < num_ranks_; ++i) {
    const int owner = (rank_ + i) % num_ranks_;
    if (owner != rank_ || slot.copies_results) return_rows_to(slot, owner);
    return_weights_to(slot, owner, row_weights);
    send_returns(slot, owner);
  }
}

void CpuExchange::return_rows_to(Slot& slot, int owner) {
  const std::span<const Arrival> arrivals = arrivals_of(slot, owner);
  if (arrivals.empty()) return;
  const std::size_t row_bytes = shape_.window.shape.combine_row_bytes;
  const bool streaming = wants_streaming(arrivals.size() * row_bytes, num_ranks_);
  const ReturnedRows home = returns_to(slot, owner);
  std::int64_t number = 0;
  const auto send = [&](const std::byte* row, std::int64_t token, std::int32_t column) {
    std::byte* const to[] = {home.row(number++, token, column)};
    copy_row(row, to, row_bytes, streaming);
  };
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const Arrival& arrival = arrivals[i];
    const std::int64_t token = home.place_of(i, arrival);
    if (config_.reduce == Reduce::kPerExpert) {
      for (const Placement& p : placements_of(slot, arrival))
        send(to_wire(slot, p.row), token, p.k);
    } else if (returns_row(arrival)) {
      // By way of share_, a row in cache, so that a window is written once and past the caches.
      send(share_of(slot, arrival), token, column_of(slot, arrival));
    }
  }
  if (streaming) streaming_store_fence();
}

// One f32 per choice that this rank serves.
void CpuExchange::return_weights_to(Slot& slot, int owner, const TensorView& row_weights) {
  if (!row_weights.has_value()) return;
  const ReturnedRows home = returns_to(slot, owner);
  const bool is_major = is_expert_major(config_.layout);
  std::int64_t number = 0;
  const std::span<const Arrival> arrivals = arrivals_of(slot, owner);
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const std::int64_t choice = home.place_of(i, arrivals[i]) * config_.num_topk;
    for (const Placement& p : placements_of(slot, arrivals[i])) {
      const std::int64_t from = is_major ? p.row : p.row * config_.num_topk + p.k;
      home.weight(number++, choice + p.k) = row_weights.as<float>()[from];
    }
  }
}

}  // namespace switchyard
