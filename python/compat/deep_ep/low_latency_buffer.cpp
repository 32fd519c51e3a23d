// SPDX-License-Identifier: Apache-2.0

#include "compat/deep_ep/low_latency_buffer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "compat/arguments.h"
#include "compat/deep_ep/low_latency_state.h"
#include "core/bytes.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/live.h"
#include "plan/expert_ownership.h"

namespace switchyard::deep_ep {
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
                      int num_ranks, bool is_on_gpu) {
  require(
      !is_on_gpu || !options.dispatch_wait_recv_cost_stats.has_value(), Errc::kNotSupported,
      "low_latency_dispatch: dispatch_wait_recv_cost_stats is given, but only the host measures "
      "waits; on a GPU profile the kernels");
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
  require_host("low_latency_dispatch",
               {{"dispatch_wait_recv_cost_stats", options.dispatch_wait_recv_cost_stats}});
}

}  // namespace

const LowLatencyRows& LowLatencyDispatched::rows() const {
  require(handle != nullptr && handle->state != nullptr, Errc::kInvalidArgument,
          "rows: the handle is empty, must be of a dispatch");
  return handle->state->rows;
}

class LowLatencyBufferImpl {
 public:
  LowLatencyBufferImpl(const Group& group, const ExchangeOptions& options) : pool(group, options) {}

  ExchangePool pool;
  std::vector<std::weak_ptr<LowLatencyState>> outstanding;
};

namespace {

void check_outstanding(std::vector<std::weak_ptr<LowLatencyState>>& outstanding) {
  const auto is_done = [](const std::weak_ptr<LowLatencyState>& weak) {
    const auto state = weak.lock();
    return state == nullptr || !state->kept.is_open();
  };
  std::erase_if(outstanding, is_done);
  require(
      outstanding.size() < kMaxOutstanding, Errc::kInvalidArgument,
      "low_latency_dispatch: {} handles wait for their combine, must be at most {}; combine one "
      "first, or drop it",
      outstanding.size(), kMaxOutstanding);
}

LowLatencyState& received_state(const char* function,
                                const std::shared_ptr<LowLatencyHandle>& handle) {
  require(handle != nullptr && handle->state != nullptr && handle->state->is_received,
          Errc::kInvalidArgument, "{}: the handle {}, must be of a dispatch that was received",
          function, handle == nullptr ? "is empty" : "has received nothing");
  return *handle->state;
}

}  // namespace

LowLatencyDispatched LowLatencyBuffer::low_latency_dispatch(
    const TensorView& x, const TensorView& topk_idx, std::int64_t max_tokens,
    std::int32_t num_experts, Stream stream, const LowLatencyDispatchOptions& options) {
  LowLatencyBufferImpl& own = live(impl_, "LowLatencyBuffer");
  own.pool.check_call(
      "low_latency_dispatch", stream,
      {{"x", x},
       {"topk_idx", topk_idx},
       {"x_global_scale", options.x_global_scale},
       {"topk_weights", options.topk_weights},
       {"cumulative_local_expert_recv_stats", options.cumulative_local_expert_recv_stats}});
  check_ids("low_latency_dispatch", x, topk_idx);
  require(!(options.async_finish && options.return_recv_hook), Errc::kInvalidArgument,
          "low_latency_dispatch: async_finish and return_recv_hook are both set, must be one");
  check_outstanding(own.outstanding);
  const auto num_topk = narrow_size("low_latency_dispatch", "K", topk_idx.shape(1));
  const ExchangeConfig config = config_of(max_tokens, x.shape(1), num_experts, num_topk, options);
  require(
      config.scheme.is_quantized() || x.dtype() == DType::kBF16, Errc::kInvalidArgument,
      "low_latency_dispatch: x is {}, must be bf16, as which rows travel without use_fp8; round "
      "it first",
      x);
  const int num_ranks = own.pool.group().size();
  const ExpertOwnership ownership{num_experts, num_ranks};
  check_statistics(options, ownership.count(own.pool.group().rank()), num_ranks,
                   own.pool.is_on_gpu());

  auto handle = std::make_shared<LowLatencyHandle>();
  handle->num_max_dispatch_tokens_per_rank = max_tokens;
  handle->hidden = x.shape(1);
  handle->num_experts = num_experts;
  handle->state = std::make_shared<LowLatencyState>(own.pool.get(config), own.pool.results());
  handle->state->options = options;
  handle->state->num_tokens = topk_idx.shape(0);
  if (!own.pool.is_on_gpu()) {
    handle->state->topk_idx =
        copy_ids("low_latency_dispatch", own.pool.results(), topk_idx, stream);
  }
  DispatchOptions extra;
  extra.copies_inputs = options.return_recv_hook;  // as the original, which reads x at the send
  if (options.use_nvfp4) extra.tensor_scale = options.x_global_scale;
  KeptDispatch& kept = handle->state->kept;
  LowLatencyDispatched result{handle, {}, {}};
  if (options.return_recv_hook) {
    kept.send(x, topk_idx, options.topk_weights, stream, extra);
    own.outstanding.push_back(handle->state);
    place(*handle, kept.exchange().places(kept.handle()), num_ranks);
    result.hook = [handle, stream] { receive(*handle, handle->state->kept.receive(), stream); };
  } else {
    const Dispatched received = kept.dispatch(x, topk_idx, options.topk_weights, stream, extra);
    own.outstanding.push_back(handle->state);
    place(*handle, received, num_ranks);
    receive(*handle, received, stream);
  }
  result.event = event_behind(stream);
  return result;
}

LowLatencyCombined LowLatencyBuffer::low_latency_combine(
    const TensorView& x, const TensorView& topk_idx, const TensorView& topk_weights,
    const std::shared_ptr<LowLatencyHandle>& handle, Stream stream,
    const LowLatencyCombineOptions& options) {
  LowLatencyBufferImpl& own = live(impl_, "LowLatencyBuffer");
  constexpr const char* kName = "low_latency_combine";
  own.pool.check_call(
      kName, stream,
      {{"x", x}, {"topk_idx", topk_idx}, {"topk_weights", topk_weights}, {"out", options.out}});
  require(!options.use_logfmt, Errc::kNotSupported,
          "{}: use_logfmt is set, must not be: DeepEP's LogFMT is not implemented; rows return as "
          "bf16, or quantized as ExchangeConfig::combine_scheme says",
          kName);
  require(!(options.async_finish && options.return_recv_hook), Errc::kInvalidArgument,
          "{}: async_finish and return_recv_hook are both set, must be one", kName);
  LowLatencyState& state = received_state(kName, handle);
  const TensorView& recv = state.rows.recv_x;
  require(x.has_value() && x.num_dims() == 3 && x.shape(0) == recv.shape(0) &&
              x.shape(1) == recv.shape(1) && x.shape(2) == handle->hidden && x.is_contiguous(),
          Errc::kInvalidArgument, "{}: x is {}, must be bf16 [{}, {}, {}], contiguous", kName, x,
          recv.shape(0), recv.shape(1), handle->hidden);
  check_bf16(kName, x);
  require(!options.zero_copy ||
              (state.combine_rows.view().has_value() && x.data() == state.combine_rows.data()),
          Errc::kInvalidArgument,
          "{}: zero_copy is set, x must be what get_next_low_latency_combine_buffer gave", kName);
  require(own.pool.is_on_gpu() || is_same_ids(topk_idx, state.topk_idx), Errc::kInvalidArgument,
          "{}: topk_idx is {}, must be the ids of the dispatch, {}", kName, topk_idx,
          state.topk_idx.view());
  require(topk_weights.has_value(), Errc::kInvalidArgument,
          "{}: topk_weights is absent, must be f32 [T, K]", kName);

  LowLatencyCombined result;
  result.combined_x = options.out;
  if (!options.out.has_value()) {
    result.memory = state.results.make(DType::kBF16, {state.num_tokens, handle->hidden});
    result.combined_x = result.memory;
  }
  CombineOptions extra;
  extra.topk_weights = topk_weights;
  extra.copies_inputs = options.return_recv_hook;
  state.is_returned = true;
  if (options.return_recv_hook) {
    state.kept.combine_send(x, {}, topk_idx, result.combined_x, stream, extra);
    result.hook = [handle, output = result.combined_x, extra, stream] {
      handle->state->kept.combine_receive(output, stream, extra);
    };
  } else {
    state.kept.combine(x, {}, topk_idx, result.combined_x, stream, extra);
  }
  result.event = event_behind(stream);
  return result;
}

TensorView LowLatencyBuffer::get_next_low_latency_combine_buffer(
    const std::shared_ptr<LowLatencyHandle>& handle) {
  LowLatencyState& state = received_state("get_next_low_latency_combine_buffer", handle);
  const TensorView& recv = state.rows.recv_x;
  if (!state.combine_rows.view().has_value()) {
    state.combine_rows =
        state.results.make(DType::kBF16, {recv.shape(0), recv.shape(1), handle->hidden});
  }
  return state.combine_rows;
}

void LowLatencyBuffer::set_source_info(const std::shared_ptr<LowLatencyHandle>& handle,
                                       Stream stream) {
  LowLatencyBufferImpl& own = live(impl_, "LowLatencyBuffer");
  require(handle != nullptr && handle->state != nullptr, Errc::kInvalidArgument,
          "set_source_info: the handle is empty, must be of a dispatch");
  LowLatencyState& state = *handle->state;
  if (state.options.sets_source_info) return;
  own.pool.check_call("set_source_info", stream, {});
  require(state.kept.is_open() && !state.is_returned, Errc::kInvalidArgument,
          "set_source_info: the handle was combined, must be asked for its sources before");
  LowLatencyDispatchOptions wanted = state.options;
  wanted.sets_source_info = true;
  make_sources(*handle, wanted, state.rows.recv_x, own.pool.group().size());
  wanted.cumulative_local_expert_recv_stats = {};  // they have their counts
  if (state.is_received) write_sources(*handle, wanted, stream);
  state.options.sets_source_info = true;
}

LowLatencyBuffer::LowLatencyBuffer(const Group& group, const ExchangeOptions& exchange_options)
    : impl_(std::make_unique<LowLatencyBufferImpl>(group, exchange_options)) {}
LowLatencyBuffer::LowLatencyBuffer(LowLatencyBuffer&&) noexcept = default;
LowLatencyBuffer& LowLatencyBuffer::operator=(LowLatencyBuffer&&) noexcept = default;
LowLatencyBuffer::~LowLatencyBuffer() = default;
void LowLatencyBuffer::close(bool waits_for_peers) {
  live(impl_, "LowLatencyBuffer").pool.close(waits_for_peers);
}

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

void LowLatencyBuffer::clean_low_latency_buffer(std::int64_t, std::int64_t, std::int32_t) {
  live(impl_, "LowLatencyBuffer").pool.group().barrier();
}

}  // namespace switchyard::deep_ep
