// SPDX-License-Identifier: Apache-2.0

#include "compat/deep_ep/buffer.h"

#include "switchyard/permute.h"

#include "compat/arguments.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/live.h"
#include "device/compat_rows.h"
#include "exchange/pool/kept_dispatch.h"
#include "plan/expert_ownership.h"
#include "plan/id_tensor.h"

namespace switchyard::deep_ep {

struct BufferState {
  BufferState(std::shared_ptr<Exchange> exchange, Tensor ids, std::int64_t bound)
      : kept(std::move(exchange)), topk_idx(std::move(ids)), max_tokens(bound) {}

  KeptDispatch kept;
  Tensor topk_idx;            ///< [T, K] i64
  std::int64_t max_tokens;    ///< 0: the configured maximum
  std::int64_t num_rows = 0;  ///< R
};

class BufferImpl {
 public:
  BufferImpl(const Group& group, const BufferOptions& given, const ExchangeOptions& exchange)
      : pool(group, exchange), options(given) {}

  ExchangePool pool;
  BufferOptions options;
};

namespace {

BufferState& state_of(const char* function, const BufferHandle& handle) {
  require(handle.state != nullptr, Errc::kInvalidArgument,
          "{}: the handle is empty, must be of a dispatch", function);
  return *handle.state;
}

// The original sends 0 for experts of other ranks, and its tests expect that.
Tensor local_weights(const TensorPool& pool, const Dispatched& received, Stream stream) {
  const TensorView& weights = received.topk_weights;
  const TensorView& local_ids = received.topk_ids;
  if (stream.device().is_cuda()) {
    Tensor kept = copy_of(pool, weights, stream);
    const auto row_weights = weights.shape(1);
    on_gpu::mask_weights({local_ids.as<std::int32_t>(), kept.as<float>(), weights.num_elements()},
                         stream);
    on_gpu::fill_tails({kept.data(), sizeof(float), 0, 1, weights.shape(0), row_weights,
                        received.total_rows.as<std::int32_t>()},
                       stream);
    return kept;
  }
  Tensor kept(DType::kF32, {weights.shape(0), weights.shape(1)});
  for (std::int64_t i = 0; i < weights.num_elements(); ++i) {
    if (local_ids.as<std::int32_t>()[i] >= 0) kept.as<float>()[i] = weights.as<float>()[i];
  }
  return kept;
}

DispatchLayout layout_on_gpu(const TensorPool& pool, const TensorView& topk_idx,
                             const ExpertOwnership& ownership, Stream stream) {
  DispatchLayout layout{pool.make(DType::kI32, {ownership.num_ranks}),
                        pool.make(DType::kI32, {ownership.num_experts}),
                        pool.make(DType::kU8, {topk_idx.shape(0), ownership.num_ranks}),
                        {}};
  count_expert_num_tokens(topk_idx, layout.num_tokens_per_expert, {}, stream);
  on_gpu::count_sent_tokens(
      {ids_for_kernel(topk_idx), ownership, layout.num_tokens_per_rank.as<std::int32_t>(),
       layout.is_token_in_rank.as<std::uint8_t>()},
      stream);
  layout.event = event_behind(stream);
  return layout;
}

// The bound on T that a user of the original multiplies by P.
std::int64_t tokens_of_worst_case(const BufferImpl& buffer, std::int64_t num_worst_tokens) {
  const std::int64_t num_ranks = buffer.pool.group().size();
  require(num_worst_tokens >= 0 && num_worst_tokens % num_ranks == 0 &&
              num_worst_tokens / num_ranks <= buffer.options.max_tokens_per_rank,
          Errc::kInvalidArgument,
          "dispatch: num_worst_tokens is {}, must be {} times an upper bound on T of at most {}",
          num_worst_tokens, num_ranks, buffer.options.max_tokens_per_rank);
  return num_worst_tokens / num_ranks;
}

}  // namespace

BufferDispatched Buffer::dispatch(const TensorView& x, const TensorView& topk_idx,
                                  std::int32_t num_experts, Stream stream,
                                  const BufferDispatchOptions& options) {
  BufferImpl& own = live(impl_, "Buffer");
  own.pool.check_call("dispatch", stream,
                      {{"x", x},
                       {"topk_idx", topk_idx},
                       {"x_scales", options.x_scales},
                       {"topk_weights", options.topk_weights}});
  check_ids("dispatch", x, topk_idx);
  ExchangeConfig config;
  config.num_experts = num_experts;
  config.num_topk = narrow_size("dispatch", "K", topk_idx.shape(1));
  config.hidden = x.shape(1);
  config.max_tokens_per_rank = own.options.max_tokens_per_rank;
  config.layout = Layout::kCompact;
  config.scheme = scheme_of_rows("dispatch", x, options.x_scales);
  config.worst_case_rows = options.num_worst_tokens != 0;
  config.max_in_flight = own.options.max_in_flight;
  check_alignment("dispatch", options.expert_alignment);
  DispatchOptions extra;
  extra.scales = retyped(options.x_scales, DType::kF32);
  extra.max_tokens = tokens_of_worst_case(own, options.num_worst_tokens);
  extra.host_counts = options.num_worst_tokens == 0;

  const TensorPool& results = own.pool.results();
  BufferDispatched result;
  result.handle.state = std::make_shared<BufferState>(
      own.pool.get(config), copy_ids("dispatch", results, topk_idx, stream), extra.max_tokens);
  KeptDispatch& kept = result.handle.state->kept;
  const Dispatched received = kept.dispatch(x, topk_idx, options.topk_weights, stream, extra);
  result.handle.state->num_rows = received.experts.rows.shape(0);
  result.recv_x = received.experts.rows;
  result.recv_x_scales = retyped(received.experts.scales, options.x_scales.dtype());
  result.recv_topk_idx =
      copy_ids("dispatch", results, received.topk_ids, stream, received.total_rows);
  if (options.topk_weights.has_value()) {
    result.recv_topk_weights = local_weights(results, received, stream);
  }
  if (options.num_worst_tokens == 0) {
    result.num_recv_tokens_per_expert_list =
        aligned_counts(received.host->rows_per_expert, options.expert_alignment);
  }
  result.event = event_behind(stream);
  return result;
}

BufferDispatched Buffer::dispatch(const TensorView& x, const BufferHandle& handle, Stream stream,
                                  const TensorView& x_scales) {
  BufferImpl& own = live(impl_, "Buffer");
  own.pool.check_call("dispatch", stream, {{"x", x}, {"x_scales", x_scales}});
  BufferState& state = state_of("dispatch", handle);
  ExchangeConfig config = state.kept.exchange().config();
  config.scheme = scheme_of_rows("dispatch", x, x_scales);
  config.hidden = x.shape(1);
  DispatchOptions extra;
  extra.scales = retyped(x_scales, DType::kF32);
  extra.max_tokens = state.max_tokens;
  extra.host_counts = state.max_tokens == 0;
  const Dispatched received =
      state.kept.dispatch_again(own.pool.get(config), x, state.topk_idx, {}, stream, extra);
  BufferDispatched result;
  result.recv_x = received.experts.rows;
  result.recv_x_scales = retyped(received.experts.scales, x_scales.dtype());
  result.handle = handle;
  result.event = event_behind(stream);
  return result;
}

HandleTensors Buffer::handle_tensors(const BufferHandle& handle, Stream stream) const {
  constexpr const char* kName = "handle_tensors";
  BufferImpl& own = live(impl_, "Buffer");
  own.pool.check_call(kName, stream, {});
  const BufferState& state = state_of(kName, handle);
  require(state.kept.is_open(), Errc::kInvalidArgument,
          "{}: the handle was combined, must be asked between dispatch and combine", kName);
  const TensorPool& results = own.pool.results();
  const Exchange& exchange = state.kept.exchange();
  HandleTensors tensors{results.make(DType::kI32, {state.num_rows}),
                        results.make(DType::kI32, {own.pool.group().size()}),
                        {}};
  exchange.write_row_sources(
      state.kept.handle(),
      {.token = tensors.recv_src_idx, .rows_per_rank = tensors.num_recv_tokens_per_rank}, stream);
  tensors.is_token_in_rank =
      get_dispatch_layout(state.topk_idx, exchange.config().num_experts, stream).is_token_in_rank;
  return tensors;
}

BufferCombined Buffer::combine(const TensorView& x, const BufferHandle& handle, Stream stream,
                               const TensorView& topk_weights,
                               const std::vector<TensorView>& bias) {
  BufferImpl& own = live(impl_, "Buffer");
  own.pool.check_call("combine", stream, {{"x", x}, {"topk_weights", topk_weights}});
  BufferState& state = state_of("combine", handle);
  check_bf16("combine", x);
  check_bias("combine", bias);
  const std::int64_t num_tokens = state.topk_idx.shape(0);
  BufferCombined result;
  result.combined_x =
      own.pool.results().make(DType::kBF16, {num_tokens, state.kept.exchange().config().hidden});
  CombineOptions extra;
  extra.bias = bias;
  if (topk_weights.has_value()) {
    result.combined_topk_weights =
        own.pool.results().make(DType::kF32, {num_tokens, state.topk_idx.shape(1)});
    extra.returned_weights = result.combined_topk_weights;
  }
  state.kept.combine(x, topk_weights, state.topk_idx, result.combined_x, stream, extra);
  result.event = event_behind(stream);
  return result;
}

Buffer::Buffer(const Group& group, const BufferOptions& options,
               const ExchangeOptions& exchange_options)
    : impl_(std::make_unique<BufferImpl>(group, options, exchange_options)) {}
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&&) noexcept = default;
Buffer::~Buffer() = default;
void Buffer::close(bool waits_for_peers) { live(impl_, "Buffer").pool.close(waits_for_peers); }

DispatchLayout Buffer::get_dispatch_layout(const TensorView& topk_idx, std::int32_t num_experts,
                                           Stream stream) const {
  BufferImpl& own = live(impl_, "Buffer");
  constexpr const char* kName = "get_dispatch_layout";
  constexpr std::int32_t kMaxExperts = 65535;
  own.pool.check_call(kName, stream, {{"topk_idx", topk_idx}});
  require(topk_idx.num_dims() == 2 && num_experts >= 1 && num_experts <= kMaxExperts,
          Errc::kInvalidArgument, "{}: topk_idx is {} of {} experts, must be [T, K] of 1 to {}",
          kName, topk_idx, num_experts, kMaxExperts);
  require_ids(kName, "topk_idx", topk_idx);
  const std::int64_t num_topk = topk_idx.shape(1);
  const ExpertOwnership ownership{num_experts, own.pool.group().size()};
  if (stream.device().is_cuda()) {
    return layout_on_gpu(own.pool.results(), topk_idx, ownership, stream);
  }
  const IdTensor ids(kName, "topk_idx", topk_idx);
  DispatchLayout layout{Tensor(DType::kI32, {ownership.num_ranks}),
                        Tensor(DType::kI32, {num_experts}),
                        Tensor(DType::kU8, {topk_idx.shape(0), ownership.num_ranks}),
                        {}};
  for (std::int64_t i = 0; i < topk_idx.num_elements(); ++i) {
    const std::int64_t id = ids[i];
    require(id >= -1 && id < num_experts, Errc::kInvalidArgument,
            "{}: topk_idx[{}, {}] is {}, must be -1 or an expert from 0 to {}", kName, i / num_topk,
            i % num_topk, id, num_experts - 1);
    if (id < 0) continue;
    const int rank = ownership.owner(static_cast<int>(id));
    std::uint8_t& is_in_rank =
        layout.is_token_in_rank.as<std::uint8_t>()[i / num_topk * ownership.num_ranks + rank];
    ++layout.num_tokens_per_expert.as<std::int32_t>()[id];
    layout.num_tokens_per_rank.as<std::int32_t>()[rank] += is_in_rank == 0 ? 1 : 0;
    is_in_rank = 1;
  }
  return layout;
}

}  // namespace switchyard::deep_ep
