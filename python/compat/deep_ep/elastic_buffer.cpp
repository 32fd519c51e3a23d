// SPDX-License-Identifier: Apache-2.0

#include "compat/deep_ep/elastic_buffer.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "compat/arguments.h"
#include "core/bytes.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/live.h"
#include "device/compat_rows.h"
#include "exchange/pool/kept_dispatch.h"
#include "plan/expert_ownership.h"
#include "plan/id_tensor.h"

namespace switchyard::deep_ep {

struct ElasticState {
  explicit ElasticState(std::shared_ptr<Exchange> exchange) : kept(std::move(exchange)) {}

  KeptDispatch kept;
  Tensor topk_idx;  ///< the copy, with do_handle_copy
  Tensor ones;      ///< [T, K] f32 1: weights of sums in which every row counts as it is
  bool is_synced = true;
  bool has_aligned_sf = false;
  std::int64_t num_rows = 0;  ///< N
};

namespace {

void fill_psums(EPHandle& handle, const Dispatched& received) {
  const std::span<const std::int32_t> counts = counts_of(received.experts.num_rows);
  const std::vector<std::int64_t> aligned = aligned_counts(counts, handle.expert_alignment);
  std::vector<std::int64_t> ranks(received.host->rows_per_rank.begin(),
                                  received.host->rows_per_rank.end());
  std::vector<std::int64_t> ends;
  std::int64_t start = 0;
  for (std::size_t e = 0; e < aligned.size(); ++e) {
    ends.push_back(handle.do_expand ? start + counts[e] : start + aligned[e]);
    start += aligned[e];
  }
  for (std::size_t r = 1; r < ranks.size(); ++r) ranks[r] += ranks[r - 1];
  handle.psum_num_recv_tokens_per_scaleup_rank = to_i32(ranks);
  handle.psum_num_recv_tokens_per_expert = to_i32(ends);
  handle.num_unaligned_recv_tokens_per_expert = to_i32(counts);
  if (handle.state->is_synced) handle.num_recv_tokens_per_expert_list = aligned;
}

void fill_psums_on_gpu(EPHandle& handle, const Dispatched& received, const ExchangePool& pool,
                       Stream stream) {
  const TensorPool& results = pool.results();
  const TensorView& counts = received.experts.num_rows;
  const auto num_local = static_cast<std::int32_t>(counts.shape(0));
  const int num_ranks = pool.group().size();
  const Tensor per_rank = results.make(DType::kI32, {num_ranks});
  KeptDispatch& kept = handle.state->kept;
  kept.exchange().write_row_sources(kept.handle(), {.rows_per_rank = per_rank}, stream);
  handle.psum_num_recv_tokens_per_scaleup_rank = results.make(DType::kI32, {num_ranks});
  on_gpu::running_sums({per_rank.as<std::int32_t>(),
                        handle.psum_num_recv_tokens_per_scaleup_rank.as<std::int32_t>(), num_ranks},
                       stream);
  handle.psum_num_recv_tokens_per_expert = results.make(DType::kI32, {num_local});
  on_gpu::running_sums(
      {counts.as<std::int32_t>(), handle.psum_num_recv_tokens_per_expert.as<std::int32_t>(),
       num_local, handle.expert_alignment, !handle.do_expand},
      stream);
  handle.num_unaligned_recv_tokens_per_expert = copy_of(results, counts, stream);
  handle.num_recv_tokens = num_ranks * handle.num_max_tokens_per_rank;
  if (!handle.state->is_synced) return;
  const HostCounts& host = *received.host;
  handle.num_recv_tokens =
      std::accumulate(host.rows_per_rank.begin(), host.rows_per_rank.end(), std::int64_t{0});
  handle.num_recv_tokens_per_expert_list =
      aligned_counts(host.rows_per_expert, handle.expert_alignment);
}

// Writes one line of metadata per received token, in the order of (rank, token).
void fill_metadata(EPHandle& handle, int num_ranks) {
  const std::int64_t num_topk = handle.topk_idx.shape(1);
  const std::int64_t max_tokens = handle.num_max_tokens_per_rank;
  const std::int64_t received =
      handle.psum_num_recv_tokens_per_scaleup_rank.as<std::int32_t>()[num_ranks - 1];
  handle.num_recv_tokens = handle.state->is_synced ? received : num_ranks * max_tokens;
  handle.recv_src_metadata = Tensor(DType::kI32, {handle.num_recv_tokens, num_topk + 2});
  auto* lines = handle.recv_src_metadata.as<std::int32_t>();
  std::fill_n(lines, handle.recv_src_metadata.view().num_elements(), -1);

  std::vector<RowOrigin> origins =
      handle.state->kept.exchange().row_origins(handle.state->kept.handle());
  std::sort(origins.begin(), origins.end(), [](const RowOrigin& a, const RowOrigin& b) {
    return std::tie(a.rank, a.token, a.k) < std::tie(b.rank, b.token, b.k);
  });
  std::int64_t line = -1;
  for (std::size_t i = 0; i < origins.size(); ++i) {
    const RowOrigin& origin = origins[i];
    const bool is_new =
        i == 0 || origin.rank != origins[i - 1].rank || origin.token != origins[i - 1].token;
    if (is_new) ++line;
    std::int32_t* at = lines + line * (num_topk + 2);
    at[0] = static_cast<std::int32_t>(origin.rank * max_tokens + origin.token);
    at[1] = static_cast<std::int32_t>(origin.rank * num_topk + origin.k);
    if (handle.do_expand) at[2 + origin.k] = static_cast<std::int32_t>(origin.row);
  }
}

void fill_slots(EPHandle& handle, const Group& group) {
  const std::int64_t num_tokens = handle.topk_idx.shape(0);
  const std::int64_t num_topk = handle.topk_idx.shape(1);
  const IdTensor ids("dispatch", "topk_idx", handle.topk_idx);
  const ExpertOwnership ownership{handle.num_experts, group.size()};
  handle.dst_buffer_slot_idx = Tensor(DType::kI32, {num_tokens, num_topk});
  auto* slots = handle.dst_buffer_slot_idx.as<std::int32_t>();
  std::fill_n(slots, num_tokens * num_topk, -1);
  const std::int64_t first = group.rank() * handle.num_max_tokens_per_rank;
  std::vector<std::int64_t> next(static_cast<std::size_t>(group.size()), first);
  std::vector<std::int64_t> last_token(next.size(), -1);
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    for (std::int64_t k = num_topk - 1; k >= 0; --k) {
      const std::int64_t id = ids[t * num_topk + k];
      if (id < 0) continue;
      const auto rank = static_cast<std::size_t>(ownership.owner(static_cast<int>(id)));
      if (std::exchange(last_token[rank], t) == t) continue;
      slots[t * num_topk + k] = static_cast<std::int32_t>(next[rank]++);
    }
  }
}

EPHandle& checked(const char* function, const std::shared_ptr<EPHandle>& handle) {
  require(handle != nullptr && handle->state != nullptr, Errc::kInvalidArgument,
          "{}: the handle is empty, must be of a dispatch", function);
  return *handle;
}

ElasticDispatched result_of(const TensorPool& pool, const std::shared_ptr<EPHandle>& handle,
                            const Dispatched& received, const TensorView& sf,
                            const TensorView& topk_weights, Stream stream) {
  ElasticDispatched result;
  result.handle = handle;
  result.recv_x = received.experts.rows;
  result.recv_sf = retyped(received.experts.scales, sf.dtype());
  if (topk_weights.has_value()) {
    result.recv_topk_weights = copy_of(pool, received.topk_weights, stream);
  }
  if (!handle->do_expand) {
    result.recv_topk_idx =
        copy_ids("dispatch", pool, received.topk_ids, stream, received.total_rows);
  }
  result.event = event_behind(stream);
  return result;
}

// Weights of sums in which every row counts as it is.
Tensor ones_of(const TensorPool& pool, std::int64_t num_tokens, std::int64_t num_topk,
               Stream stream) {
  Tensor ones = pool.make(DType::kF32, {num_tokens, num_topk});
  if (stream.device().is_cpu()) {
    std::fill_n(ones.as<float>(), num_tokens * num_topk, 1.0f);
    return ones;
  }
  const Tensor zero = pool.make(DType::kI32, {1});
  on_gpu::fill(zero, 0, stream);
  on_gpu::fill_tails({ones.data(), sizeof(float), std::bit_cast<std::int32_t>(1.0f), 1, num_tokens,
                      num_topk, zero.as<std::int32_t>()},
                     stream);
  return ones;
}

ExchangeConfig config_of(const ElasticBufferOptions& buffer, std::int32_t num_experts,
                         std::int32_t num_topk, const ElasticDispatchOptions& options) {
  ExchangeConfig config;
  config.num_experts = num_experts;
  config.num_topk = num_topk;
  config.max_tokens_per_rank = buffer.num_max_tokens_per_rank;
  config.layout = options.do_expand ? Layout::kExpanded : Layout::kCompact;
  const bool sends_every_row = options.do_expand && !buffer.allow_multiple_reduction;
  config.reduce = sends_every_row ? Reduce::kPerExpert : Reduce::kPerRank;
  if (options.do_expand) config.expert_alignment = options.expert_alignment;
  config.worst_case_rows = !options.do_cpu_sync;
  config.zero_padding = options.do_zero_padding;
  config.max_in_flight = buffer.max_in_flight;
  return config;
}

void set_rows(ExchangeConfig& config, const TensorView& x, const TensorView& sf, bool is_aligned) {
  config.scheme = scheme_of_rows("dispatch", x, sf);
  config.hidden = x.shape(1);
  config.scale_layout =
      is_aligned && sf.has_value() ? ScaleLayout::kColumnMajorAligned : ScaleLayout::kRowMajor;
}

}  // namespace

class ElasticBufferImpl {
 public:
  ElasticBufferImpl(const Group& group, const ElasticBufferOptions& given,
                    const ExchangeOptions& exchange)
      : pool(group, exchange), options(given) {}

  ExchangePool pool;
  ElasticBufferOptions options;
};

ElasticDispatched ElasticBuffer::dispatch(const TensorView& x, const TensorView& topk_idx,
                                          std::int32_t num_experts, Stream stream,
                                          const ElasticDispatchOptions& options) {
  ElasticBufferImpl& own = live(impl_, "ElasticBuffer");
  own.pool.check_call("dispatch", stream,
                      {{"x", x},
                       {"topk_idx", topk_idx},
                       {"sf", options.sf},
                       {"topk_weights", options.topk_weights}});
  check_ids("dispatch", x, topk_idx);
  check_alignment("dispatch", options.expert_alignment);
  require(options.do_expand || !options.do_zero_padding, Errc::kInvalidArgument,
          "dispatch: do_zero_padding is set, must come with do_expand: other rows have no gaps");
  ExchangeConfig config =
      config_of(own.options, num_experts, narrow_size("dispatch", "K", topk_idx.shape(1)), options);
  set_rows(config, x, options.sf, options.use_tma_aligned_col_major_sf);
  auto handle = std::make_shared<EPHandle>();
  handle->do_expand = options.do_expand;
  handle->num_experts = num_experts;
  handle->expert_alignment = options.expert_alignment;
  handle->num_max_tokens_per_rank = options.num_max_tokens_per_rank == 0
                                        ? own.options.num_max_tokens_per_rank
                                        : options.num_max_tokens_per_rank;
  handle->state = std::make_shared<ElasticState>(own.pool.get(config));
  ElasticState& state = *handle->state;
  state.is_synced = options.do_cpu_sync;
  state.has_aligned_sf = options.use_tma_aligned_col_major_sf;
  handle->topk_idx = topk_idx;
  if (options.do_handle_copy) {
    state.topk_idx = copy_ids("dispatch", own.pool.results(), topk_idx, stream);
    handle->topk_idx = state.topk_idx;
  }
  DispatchOptions extra;
  extra.scales = retyped(options.sf, DType::kF32);
  extra.max_tokens = options.num_max_tokens_per_rank;
  extra.host_counts = options.do_cpu_sync;
  const Dispatched received = state.kept.dispatch(x, topk_idx, options.topk_weights, stream, extra);
  state.num_rows = received.experts.rows.shape(0);
  if (own.pool.is_on_gpu()) {
    fill_psums_on_gpu(*handle, received, own.pool, stream);
  } else {
    fill_psums(*handle, received);
    fill_metadata(*handle, own.pool.group().size());
    fill_slots(*handle, own.pool.group());
  }
  if (handle->do_expand) handle->num_expanded_tokens = state.num_rows;
  return result_of(own.pool.results(), handle, received, options.sf, options.topk_weights, stream);
}

ElasticDispatched ElasticBuffer::dispatch(const TensorView& x,
                                          const std::shared_ptr<EPHandle>& handle, Stream stream,
                                          const TensorView& sf, const TensorView& topk_weights,
                                          bool do_zero_padding) {
  ElasticBufferImpl& own = live(impl_, "ElasticBuffer");
  own.pool.check_call("dispatch", stream, {{"x", x}, {"sf", sf}, {"topk_weights", topk_weights}});
  const EPHandle& earlier = checked("dispatch", handle);
  require(earlier.do_expand || !topk_weights.has_value(), Errc::kInvalidArgument,
          "dispatch: topk_weights is {} with a handle, must be absent unless it is expanded",
          topk_weights);
  require(earlier.do_expand || !do_zero_padding, Errc::kInvalidArgument,
          "dispatch: do_zero_padding is set, must come with an expanded handle: other rows have no "
          "gaps");
  ExchangeConfig config = earlier.state->kept.exchange().config();
  config.zero_padding = config.zero_padding || do_zero_padding;
  set_rows(config, x, sf, earlier.state->has_aligned_sf);
  DispatchOptions extra;
  extra.scales = retyped(sf, DType::kF32);
  extra.max_tokens = earlier.num_max_tokens_per_rank;
  extra.host_counts = earlier.state->is_synced;
  const Dispatched received = earlier.state->kept.dispatch_again(
      own.pool.get(config), x, earlier.topk_idx, topk_weights, stream, extra);
  return result_of(own.pool.results(), handle, received, sf, topk_weights, stream);
}

ElasticRowSources ElasticBuffer::row_sources(const std::shared_ptr<EPHandle>& handle,
                                             Stream stream) const {
  constexpr const char* kName = "row_sources";
  ElasticBufferImpl& own = live(impl_, "ElasticBuffer");
  own.pool.check_call(kName, stream, {});
  const ElasticState& state = *checked(kName, handle).state;
  require(state.kept.is_open(), Errc::kInvalidArgument,
          "{}: the handle was combined, must be asked between dispatch and combine", kName);
  const TensorPool& results = own.pool.results();
  const auto make = [&] { return results.make(DType::kI32, {state.num_rows}); };
  ElasticRowSources sources{make(), make(), make()};
  state.kept.exchange().write_row_sources(
      state.kept.handle(), {.rank = sources.rank, .token = sources.token, .k = sources.k}, stream);
  return sources;
}

ElasticCombined ElasticBuffer::combine(const TensorView& x, const std::shared_ptr<EPHandle>& handle,
                                       Stream stream, const TensorView& topk_weights,
                                       const std::vector<TensorView>& bias) {
  ElasticBufferImpl& own = live(impl_, "ElasticBuffer");
  own.pool.check_call("combine", stream, {{"x", x}, {"topk_weights", topk_weights}});
  ElasticState& state = *checked("combine", handle).state;
  check_bf16("combine", x);
  check_bias("combine", bias);
  const ExchangeConfig& config = state.kept.exchange().config();
  const std::int64_t num_tokens = handle->topk_idx.shape(0);
  const std::int64_t num_topk = handle->topk_idx.shape(1);
  ElasticCombined result;
  result.combined_x = own.pool.results().make(DType::kBF16, {num_tokens, config.hidden});
  CombineOptions extra;
  extra.bias = bias;
  if (config.reduce == Reduce::kPerExpert) {
    require(!topk_weights.has_value(), Errc::kInvalidArgument,
            "combine: topk_weights is {}, must be absent without allow_multiple_reduction",
            topk_weights);
    if (!state.ones.view().has_value()) {
      state.ones = ones_of(own.pool.results(), num_tokens, num_topk, stream);
    }
    extra.topk_weights = state.ones;
  }
  if (topk_weights.has_value()) {
    result.combined_topk_weights = own.pool.results().make(DType::kF32, {num_tokens, num_topk});
    extra.returned_weights = result.combined_topk_weights;
  }
  state.kept.combine(x, topk_weights, handle->topk_idx, result.combined_x, stream, extra);
  result.event = event_behind(stream);
  return result;
}

ElasticBuffer::ElasticBuffer(const Group& group, const ElasticBufferOptions& options,
                             const ExchangeOptions& exchange_options)
    : impl_(std::make_unique<ElasticBufferImpl>(group, options, exchange_options)) {}
ElasticBuffer::ElasticBuffer(ElasticBuffer&&) noexcept = default;
ElasticBuffer& ElasticBuffer::operator=(ElasticBuffer&&) noexcept = default;
ElasticBuffer::~ElasticBuffer() = default;
void ElasticBuffer::close(bool waits_for_peers) {
  live(impl_, "ElasticBuffer").pool.close(waits_for_peers);
}

std::size_t ElasticBuffer::get_buffer_size_hint(int num_ranks, std::int32_t num_experts,
                                                const ElasticBufferOptions& options,
                                                std::int64_t hidden, std::int32_t num_topk) {
  constexpr std::size_t kUnit = std::size_t{2} << 20;
  ElasticDispatchOptions dispatch;
  dispatch.do_expand = true;
  ExchangeConfig config = config_of(options, num_experts, num_topk, dispatch);
  config.hidden = hidden;
  const std::size_t bytes = exchange_memory(config, num_ranks, 0).window_bytes;
  return checked_add(bytes, kUnit - 1) / kUnit * kUnit;
}

}  // namespace switchyard::deep_ep
