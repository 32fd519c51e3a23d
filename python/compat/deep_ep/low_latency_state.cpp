// SPDX-License-Identifier: Apache-2.0

#include "compat/deep_ep/low_latency_state.h"

#include <algorithm>

#include "compat/arguments.h"
#include "device/compat_rows.h"

namespace switchyard::deep_ep {
namespace {

// The segment of rows from each rank, which follow each other in an expert.
void find_segments(const TensorView& source_rank, const TensorView& counts,
                   const TensorView& layout_range, const TensorView& totals, Stream stream) {
  const std::int64_t capacity = source_rank.shape(1);
  const std::int64_t num_ranks = layout_range.shape(1);
  if (stream.device().is_cuda()) {
    return on_gpu::find_row_segments(
        {source_rank.as<std::int32_t>(), counts.as<std::int32_t>(),
         static_cast<std::int32_t>(source_rank.shape(0)), capacity,
         static_cast<std::int32_t>(num_ranks), layout_range.as<std::int64_t>(),
         totals.has_value() ? totals.as<std::int32_t>() : nullptr},
        stream);
  }
  for (std::int64_t e = 0; e < source_rank.shape(0); ++e) {
    const std::int32_t count = counts.as<std::int32_t>()[e];
    if (totals.has_value()) totals.as<std::int32_t>()[e] += count;
    for (std::int64_t row = 0; row < count; ++row) {
      const std::int32_t rank = source_rank.as<std::int32_t>()[e * capacity + row];
      std::int64_t& segment = layout_range.as<std::int64_t>()[e * num_ranks + rank];
      if (segment == 0) segment = row << 32;
      ++segment;
    }
  }
}

bool has_segments(const LowLatencyDispatchOptions& options) {
  return options.sets_source_info || options.cumulative_local_expert_recv_stats.has_value();
}

}  // namespace

void make_sources(LowLatencyHandle& handle, const LowLatencyDispatchOptions& options,
                  const TensorView& rows, int num_ranks) {
  LowLatencyState& state = *handle.state;
  const std::int64_t num_local = rows.shape(0);
  const std::int64_t capacity = rows.shape(1);
  const bool has_ranks = state.recv_src_rank.view().has_value();
  if (!has_ranks && (options.topk_weights.has_value() || has_segments(options))) {
    state.recv_src_rank = state.results.make(DType::kI32, {num_local, capacity});
  }
  if (options.sets_source_info) {
    handle.src_info = state.results.make(DType::kI32, {num_local, capacity});
  }
  if (has_segments(options)) {
    handle.layout_range = state.results.make(DType::kI64, {num_local, num_ranks});
  }
}

void place(LowLatencyHandle& handle, const Dispatched& places, int num_ranks) {
  LowLatencyState& state = *handle.state;
  const LowLatencyDispatchOptions& options = state.options;
  const TensorView& rows = places.experts.rows;
  const std::int64_t num_local = rows.shape(0);
  const std::int64_t capacity = rows.shape(1);
  LowLatencyRows& view = state.rows;
  view.recv_x = rows;
  if (rows.dtype() == DType::kE2M1) {
    view.recv_x = reshaped(rows, DType::kU8, {num_local, capacity, handle.hidden / 2});
  }
  view.scales = places.experts.scales;
  view.recv_count = places.experts.num_rows;
  if (!view.recv_count.has_value()) {
    state.recv_count = state.results.make(DType::kI32, {num_local});
    view.recv_count = state.recv_count;
  }
  make_sources(handle, options, rows, num_ranks);
  if (options.topk_weights.has_value()) {
    view.recv_topk_weights = reshaped(places.topk_weights, DType::kF32, {num_local, capacity});
    view.recv_src_rank = state.recv_src_rank;
  }
}

void write_sources(LowLatencyHandle& handle, const LowLatencyDispatchOptions& options,
                   Stream stream) {
  LowLatencyState& state = *handle.state;
  if (!state.recv_src_rank.view().has_value()) return;
  RowSources sources;
  sources.rank = state.recv_src_rank;
  sources.token = handle.src_info;
  state.kept.exchange().write_row_sources(state.kept.handle(), sources, stream);
  if (!has_segments(options)) return;
  find_segments(state.recv_src_rank, state.rows.recv_count, handle.layout_range,
                options.cumulative_local_expert_recv_stats, stream);
}

void receive(LowLatencyHandle& handle, const Dispatched& received, Stream stream) {
  LowLatencyState& state = *handle.state;
  const LowLatencyDispatchOptions& options = state.options;
  if (state.recv_count.view().has_value()) {  // on CPUs, where the counts are known now
    const auto counts = counts_of(received.experts.num_rows);
    std::copy(counts.begin(), counts.end(), state.recv_count.as<std::int32_t>());
  }
  write_sources(handle, options, stream);
  if (options.dispatch_wait_recv_cost_stats.has_value()) {
    auto* total = options.dispatch_wait_recv_cost_stats.as<std::int64_t>();
    for (const std::int64_t ns : received.host->wait_ns) *total++ += ns;
  }
  state.is_received = true;
}

}  // namespace switchyard::deep_ep
