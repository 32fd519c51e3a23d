// SPDX-License-Identifier: Apache-2.0
//
// push_exchange.h: the exchange over windows that every rank's GPU can address.
//
// An in-flight slot serves one live handle: it has its own two slot sets in the window, its own
// call count and its own receive buffers. Within a slot, calls follow one another in stream order.
// Two slot sets suffice; no acknowledgement is needed: a rank starts call c only after it has
// completed call c - 1, and therefore has every peer's announcement of c - 1. The peer, which
// announces to every rank in every call, sent that after it had completed call c - 2 and read
// everything in the set that c uses.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "cuda/exchange/exchange_args.h"
#include "cuda/exchange/grid.h"
#include "exchange/backend.h"
#include "exchange/handle_table.h"
#include "exchange/push/gpu_room.h"
#include "exchange/push/kernel_arguments.h"
#include "exchange/push/push_hosts.h"
#include "exchange/push/push_shape.h"
#include "exchange/push/watcher.h"
#include "heap/device_window.h"
#include "plan/push_path.h"

namespace switchyard {

class PushExchange final : public ExchangeBackend {
 public:
  PushExchange(const Group& group, const ExchangeConfig& config, const ExchangeOptions& options);
  ~PushExchange() override;

  const ExchangeConfig& config() const override { return config_; }
  Device device() const override { return device_; }
  std::int64_t max_buffer_rows() const override { return shape_.exchange.max_buffer_rows; }
  ExchangeMemory memory() const override;
  const char* heap() const override { return name_of(slots_[0].window->kind()); }
  bool is_shared_gpu() const override { return ranks_on_gpu() > 1; }
  DispatchHandle dispatch_send(const DispatchCall& call) override;
  Dispatched dispatch_receive(const DispatchHandle& handle, Stream stream) override;
  Dispatched places(const DispatchHandle& handle) const override;
  Dispatched dispatch(const DispatchCall& call) override;
  DispatchHandle reopen(const DispatchHandle& earlier, Stream stream) override;
  void check_output(const CombineCall& call) const override;
  TensorView combine_input(const DispatchHandle& handle) override;
  void combine_send(const CombineCall& call) override;
  void combine_receive(const CombineCall& call) override;
  void combine(const CombineCall& call) override;
  void release(const DispatchHandle& handle) override;
  std::vector<RowOrigin> row_origins(const DispatchHandle& handle) const override;
  void write_row_sources(const DispatchHandle& handle, const RowSources& sources,
                         Stream stream) const override;
  WireBytes wire_bytes(const DispatchHandle& handle) const override;
  void check() const override { watcher_->check(site_); }

 private:
  struct Slot {
    std::uint64_t id = 0;       ///< of the handle that uses it
    std::uint64_t routing = 0;  ///< the call whose own ids are kept; 0: none
    PushDispatch dispatch;      ///< its last dispatch
    std::unique_ptr<DeviceWindow> window;
    bool has_memory = false;  ///< on every rank; false: the slot was never used
    cuda::DeviceBuffer buffer;
    cuda::DeviceBuffer received;
    cuda::DeviceBuffer combine_input;         ///< where it was asked for, and peers do not read it
    std::int64_t num_received_rows = 0;       ///< that there is memory for
    SlotKernels kernels;                      ///< whose memory is that of these two
    std::vector<std::int64_t> rows_per_rank;  ///< where they were counted
  };

  // push_exchange.cpp
  void end(bool waits_for_peers) override;
  void enter(Phase phase, const Slot& slot);
  Slot& open(const DispatchCall& call);
  Slot& dispatch_both(const DispatchCall& call);
  void or_abort(const std::function<void()>& work);
  /// Ranks of other hosts wait for this one, unless the call is only captured.
  template <typename Work>
  void or_abort_over_hosts(Stream stream, const Work& work) {
    if (hosts_ == nullptr) return work();
    bool is_captured = false;
    or_abort([&] {
      is_captured = cuda::is_capturing(stream.get(), "exchange");
      if (!is_captured) work();
    });
    if (is_captured) work();
  }
  void launch(const Slot& slot, cuda::Phases phases, Stream stream);
  void launch_kernels(const Slot& slot, cuda::Phases phases, Stream stream);
  GridRequest grid_request(const Slot& slot, const KernelRoom& room, cuda::Phases phases) const;
  static bool is_short(const Slot& slot);
  /// Returns the number of CTAs.
  int launch_rows(const Slot& slot, cuda::DispatchArgs args, cuda::Phases phases,
                  Stream stream) const;
  void launch_over_hosts(const Slot& slot, const std::vector<cuda::DispatchArgs>& regions,
                         const DispatchMessage& message, cuda::Phases phases, Stream stream);
  void launch_send(const Slot& slot, cuda::DispatchArgs args, const KernelRoom& room,
                   Stream stream) const;
  void launch_return_over_hosts(const Slot& slot, const cuda::CombineArgs& args,
                                cuda::Phases phases, Stream stream);
  void sync_if_shared(cuda::Phases phases, Stream stream) const;
  void launch_return(const Slot& slot, const PushCombine& call, cuda::Phases phases, Stream stream);
  void launch_return_kernels(const Slot& slot, const PushCombine& call, cuda::Phases phases,
                             Stream stream);
  Slot& open_slot(const char* operation, std::int32_t wanted = -1);
  Slot& find(const DispatchHandle& handle, Stage wanted, const char* operation);
  int ranks_on_gpu() const {
    return hosts_ != nullptr ? hosts_->ranks_on_gpu() : slots_[0].window->ranks_on_gpu();
  }
  std::size_t index_of(const Slot& slot) const {
    return static_cast<std::size_t>(&slot - slots_.data());
  }
  void advance(const Slot& slot, Stage stage) { handles_.advance(index_of(slot), stage); }
  DispatchHandle handle_of(const Slot& slot) const;

  // direct_path.cpp
  void plan_direct();
  void take_direct_arrivals(const Slot& slot, SlotMemory& memory) const;
  void take_received_in_window(Slot& slot, cudaStream_t stream) const;
  void run_direct_kernels() const;
  void launch_direct_rows(const Slot& slot, cuda::Phases phases, Stream stream) const;
  void launch_direct_return(const Slot& slot, const PushCombine& call, cuda::Phases phases,
                            Stream stream) const;

  // push_counts.cpp
  /// Ranks that share a GPU must take memory while no kernel waits: from the constructor.
  bool takes_memory_to_size() const { return options_.exact_memory && !is_shared_gpu(); }
  Sizing sizing_of(const DispatchCall& call, const Slot* earlier) const;
  void count_rows(Slot& slot, bool behind_send, Stream stream);
  /// Until a kernel has set `word`, in pinned memory: counts have arrived. Errors: kTimeout after
  /// two timeouts, those of check(), kSystem.
  void await_word(std::uint64_t& word, Stream stream);
  std::int64_t exact_rows(const Slot& slot) const;
  void fit_received(Slot& slot, Stream stream);
  HostCounts host_counts(const Slot& slot) const;

  // push_memory.cpp
  void take_received(Slot& slot, std::int64_t num_rows, cudaStream_t stream);
  std::size_t count_bytes() const;
  void prepare_memory();
  void make_window(Slot& slot);
  void take_slot(Slot& slot);
  void run_kernels() const;
  void allocate(Slot& slot, cudaStream_t stream);
  void fill_every_rank_ids();
  void fill_expert_table();

  // push_routing.cpp
  bool keeps_ids() const { return options_.keeps_routing || shape_.gathers_routing; }
  bool drops(const Slot& slot) const;
  const Slot& kept_routing(const DispatchHandle& earlier, const char* operation) const;
  void copy_routing(Slot& slot, const Slot& earlier, Stream stream) const;
  void clear_rows(const Slot& slot, Stream stream) const;
  void gather_routing(const Slot& slot, cuda::Phases phases, Stream stream);

  // push_arguments.cpp
  void check_input(const DispatchCall& call, const Slot* earlier) const;
  PushDispatch push_dispatch(const DispatchCall& call, const Slot* earlier) const;
  cuda::TokenInput token_input(const DispatchCall& call) const;
  void check_output_of(const Slot& slot, const CombineCall& call) const;
  void add_results(PushCombine& to, const Slot& slot, const CombineCall& call) const;
  void add_output(PushCombine& to, const Slot& slot, const CombineCall& call) const;
  cuda::SumOutput sum_output(const Slot& slot, const CombineCall& call) const;
  Dispatched describe(const Slot& slot) const;
  Group group_;
  ExchangeConfig config_;    ///< as given
  PushExchangeShape shape_;  ///< its config has worst_case_rows
  ExchangeOptions options_;
  Device device_;
  PushPath path_ = PushPath::kAuto;
  GpuRoom room_;
  bool gpu_can_stream_ = false;
  bool counts_behind_send_ = false;  ///< while the rows leave
  cuda::PinnedBuffer words_;         ///< WatchWords
  cuda::PinnedBuffer counts_;        ///< HostCountWords of each slot
  cuda::DeviceBuffer failed_;
  cuda::DeviceBuffer every_rank_;    ///< [T, P] i32: ids of a token that goes to every rank
  cuda::DeviceBuffer expert_table_;  ///< see SlotKernels
  cuda::DeviceBuffer blank_;         ///< the row that a routing-only dispatch sends for each token
  cuda::Watch watch_;
  HandleTable handles_;
  std::vector<Slot> slots_;           ///< by slot of handles_
  int num_uncaught_;                  ///< exceptions when it was made
  WaitSite site_;                     ///< the last call
  std::unique_ptr<PushHosts> hosts_;  ///< null: one host
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace switchyard
