// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/push_exchange.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <new>
#include <utility>

#include "core/bytes.h"
#include "cuda/base/beside_capture.h"
#include "cuda/base/check.h"
#include "cuda/base/launch.h"
#include "cuda/exchange/row_sources.h"
#include "cuda/exchange/stage_log.h"
#include "exchange/check_returns.h"
#include "exchange/log_calls.h"
#include "heap/gather_or_fail.h"
#include "heap/heap.h"

namespace switchyard {
namespace {

constexpr std::int64_t kMaxTimeoutMs = 86'400'000;

}  // namespace

PushExchange::PushExchange(const Group& group, const ExchangeConfig& config,
                           const ExchangeOptions& options)
    : group_(group),
      config_(config),
      shape_(make_push_exchange_shape(config, group.size(), group.rank())),
      options_(options),
      device_(options.device),
      handles_(config.max_in_flight),
      num_uncaught_(std::uncaught_exceptions()) {
  require(options.timeout_ms >= 0 && options.timeout_ms <= kMaxTimeoutMs, Errc::kInvalidArgument,
          "exchange: timeout_ms is {}, must be from 0 to {}", options.timeout_ms, kMaxTimeoutMs);
  require(options.num_ctas >= 0, Errc::kInvalidArgument,
          "exchange: num_ctas is {}, must be 0 or more", options.num_ctas);
  require(options.host_capacity >= 0, Errc::kInvalidArgument,
          "exchange: host_capacity is {}, must be 0 or more", options.host_capacity);
  NamedValues agreed = agreed_fields(shape_.config);
  for (auto& field : agreed_fields(options)) agreed.push_back(std::move(field));
  require_agreement(group.control(), {Phase::kExchange, "configuration"}, "exchange", agreed);

  const cuda::DeviceGuard guard(device_.index);
  slots_.resize(handles_.size());
  hosts_ = PushHosts::make(group, shape_, options_);
  require(config.reduce != Reduce::kPerHost || hosts_ != nullptr, Errc::kNotSupported,
          "exchange: reduce is per_host for GPUs of one host, must be per_rank or per_expert");
  plan_direct();
  make_window(slots_[0]);
  room_ = GpuRoom({.num_sms = cuda::num_multiprocessors(),
                   .num_ranks = ranks_on_gpu(),
                   .max_in_flight = shape_.config.max_in_flight,
                   .num_message_sms = hosts_ != nullptr ? kMaxMessageCtas : 0},
                  options);
  gpu_can_stream_ = cuda::gpu_can_stream();
  counts_behind_send_ = !is_shared_gpu() && hosts_ == nullptr && cuda::has_programmatic_launch();
  const bool shares_gpus =
      hosts_ != nullptr ? hosts_->has_shared_gpus() : slots_[0].window->has_shared_gpus();
  if (shares_gpus) {  // there memory must be taken while no kernel waits
    for (std::size_t i = 1; i < slots_.size(); ++i) make_window(slots_[i]);
  }
  gather_or_fail(group.control(), {Phase::kExchange, "buffers"},
                 [&] { return prepare_memory(), std::string(); });
  std::function<int()> abandoned_by = slots_[0].window->abandoned_by();
  if (hosts_ != nullptr && abandoned_by) {
    abandoned_by = [hosts = hosts_.get(), local = std::move(abandoned_by)] {
      return hosts->rank_of_local(local());
    };
  }
  watcher_ = std::make_unique<Watcher>(group_.control(), *words_.as<WatchWords>(),
                                       std::int64_t{shape_.config.num_experts}, hosts_.get(),
                                       std::move(abandoned_by));
}

// A close that is due is collective. Then only memory of this rank is left; freeing it must not
// break a capture of this thread, which may be any.
PushExchange::~PushExchange() {
  close(std::uncaught_exceptions() <= num_uncaught_);
  const cuda::BesideCapture beside;
  slots_.clear();
  hosts_.reset();
  counts_ = {};
  words_ = {};
}

// Peers may still write to this rank's window, or read from their windows what this rank wrote.
// Among ranks of one process that share a GPU, a device synchronization or a free also waits for
// the kernels of the others: so all ranks have launched everything before one of them synchronizes,
// and all kernels have ended before one of them frees. The same holds between GPUs with peer
// access. A rank that unwinds an exception waits for nobody, because its peers may be waiting for
// it.
void PushExchange::end(bool waits_for_peers) {
  const auto barrier = [&] {
    try {
      if (watcher_->look() || !waits_for_peers) return false;
      group_.barrier();
      return true;
    } catch (const Error& error) {
      log_end(error.what());
      watcher_->look();  // the group is lost: stop the kernels, there is nobody to wait for
      return false;
    }
  };
  bool may_free = false;
  try {
    const cuda::DeviceGuard guard(device_.index);
    const bool is_unwinding = std::uncaught_exceptions() > num_uncaught_;
    if (is_unwinding && slots_[0].window) slots_[0].window->abandon();
    barrier();
    cudaDeviceSynchronize();
    for (const Slot& slot : slots_) {
      if (slot.window) slot.window->unmap_peers();
    }
    may_free = barrier();
    for (Slot& slot : slots_) {
      if (slot.window && !may_free) slot.window->leave_memory();
      // Else received rows lie in it, which stay until the destructor.
      if (!shape_.can_be_direct()) slot.window.reset();
    }
    if (hosts_ != nullptr && !may_free) hosts_->abort();
    if (hosts_ != nullptr) hosts_->free_memory();
    failed_ = {};
    every_rank_ = {};
    expert_table_ = {};
    blank_ = {};
  } catch (const Error& error) {
    log_end(error.what());  // the GPU is lost
  }
  watcher_.reset();
  if (hosts_ != nullptr) hosts_->leave(group_.control(), may_free);
  group_ = Group();
  cudaGetLastError();  // keep a lost GPU's error from whoever calls CUDA next
}

PushExchange::Slot& PushExchange::open_slot(const char* operation, std::int32_t wanted) {
  const std::size_t index = handles_.open(operation, wanted);
  slots_[index].id = handles_.id(index);
  return slots_[index];
}

PushExchange::Slot& PushExchange::find(const DispatchHandle& handle, Stage wanted,
                                       const char* operation) {
  return slots_[handles_.find(handle, wanted, operation)];
}

DispatchHandle PushExchange::handle_of(const Slot& slot) const {
  DispatchHandle handle = handles_.handle_of(index_of(slot));
  HandleTable::keep(handle, slot.routing);
  return handle;
}

PushExchange::Slot& PushExchange::open(const DispatchCall& call) {
  check();
  const Slot* earlier =
      call.earlier == nullptr ? nullptr : &kept_routing(*call.earlier, "dispatch_again");
  check_input(call, earlier);
  PushDispatch dispatch = push_dispatch(call, earlier);
  const bool is_only = handles_.num_alive() == 0;
  Slot& slot = open_slot(call.name(), call.options.slot);
  or_abort_over_hosts(call.stream, [&] {
    if (is_only) room_.begin(index_of(slot), call.stream);
    if (!slot.has_memory) take_slot(slot);
    if (earlier != nullptr) copy_routing(slot, *earlier, call.stream);
    slot.routing = earlier != nullptr ? earlier->routing : options_.keeps_routing ? slot.id : 0;
    slot.dispatch = std::move(dispatch);
    if (slot.dispatch.sizing == Sizing::kCounted) fit_received(slot, call.stream);
  });
  return slot;
}

// An error while peers already have what this rank sent ends the group.
void PushExchange::or_abort(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    group_.control().abort(error.code(), group_.rank(), error.what());
    throw;
  } catch (const std::bad_alloc& error) {
    group_.control().abort(Errc::kOutOfMemory, group_.rank(), error.what());
    throw;
  }
}

// One kernel for both phases, unless the host looks at the counts in between.
PushExchange::Slot& PushExchange::dispatch_both(const DispatchCall& call) {
  Slot& slot = open(call);
  if (slot.dispatch.sizing == Sizing::kToBeCounted) {
    launch(slot, cuda::Phases::kSend, call.stream);
    or_abort([&] { count_rows(slot, counts_behind_send_, call.stream); });
    launch(slot, cuda::Phases::kReceive, call.stream);
  } else {
    launch(slot, cuda::Phases::kBoth, call.stream);
  }
  advance(slot, Stage::kReceived);
  return slot;
}

DispatchHandle PushExchange::dispatch_send(const DispatchCall& call) {
  const cuda::DeviceGuard guard(device_.index);
  Slot& slot = open(call);
  launch(slot, cuda::Phases::kSend, call.stream);
  advance(slot, Stage::kSent);
  return handle_of(slot);
}

Dispatched PushExchange::dispatch_receive(const DispatchHandle& handle, Stream stream) {
  const cuda::DeviceGuard guard(device_.index);
  check();
  Slot& slot = find(handle, Stage::kSent, "dispatch_receive");
  if (slot.dispatch.sizing == Sizing::kToBeCounted) {
    or_abort_over_hosts(stream, [&] { count_rows(slot, false, stream); });
  }
  launch(slot, cuda::Phases::kReceive, stream);
  advance(slot, Stage::kReceived);
  return describe(slot);
}

Dispatched PushExchange::dispatch(const DispatchCall& call) {
  const cuda::DeviceGuard guard(device_.index);
  return describe(dispatch_both(call));
}

// Slots are used by turns of calls, so a combine needs a call of its own, on every rank.
DispatchHandle PushExchange::reopen(const DispatchHandle& earlier, Stream stream) {
  const cuda::DeviceGuard guard(device_.index);
  const Slot& kept = kept_routing(earlier, "reopen");
  DispatchOptions options;
  options.routing_only = true;
  options.tensor_scale = TensorView(blank_.data(), DType::kF32, {1}, device_);
  const TensorView tokens(blank_.data(), DType::kBF16,
                          {kept.dispatch.num_tokens(), shape_.config.hidden}, device_);
  return handle_of(dispatch_both({tokens, {}, {}, stream, options, &earlier}));
}

void PushExchange::enter(Phase phase, const Slot& slot) {
  site_ = {phase, slot.id, -1};
  group_.control().enter(phase, slot.id);
}

void PushExchange::launch(const Slot& slot, cuda::Phases phases, Stream stream) {
  enter(phases == cuda::Phases::kReceive ? Phase::kDispatchReceive : Phase::kDispatchSend, slot);
  or_abort_over_hosts(stream, [&] { launch_kernels(slot, phases, stream); });
}

// The tokens' rows go last, so that whatever they share with other rows is left as they write it.
void PushExchange::launch_kernels(const Slot& slot, cuda::Phases phases, Stream stream) {
  room_.enter(index_of(slot), stream);
  gather_routing(slot, phases, stream);
  if (hosts_ != nullptr) {
    launch_over_hosts(slot, regions_of(slot.kernels, slot.dispatch),
                      hosts_->message_of(slot.dispatch), phases, stream);
  } else {
    for (std::size_t i = 0; i < slot.dispatch.payloads.size(); ++i) {
      launch_rows(slot, payload_args(slot.kernels, slot.dispatch, i), phases, stream);
      sync_if_shared(phases, stream);
    }
    if (slot.dispatch.is_direct) {
      launch_direct_rows(slot, phases, stream);
    } else {
      log_kernel("dispatch", "slots",
                 launch_rows(slot, token_args(slot.kernels, slot.dispatch), phases, stream));
    }
  }
  if (cuda::receives(phases) && shape_.gathers && shape_.gathers_routing) {
    sync_if_shared(phases, stream);
    const cuda::RoutingArgs routing = routing_args(slot.kernels, slot.dispatch);
    cuda::launch_place_routing(routing, stream.get());
    if (hosts_ != nullptr) hosts_->list_returns(index_of(slot), routing, stream.get());
  }
  room_.leave(index_of(slot), stream);
}

// Ranks that share a GPU may share a hardware queue: whatever follows a kernel that waits for a
// peer could keep the peer's kernel from starting. In that case the host waits between the kernels
// of a call.
void PushExchange::sync_if_shared(cuda::Phases phases, Stream stream) const {
  if (!cuda::receives(phases) || !is_shared_gpu()) return;
  if (cuda::is_capturing(stream.get(), "dispatch")) return;
  cuda::check_cuda(cudaStreamSynchronize(stream.get()), "dispatch");
}

GridRequest PushExchange::grid_request(const Slot& slot, const KernelRoom& room,
                                       cuda::Phases phases) const {
  return {room.num_ctas, cuda::sends(phases), cuda::receives(phases), room.is_whole_gpu,
          slot.dispatch.call_max_tokens};
}

bool PushExchange::is_short(const Slot& slot) {
  return std::max(slot.dispatch.num_tokens(), slot.dispatch.call_max_tokens) <=
         kMaxProgrammaticTokens;
}

int PushExchange::launch_rows(const Slot& slot, cuda::DispatchArgs args, cuda::Phases phases,
                              Stream stream) const {
  const KernelRoom room = room_.of(stream);
  args.grid = cuda::dispatch_grid(grid_request(slot, room, phases), args.layout, args.tokens.count);
  cuda::record_stages(args, phases);
  // Over hosts it follows an event of the message stream, not only a kernel.
  const bool is_programmatic = room.is_programmatic && is_short(slot) && hosts_ == nullptr;
  cuda::launch_dispatch(args, phases, is_programmatic, stream.get());
  return args.grid.num_ctas(cuda::sends(phases), cuda::receives(phases));
}

void PushExchange::check_output(const CombineCall& call) const {
  check_output_of(slots_[handles_.index_of(call.handle, "combine")], call);
}

void PushExchange::combine_send(const CombineCall& call) {
  const cuda::DeviceGuard guard(device_.index);
  check();
  Slot& slot = find(call.handle, Stage::kReceived, "combine");
  PushCombine combine;
  add_results(combine, slot, call);
  launch_return(slot, combine, cuda::Phases::kSend, call.stream);
  advance(slot, Stage::kReturned);
}

void PushExchange::combine_receive(const CombineCall& call) {
  const cuda::DeviceGuard guard(device_.index);
  check();
  Slot& slot = find(call.handle, Stage::kReturned, "combine_receive");
  PushCombine combine;
  add_output(combine, slot, call);
  launch_return(slot, combine, cuda::Phases::kReceive, call.stream);
  advance(slot, Stage::kFree);
}

void PushExchange::combine(const CombineCall& call) {
  const cuda::DeviceGuard guard(device_.index);
  check();
  Slot& slot = find(call.handle, Stage::kReceived, "combine");
  PushCombine combine;
  add_output(combine, slot, call);
  check_both_weights(call.options.row_weights, call.options.returned_weights);
  add_results(combine, slot, call);
  launch_return(slot, combine, cuda::Phases::kBoth, call.stream);
  advance(slot, Stage::kFree);
}

void PushExchange::launch_return(const Slot& slot, const PushCombine& call, cuda::Phases phases,
                                 Stream stream) {
  enter(phases == cuda::Phases::kReceive ? Phase::kCombineReceive : Phase::kCombineSend, slot);
  or_abort_over_hosts(stream, [&] { launch_return_kernels(slot, call, phases, stream); });
}

void PushExchange::launch_return_kernels(const Slot& slot, const PushCombine& call,
                                         cuda::Phases phases, Stream stream) {
  room_.enter(index_of(slot), stream);
  cuda::CombineArgs args = combine_args(slot.kernels, call);
  const KernelRoom room = room_.of(stream);
  GridRequest request = grid_request(slot, room, phases);
  request.can_stream = gpu_can_stream_ && cuda::can_stream(args, phases);
  args.grid = cuda::combine_grid(request, args.layout, slot.dispatch.tokens.count);
  cuda::record_stages(args, phases);
  if (call.row_weights != nullptr) {
    cuda::launch_return_weights(return_weights_args(slot.kernels, call), stream.get());
  }
  const bool is_programmatic = room.is_programmatic && is_short(slot);
  if (slot.dispatch.is_direct) {
    launch_direct_return(slot, call, phases, stream);
  } else if (hosts_ == nullptr) {
    log_kernel("combine", args.grid.streams ? "slots, streamed" : "slots",
               args.grid.num_ctas(cuda::sends(phases), cuda::receives(phases)));
    cuda::launch_combine(args, phases, is_programmatic, stream.get());
  } else {
    launch_return_over_hosts(slot, args, phases, stream);
  }
  if (call.returned_weights != nullptr) {
    sync_if_shared(phases, stream);
    cuda::launch_receive_weights(return_weights_args(slot.kernels, call), stream.get());
  }
  room_.leave(index_of(slot), stream);
}

void PushExchange::release(const DispatchHandle& handle) {
  advance(find(handle, Stage::kReceived, "release"), Stage::kFree);
}

std::vector<RowOrigin> PushExchange::row_origins(const DispatchHandle&) const {
  fail(Errc::kNotSupported,
       "row_origins: the exchange is on {}, where origins stay in the kernels; ask an exchange on "
       "CPUs with the same routing",
       name_of(device_));
}

void PushExchange::write_row_sources(const DispatchHandle& handle, const RowSources& sources,
                                     Stream stream) const {
  constexpr const char* kName = "write_row_sources";
  const cuda::DeviceGuard guard(device_.index);
  check();
  require(
      !shape_.gathers, Errc::kNotSupported,
      "{}: the layout is all_gather, where the kernels keep no source of a row; its rows are the "
      "tokens of all ranks, in order",
      kName);
  const Slot& slot = slots_[handles_.find(handle, Stage::kReceived, kName)];
  check_row_sources(sources, slot.dispatch.num_rows, group_.size());
  const auto list = [](const TensorView& view) {
    return view.has_value() ? view.as<std::int32_t>() : nullptr;
  };
  cuda::launch_row_sources(
      {slot.kernels.memory.state, group_.size(), shape_.main_topk,
       static_cast<std::int32_t>(shape_.config.max_tokens_per_rank), slot.dispatch.num_rows,
       list(sources.rank), list(sources.token), list(sources.k), list(sources.rows_per_rank)},
      stream.get());
}

WireBytes PushExchange::wire_bytes(const DispatchHandle& handle) const {
  require(hosts_ != nullptr, Errc::kNotSupported,
          "wire_bytes: the exchange is on {}, where counts stay in device memory; ask an exchange "
          "on CPUs with the same routing",
          name_of(device_));
  const std::size_t index = handles_.index_of(handle, "wire_bytes");
  const Slot& slot = slots_[index];
  const bool gathers = drops(slot) || (shape_.gathers && shape_.gathers_routing);
  WireBytes bytes = hosts_->wire_bytes(index, slot.dispatch, gathers);
  if (handles_.stage(index) == Stage::kSent) bytes.combine = 0;
  return bytes;
}

}  // namespace switchyard
