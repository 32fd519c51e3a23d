// SPDX-License-Identifier: Apache-2.0

#include "switchyard/exchange.h"

#include "exchange/check_returns.h"
#include "exchange/pull/pull_exchange.h"

namespace switchyard {

Exchange::Exchange(const Group& group, const ExchangeConfig& config)
    : impl_(std::make_unique<PullExchange>(group, config)) {}
Exchange::Exchange(Exchange&&) noexcept = default;
Exchange& Exchange::operator=(Exchange&&) noexcept = default;
Exchange::~Exchange() = default;

const ExchangeConfig& Exchange::config() const { return impl_->config(); }

std::int64_t Exchange::max_buffer_rows() const { return impl_->max_buffer_rows(); }

DispatchHandle Exchange::dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                                       const TensorView& topk_weights,
                                       const DispatchOptions& options) {
  return impl_->dispatch_send(tokens, topk_ids, topk_weights, options);
}

DispatchHandle Exchange::dispatch_again_send(const DispatchHandle& earlier,
                                             const TensorView& tokens,
                                             const TensorView& topk_weights,
                                             const DispatchOptions& options) {
  return impl_->dispatch_again_send(earlier, tokens, topk_weights, options);
}

Dispatched Exchange::dispatch_receive(const DispatchHandle& handle) {
  return impl_->dispatch_receive(handle);
}

Dispatched Exchange::dispatch(const TensorView& tokens, const TensorView& topk_ids,
                              const TensorView& topk_weights, const DispatchOptions& options) {
  return dispatch_receive(dispatch_send(tokens, topk_ids, topk_weights, options));
}

Dispatched Exchange::dispatch_again(const DispatchHandle& earlier, const TensorView& tokens,
                                    const TensorView& topk_weights,
                                    const DispatchOptions& options) {
  return dispatch_receive(dispatch_again_send(earlier, tokens, topk_weights, options));
}

DispatchHandle Exchange::reopen(const DispatchHandle& earlier) { return impl_->reopen(earlier); }

void Exchange::check_output(const DispatchHandle& handle, const TensorView& output,
                            const CombineOptions& options) const {
  impl_->check_output(handle, output, options);
}

void Exchange::combine_send(const DispatchHandle& handle, const TensorView& rows,
                            const TensorView& row_weights, RowsAre rows_are) {
  impl_->combine_send(handle, rows, row_weights, rows_are);
}

void Exchange::combine_receive(const DispatchHandle& handle, const TensorView& output,
                               const CombineOptions& options) {
  impl_->combine_receive(handle, output, options);
}

void Exchange::combine(const DispatchHandle& handle, const TensorView& rows,
                       const TensorView& output, const CombineOptions& options,
                       const TensorView& row_weights) {
  check_output(handle, output, options);
  check_both_weights(row_weights, options.returned_weights);
  combine_send(handle, rows, row_weights);
  combine_receive(handle, output, options);
}

void Exchange::release(const DispatchHandle& handle) { impl_->release(handle); }

std::vector<RowOrigin> Exchange::row_origins(const DispatchHandle& handle) const {
  return impl_->row_origins(handle);
}

WireBytes Exchange::wire_bytes(const DispatchHandle& handle) const {
  return impl_->wire_bytes(handle);
}

}  // namespace switchyard
