// SPDX-License-Identifier: Apache-2.0

#include "compat/kept_dispatch.h"

#include <cstring>
#include <limits>

#include "core/fail.h"
#include "core/format.h"
#include "device/compat_rows.h"
#include "plan/id_tensor.h"

namespace switchyard {

void ExchangePool::check_call(const char* function, Stream stream,
                              std::initializer_list<Argument> tensors) const {
  require(!is_closed_, Errc::kInvalidArgument, "{}: the object was closed, must be open", function);
  require_stream(function, device(), stream);
  require_device(function, device(), tensors);
}

void ExchangePool::close(bool waits_for_peers) {
  is_closed_ = true;
  for (const auto& exchange : exchanges_) exchange->close(waits_for_peers);
}

std::shared_ptr<Exchange> ExchangePool::get(const ExchangeConfig& config) {
  for (const auto& exchange : exchanges_) {
    if (exchange->config() == config) return exchange;
  }
  return exchanges_.emplace_back(std::make_shared<Exchange>(group_, config, options_));
}

void KeptDispatch::start(Stream stream, const DispatchOptions& options) {
  stream_ = stream;
  max_tokens_ = options.max_tokens;
  host_counts_ = options.host_counts;
  tensor_scale_ = options.tensor_scale;
}

void KeptDispatch::send(const TensorView& tokens, const TensorView& topk_ids,
                        const TensorView& topk_weights, Stream stream,
                        const DispatchOptions& options) {
  handle_ = exchange_->dispatch_send(tokens, topk_ids, topk_weights, stream, options);
  start(stream, options);
  stage_ = Stage::kSent;
}

Dispatched KeptDispatch::receive() {
  require(stage_ == Stage::kSent, Errc::kInvalidArgument,
          "dispatch: the hook was called before, must be called once");
  // A failed receive ends the dispatch on every rank.
  stage_ = Stage::kClosed;
  Dispatched received = exchange_->dispatch_receive(handle_, stream_);
  stage_ = Stage::kReceived;
  return received;
}

Dispatched KeptDispatch::dispatch(const TensorView& tokens, const TensorView& topk_ids,
                                  const TensorView& topk_weights, Stream stream,
                                  const DispatchOptions& options) {
  return dispatch_over(exchange_, tokens, topk_ids, topk_weights, stream, options);
}

Dispatched KeptDispatch::dispatch_over(const std::shared_ptr<Exchange>& exchange,
                                       const TensorView& tokens, const TensorView& topk_ids,
                                       const TensorView& topk_weights, Stream stream,
                                       const DispatchOptions& options) {
  if (exchange->device().is_cpu()) {
    handle_ = exchange->dispatch_send(tokens, topk_ids, topk_weights, stream, options);
    exchange_ = exchange;
    start(stream, options);
    stage_ = Stage::kSent;
    return receive();
  }
  Dispatched received = exchange->dispatch(tokens, topk_ids, topk_weights, stream, options);
  handle_ = received.handle;
  exchange_ = exchange;
  start(stream, options);
  stage_ = Stage::kReceived;
  return received;
}

Dispatched KeptDispatch::dispatch_again(const std::shared_ptr<Exchange>& exchange,
                                        const TensorView& tokens, const TensorView& topk_ids,
                                        const TensorView& topk_weights, Stream stream,
                                        const DispatchOptions& options) {
  release();
  if (exchange != exchange_ || exchange->device().is_cuda()) {
    return dispatch_over(exchange, tokens, topk_ids, topk_weights, stream, options);
  }
  handle_ = exchange_->dispatch_again_send(handle_, tokens, topk_weights, stream, options);
  start(stream, options);
  stage_ = Stage::kSent;
  return receive();
}

void KeptDispatch::reopen(const TensorView& topk_ids, const TensorView& output, Stream stream) {
  if (exchange_->device().is_cpu()) {
    handle_ = exchange_->reopen(handle_, stream);
    stage_ = Stage::kReceived;
    return;
  }
  DispatchOptions options;
  options.tensor_scale = tensor_scale_;
  options.max_tokens = max_tokens_;
  options.host_counts = host_counts_;
  options.routing_only = true;  // the output has the shape of the tokens, which do not travel
  (void)dispatch(output, topk_ids, {}, stream, options);
}

void KeptDispatch::combine_send(const TensorView& rows, const TensorView& row_weights,
                                const TensorView& topk_ids, const TensorView& output, Stream stream,
                                const CombineOptions& options) {
  if (stage_ == Stage::kClosed) reopen(topk_ids, output, stream);
  exchange_->check_output(handle_, output, options);
  CombineOptions sent = options;
  sent.rows_are = RowsAre::kWeighted;
  sent.row_weights = row_weights;
  exchange_->combine_send(handle_, rows, stream, sent);
  stage_ = Stage::kReturned;
}

void KeptDispatch::combine_receive(const TensorView& output, Stream stream,
                                   const CombineOptions& options) {
  // Arguments were checked before the rows were sent, so the handle ends here even after an error.
  stage_ = Stage::kClosed;
  exchange_->combine_receive(handle_, output, stream, options);
}

void KeptDispatch::combine(const TensorView& rows, const TensorView& row_weights,
                           const TensorView& topk_ids, const TensorView& output, Stream stream,
                           const CombineOptions& options) {
  if (stream.device().is_cpu()) {
    combine_send(rows, row_weights, topk_ids, output, stream, options);
    return combine_receive(output, stream, options);
  }
  if (stage_ == Stage::kClosed) reopen(topk_ids, output, stream);
  CombineOptions both = options;
  both.rows_are = RowsAre::kWeighted;
  both.row_weights = row_weights;
  exchange_->combine(handle_, rows, output, stream, both);
  stage_ = Stage::kClosed;
}

void KeptDispatch::release() noexcept {
  if (stage_ == Stage::kClosed) return;
  const bool is_sent = std::exchange(stage_, Stage::kClosed) == Stage::kSent;
  try {
    // A GPU's rows that are under way must be received before others can come.
    if (is_sent && exchange_->device().is_cuda()) {
      (void)exchange_->dispatch_receive(handle_, stream_);
    }
    exchange_->release(handle_);
  } catch (const Error&) {
    // The group has failed: there is nothing left to release.
  }
}

deep_ep::EventOverlap event_behind(Stream stream) {
  if (stream.device().is_cpu()) return {};
  return deep_ep::EventOverlap(on_gpu::record_event(stream));
}

TensorView reshaped(const TensorView& view, DType dtype,
                    std::initializer_list<std::int64_t> shape) {
  return view.has_value() ? TensorView(view.data(), dtype, shape, view.device()) : TensorView{};
}

TensorView retyped(const TensorView& view, DType dtype) {
  if (!view.has_value()) return {};
  return TensorView(view.data(), dtype, {view.shape(0), view.shape(1)},
                    {view.stride(0), view.stride(1)}, view.device());
}

QuantScheme scheme_of_rows(const char* function, const TensorView& x, const TensorView& scales) {
  require(x.has_value() && x.num_dims() == 2, Errc::kInvalidArgument, "{}: x is {}, must be [T, H]",
          function, x);
  if (!scales.has_value()) {
    require(x.dtype() == DType::kBF16, Errc::kInvalidArgument,
            "{}: x is {} without scales, must be bf16, or e4m3 with scales", function, x);
    return schemes::kNone;
  }
  const std::int64_t hidden = x.shape(1);
  require(x.dtype() == DType::kE4M3 &&
              (scales.dtype() == DType::kI32 || scales.dtype() == DType::kF32) &&
              scales.num_dims() == 2 && scales.shape(0) == x.shape(0) && scales.shape(1) >= 1 &&
              scales.shape(1) <= hidden && hidden <= std::numeric_limits<std::int32_t>::max(),
          Errc::kInvalidArgument,
          "{}: x is {} with scales {}, must be e4m3 [T, H] with f32 or i32 [T, S]", function, x,
          scales);
  QuantScheme scheme = schemes::kFp8Block;
  scheme.block = static_cast<std::int32_t>(cdiv(hidden, scales.shape(1)));
  if (scales.shape(1) == 1) scheme = schemes::kFp8Token;
  require(num_scales(scheme, hidden) == scales.shape(1), Errc::kInvalidArgument,
          "{}: {} scales for {} elements, must be one for each block of as many elements", function,
          scales.shape(1), hidden);
  return scheme;
}

void check_ids(const char* function, const TensorView& x, const TensorView& topk_idx) {
  require(x.has_value() && x.num_dims() == 2 && topk_idx.has_value() && topk_idx.num_dims() == 2 &&
              topk_idx.shape(0) == x.shape(0),
          Errc::kInvalidArgument, "{}: x is {} and topk_idx {}, must be [T, H] and [T, K]",
          function, x, topk_idx);
}

void check_bf16(const char* function, const TensorView& x) {
  require(!x.has_value() || x.dtype() == DType::kBF16, Errc::kInvalidArgument,
          "{}: x is {}, must be bf16, as which rows travel; round it first", function, x);
}

IdTable ids_for_kernel(const TensorView& ids) {
  return {ids.data(),   ids.dtype() == DType::kI64, ids.shape(0), ids.shape(1), ids.stride(0),
          ids.stride(1)};
}

Tensor copy_ids(const char* function, const TensorPool& pool, const TensorView& ids, Stream stream,
                const TensorView& num_rows) {
  require_ids(function, "topk_idx", ids);
  Tensor copy = pool.make(DType::kI64, {ids.shape(0), ids.shape(1)});
  if (stream.device().is_cpu()) {
    const IdTensor from(function, "topk_idx", ids);
    for (std::int64_t i = 0; i < ids.num_elements(); ++i) copy.as<std::int64_t>()[i] = from[i];
    return copy;
  }
  cuda::RenameIdsArgs args;
  args.from = ids_for_kernel(ids);
  args.to = ids_for_kernel(copy);
  args.num_ids = std::numeric_limits<std::int64_t>::max();
  args.num_rows = num_rows.has_value() ? num_rows.as<std::int32_t>() : nullptr;
  on_gpu::rename_ids(args, stream);
  return copy;
}

Tensor copy_of(const TensorPool& pool, const TensorView& from, Stream stream) {
  std::vector<std::int64_t> shape;
  for (int d = 0; d < from.num_dims(); ++d) shape.push_back(from.shape(d));
  Tensor copy = pool.make(from.dtype(), shape);
  if (stream.device().is_cuda()) {
    on_gpu::copy(from, copy, stream);
  } else if (from.num_bytes() > 0) {
    std::memcpy(copy.data(), from.data(), from.num_bytes());
  }
  return copy;
}

bool is_same_ids(const TensorView& ids, const TensorView& copy) {
  const bool is_id_tensor = ids.has_value() && ids.is_contiguous() && ids.num_dims() == 2 &&
                            (ids.dtype() == DType::kI64 || ids.dtype() == DType::kI32);
  if (!is_id_tensor || ids.shape(0) != copy.shape(0) || ids.shape(1) != copy.shape(1)) return false;
  const IdTensor given("is_same_ids", "ids", ids);
  const auto* kept = copy.as<std::int64_t>();
  for (std::int64_t i = 0; i < ids.num_elements(); ++i) {
    if (given[i] != kept[i]) return false;
  }
  return true;
}

std::int32_t narrow_size(const char* function, const char* name, std::int64_t size) {
  require(size >= 0 && size <= std::numeric_limits<std::int32_t>::max(), Errc::kInvalidArgument,
          "{}: {} is {}, must fit in 32 bits", function, name, size);
  return static_cast<std::int32_t>(size);
}

void check_alignment(const char* function, std::int64_t alignment) {
  require(alignment >= 1 && alignment <= std::numeric_limits<std::int32_t>::max(),
          Errc::kInvalidArgument, "{}: expert_alignment is {}, must be from 1 to {}", function,
          alignment, std::numeric_limits<std::int32_t>::max());
}

std::vector<std::int64_t> aligned_counts(std::span<const std::int32_t> counts,
                                         std::int64_t alignment) {
  std::vector<std::int64_t> aligned;
  for (const std::int32_t count : counts) {
    aligned.push_back(align_up<std::int64_t>(count, alignment));
  }
  return aligned;
}

void check_bias(const char* function, const std::vector<TensorView>& bias) {
  require(bias.size() <= 2, Errc::kInvalidArgument, "{}: {} bias tensors, must be at most 2",
          function, bias.size());
}

}  // namespace switchyard
