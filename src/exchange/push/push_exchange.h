// SPDX-License-Identifier: Apache-2.0
//
// push_exchange.h: DeviceExchange over windows that every rank's GPU can address.
//
// A slot is one handle that may be alive: its own two slot sets in the window, its own count of
// calls, its own receive buffers. Within a slot calls follow one another in stream order, and
// that alone makes two sets enough: a rank starts call c only after call c - 1 is through here, so
// it has every peer's announcement of c - 1, which the peer sent after its call c - 2 was through
// and everything in that set had been read.
#pragma once

#include <memory>
#include <vector>

#include "cuda/base/memory.h"
#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/grid.h"
#include "device/device_exchange_backend.h"
#include "exchange/push/kernel_arguments.h"
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
    std::uint64_t routing = 0;  ///< the call whose own ids are kept; 0: none
    DispatchCall call;          ///< its last dispatch
    cuda::DeviceBuffer buffer;
    SlotKernels kernels;  ///< whose memory is the buffer's
  };

  /// What a dispatch is given. `earlier`: has the ids, topk_ids has none.
  struct Input {
    const TensorView& tokens;
    const TensorView& topk_ids;
    const TensorView& topk_weights;
    const DeviceDispatchOptions& options;
    const Slot* earlier = nullptr;
  };

  // push_exchange.cpp
  void enter(Phase phase, const Slot& slot);
  Slot& start(const Input& input, Stream stream, cuda::Phases phases);
  void launch(const Slot& slot, cuda::Phases phases, Stream stream);
  cuda::GridRequest grid_request(const Slot& slot, cuda::Phases phases) const;
  void launch_rows(const Slot& slot, cuda::DispatchArgs args, cuda::Phases phases,
                   Stream stream) const;
  void sync_if_shared(cuda::Phases phases, Stream stream) const;
  void launch_return(const Slot& slot, const CombineCall& call, cuda::Phases phases, Stream stream);
  Slot& begin(const char* operation);
  Slot& find(const DeviceHandle& handle, Stage wanted, const char* operation);
  DeviceHandle handle_of(const Slot& slot) const;

  // push_memory.cpp
  void prepare_memory();
  void run_kernels() const;
  void allocate(Slot& slot, std::size_t index);
  void fill_every_rank_ids();

  // push_routing.cpp
  bool keeps_ids() const { return options_.keeps_routing || shape_.gathers_routing; }
  bool drops(const Slot& slot) const;
  const Slot& kept_routing(const DeviceHandle& earlier, const char* operation) const;
  void copy_routing(Slot& slot, const Slot& earlier, Stream stream) const;
  void clear_rows(const Slot& slot, Stream stream) const;
  void gather_routing(const Slot& slot, cuda::Phases phases, Stream stream);

  // push_arguments.cpp
  void check_input(const Input& input) const;
  DispatchCall call_of(const Input& input) const;
  cuda::TokenInput token_input(const Input& input) const;
  void add_results(CombineCall& call, const Slot& slot, const TensorView& rows,
                   const DeviceCombineOptions& options) const;
  void add_output(CombineCall& call, const Slot& slot, const TensorView& output,
                  const DeviceCombineOptions& options) const;
  cuda::ReturnInput return_input(const Slot& slot, const TensorView& rows,
                                 const DeviceCombineOptions& options) const;
  cuda::SumOutput sum_output(const Slot& slot, const TensorView& output,
                             const DeviceCombineOptions& options) const;
  DeviceDispatched describe(const Slot& slot) const;
  std::int64_t buffer_rows(const Slot& slot) const {
    return shape_.buffer_rows(group_.rank(), slot.call.max_tokens);
  }

  Group group_;
  PushExchangeShape shape_;
  DeviceExchangeOptions options_;
  int device_ = 0;
  int num_ctas_ = 1;
  bool has_whole_gpu_ = true;
  std::unique_ptr<DeviceWindow> window_;
  cuda::PinnedBuffer words_;  ///< WatchWords
  cuda::DeviceBuffer failed_;
  cuda::DeviceBuffer every_rank_;  ///< [T, P] i32: ids of a token that goes to every rank
  cuda::DeviceBuffer blank_;       ///< the one row of a dispatch of routing only
  cuda::Watch watch_;
  std::vector<Slot> slots_;
  std::uint64_t next_id_ = 1;
  std::uint64_t number_;  ///< of this exchange in the process
  int num_uncaught_;      ///< exceptions when it was made
  WaitSite site_;         ///< the last call
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace switchyard
