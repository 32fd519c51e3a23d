// SPDX-License-Identifier: Apache-2.0
//
// push_exchange.h: DeviceExchange over windows that every rank's GPU can address.
//
// An in-flight slot serves one live handle: it has its own two slot sets in the window, its own
// call count and its own receive buffers. Within a slot, calls follow one another in stream order.
// Two slot sets suffice; no acknowledgement is needed: a rank starts call c only after it has
// completed call c - 1, and therefore has every peer's announcement of c - 1. The peer, which
// announces to every rank in every call, sent that after it had completed call c - 2 and read
// everything in the set that c uses.
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

class PushExchange final : public DeviceExchangeBackend {
 public:
  PushExchange(const Group& group, const ExchangeConfig& config,
               const DeviceExchangeOptions& options);
  ~PushExchange() override;

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

  struct Slot {
    Stage stage = Stage::kFree;
    std::uint64_t id = 0;
    std::uint64_t routing = 0;  ///< id of the dispatch whose own ids are kept; 0: none
    std::int64_t num_tokens = 0;
    std::int64_t max_tokens = 0;
    std::int64_t call_max_tokens = 0;  ///< max_tokens as the caller gave it, or 0
    bool is_again = false;             ///< uses the ids of an earlier dispatch
    bool routing_only = false;
    DispatchArgs dispatch;               ///< arguments of the last dispatch
    std::vector<DispatchArgs> payloads;  ///< one dispatch each
    DispatchArgs gather;                 ///< dispatch of ids and weights to all ranks
    RoutingArgs routing_args;
    CombineArgs combine;
    ReturnWeightsArgs weights;
    DeviceBuffer memory;  ///< everything above points into it
  };

  /// The arguments of a dispatch. With `earlier`, the ids are those of that slot and topk_ids is
  /// empty.
  struct Input {
    const TensorView& tokens;
    const TensorView& topk_ids;
    const TensorView& topk_weights;
    const DeviceDispatchOptions& options;
    const Slot* earlier = nullptr;
  };

  // push_exchange.cpp
  void enter(Phase phase, const Slot& slot);
  Slot& start(const Input& input, Stream stream, Phases phases);
  void launch(Slot& slot, Phases phases, Stream stream);
  GridRequest grid_request(const Slot& slot, Phases phases) const;
  void launch_rows(const Slot& slot, DispatchArgs& args, Phases phases, Stream stream);
  void sync_if_shared(Phases phases, Stream stream) const;
  void launch_return(Slot& slot, Phases phases, Stream stream);
  Slot& begin(const char* operation);
  Slot& find(const DeviceHandle& handle, Stage wanted, const char* operation);
  DeviceHandle handle_of(const Slot& slot) const;

  // push_memory.cpp
  void prepare_memory();
  void run_kernels() const;
  void allocate(Slot& slot, std::size_t index);
  void set_base(Slot& slot, std::size_t index);
  void set_routing(Slot& slot) const;
  void set_gather(Slot& slot, std::size_t region) const;
  void set_rows(DispatchArgs& dispatch) const;
  DispatchArgs bytes_base(const DispatchArgs& main, std::size_t region,
                          std::int64_t row_bytes) const;
  void fill_every_rank_ids();

  // push_routing.cpp
  bool keeps_ids() const { return options_.keeps_routing || shape_.gathers_routing; }
  bool drops(const Slot& slot) const;
  const Slot& kept_routing(const DeviceHandle& earlier, const char* operation) const;
  void copy_routing(Slot& slot, const Slot& earlier, Stream stream) const;
  void clear_rows(const Slot& slot, Stream stream) const;
  void gather_routing(Slot& slot, Phases phases, Stream stream);

  // push_weights.cpp
  void set_weights_base(Slot& slot) const;
  void set_row_weights(Slot& slot, const DeviceCombineOptions& options) const;
  void set_returned_weights(Slot& slot, const DeviceCombineOptions& options) const;

  // push_arguments.cpp
  void check_input(const Input& input) const;
  void set_input(Slot& slot, const Input& input) const;
  void set_ids(Slot& slot, const Input& input) const;
  void set_rows_of_call(Slot& slot) const;
  void set_results(Slot& slot, const TensorView& rows, const DeviceCombineOptions& options) const;
  void set_output(Slot& slot, const TensorView& output, const DeviceCombineOptions& options) const;
  void set_addends(Slot& slot, const DeviceCombineOptions& options) const;
  DeviceDispatched describe(const Slot& slot) const;
  std::int64_t buffer_rows(const Slot& slot) const {
    return shape_.buffer_rows(group_.rank(), slot.max_tokens);
  }

  Group group_;
  PushExchangeShape shape_;
  DeviceExchangeOptions options_;
  int device_ = 0;
  int num_ctas_ = 1;
  bool has_whole_gpu_ = true;
  std::unique_ptr<DeviceWindow> window_;
  PinnedBuffer words_;  ///< WatchWords
  DeviceBuffer failed_;
  DeviceBuffer every_rank_;  ///< [T, P] i32: ids of a token that goes to every rank
  DeviceBuffer blank_;       ///< the row that a routing-only dispatch sends for each token
  Watch watch_;
  std::vector<Slot> slots_;
  std::uint64_t next_id_ = 1;
  std::uint64_t number_;  ///< of this exchange in the process
  int num_uncaught_;      ///< uncaught exceptions at construction
  WaitSite site_;         ///< of the last call
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace switchyard
