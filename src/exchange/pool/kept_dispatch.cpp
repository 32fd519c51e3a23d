// SPDX-License-Identifier: Apache-2.0

#include "exchange/pool/kept_dispatch.h"

#include "core/fail.h"

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

TensorView reshaped(const TensorView& view, DType dtype,
                    std::initializer_list<std::int64_t> shape) {
  return view.has_value() ? TensorView(view.data(), dtype, shape, view.device()) : TensorView{};
}

}  // namespace switchyard
