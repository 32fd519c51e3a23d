// SPDX-License-Identifier: Apache-2.0
//
// push_exchange.h: DeviceExchange over windows that every rank's GPU can address.
//
// A channel is one handle that may be alive: its own two slot sets in the window, its own count of
// calls, its own receive buffers. Within a channel calls follow one another in stream order, and
// that alone makes two sets enough: a rank starts call c only after call c - 1 is through here, so
// it has every peer's announcement of c - 1, which the peer sent after its call c - 2 was through
// and everything in that set had been read.
#pragma once

#include <memory>
#include <vector>

#include "cuda/base/memory.h"
#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/grid.h"
#include "cuda/exchange/return_weights.h"
#include "cuda/exchange/routing.h"
#include "device/device_exchange_backend.h"
#include "exchange/push/push_shape.h"
#include "exchange/push/watcher.h"
#include "heap/device_window.h"

namespace switchyard {

class P2pExchange final : public DeviceExchangeBackend {
 public:
  P2pExchange(const Group& group, const ExchangeConfig& config,
              const DeviceExchangeOptions& options);
  ~P2pExchange() override;

  const ExchangeConfig& config() const override { return shape_.config; }
  const char* heap() const override { return name_of(window_->kind()); }
  ExchangeMemory memory() const override;
  bool is_shared_gpu() const override { return window_->is_shared_gpu(); }
  DeviceHandle dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                             const TensorView& topk_weights, Stream stream,
                             const DeviceDispatchOptions& options) override;
  DeviceDispatched dispatch_receive(const DeviceHandle& handle, Stream stream) override;
  DeviceDispatched dispatch(const TensorView& tokens, const TensorView& topk_ids,
                            const TensorView& topk_weights, Stream stream,
                            const DeviceDispatchOptions& options) override;
  DeviceHandle dispatch_again_send(const DeviceHandle& earlier, const TensorView& tokens,
                                   const TensorView& topk_weights, Stream stream,
                                   const DeviceDispatchOptions& options) override;
  DeviceDispatched dispatch_again(const DeviceHandle& earlier, const TensorView& tokens,
                                  const TensorView& topk_weights, Stream stream,
                                  const DeviceDispatchOptions& options) override;
  DeviceHandle reopen(const DeviceHandle& earlier, Stream stream) override;
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
    std::uint64_t routing = 0;  ///< the call whose own ids are kept; 0: none
    std::int64_t num_tokens = 0;
    std::int64_t max_tokens = 0;
    std::int64_t most_tokens = 0;  ///< max_tokens, if the caller gave it
    bool is_again = false;         ///< its ids are those of an earlier dispatch
    bool routing_only = false;
    DispatchArgs dispatch;               ///< of its last dispatch
    std::vector<DispatchArgs> payloads;  ///< as the next, each a dispatch of its own
    DispatchArgs gather;                 ///< of ids and weights to all ranks
    RoutingArgs routing_args;
    CombineArgs combine;
    ReturnWeightsArgs weights;
    DeviceBuffer memory;  ///< everything above points into it
  };

  /// What a dispatch is given. `earlier`: has the ids, topk_ids has none.
  struct Input {
    const TensorView& tokens;
    const TensorView& topk_ids;
    const TensorView& topk_weights;
    const DeviceDispatchOptions& options;
    const Channel* earlier = nullptr;
  };

  // p2p_exchange.cpp
  void enter(Phase phase, const Channel& channel);
  Channel& start(const Input& input, Stream stream, Phases phases);
  void launch(Channel& channel, Phases phases, Stream stream);
  GridWish grid_wish(const Channel& channel, Phases phases) const;
  void launch_rows(const Channel& channel, DispatchArgs& args, Phases phases, Stream stream);
  void let_end(Phases phases, Stream stream) const;
  void launch_return(Channel& channel, Phases phases, Stream stream);
  Channel& begin(const char* operation);
  Channel& find(const DeviceHandle& handle, Stage wanted, const char* operation);
  DeviceHandle handle_of(const Channel& channel) const;

  // p2p_memory.cpp
  void prepare_memory();
  void run_kernels() const;
  void allocate(Channel& channel, std::size_t index);
  void set_base(Channel& channel, std::size_t index);
  void set_routing(Channel& channel) const;
  void set_gather(Channel& channel, std::size_t region) const;
  void set_rows(DispatchArgs& dispatch) const;
  DispatchArgs bytes_base(const DispatchArgs& main, std::size_t region,
                          std::int64_t row_bytes) const;
  void fill_every_rank_ids();

  // p2p_routing.cpp
  bool keeps_ids() const { return options_.keeps_routing || shape_.gathers_routing; }
  bool drops(const Channel& channel) const;
  const Channel& kept_routing(const DeviceHandle& earlier, const char* operation) const;
  void take_routing(Channel& channel, const Channel& earlier, Stream stream) const;
  void clear_rows(const Channel& channel, Stream stream) const;
  void gather_routing(Channel& channel, Phases phases, Stream stream);

  // p2p_weights.cpp
  void set_weights_base(Channel& channel) const;
  void set_row_weights(Channel& channel, const DeviceCombineOptions& options) const;
  void set_returned_weights(Channel& channel, const DeviceCombineOptions& options) const;

  // p2p_arguments.cpp
  void check_input(const Input& input) const;
  void set_input(Channel& channel, const Input& input) const;
  void set_ids(Channel& channel, const Input& input) const;
  void set_rows_of_call(Channel& channel) const;
  void set_results(Channel& channel, const TensorView& rows,
                   const DeviceCombineOptions& options) const;
  void set_output(Channel& channel, const TensorView& output,
                  const DeviceCombineOptions& options) const;
  void set_addends(Channel& channel, const DeviceCombineOptions& options) const;
  DeviceDispatched describe(const Channel& channel) const;
  std::int64_t buffer_rows(const Channel& channel) const {
    return shape_.buffer_rows(group_.rank(), channel.max_tokens);
  }

  Group group_;
  P2pShape shape_;
  DeviceExchangeOptions options_;
  int device_ = 0;
  int num_ctas_ = 1;
  bool has_whole_gpu_ = true;
  std::unique_ptr<DeviceWindow> window_;
  PinnedBuffer words_;  ///< WatchWords
  DeviceBuffer failed_;
  DeviceBuffer every_rank_;  ///< [T, P] i32: ids of a token that goes to every rank
  DeviceBuffer blank_;       ///< the one row of a dispatch of routing only
  Watch watch_;
  std::vector<Channel> channels_;
  std::uint64_t next_id_ = 1;
  std::uint64_t number_;  ///< of this exchange in the process
  int num_uncaught_;      ///< exceptions when it was made
  WaitSite site_;         ///< the last call
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace switchyard
