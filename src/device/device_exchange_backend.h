// SPDX-License-Identifier: Apache-2.0
//
// device_exchange_backend.h: what a module implements behind DeviceExchange; see there.
#pragma once

#include "switchyard/device_exchange.h"

namespace switchyard {

class DeviceExchangeBackend {
 public:
  DeviceExchangeBackend() = default;
  DeviceExchangeBackend(const DeviceExchangeBackend&) = delete;
  DeviceExchangeBackend& operator=(const DeviceExchangeBackend&) = delete;
  virtual ~DeviceExchangeBackend() = default;

  virtual const ExchangeConfig& config() const = 0;
  virtual const char* heap() const = 0;
  virtual ExchangeMemory memory() const = 0;
  virtual bool is_shared_gpu() const = 0;
  virtual DeviceHandle dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                                     const TensorView& topk_weights, Stream stream,
                                     const DeviceDispatchOptions& options) = 0;
  virtual DeviceDispatched dispatch_receive(const DeviceHandle& handle, Stream stream) = 0;
  virtual DeviceDispatched dispatch(const TensorView& tokens, const TensorView& topk_ids,
                                    const TensorView& topk_weights, Stream stream,
                                    const DeviceDispatchOptions& options) = 0;
  virtual DeviceHandle dispatch_again_send(const DeviceHandle& earlier, const TensorView& tokens,
                                           const TensorView& topk_weights, Stream stream,
                                           const DeviceDispatchOptions& options) = 0;
  virtual DeviceDispatched dispatch_again(const DeviceHandle& earlier, const TensorView& tokens,
                                          const TensorView& topk_weights, Stream stream,
                                          const DeviceDispatchOptions& options) = 0;
  virtual DeviceHandle reopen(const DeviceHandle& earlier, Stream stream) = 0;
  virtual void combine_send(const DeviceHandle& handle, const TensorView& rows, Stream stream,
                            const DeviceCombineOptions& options) = 0;
  virtual void combine_receive(const DeviceHandle& handle, const TensorView& output, Stream stream,
                               const DeviceCombineOptions& options) = 0;
  virtual void combine(const DeviceHandle& handle, const TensorView& rows, const TensorView& output,
                       Stream stream, const DeviceCombineOptions& options) = 0;
  virtual void release(const DeviceHandle& handle) = 0;
  virtual void check() const = 0;
};

}  // namespace switchyard
