// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/push_exchange.h"

#include <algorithm>
#include <atomic>
#include <exception>

#include "core/bytes.h"
#include "cuda/base/check.h"
#include "exchange/check_returns.h"
#include "heap/heap.h"

namespace switchyard {
namespace {

constexpr std::int64_t kMaxTimeoutMs = 86'400'000;

std::atomic<std::uint64_t> num_exchanges = 0;

}  // namespace

PushExchange::PushExchange(const Group& group, const ExchangeConfig& config,
                           const DeviceExchangeOptions& options)
    : group_(group),
      shape_(make_push_exchange_shape(config, group.size(), group.rank())),
      options_(options),
      number_(++num_exchanges),
      num_uncaught_(std::uncaught_exceptions()) {
  require(options.timeout_ms >= 0 && options.timeout_ms <= kMaxTimeoutMs, Errc::kInvalidArgument,
          "device exchange: timeout_ms is {}, must be from 0 to {}", options.timeout_ms,
          kMaxTimeoutMs);
  require(options.num_ctas >= 0, Errc::kInvalidArgument,
          "device exchange: num_ctas is {}, must be 0 or more", options.num_ctas);
  require_agreement(group.engine(), "device exchange", agreed_fields(shape_.config));

  cuda::check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
  const auto num_slots = static_cast<std::size_t>(shape_.config.max_in_flight);
  window_ = make_device_window(group.engine(), device_, checked_mul(num_slots, shape_.window_bytes),
                               options.heap.empty() ? "auto" : options.heap);
  int num_sms = 0;
  cuda::check_cuda(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device_),
                   "cudaDeviceGetAttribute");
  // Ranks that share a GPU wait for each other's kernels, so all that may run at once must fit:
  // those of every handle, and none that comes early.
  const int kernels = is_shared_gpu() ? window_->ranks_on_gpu() * shape_.config.max_in_flight : 1;
  num_ctas_ = std::max(cuda::kMinCtas, cuda::kExchangeCtasPerSm * num_sms / kernels);
  has_whole_gpu_ = !is_shared_gpu() && options.num_ctas == 0;
  options_.programmatic_launch = options_.programmatic_launch && !is_shared_gpu();
  if (options.num_ctas > 0)
    num_ctas_ = std::min(num_ctas_, std::max(cuda::kMinCtas, options.num_ctas));

  slots_.resize(num_slots);
  gather_or_fail(group.engine(), [&] { return prepare_memory(), std::string(); });
  watcher_ = std::make_unique<Watcher>(group_.engine(), *words_.as<WatchWords>(),
                                       std::int64_t{shape_.config.num_experts});
}

// Peers may still write to this rank's window, or read from theirs what this rank wrote. Ranks of
// one process that share a GPU also share what waiting for it, or freeing memory, waits for: so all
// have launched everything before one of them waits, and all kernels have ended before one frees. A
// rank that an exception ends waits for nobody: its peers may wait for it.
PushExchange::~PushExchange() {
  const auto is_over = [&] {
    return watcher_->look() || std::uncaught_exceptions() > num_uncaught_;
  };
  const auto barrier = [&] {
    try {
      if (!is_over()) group_.barrier();
    } catch (const Error&) {
      watcher_->look();  // a lost group: kernels are told to end, nobody is left to wait for
    }
  };
  try {
    const cuda::DeviceGuard guard(device_);
    barrier();
    cudaDeviceSynchronize();
    barrier();
    watcher_.reset();
  } catch (const Error&) {
    // No GPU any more.
  }
  cudaGetLastError();  // a lost GPU is not an error of whoever calls CUDA next
}

PushExchange::Slot& PushExchange::begin(const char* operation) {
  // The first free one: what follows from the handles that are alive is the same on every rank.
  for (Slot& slot : slots_) {
    if (slot.stage != Stage::kFree) continue;
    slot.id = next_id_++;
    return slot;
  }
  fail(Errc::kInvalidArgument,
       "{}: {} handles are alive, max_in_flight is {}; combine or release one first", operation,
       slots_.size(), shape_.config.max_in_flight);
}

DeviceHandle PushExchange::handle_of(const Slot& slot) const {
  DeviceHandle handle;
  handle.slot_ = static_cast<std::int32_t>(&slot - slots_.data());
  handle.id_ = slot.id;
  handle.exchange_ = number_;
  handle.routing_ = slot.routing;
  return handle;
}

PushExchange::Slot& PushExchange::find(const DeviceHandle& handle, Stage wanted,
                                       const char* operation) {
  static constexpr const char* kDone[] = {"free", "sent by dispatch", "received from dispatch",
                                          "sent by combine"};
  const auto index = static_cast<std::size_t>(handle.slot_);
  require(handle.exchange_ == number_ && index < slots_.size() && slots_[index].id == handle.id_ &&
              slots_[index].stage != Stage::kFree,
          Errc::kInvalidArgument,
          "{}: the handle is not alive here, it ends with its combine or release; dispatch first",
          operation);
  Slot& slot = slots_[index];
  require(slot.stage == wanted, Errc::kInvalidArgument,
          "{}: the handle was {} last, must have been {}", operation,
          kDone[static_cast<int>(slot.stage)], kDone[static_cast<int>(wanted)]);
  return slot;
}

PushExchange::Slot& PushExchange::start(const Input& input, Stream stream, cuda::Phases phases) {
  check();
  check_input(input);
  Slot& slot = begin(input.earlier == nullptr ? "dispatch" : "dispatch_again");
  if (input.earlier != nullptr) copy_routing(slot, *input.earlier, stream);
  slot.routing = input.earlier != nullptr ? input.earlier->routing
                 : options_.keeps_routing ? slot.id
                                          : 0;
  slot.call = call_of(input);
  launch(slot, phases, stream);
  return slot;
}

DeviceHandle PushExchange::dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                                         const TensorView& topk_weights, Stream stream,
                                         const DeviceDispatchOptions& options) {
  Slot& slot = start({tokens, topk_ids, topk_weights, options}, stream, cuda::Phases::kSend);
  slot.stage = Stage::kSent;
  return handle_of(slot);
}

DeviceDispatched PushExchange::dispatch_receive(const DeviceHandle& handle, Stream stream) {
  check();
  Slot& slot = find(handle, Stage::kSent, "dispatch_receive");
  launch(slot, cuda::Phases::kReceive, stream);
  slot.stage = Stage::kReceived;
  return describe(slot);
}

DeviceDispatched PushExchange::dispatch(const TensorView& tokens, const TensorView& topk_ids,
                                        const TensorView& topk_weights, Stream stream,
                                        const DeviceDispatchOptions& options) {
  Slot& slot = start({tokens, topk_ids, topk_weights, options}, stream, cuda::Phases::kBoth);
  slot.stage = Stage::kReceived;
  return describe(slot);
}

DeviceHandle PushExchange::dispatch_again_send(const DeviceHandle& earlier,
                                               const TensorView& tokens,
                                               const TensorView& topk_weights, Stream stream,
                                               const DeviceDispatchOptions& options) {
  const Slot& kept = kept_routing(earlier, "dispatch_again");
  Slot& slot = start({tokens, {}, topk_weights, options, &kept}, stream, cuda::Phases::kSend);
  slot.stage = Stage::kSent;
  return handle_of(slot);
}

DeviceDispatched PushExchange::dispatch_again(const DeviceHandle& earlier, const TensorView& tokens,
                                              const TensorView& topk_weights, Stream stream,
                                              const DeviceDispatchOptions& options) {
  const Slot& kept = kept_routing(earlier, "dispatch_again");
  Slot& slot = start({tokens, {}, topk_weights, options, &kept}, stream, cuda::Phases::kBoth);
  slot.stage = Stage::kReceived;
  return describe(slot);
}

// Slots are used by turns of calls, so a combine needs a call of its own, on every rank.
DeviceHandle PushExchange::reopen(const DeviceHandle& earlier, Stream stream) {
  const Slot& kept = kept_routing(earlier, "reopen");
  DeviceDispatchOptions options;
  options.routing_only = true;
  options.tensor_scale = TensorView(blank_.data(), DType::kF32, {1});
  const TensorView tokens(blank_.data(), DType::kBF16,
                          {kept.call.num_tokens(), shape_.config.hidden});
  Slot& slot = start({tokens, {}, {}, options, &kept}, stream, cuda::Phases::kBoth);
  slot.stage = Stage::kReceived;
  return handle_of(slot);
}

void PushExchange::enter(Phase phase, const Slot& slot) {
  site_ = {phase, slot.id, -1};
  group_.engine().enter(phase, slot.id);
}

// The rows of the tokens come last: all that they share with other rows is as they leave it.
void PushExchange::launch(const Slot& slot, cuda::Phases phases, Stream stream) {
  enter(phases == cuda::Phases::kReceive ? Phase::kDispatchReceive : Phase::kDispatchSend, slot);
  gather_routing(slot, phases, stream);
  for (std::size_t i = 0; i < slot.call.payloads.size(); ++i) {
    launch_rows(slot, payload_args(slot.kernels, slot.call, i), phases, stream);
    sync_if_shared(phases, stream);
  }
  launch_rows(slot, token_args(slot.kernels, slot.call), phases, stream);
  if (!cuda::receives(phases) || !shape_.gathers || !shape_.gathers_routing) return;
  sync_if_shared(phases, stream);
  cuda::launch_place_routing(routing_args(slot.kernels, slot.call), drops(slot), stream.get());
}

// Ranks that share a GPU may share a hardware queue: what is queued behind a kernel that waits for
// a peer could keep the peer's kernel from starting. There the host waits between the kernels of a
// call.
void PushExchange::sync_if_shared(cuda::Phases phases, Stream stream) const {
  if (!cuda::receives(phases) || !window_->is_shared_gpu()) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::check_cuda(cudaStreamIsCapturing(stream.get(), &status), "dispatch");
  if (status != cudaStreamCaptureStatusNone) return;
  cuda::check_cuda(cudaStreamSynchronize(stream.get()), "dispatch");
}

cuda::GridRequest PushExchange::grid_request(const Slot& slot, cuda::Phases phases) const {
  return {num_ctas_, cuda::sends(phases), cuda::receives(phases), has_whole_gpu_,
          slot.call.call_max_tokens};
}

void PushExchange::launch_rows(const Slot& slot, cuda::DispatchArgs args, cuda::Phases phases,
                               Stream stream) const {
  args.grid = cuda::dispatch_grid(grid_request(slot, phases), args.layout, args.tokens.count);
  cuda::launch_dispatch(args, phases, options_.programmatic_launch, stream.get());
}

void PushExchange::combine_send(const DeviceHandle& handle, const TensorView& rows, Stream stream,
                                const DeviceCombineOptions& options) {
  check();
  Slot& slot = find(handle, Stage::kReceived, "combine");
  CombineCall call;
  add_results(call, slot, rows, options);
  launch_return(slot, call, cuda::Phases::kSend, stream);
  slot.stage = Stage::kReturned;
}

void PushExchange::combine_receive(const DeviceHandle& handle, const TensorView& output,
                                   Stream stream, const DeviceCombineOptions& options) {
  check();
  Slot& slot = find(handle, Stage::kReturned, "combine_receive");
  CombineCall call;
  add_output(call, slot, output, options);
  launch_return(slot, call, cuda::Phases::kReceive, stream);
  slot.stage = Stage::kFree;
}

void PushExchange::combine(const DeviceHandle& handle, const TensorView& rows,
                           const TensorView& output, Stream stream,
                           const DeviceCombineOptions& options) {
  check();
  Slot& slot = find(handle, Stage::kReceived, "combine");
  CombineCall call;
  add_results(call, slot, rows, options);
  add_output(call, slot, output, options);
  check_both_weights(options.row_weights, options.returned_weights);
  launch_return(slot, call, cuda::Phases::kBoth, stream);
  slot.stage = Stage::kFree;
}

void PushExchange::launch_return(const Slot& slot, const CombineCall& call, cuda::Phases phases,
                                 Stream stream) {
  enter(phases == cuda::Phases::kReceive ? Phase::kCombineReceive : Phase::kCombineSend, slot);
  cuda::CombineArgs args = combine_args(slot.kernels, call);
  args.grid = cuda::combine_grid(grid_request(slot, phases), args.layout, slot.call.tokens.count);
  if (call.row_weights != nullptr) {
    cuda::launch_return_weights(return_weights_args(slot.kernels, call), stream.get());
  }
  cuda::launch_combine(args, phases, options_.programmatic_launch, stream.get());
  if (call.returned_weights == nullptr) return;
  sync_if_shared(phases, stream);
  cuda::launch_receive_weights(return_weights_args(slot.kernels, call), stream.get());
}

void PushExchange::release(const DeviceHandle& handle) {
  find(handle, Stage::kReceived, "release").stage = Stage::kFree;
}

}  // namespace switchyard
