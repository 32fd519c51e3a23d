// SPDX-License-Identifier: Apache-2.0

#include "switchyard/compat/deep_ep/low_latency_buffer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "compat/kept_dispatch.h"
#include "core/fail.h"
#include "core/format.h"
#include "plan/expert_ownership.h"

namespace switchyard::deep_ep {

struct LowLatencyState {
  explicit LowLatencyState(std::shared_ptr<Exchange> exchange) : kept(std::move(exchange)) {}

  KeptDispatch kept;
  LowLatencyDispatchOptions options;
  LowLatencyRows rows;
  bool is_received = false;
  Tensor topk_idx;  ///< [T, K] i64
  Tensor recv_src_rank;
  Tensor combine_rows;  ///< for get_next_low_latency_combine_buffer, made on demand
};

namespace {

constexpr std::size_t kMaxOutstanding = 2;

QuantScheme scheme_of(const LowLatencyDispatchOptions& options) {
  require(!(options.use_fp8 && options.use_nvfp4), Errc::kInvalidArgument,
          "low_latency_dispatch: use_fp8 and use_nvfp4 are both set, must be one of them");
  require(!options.use_ue8m0 || (options.round_scale && options.use_fp8), Errc::kInvalidArgument,
          "low_latency_dispatch: use_ue8m0 is set, must come with round_scale and use_fp8");
  if (options.use_nvfp4) return schemes::kNvfp4;
  if (!options.use_fp8) return schemes::kNone;
  if (options.use_ue8m0) return schemes::kFp8Ue8m0DeepEp;
  QuantScheme scheme = schemes::kFp8BlockDeepEp;
  if (options.round_scale) scheme.scale_format = ScaleFormat::kF32PowerOfTwo;
  return scheme;
}

ExchangeConfig config_of(std::int64_t max_tokens, std::int64_t hidden, std::int32_t num_experts,
                         std::int32_t num_topk, const LowLatencyDispatchOptions& options) {
  ExchangeConfig config;
  config.num_experts = num_experts;
  config.num_topk = num_topk;
  config.hidden = hidden;
  config.max_tokens_per_rank = max_tokens;
  config.layout = Layout::kBatched;
  config.reduce = Reduce::kPerExpert;
  config.scheme = scheme_of(options);
  if (options.use_fp8) config.scale_layout = ScaleLayout::kColumnMajor;
  if (options.use_nvfp4) config.scale_layout = ScaleLayout::kSwizzled;
  config.sends_weights = options.topk_weights.has_value();
  config.max_in_flight = kMaxOutstanding;
  return config;
}

void check_statistics(const LowLatencyDispatchOptions& options, std::int64_t num_local,
                      int num_ranks) {
  const auto check = [](const char* name, const TensorView& view, DType dtype, std::int64_t size) {
    require(!view.has_value() ||
                (view.dtype() == dtype && view.num_elements() == size && view.is_contiguous()),
            Errc::kInvalidArgument, "low_latency_dispatch: {} is {}, must be {} [{}], contiguous",
            name, view, name_of(dtype), size);
  };
  check("cumulative_local_expert_recv_stats", options.cumulative_local_expert_recv_stats,
        DType::kI32, num_local);
  check("dispatch_wait_recv_cost_stats", options.dispatch_wait_recv_cost_stats, DType::kI64,
        num_ranks);
}

// Sets the origin of each row of [L, C], and the segment of rows from each rank.
void set_origins(LowLatencyHandle& handle, int num_ranks, std::int64_t num_local,
                 std::int64_t capacity) {
  LowLatencyState& state = *handle.state;
  handle.src_info = Tensor(DType::kI32, {num_local, capacity});
  handle.layout_range = Tensor(DType::kI64, {num_local, num_ranks});
  state.recv_src_rank = Tensor(DType::kI32, {num_local, capacity});
  auto* range = handle.layout_range.as<std::int64_t>();
  for (const RowOrigin& origin : state.kept.exchange().row_origins(state.kept.handle())) {
    handle.src_info.as<std::int32_t>()[origin.row] = origin.token;
    state.recv_src_rank.as<std::int32_t>()[origin.row] = origin.rank;
    std::int64_t& segment = range[std::int64_t{origin.expert} * num_ranks + origin.rank];
    // Origins come in row order, so the first row of a segment sets its start.
    if (segment == 0) segment = (origin.row - origin.expert * capacity) << 32;
    ++segment;
  }
}

void add_statistics(const LowLatencyDispatchOptions& options, const Dispatched& received) {
  if (options.cumulative_local_expert_recv_stats.has_value()) {
    auto* total = options.cumulative_local_expert_recv_stats.as<std::int32_t>();
    for (const std::int32_t count : received.experts.num_rows) *total++ += count;
  }
  if (options.dispatch_wait_recv_cost_stats.has_value()) {
    auto* total = options.dispatch_wait_recv_cost_stats.as<std::int64_t>();
    for (const std::int64_t ns : received.wait_ns) *total++ += ns;
  }
}

void receive(LowLatencyHandle& handle, int num_ranks) {
  LowLatencyState& state = *handle.state;
  const Dispatched received = state.kept.receive();
  const auto num_local = static_cast<std::int64_t>(received.experts.num_rows.size());
  const std::int64_t capacity = num_ranks * handle.num_max_dispatch_tokens_per_rank;
  const TensorView& rows = received.experts.rows;
  LowLatencyRows& view = state.rows;
  view.recv_x = rows.dtype() == DType::kE2M1
                    ? reshaped(rows, DType::kU8, {num_local, capacity, handle.hidden / 2})
                    : reshaped(rows, rows.dtype(), {num_local, capacity, handle.hidden});
  view.scales = received.experts.scales;
  view.recv_count = TensorView::of(received.experts.num_rows.data(), {num_local});
  set_origins(handle, num_ranks, num_local, capacity);
  if (state.options.topk_weights.has_value()) {
    view.recv_topk_weights = reshaped(received.topk_weights, DType::kF32, {num_local, capacity});
    view.recv_src_rank = state.recv_src_rank;
  }
  add_statistics(state.options, received);
  state.is_received = true;
}

}  // namespace

const LowLatencyRows& LowLatencyDispatched::rows() const {
  require(handle != nullptr && handle->state->is_received, Errc::kInvalidArgument,
          "rows: nothing was received yet; call the hook first");
  return handle->state->rows;
}

class LowLatencyBufferImpl {
 public:
  explicit LowLatencyBufferImpl(const Group& group) : pool_(group) {}

  LowLatencyDispatched dispatch(const TensorView& x, const TensorView& topk_idx,
                                std::int64_t max_tokens, std::int32_t num_experts,
                                const LowLatencyDispatchOptions& options);
  LowLatencyCombined combine(const TensorView& x, const TensorView& topk_idx,
                             const TensorView& topk_weights,
                             const std::shared_ptr<LowLatencyHandle>& handle,
                             const LowLatencyCombineOptions& options);
  TensorView combine_buffer(const std::shared_ptr<LowLatencyHandle>& handle);
  void barrier() const { pool_.group().barrier(); }

 private:
  void check_outstanding();
  static LowLatencyState& received_state(const char* function,
                                         const std::shared_ptr<LowLatencyHandle>& handle);

  ExchangePool pool_;
  std::vector<std::weak_ptr<LowLatencyState>> outstanding_;
};

void LowLatencyBufferImpl::check_outstanding() {
  const auto is_done = [](const std::weak_ptr<LowLatencyState>& weak) {
    const auto state = weak.lock();
    return state == nullptr || !state->kept.is_open();
  };
  std::erase_if(outstanding_, is_done);
  require(outstanding_.size() < kMaxOutstanding, Errc::kInvalidArgument,
          "low_latency_dispatch: {} handles wait for their combine, at most {} may; combine one "
          "first, or drop it",
          outstanding_.size(), kMaxOutstanding);
}

LowLatencyDispatched LowLatencyBufferImpl::dispatch(const TensorView& x, const TensorView& topk_idx,
                                                    std::int64_t max_tokens,
                                                    std::int32_t num_experts,
                                                    const LowLatencyDispatchOptions& options) {
  check_ids("low_latency_dispatch", x, topk_idx);
  require(!(options.async_finish && options.return_recv_hook), Errc::kInvalidArgument,
          "low_latency_dispatch: async_finish and return_recv_hook are both set, must be one");
  check_outstanding();
  const auto num_topk = narrow_size("low_latency_dispatch", "K", topk_idx.shape(1));
  const ExchangeConfig config = config_of(max_tokens, x.shape(1), num_experts, num_topk, options);
  const int num_ranks = pool_.group().size();
  const ExpertOwnership ownership{num_experts, num_ranks};
  check_statistics(options, ownership.count(pool_.group().rank()), num_ranks);

  auto handle = std::make_shared<LowLatencyHandle>();
  handle->num_max_dispatch_tokens_per_rank = max_tokens;
  handle->hidden = x.shape(1);
  handle->num_experts = num_experts;
  handle->state = std::make_shared<LowLatencyState>(pool_.get(config));
  handle->state->options = options;
  handle->state->topk_idx = copy_ids("low_latency_dispatch", topk_idx);
  DispatchOptions extra;
  if (options.use_nvfp4) extra.tensor_scale = options.x_global_scale;
  handle->state->kept.send(x, topk_idx, options.topk_weights, extra);
  outstanding_.push_back(handle->state);

  LowLatencyDispatched result{handle, {}, {}};
  if (options.return_recv_hook) {
    result.hook = [handle, num_ranks] { receive(*handle, num_ranks); };
  } else {
    receive(*handle, num_ranks);
  }
  return result;
}

LowLatencyState& LowLatencyBufferImpl::received_state(
    const char* function, const std::shared_ptr<LowLatencyHandle>& handle) {
  require(handle != nullptr && handle->state != nullptr && handle->state->is_received,
          Errc::kInvalidArgument, "{}: the handle {}, must be of a dispatch that was received",
          function, handle == nullptr ? "is empty" : "has received nothing");
  return *handle->state;
}

LowLatencyCombined LowLatencyBufferImpl::combine(const TensorView& x, const TensorView& topk_idx,
                                                 const TensorView& topk_weights,
                                                 const std::shared_ptr<LowLatencyHandle>& handle,
                                                 const LowLatencyCombineOptions& options) {
  constexpr const char* kName = "low_latency_combine";
  require(!options.use_logfmt, Errc::kNotSupported,
          "{}: use_logfmt is set; rows come back as bf16, see ExchangeConfig::combine_scheme for "
          "quantized ones",
          kName);
  require(!(options.async_finish && options.return_recv_hook), Errc::kInvalidArgument,
          "{}: async_finish and return_recv_hook are both set, must be one", kName);
  LowLatencyState& state = received_state(kName, handle);
  const TensorView& recv = state.rows.recv_x;
  require(x.has_value() && x.num_dims() == 3 && x.shape(0) == recv.shape(0) &&
              x.shape(1) == recv.shape(1) && x.shape(2) == handle->hidden && x.is_contiguous(),
          Errc::kInvalidArgument, "{}: x is {}, must be bf16 [{}, {}, {}], contiguous", kName, x,
          recv.shape(0), recv.shape(1), handle->hidden);
  require(!options.zero_copy ||
              (state.combine_rows.view().has_value() && x.data() == state.combine_rows.data()),
          Errc::kInvalidArgument,
          "{}: zero_copy is set, x must be what get_next_low_latency_combine_buffer gave", kName);
  require(is_same_ids(topk_idx, state.topk_idx), Errc::kInvalidArgument,
          "{}: topk_idx is {}, must be the ids of the dispatch, {}", kName, topk_idx,
          state.topk_idx.view());
  require(topk_weights.has_value(), Errc::kInvalidArgument,
          "{}: topk_weights is absent, must be f32 [T, K]", kName);

  LowLatencyCombined result;
  result.combined_x = options.out;
  if (!options.out.has_value()) {
    result.memory = Tensor(DType::kBF16, {state.topk_idx.shape(0), handle->hidden});
    result.combined_x = result.memory;
  }
  CombineOptions extra;
  extra.topk_weights = topk_weights;
  const TensorView rows = reshaped(x, x.dtype(), {checked_mul(x.shape(0), x.shape(1)), x.shape(2)});
  state.kept.combine_send(rows, {}, result.combined_x, extra);
  const auto finish = [handle, output = result.combined_x, extra] {
    handle->state->kept.combine_receive(output, extra);
  };
  if (options.return_recv_hook) {
    result.hook = finish;
  } else {
    finish();
  }
  return result;
}

TensorView LowLatencyBufferImpl::combine_buffer(const std::shared_ptr<LowLatencyHandle>& handle) {
  LowLatencyState& state = received_state("get_next_low_latency_combine_buffer", handle);
  const TensorView& recv = state.rows.recv_x;
  if (!state.combine_rows.view().has_value()) {
    state.combine_rows = Tensor(DType::kBF16, {recv.shape(0), recv.shape(1), handle->hidden});
  }
  return state.combine_rows;
}

LowLatencyBuffer::LowLatencyBuffer(const Group& group)
    : impl_(std::make_unique<LowLatencyBufferImpl>(group)) {}
LowLatencyBuffer::LowLatencyBuffer(LowLatencyBuffer&&) noexcept = default;
LowLatencyBuffer& LowLatencyBuffer::operator=(LowLatencyBuffer&&) noexcept = default;
LowLatencyBuffer::~LowLatencyBuffer() = default;

std::size_t LowLatencyBuffer::get_low_latency_rdma_size_hint(std::int64_t max_tokens,
                                                             std::int64_t hidden,
                                                             std::int64_t num_ranks,
                                                             std::int64_t num_experts) {
  require(max_tokens >= 0 && hidden >= 1 && num_ranks >= 1 && num_experts >= 1,
          Errc::kInvalidArgument,
          "get_low_latency_rdma_size_hint: {} tokens, hidden {}, {} ranks, {} experts, must be "
          "positive",
          max_tokens, hidden, num_ranks, num_experts);
  const auto times = [](std::int64_t a, std::int64_t b) { return checked_mul(a, b); };
  const auto plus = [](std::int64_t a, std::int64_t b) { return checked_add(a, b); };
  const std::int64_t scales = times(hidden / 128, 4);
  const std::int64_t bf16 = times(hidden, 2);
  const std::int64_t dispatch = plus(16, std::max(bf16, plus(hidden, scales)));
  const std::int64_t combine = plus(scales, bf16);
  const std::int64_t rows = times(num_experts, max_tokens);
  const std::int64_t send = std::max(times(max_tokens, dispatch), times(rows, combine));
  const std::int64_t receive = times(rows, std::max(dispatch, combine));
  const std::int64_t signals = align_up<std::int64_t>(times(num_experts, 4), 128);
  const std::int64_t total = times(2, plus(plus(send, receive), signals));
  return static_cast<std::size_t>(plus(total, 128) / 128 * 128);
}

ExchangeMemory LowLatencyBuffer::memory(std::int64_t max_tokens, std::int64_t hidden,
                                        std::int32_t num_experts, std::int32_t num_topk,
                                        const LowLatencyDispatchOptions& options, int num_ranks,
                                        int rank) {
  return exchange_memory(config_of(max_tokens, hidden, num_experts, num_topk, options), num_ranks,
                         rank);
}

LowLatencyDispatched LowLatencyBuffer::low_latency_dispatch(
    const TensorView& x, const TensorView& topk_idx, std::int64_t max_tokens,
    std::int32_t num_experts, const LowLatencyDispatchOptions& options) {
  return impl_->dispatch(x, topk_idx, max_tokens, num_experts, options);
}

LowLatencyCombined LowLatencyBuffer::low_latency_combine(
    const TensorView& x, const TensorView& topk_idx, const TensorView& topk_weights,
    const std::shared_ptr<LowLatencyHandle>& handle, const LowLatencyCombineOptions& options) {
  return impl_->combine(x, topk_idx, topk_weights, handle, options);
}

TensorView LowLatencyBuffer::get_next_low_latency_combine_buffer(
    const std::shared_ptr<LowLatencyHandle>& handle) {
  return impl_->combine_buffer(handle);
}

void LowLatencyBuffer::clean_low_latency_buffer(std::int64_t, std::int64_t, std::int32_t) {
  impl_->barrier();
}

}  // namespace switchyard::deep_ep
