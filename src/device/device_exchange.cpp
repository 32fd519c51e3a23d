// SPDX-License-Identifier: Apache-2.0

#include "switchyard/device_exchange.h"

#include "device/cuda_module.h"
#include "device/device_exchange_backend.h"

namespace switchyard {

DeviceExchange::DeviceExchange(const Group& group, const ExchangeConfig& config,
                               const DeviceExchangeOptions& options)
    : impl_(cuda_module().make_exchange(group, config, options)) {}
DeviceExchange::DeviceExchange(DeviceExchange&&) noexcept = default;
DeviceExchange& DeviceExchange::operator=(DeviceExchange&&) noexcept = default;
DeviceExchange::~DeviceExchange() = default;

const ExchangeConfig& DeviceExchange::config() const { return impl_->config(); }

const char* DeviceExchange::heap() const { return impl_->heap(); }

ExchangeMemory DeviceExchange::memory() const { return impl_->memory(); }

bool DeviceExchange::is_shared_gpu() const { return impl_->is_shared_gpu(); }

DeviceHandle DeviceExchange::dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                                           const TensorView& topk_weights, Stream stream,
                                           const DeviceDispatchOptions& options) {
  return impl_->dispatch_send(tokens, topk_ids, topk_weights, stream, options);
}

DeviceDispatched DeviceExchange::dispatch_receive(const DeviceHandle& handle, Stream stream) {
  return impl_->dispatch_receive(handle, stream);
}

DeviceDispatched DeviceExchange::dispatch(const TensorView& tokens, const TensorView& topk_ids,
                                          const TensorView& topk_weights, Stream stream,
                                          const DeviceDispatchOptions& options) {
  return impl_->dispatch(tokens, topk_ids, topk_weights, stream, options);
}

DeviceHandle DeviceExchange::dispatch_again_send(const DeviceHandle& earlier,
                                                 const TensorView& tokens,
                                                 const TensorView& topk_weights, Stream stream,
                                                 const DeviceDispatchOptions& options) {
  return impl_->dispatch_again_send(earlier, tokens, topk_weights, stream, options);
}

DeviceDispatched DeviceExchange::dispatch_again(const DeviceHandle& earlier,
                                                const TensorView& tokens,
                                                const TensorView& topk_weights, Stream stream,
                                                const DeviceDispatchOptions& options) {
  return impl_->dispatch_again(earlier, tokens, topk_weights, stream, options);
}

DeviceHandle DeviceExchange::reopen(const DeviceHandle& earlier, Stream stream) {
  return impl_->reopen(earlier, stream);
}

void DeviceExchange::combine_send(const DeviceHandle& handle, const TensorView& rows, Stream stream,
                                  const DeviceCombineOptions& options) {
  impl_->combine_send(handle, rows, stream, options);
}

void DeviceExchange::combine_receive(const DeviceHandle& handle, const TensorView& output,
                                     Stream stream, const DeviceCombineOptions& options) {
  impl_->combine_receive(handle, output, stream, options);
}

void DeviceExchange::combine(const DeviceHandle& handle, const TensorView& rows,
                             const TensorView& output, Stream stream,
                             const DeviceCombineOptions& options) {
  impl_->combine(handle, rows, output, stream, options);
}

void DeviceExchange::release(const DeviceHandle& handle) { impl_->release(handle); }

void DeviceExchange::check() const { impl_->check(); }

}  // namespace switchyard
