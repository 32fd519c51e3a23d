// SPDX-License-Identifier: Apache-2.0
//
// The memory of an exchange, allocated once: what kernels share with the host, and of each slot
// what is received and what a call leaves for its combine.

#include <cstdlib>
#include <vector>

#include "core/bytes.h"
#include "core/round_up.h"
#include "cuda/base/beside_capture.h"
#include "cuda/base/check.h"
#include "exchange/push/push_exchange.h"
#include "exchange/push/wait_failure.h"
#include "heap/gather_or_fail.h"
#include "heap/heap.h"
#include "heap/stream_queues.h"

namespace switchyard {
namespace {

constexpr int kEmptyByte = 0xFF;
constexpr int kBlankByte = 0x3F;  // a finite number of every dtype

// At number 1: a combine belongs to the call before the next.
void start_count(std::uint64_t* counter, cudaStream_t stream) {
  static constexpr std::uint64_t kFirstCall = cuda::kCallUnit;
  cuda::check_cuda(
      cudaMemcpyAsync(counter, &kFirstCall, sizeof(kFirstCall), cudaMemcpyHostToDevice, stream),
      "cudaMemcpyAsync");
}

void fill(const cuda::DeviceBuffer& buffer, int byte, cudaStream_t stream) {
  cuda::check_cuda(cudaMemsetAsync(buffer.data(), byte, buffer.size_bytes(), stream),
                   "cudaMemsetAsync");
}

}  // namespace

ExchangeMemory PushExchange::memory() const {
  ExchangeMemory memory;
  for (const Slot& slot : slots_) {
    if (slot.window) memory.window_bytes += slot.window->size_bytes();
    memory.receive_bytes += slot.buffer.size_bytes() + slot.received.size_bytes();
    if (hosts_ != nullptr) memory.receive_bytes += hosts_->memory_bytes(index_of(slot));
  }
  return memory;
}

// Of a slot; in lines of their own.
std::size_t PushExchange::count_bytes() const {
  constexpr std::size_t kLine = 128;
  const int num_local = shape_.main_ownership.count(group_.rank());
  return align_up(cuda::HostCountWords::num_bytes(group_.size(), num_local), kLine);
}

void PushExchange::prepare_memory() {
  const DeviceWindow& window = *slots_[0].window;
  if (window.kind() == HeapKind::kSameProcess) {
    const std::string obstacle =
        queue_obstacle(window.ranks_on_gpu(), std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
    require(obstacle.empty(), Errc::kNotAvailable, "exchange: {}", obstacle);
  }
  words_ = cuda::PinnedBuffer(sizeof(WatchWords));
  counts_ = cuda::PinnedBuffer(checked_mul(slots_.size(), count_bytes()));
  failed_ = cuda::DeviceBuffer(sizeof(std::uint32_t));
  watch_.record = &words_.as<WatchWords>()->record;
  watch_.abort_word = &words_.as<WatchWords>()->abort_word;
  watch_.failed = failed_.as<std::uint32_t>();
  const std::int64_t timeout_ms =
      kernel_timeout_ms(options_.timeout_ms, group_.timeout_ms(), is_shared_gpu());
  watch_.timeout_ns = static_cast<std::uint64_t>(timeout_ms) * 1'000'000;
  if (hosts_ != nullptr) hosts_->set_timeout(timeout_ms);
  blank_ = cuda::DeviceBuffer(kVecElements * sizeof(float));
  fill(blank_, kBlankByte, nullptr);
  if (shape_.gathers || shape_.gathers_routing) fill_every_rank_ids();
  if (shape_.exchange.ownership.table != nullptr) fill_expert_table();
  for (Slot& slot : slots_) {
    if (!slot.window) continue;
    allocate(slot, nullptr);
    slot.has_memory = true;
  }
  run_kernels();
  cuda::check_cuda(cudaDeviceSynchronize(), "exchange");
}

// Collective.
void PushExchange::make_window(Slot& slot) {
  const std::string heap = options_.heap.empty() ? "auto" : options_.heap;
  const auto make = [&](Engine& engine, std::size_t bytes) {
    slot.window = make_device_window(engine, device_.index, bytes, heap);
  };
  if (hosts_ == nullptr) return make(group_.engine(), shape_.all_window_bytes());
  gather_or_fail(group_.control(), {Phase::kExchange, "windows of all hosts"}, [&] {
    make(hosts_->host(), hosts_->window_bytes());
    return std::string();
  });
}

// Collective: which slot a dispatch takes is the same on every rank.
void PushExchange::take_slot(Slot& slot) {
  const cuda::BesideCapture beside;
  if (!slot.window) make_window(slot);  // there is one after a failure of what follows
  gather_or_fail(group_.control(), {Phase::kExchange, "slot"}, [&] {
    const cuda::OwnedStream stream;
    allocate(slot, stream.get());
    cuda::check_cuda(cudaStreamSynchronize(stream.get()), "dispatch");
    return std::string();
  });
  slot.has_memory = true;
}

void PushExchange::fill_every_rank_ids() {
  const auto ranks = static_cast<std::size_t>(group_.size());
  const auto tokens = static_cast<std::size_t>(shape_.config.max_tokens_per_rank);
  std::vector<std::int32_t> ids(checked_mul(ranks, tokens));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i % ranks);
  every_rank_ = cuda::DeviceBuffer(ids.size() * sizeof(std::int32_t));
  cuda::check_cuda(
      cudaMemcpy(every_rank_.data(), ids.data(), every_rank_.size_bytes(), cudaMemcpyHostToDevice),
      "cudaMemcpy");
}

void PushExchange::fill_expert_table() {
  const std::vector<std::int32_t> table =
      cuda::KernelOwnership::make_table(shape_.exchange.ownership);
  expert_table_ = cuda::DeviceBuffer(table.size() * sizeof(std::int32_t));
  cuda::check_cuda(cudaMemcpy(expert_table_.data(), table.data(), expert_table_.size_bytes(),
                              cudaMemcpyHostToDevice),
                   "cudaMemcpy");
}

// Every kernel once, without doing anything: see launch_dispatch.
void PushExchange::run_kernels() const {
  cuda::check_cuda(cudaMemset(failed_.data(), 1, failed_.size_bytes()), "cudaMemset");
  const SlotKernels& slot = slots_[0].kernels;
  PushDispatch call;
  call.payloads.resize(slot.payloads.size());
  const auto run = [](const cuda::DispatchArgs& args) {
    cuda::launch_dispatch(args, cuda::Phases::kNone, false, nullptr);
  };
  for (const DType dtype : {DType::kBF16, shape_.config.scheme.dtype}) {
    call.tokens.dtype = dtype;
    run(token_args(slot, call));
  }
  for (std::size_t i = 0; i < slot.payloads.size(); ++i) run(payload_args(slot, call, i));
  if (shape_.gathers_routing) run(gather_args(slot, call));
  if (keeps_ids()) {
    cuda::run_routing_kernels(routing_args(slot, call), shape_.drops,
                              shape_.gathers && shape_.gathers_routing, nullptr);
  }
  cuda::launch_host_counts(host_counts_args(slot), false, nullptr);
  cuda::launch_combine(combine_args(slot, {}), cuda::Phases::kNone, false, nullptr);
  if (shape_.returns_weights) {
    cuda::launch_return_weights(return_weights_args(slot, {}), nullptr);
    cuda::launch_receive_weights(return_weights_args(slot, {}), nullptr);
  }
  if (shape_.can_be_direct()) run_direct_kernels();
  if (hosts_ != nullptr) hosts_->run_kernels(slot);
  cuda::check_cuda(cudaMemset(failed_.data(), 0, failed_.size_bytes()), "cudaMemset");
}

void PushExchange::allocate(Slot& slot, cudaStream_t stream) {
  const DeviceWindow& window = *slot.window;
  cuda::PeerTable windows{};
  for (int r = 0; hosts_ == nullptr && r < group_.size(); ++r) windows.base[r] = window.base(r);
  if (hosts_ != nullptr) windows = hosts_->windows(window);
  cuda::check_cuda(
      cudaMemsetAsync(windows.base[group_.rank()], kEmptyByte, window.size_bytes(), stream),
      "cudaMemsetAsync");
  const auto lay_out = [&](std::byte* base) {
    return lay_out_slot(base, shape_, group_.rank(), keeps_ids());
  };
  slot.buffer = cuda::DeviceBuffer(lay_out(nullptr).num_bytes);
  fill(slot.buffer, 0, stream);
  SlotMemory memory = lay_out(slot.buffer.data());
  if (shape_.can_be_direct()) take_direct_arrivals(slot, memory);
  start_count(memory.state.counter, stream);
  if (shape_.gathers_routing) start_count(memory.gather.state.counter, stream);
  for (std::uint64_t* counter : memory.payload_counters) start_count(counter, stream);

  SlotKernels shared{.shape = &shape_,
                     .rank = group_.rank(),
                     .watch = watch_,
                     .every_rank = every_rank_.as<std::int32_t>(),
                     .expert_table = expert_table_.as<std::int32_t>(),
                     .memory = memory,
                     .counts = cuda::HostCountWords(
                         counts_.as<std::byte>() + index_of(slot) * count_bytes(), group_.size())};
  if (hosts_ != nullptr) hosts_->describe(window, shared);
  slot.kernels = make_slot_kernels(shared, windows);
  if (shape_.can_be_direct()) {
    take_received_in_window(slot, stream);
  } else if (!takes_memory_to_size()) {
    take_received(slot, max_buffer_rows(), stream);
  }
  slot.kernels.received.payloads.resize(shape_.payloads.size());  // run_kernels() reads them
  if (hosts_ != nullptr) hosts_->allocate(index_of(slot), stream);
}

// Stream-ordered where a call does it.
void PushExchange::take_received(Slot& slot, std::int64_t num_rows, cudaStream_t stream) {
  const auto lay_out = [&](std::byte* base) {
    return lay_out_received(base, shape_, group_.rank(), num_rows);
  };
  const std::size_t num_bytes = lay_out(nullptr).num_bytes;
  slot.num_received_rows = 0;
  if (takes_memory_to_size()) {
    slot.received.resize(num_bytes, stream);
  } else {
    slot.received = cuda::DeviceBuffer(num_bytes);
  }
  slot.kernels.received = lay_out(slot.received.data());
  slot.num_received_rows = num_rows;
  if (num_bytes == 0) return;
  fill(slot.received, 0, stream);
}

TensorView PushExchange::combine_input(const DispatchHandle& handle) {
  const cuda::DeviceGuard guard(device_.index);
  Slot& slot = find(handle, Stage::kReceived, "combine_input");
  const std::int64_t hidden = shape_.config.hidden;
  const bool is_read_by_peers = slot.dispatch.is_direct;
  if (!is_read_by_peers && slot.combine_input.size_bytes() == 0) {
    const cuda::BesideCapture beside;
    const auto rows = static_cast<std::size_t>(max_buffer_rows());
    const auto row_bytes = static_cast<std::size_t>(hidden) * sizeof(std::uint16_t);
    slot.combine_input = cuda::DeviceBuffer(checked_mul(rows, row_bytes));
  }
  std::byte* memory =
      is_read_by_peers ? direct_results(slot.kernels) : slot.combine_input.as<std::byte>();
  if (shape_.config.layout != Layout::kBatched) {
    return TensorView(memory, DType::kBF16, {slot.dispatch.num_rows, hidden}, device_);
  }
  return TensorView(
      memory, DType::kBF16,
      {shape_.exchange.ownership.count(group_.rank()), shape_.exchange.receive.capacity, hidden},
      device_);
}

}  // namespace switchyard
