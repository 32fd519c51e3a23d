// SPDX-License-Identifier: Apache-2.0
//
// p2p_exchange.h: DeviceExchange over windows that every rank's GPU can address.
//
// A channel is one handle that may be alive: its own two slot sets in the window, its own count of
// calls, its own receive buffers. Within a channel calls follow one another in stream order, and
// that alone makes two sets enough: a rank starts call c only after call c - 1 is through here, so
// it has every peer's announcement of c - 1, which the peer sent after its call c - 2 was through
// and everything in that set had been read.
#pragma once

#include <memory>
#include <vector>

#include "cuda/exchange_args.h"
#include "cuda/memory.h"
#include "device/device_exchange_backend.h"
#include "exchange/exchange_shape.h"
#include "p2p/device_window.h"
#include "p2p/watcher.h"

namespace switchyard {

class P2pExchange final : public DeviceExchangeBackend {
 public:
  P2pExchange(const Group& group, const ExchangeConfig& config,
              const DeviceExchangeOptions& options);
  ~P2pExchange() override;

  const ExchangeConfig& config() const override { return config_; }
  const char* heap() const override { return name_of(window_->kind()); }
  bool is_shared_gpu() const override { return window_->is_shared_gpu(); }
  DeviceHandle dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                             const TensorView& topk_weights, Stream stream,
                             const DeviceDispatchOptions& options) override;
  DeviceDispatched dispatch_receive(const DeviceHandle& handle, Stream stream) override;
  DeviceDispatched dispatch(const TensorView& tokens, const TensorView& topk_ids,
                            const TensorView& topk_weights, Stream stream,
                            const DeviceDispatchOptions& options) override;
  void combine_send(const DeviceHandle& handle, const TensorView& rows, Stream stream,
                    const DeviceCombineOptions& options) override;
  void combine_receive(const DeviceHandle& handle, const TensorView& output, Stream stream,
                       const DeviceCombineOptions& options) override;
  void combine(const DeviceHandle& handle, const TensorView& rows, const TensorView& output,
               Stream stream, const DeviceCombineOptions& options) override;
  void release(const DeviceHandle& handle) override;
  void check() const override { watcher_->check(site_); }

 private:
  enum class Stage { kFree, kSent, kReceived, kReturned };

  struct Channel {
    Stage stage = Stage::kFree;
    std::uint64_t id = 0;
    std::int64_t num_tokens = 0;
    DispatchArgs dispatch;  ///< of its last dispatch
    CombineArgs combine;
    DeviceBuffer memory;  ///< everything below points into it
    CallState state;
  };

  // p2p_exchange.cpp
  void prepare_memory();
  void enter(Phase phase, const Channel& channel);
  void allocate(Channel& channel, std::size_t index);
  void load_kernels() const;
  void set_base(Channel& channel, std::size_t index);
  Channel& start(const TensorView& tokens, const TensorView& topk_ids,
                 const TensorView& topk_weights, Stream stream,
                 const DeviceDispatchOptions& options, Phases phases);
  void launch(Channel& channel, Phases phases, Stream stream);
  void launch_return(Channel& channel, Phases phases, Stream stream);
  Channel& begin(const char* operation);
  Channel& find(const DeviceHandle& handle, Stage wanted, const char* operation);
  DeviceHandle handle_of(const Channel& channel) const;

  // p2p_arguments.cpp
  void check_input(const TensorView& tokens, const TensorView& topk_ids,
                   const TensorView& topk_weights, const DeviceDispatchOptions& options) const;
  void set_input(Channel& channel, const TensorView& tokens, const TensorView& topk_ids,
                 const TensorView& topk_weights, const DeviceDispatchOptions& options) const;
  void set_results(Channel& channel, const TensorView& rows,
                   const DeviceCombineOptions& options) const;
  void set_output(Channel& channel, const TensorView& output,
                  const DeviceCombineOptions& options) const;
  DeviceDispatched describe(const Channel& channel) const;

  Group group_;
  ExchangeConfig config_;
  ExchangeShape shape_;
  PushLayout layout_;
  DeviceExchangeOptions options_;
  int device_ = 0;
  int num_ctas_ = 1;
  std::unique_ptr<DeviceWindow> window_;
  PinnedBuffer words_;  ///< WatchWords
  DeviceBuffer failed_;
  Watch watch_;
  std::vector<Channel> channels_;
  std::uint64_t next_id_ = 1;
  std::uint64_t number_;  ///< of this exchange in the process
  int num_uncaught_;      ///< exceptions when it was made
  WaitSite site_;         ///< the last call
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace switchyard
