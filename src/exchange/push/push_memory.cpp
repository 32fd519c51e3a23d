// SPDX-License-Identifier: Apache-2.0
//
// The memory of an exchange, taken once: what kernels share with the host, and of each slot what
// is received, what a call leaves for its combine, and the parts of kernel arguments that never
// change.

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/carver.h"
#include "cuda/base/check.h"
#include "cuda/exchange/wire_form.h"
#include "exchange/push/push_exchange.h"
#include "exchange/push/wait_failure.h"
#include "heap/stream_queues.h"

namespace switchyard {
namespace {

constexpr std::size_t kPartAlignment = 256;
constexpr int kEmptyByte = 0xFF;
constexpr int kBlankByte = 0x3F;  // a finite number of every dtype

template <typename T>
T* carve(Carver& parts, std::size_t count) {
  return reinterpret_cast<T*>(parts.carve(checked_mul(count, sizeof(T))));
}

cuda::CallState carve_state(Carver& parts, std::size_t ranks, std::size_t tokens,
                            std::size_t topk) {
  cuda::CallState state;
  state.counter = carve<std::uint64_t>(parts, 1);
  state.num_partials = carve<std::int32_t>(parts, tokens);
  state.columns = carve<std::int32_t>(parts, tokens * topk);
  state.partial_weights = carve<float>(parts, tokens * topk);
  state.partial_ranks = carve<std::int32_t>(parts, tokens * topk);
  state.num_arrivals = carve<std::int32_t>(parts, ranks);
  state.arrival_token = carve<std::int32_t>(parts, ranks * tokens);
  state.arrival_rows = carve<std::int32_t>(parts, ranks * tokens * topk);
  state.arrival_weights = carve<float>(parts, ranks * tokens * topk);
  return state;
}

// The ids and weights of all ranks.
void carve_gather(Carver& parts, const PushExchangeShape& shape, cuda::DispatchArgs& gather,
                  cuda::RoutingArgs& routing) {
  const auto ranks = static_cast<std::size_t>(shape.main_ownership.num_ranks);
  const auto tokens = static_cast<std::size_t>(shape.config.max_tokens_per_rank);
  const auto row_bytes = static_cast<std::size_t>(shape.routing_row_bytes());
  gather.state = carve_state(parts, ranks, tokens, ranks);
  gather.num_rows = carve<std::int32_t>(parts, 1);
  gather.total_rows = carve<std::int32_t>(parts, 1);
  gather.rows = carve<std::byte>(parts, checked_mul(ranks * tokens, row_bytes));
  routing.own_rows = carve<std::uint32_t>(parts, tokens * row_bytes / sizeof(std::uint32_t));
  if (!shape.drops) return;
  const std::size_t choices = ranks * tokens * static_cast<std::size_t>(shape.config.num_topk);
  cuda::ChoiceSort& sort = routing.sort;
  sort.keys = carve<std::uint64_t>(parts, 2 * choices);
  sort.choices = carve<std::uint32_t>(parts, 2 * choices);
  sort.work_bytes =
      cuda::sort_work_bytes(static_cast<std::int64_t>(choices), shape.config.num_experts);
  sort.work = carve<std::byte>(parts, sort.work_bytes);
}

void start_count(std::uint64_t* counter) {
  const std::uint64_t first_call =
      cuda::kCallUnit;  // number 1: combine takes the one before the next
  cuda::check_cuda(cudaMemcpy(counter, &first_call, sizeof(first_call), cudaMemcpyHostToDevice),
                   "cudaMemcpy");
}

}  // namespace

ExchangeMemory PushExchange::memory() const {
  ExchangeMemory memory;
  memory.window_bytes = window_->size_bytes();
  for (const Slot& slot : slots_) memory.receive_bytes += slot.memory.size_bytes();
  return memory;
}

void PushExchange::prepare_memory() {
  if (window_->kind() == HeapKind::kSameProcess) {
    const std::string obstacle =
        queue_obstacle(window_->ranks_on_gpu(), std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
    require(obstacle.empty(), Errc::kNotAvailable, "device exchange: {}", obstacle);
  }
  words_ = cuda::PinnedBuffer(sizeof(WatchWords));
  failed_ = cuda::DeviceBuffer(sizeof(std::uint32_t));
  watch_.record = &words_.as<WatchWords>()->record;
  watch_.abort_word = &words_.as<WatchWords>()->abort_word;
  watch_.failed = failed_.as<std::uint32_t>();
  const std::int64_t timeout_ms =
      kernel_timeout_ms(options_.timeout_ms, group_.timeout_ms(), window_->is_shared_gpu());
  watch_.timeout_ns = static_cast<std::uint64_t>(timeout_ms) * 1'000'000;
  cuda::check_cuda(cudaMemset(window_->base(group_.rank()), kEmptyByte, window_->size_bytes()),
                   "cudaMemset");
  blank_ = cuda::DeviceBuffer(kVecElements * sizeof(float));
  cuda::check_cuda(cudaMemset(blank_.data(), kBlankByte, blank_.size_bytes()), "cudaMemset");
  if (shape_.gathers || shape_.gathers_routing) fill_every_rank_ids();
  for (std::size_t i = 0; i < slots_.size(); ++i) allocate(slots_[i], i);
  run_kernels();
  cuda::check_cuda(cudaDeviceSynchronize(), "device exchange");
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

// Every kernel once, without doing anything: see launch_dispatch.
void PushExchange::run_kernels() const {
  cuda::check_cuda(cudaMemset(failed_.data(), 1, failed_.size_bytes()), "cudaMemset");
  const Slot& slot = slots_[0];
  const auto run = [](const cuda::DispatchArgs& args) {
    cuda::launch_dispatch(args, cuda::Phases::kNone, false, nullptr);
  };
  cuda::DispatchArgs dispatch = slot.dispatch;
  for (const DType dtype : {DType::kBF16, shape_.config.scheme.dtype}) {
    dispatch.token_dtype = dtype;
    run(dispatch);
  }
  for (const cuda::DispatchArgs& payload : slot.payloads) run(payload);
  if (shape_.gathers_routing) run(slot.gather);
  if (keeps_ids()) {
    cuda::run_routing_kernels(slot.routing_args, shape_.drops,
                              shape_.gathers && shape_.gathers_routing, nullptr);
  }
  cuda::launch_combine(slot.combine, cuda::Phases::kNone, false, nullptr);
  if (shape_.returns_weights) {
    cuda::launch_return_weights(slot.weights, nullptr);
    cuda::launch_receive_weights(slot.weights, nullptr);
  }
  cuda::check_cuda(cudaMemset(failed_.data(), 0, failed_.size_bytes()), "cudaMemset");
}

void PushExchange::allocate(Slot& slot, std::size_t index) {
  const ExchangeConfig& config = shape_.config;
  const auto ranks = static_cast<std::size_t>(group_.size());
  const auto tokens = static_cast<std::size_t>(config.max_tokens_per_rank);
  const auto topk = static_cast<std::size_t>(config.num_topk);
  const auto rows = static_cast<std::size_t>(shape_.exchange.max_buffer_rows);
  const auto local = static_cast<std::size_t>(shape_.exchange.ownership.count(group_.rank()));
  const bool is_major = is_expert_major(config.layout);
  const std::size_t num_scale_bytes =
      scale_blocks(config, shape_.exchange, group_.rank(), shape_.exchange.max_buffer_rows)
          .num_bytes();
  std::vector<std::uint64_t*> counters;
  std::vector<std::byte*> payload_rows;
  for (const bool is_real : {false, true}) {
    Carver parts(is_real ? slot.memory.data() : nullptr, kPartAlignment);
    counters.clear();
    payload_rows.clear();
    cuda::DispatchArgs& args = slot.dispatch;
    cuda::RoutingArgs& routing = slot.routing_args;
    args.state = carve_state(parts, ranks, tokens, static_cast<std::size_t>(shape_.main_topk));
    args.num_rows = carve<std::int32_t>(parts, std::max<std::size_t>(local, 1));
    args.total_rows = carve<std::int32_t>(parts, 1);
    args.first_row = is_major ? carve<std::int64_t>(parts, local) : nullptr;
    args.rows = carve<std::byte>(parts, checked_mul(rows, shape_.exchange.payload_bytes));
    args.scales =
        shape_.exchange.num_scales > 0 ? carve<std::byte>(parts, num_scale_bytes) : nullptr;
    args.row_ids = is_major ? nullptr : carve<std::int32_t>(parts, rows * topk);
    args.row_weights =
        config.sends_weights ? carve<float>(parts, rows * (is_major ? 1 : topk)) : nullptr;
    routing.num_rows_of_expert = shape_.gathers ? carve<std::int32_t>(parts, local) : args.num_rows;
    if (keeps_ids()) routing.own_ids = carve<std::int32_t>(parts, tokens * topk);
    routing.num_dropped = carve<std::int32_t>(parts, 1);
    for (const std::int64_t bytes : config.payload_bytes) {
      counters.push_back(carve<std::uint64_t>(parts, 1));
      payload_rows.push_back(
          carve<std::byte>(parts, checked_mul(rows, static_cast<std::size_t>(bytes))));
    }
    if (shape_.gathers_routing) carve_gather(parts, shape_, slot.gather, routing);
    if (is_real) break;
    slot.memory = cuda::DeviceBuffer(parts.used_bytes());
  }
  cuda::check_cuda(cudaMemset(slot.memory.data(), 0, slot.memory.size_bytes()), "cudaMemset");
  start_count(slot.dispatch.state.counter);
  if (shape_.gathers_routing) start_count(slot.gather.state.counter);
  set_base(slot, index);
  for (std::size_t i = 0; i < payload_rows.size(); ++i) {
    start_count(counters[i]);
    slot.payloads[i].state.counter = counters[i];
    slot.payloads[i].rows = payload_rows[i];
  }
}

void PushExchange::set_base(Slot& slot, std::size_t index) {
  const ExchangeConfig& config = shape_.config;
  cuda::DispatchArgs& dispatch = slot.dispatch;
  cuda::ExchangeBase base;
  base.layout = shape_.main;
  base.ownership = cuda::KernelOwnership(shape_.main_ownership);
  cuda::PeerTable windows{};
  for (int r = 0; r < group_.size(); ++r) {
    windows.base[r] = window_->base(r) + index * shape_.window_bytes;
  }
  base.rank = group_.rank();
  base.num_topk = shape_.main_topk;
  base.rows_layout = config.layout;
  base.reduce = config.reduce;
  base.state = dispatch.state;
  base.watch = watch_;
  static_cast<cuda::ExchangeBase&>(dispatch) = base;
  static_cast<cuda::ExchangeBase&>(slot.combine) = base;
  dispatch.windows = windows;
  slot.combine.windows = windows;
  slot.combine.wire = config.combine_scheme;

  set_routing(slot);
  set_rows(dispatch);
  std::size_t region = shape_.main.total_bytes;
  for (std::size_t i = 0; i < shape_.payloads.size(); ++i) {
    slot.payloads.push_back(bytes_base(dispatch, region, config.payload_bytes[i]));
    slot.payloads.back().layout = shape_.payloads[i];
    region += shape_.payloads[i].total_bytes;
  }
  if (shape_.gathers_routing) set_gather(slot, region);
  if (shape_.returns_weights) set_weights_base(slot);
}

void PushExchange::set_routing(Slot& slot) const {
  const ExchangeConfig& config = shape_.config;
  cuda::RoutingArgs& routing = slot.routing_args;
  routing.ownership = cuda::KernelOwnership(shape_.exchange.ownership);
  routing.state = slot.dispatch.state;
  routing.watch = watch_;
  routing.rank = group_.rank();
  routing.num_topk = config.num_topk;
  routing.max_tokens = static_cast<std::int32_t>(config.max_tokens_per_rank);
  routing.wants_distinct = config.layout == Layout::kBatched;
  routing.is_gathered = shape_.gathers;
  routing.rows = reinterpret_cast<const std::uint32_t*>(slot.gather.rows);
  routing.num_rows = slot.gather.total_rows;
  routing.num_from = slot.gather.state.num_arrivals;
  routing.capacity =
      config.capacity > 0 ? config.capacity : std::numeric_limits<std::int64_t>::max();
  routing.num_local = shape_.exchange.ownership.count(group_.rank());
  if (!shape_.gathers) return;
  // Of the rows of all ranks only these kernels know the experts.
  routing.row_ids = std::exchange(slot.dispatch.row_ids, nullptr);
  routing.row_weights = std::exchange(slot.dispatch.row_weights, nullptr);
}

void PushExchange::set_gather(Slot& slot, std::size_t region) const {
  const cuda::DispatchArgs taken = slot.gather;
  cuda::DispatchArgs& gather = slot.gather;
  gather = bytes_base(slot.dispatch, region, shape_.routing_row_bytes());
  gather.layout = shape_.routing;
  gather.ownership = cuda::KernelOwnership({group_.size(), group_.size()});
  gather.num_topk = group_.size();
  gather.rows_layout = Layout::kCompact;
  gather.reduce = Reduce::kPerRank;
  gather.capacity = std::numeric_limits<std::int64_t>::max();
  gather.state = taken.state;
  gather.num_rows = taken.num_rows;
  gather.first_row = nullptr;
  gather.total_rows = taken.total_rows;
  gather.rows = taken.rows;
  gather.tokens = reinterpret_cast<const std::byte*>(slot.routing_args.own_rows);
  gather.token_stride = shape_.routing_row_bytes();
  gather.aligned_tokens = gather.aligned_rows;
  gather.topk_ids = every_rank_.data();
  gather.ids_are_64_bits = false;
}

// What never changes about the rows of the tokens.
void PushExchange::set_rows(cuda::DispatchArgs& dispatch) const {
  const ExchangeConfig& config = shape_.config;
  const ExchangeShape& shape = shape_.exchange;
  const ScaleBlocks scales = scale_blocks(config, shape, group_.rank(), shape.max_buffer_rows);
  const bool is_batched = config.layout == Layout::kBatched;
  const bool is_limited = is_batched || (config.capacity > 0 && !shape_.gathers);
  dispatch.scheme = config.scheme;
  dispatch.row_bytes = static_cast<std::int64_t>(shape.payload_bytes);
  dispatch.aligned_rows = shape.payload_bytes % kUnitBytes == 0;
  dispatch.capacity =
      is_limited ? shape.receive.capacity : std::numeric_limits<std::int64_t>::max();
  dispatch.row_alignment = config.expert_alignment;
  dispatch.scale_block = scales.block;
  dispatch.scales_per_chunk = cuda::scales_per_chunk(config.scheme);
  dispatch.scale_block_bytes = is_batched ? scales.block.num_bytes() : 0;
}

// The dispatch of rows of bytes, without scales, ids or weights, in a region of its own.
cuda::DispatchArgs PushExchange::bytes_base(const cuda::DispatchArgs& main, std::size_t region,
                                            std::int64_t row_bytes) const {
  cuda::DispatchArgs args = main;
  for (int r = 0; r < group_.size(); ++r) args.windows.base[r] += region;
  args.scheme = schemes::kFp8Tensor;  // codes of 8 bits as they are, no scales in rows
  args.token_dtype = args.scheme.dtype;
  args.row_bytes = row_bytes;
  args.aligned_rows = row_bytes % static_cast<std::int64_t>(kUnitBytes) == 0;
  args.scales = nullptr;
  args.scale_block = {};
  args.scale_units_per_row = 0;
  args.scales_per_chunk = 1;
  args.scale_block_bytes = 0;
  args.row_ids = nullptr;
  args.row_weights = nullptr;
  return args;
}

}  // namespace switchyard
