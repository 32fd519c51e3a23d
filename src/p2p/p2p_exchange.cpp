// SPDX-License-Identifier: Apache-2.0

#include "p2p/p2p_exchange.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>

#include "core/bytes.h"
#include "cuda/check.h"
#include "cuda/grid.h"
#include "cuda/wire_form.h"
#include "p2p/heap.h"
#include "p2p/stream_queues.h"

namespace switchyard {
namespace {

constexpr std::size_t kPartAlignment = 256;
constexpr std::int64_t kMaxTimeoutMs = 86'400'000;
constexpr int kEmptyByte = 0xFF;

std::atomic<std::uint64_t> num_exchanges = 0;

// Gives out parts of one allocation: first to add them up, then to place them.
class Parts {
 public:
  explicit Parts(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(std::size_t count) {
    const std::size_t at = used_;
    used_ = checked_add(used_, align_up(checked_mul(count, sizeof(T)), kPartAlignment));
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

void require_supported(const ExchangeConfig& config, int num_ranks) {
  const auto refuse = [](bool is_bad, const std::string& what) {
    require(!is_bad, Errc::kNotSupported, "device exchange: {}", what);
  };
  refuse(config.layout == Layout::kAllGather || config.layout == Layout::kByRank,
         fmt::format("layout is {}, must be batched, expanded or compact", name_of(config.layout)));
  refuse(config.num_topk > kMaxPushTopk,
         fmt::format("num_topk is {}, must be at most {}", config.num_topk, kMaxPushTopk));
  refuse(num_ranks > kMaxPushRanks,
         fmt::format("{} ranks, must be at most {}", num_ranks, kMaxPushRanks));
  refuse(!config.payload_bytes.empty(), "payload_bytes is given, further payloads do not travel");
  refuse(config.overflow == Overflow::kDrop, "overflow is drop, must be error");
  refuse(config.capacity != 0 && config.layout != Layout::kBatched,
         fmt::format("capacity is {} for layout {}, must be 0", config.capacity,
                     name_of(config.layout)));
  refuse(config.combine_scheme.is_quantized(),
         fmt::format("combine_scheme is {}, must be bf16, f16 or f32",
                     name_of(config.combine_scheme)));
  refuse(config.zero_padding, "zero_padding is set, must be false");
}

// Sizes of receive buffers do not follow the routing: the host never learns it.
ExchangeConfig with_worst_case(ExchangeConfig config) {
  config.worst_case_rows = true;
  return config;
}

// GPUs keep 32-bit row numbers and counts in shared memory.
void require_sizes(const ExchangeConfig& config, const ExchangeShape& shape) {
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 31;
  constexpr int kMaxExperts = 16384;
  constexpr std::int64_t kMaxHidden = std::int64_t{1} << 24;
  require(shape.max_buffer_rows < kMaxRows, Errc::kNotSupported,
          "device exchange: the receive buffer has {} rows, must be fewer than {}",
          shape.max_buffer_rows, kMaxRows);
  require(config.num_experts <= kMaxExperts, Errc::kNotSupported,
          "device exchange: num_experts is {}, must be at most {}", config.num_experts,
          kMaxExperts);
  require(config.hidden <= kMaxHidden, Errc::kNotSupported,
          "device exchange: hidden is {}, must be at most {}", config.hidden, kMaxHidden);
}

PushLayout make_layout(const ExchangeConfig& config, const ExchangeShape& shape, int num_ranks) {
  PushShape push;
  push.max_tokens = config.max_tokens_per_rank;
  push.hidden = config.hidden;
  push.num_ranks = num_ranks;
  push.num_topk = config.num_topk;
  push.max_local_experts = shape.ownership.max_count();
  push.element_bits =
      config.scheme.is_simulated() ? bits_of(DType::kBF16) : bits_of(config.scheme.dtype);
  push.piece_scale_bytes = piece_scale_bytes(config.scheme);
  push.return_element_bits = bits_of(config.combine_scheme.dtype);
  push.sends_routes = is_expert_major(config.layout);
  push.keeps_every_choice = config.reduce == Reduce::kPerExpert;
  return make_push_layout(push);
}

}  // namespace

P2pExchange::P2pExchange(const Group& group, const ExchangeConfig& config,
                         const DeviceExchangeOptions& options)
    : group_(group),
      config_(with_worst_case(config)),
      shape_(make_exchange_shape(config_, group.size(), group.rank())),
      options_(options),
      number_(++num_exchanges),
      num_uncaught_(std::uncaught_exceptions()) {
  require_supported(config_, group.size());
  require_sizes(config_, shape_);
  require(options.timeout_ms >= 0 && options.timeout_ms <= kMaxTimeoutMs, Errc::kInvalidArgument,
          "device exchange: timeout_ms is {}, must be from 0 to {}", options.timeout_ms,
          kMaxTimeoutMs);
  require(options.num_ctas >= 0, Errc::kInvalidArgument,
          "device exchange: num_ctas is {}, must be 0 or more", options.num_ctas);
  layout_ = make_layout(config_, shape_, group.size());
  require_agreement(group.engine(), "device exchange", agreed_fields(config_));

  check_cuda(cudaGetDevice(&device_), "cudaGetDevice");
  const auto num_channels = static_cast<std::size_t>(config_.max_in_flight);
  window_ =
      make_device_window(group.engine(), device_, checked_mul(num_channels, layout_.total_bytes),
                         options.heap.empty() ? "auto" : options.heap);
  int num_sms = 0;
  check_cuda(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device_),
             "cudaDeviceGetAttribute");
  num_ctas_ = std::max(3, kExchangeCtasPerSm * num_sms / window_->ranks_on_gpu());
  if (options.num_ctas > 0) num_ctas_ = std::min(num_ctas_, std::max(3, options.num_ctas));

  channels_.resize(num_channels);
  gather_or_fail(group.engine(), [&] { return prepare_memory(), std::string(); });
  watcher_ = std::make_unique<Watcher>(group_.engine(), *words_.as<WatchWords>(),
                                       std::int64_t{config_.num_experts});
}

void P2pExchange::prepare_memory() {
  if (window_->kind() == HeapKind::kSameProcess) {
    const std::string obstacle =
        queue_obstacle(window_->ranks_on_gpu(), std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"));
    require(obstacle.empty(), Errc::kNotAvailable, "device exchange: {}", obstacle);
  }
  words_ = PinnedBuffer(sizeof(WatchWords));
  failed_ = DeviceBuffer(sizeof(std::uint32_t));
  watch_.record = &words_.as<WatchWords>()->record;
  watch_.abort_word = &words_.as<WatchWords>()->abort_word;
  watch_.failed = failed_.as<std::uint32_t>();
  const std::int64_t timeout_ms =
      kernel_timeout_ms(options_.timeout_ms, group_.timeout_ms(), window_->is_shared_gpu());
  watch_.timeout_ns = static_cast<std::uint64_t>(timeout_ms) * 1'000'000;
  check_cuda(cudaMemset(failed_.data(), 0, failed_.size_bytes()), "cudaMemset");
  check_cuda(cudaMemset(window_->base(group_.rank()), kEmptyByte, window_->size_bytes()),
             "cudaMemset");
  for (std::size_t i = 0; i < channels_.size(); ++i) allocate(channels_[i], i);
  load_kernels();
  check_cuda(cudaDeviceSynchronize(), "device exchange");
}

void P2pExchange::load_kernels() const {
  DispatchArgs dispatch = channels_[0].dispatch;
  for (const DType dtype : {DType::kBF16, config_.scheme.dtype}) {
    dispatch.token_dtype = dtype;
    launch_dispatch(dispatch, Phases::kNone, false, nullptr);
  }
  launch_combine(channels_[0].combine, Phases::kNone, false, nullptr);
}

// Peers may still write to this rank's window, or read from theirs what this rank wrote. Ranks of
// one process that share a GPU also share what waiting for it, or freeing memory, waits for: so all
// have launched everything before one of them waits, and all kernels have ended before one frees. A
// rank that an exception ends waits for nobody: its peers may wait for it.
P2pExchange::~P2pExchange() {
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
    const DeviceGuard guard(device_);
    barrier();
    cudaDeviceSynchronize();
    barrier();
    watcher_.reset();
  } catch (const Error&) {
    // No GPU any more.
  }
  cudaGetLastError();  // a lost GPU is not an error of whoever calls CUDA next
}

void P2pExchange::allocate(Channel& channel, std::size_t index) {
  const auto ranks = static_cast<std::size_t>(group_.size());
  const auto tokens = static_cast<std::size_t>(config_.max_tokens_per_rank);
  const auto topk = static_cast<std::size_t>(config_.num_topk);
  const auto rows = static_cast<std::size_t>(shape_.max_buffer_rows);
  const auto local = static_cast<std::size_t>(shape_.ownership.count(group_.rank()));
  const bool is_major = is_expert_major(config_.layout);
  const ScaleBlocks scales = scale_blocks(config_, shape_, group_.rank(), shape_.max_buffer_rows);
  for (const bool is_real : {false, true}) {
    Parts parts(is_real ? channel.memory.data() : nullptr);
    CallState& state = channel.state;
    state.counter = parts.take<std::uint64_t>(1);
    state.num_terms = parts.take<std::int32_t>(tokens);
    state.columns = parts.take<std::int32_t>(tokens * topk);
    state.term_weights = parts.take<float>(tokens * topk);
    state.term_ranks = parts.take<std::int32_t>(tokens * topk);
    state.num_arrivals = parts.take<std::int32_t>(ranks);
    state.arrival_token = parts.take<std::int32_t>(ranks * tokens);
    state.arrival_rows = parts.take<std::int32_t>(ranks * tokens * topk);
    state.arrival_weights = parts.take<float>(ranks * tokens * topk);
    DispatchArgs& args = channel.dispatch;
    args.num_rows = parts.take<std::int32_t>(local);
    args.total_rows = parts.take<std::int32_t>(1);
    args.first_row = is_major ? parts.take<std::int64_t>(local) : nullptr;
    args.rows = parts.take<std::byte>(checked_mul(rows, shape_.payload_bytes));
    args.scales = shape_.num_scales > 0 ? parts.take<std::byte>(scales.num_bytes()) : nullptr;
    args.row_ids = is_major ? nullptr : parts.take<std::int32_t>(rows * topk);
    args.row_weights =
        config_.sends_weights ? parts.take<float>(rows * (is_major ? 1 : topk)) : nullptr;
    if (is_real) break;
    channel.memory = DeviceBuffer(parts.used());
  }
  check_cuda(cudaMemset(channel.memory.data(), 0, channel.memory.size_bytes()), "cudaMemset");
  const std::uint64_t first_call = kCallUnit;  // number 1: combine takes the one before the next
  check_cuda(
      cudaMemcpy(channel.state.counter, &first_call, sizeof(first_call), cudaMemcpyHostToDevice),
      "cudaMemcpy");
  set_base(channel, index);
}

void P2pExchange::set_base(Channel& channel, std::size_t index) {
  ExchangeBase base;
  base.layout = layout_;
  base.ownership = KernelOwnership(shape_.ownership);
  PeerTable windows{};
  for (int r = 0; r < group_.size(); ++r) {
    windows.base[r] = window_->base(r) + index * layout_.total_bytes;
  }
  base.rank = group_.rank();
  base.num_topk = config_.num_topk;
  base.rows_layout = config_.layout;
  base.reduce = config_.reduce;
  base.state = channel.state;
  base.watch = watch_;
  DispatchArgs& dispatch = channel.dispatch;
  static_cast<ExchangeBase&>(dispatch) = base;
  static_cast<ExchangeBase&>(channel.combine) = base;
  dispatch.windows = windows;
  channel.combine.windows = windows;
  const ScaleBlocks scales = scale_blocks(config_, shape_, group_.rank(), shape_.max_buffer_rows);
  const bool is_batched = config_.layout == Layout::kBatched;
  dispatch.scheme = config_.scheme;
  dispatch.sends_weights = config_.sends_weights;
  dispatch.row_bytes = static_cast<std::int64_t>(shape_.payload_bytes);
  dispatch.aligned_rows = shape_.payload_bytes % kUnitBytes == 0;
  dispatch.capacity = is_batched ? shape_.receive.capacity : shape_.max_buffer_rows;
  dispatch.row_alignment = config_.expert_alignment;
  dispatch.scale_block = scales.block;
  dispatch.scales_are_tiled = scales.block.layout == ScaleLayout::kSwizzled;
  dispatch.scale_row_step = scales.block.index(1, 0) * scales.block.element_bytes;
  dispatch.scale_step = scales.block.index(0, 1) * scales.block.element_bytes;
  dispatch.scales_per_piece = scales_per_piece(config_.scheme);
  const std::int64_t units_per_piece = layout_.shape.piece_scale_bytes / 16;
  const std::int64_t last = shape_.num_scales % dispatch.scales_per_piece;
  dispatch.scale_units_per_row =
      static_cast<std::int32_t>(shape_.num_scales / dispatch.scales_per_piece * units_per_piece +
                                cdiv<std::int64_t>(last * scales.block.element_bytes, 16));
  dispatch.scale_block_bytes = is_batched ? scales.block.num_bytes() : 0;
  channel.combine.wire_dtype = config_.combine_scheme.dtype;
}

P2pExchange::Channel& P2pExchange::begin(const char* operation) {
  // The first free one: what follows from the handles that are alive is the same on every rank.
  for (Channel& channel : channels_) {
    if (channel.stage != Stage::kFree) continue;
    channel.id = next_id_++;
    return channel;
  }
  fail(Errc::kInvalidArgument,
       "{}: {} handles are alive, max_in_flight is {}; combine or release one first", operation,
       channels_.size(), config_.max_in_flight);
}

DeviceHandle P2pExchange::handle_of(const Channel& channel) const {
  DeviceHandle handle;
  handle.channel_ = static_cast<std::int32_t>(&channel - channels_.data());
  handle.id_ = channel.id;
  handle.exchange_ = number_;
  return handle;
}

P2pExchange::Channel& P2pExchange::find(const DeviceHandle& handle, Stage wanted,
                                        const char* operation) {
  static constexpr const char* kDone[] = {"free", "sent by dispatch", "received from dispatch",
                                          "sent by combine"};
  const auto index = static_cast<std::size_t>(handle.channel_);
  require(handle.exchange_ == number_ && index < channels_.size() &&
              channels_[index].id == handle.id_ && channels_[index].stage != Stage::kFree,
          Errc::kInvalidArgument,
          "{}: the handle is not alive here, it ends with its combine or release; dispatch first",
          operation);
  Channel& channel = channels_[index];
  require(channel.stage == wanted, Errc::kInvalidArgument,
          "{}: the handle was {} last, must have been {}", operation,
          kDone[static_cast<int>(channel.stage)], kDone[static_cast<int>(wanted)]);
  return channel;
}

P2pExchange::Channel& P2pExchange::start(const TensorView& tokens, const TensorView& topk_ids,
                                         const TensorView& topk_weights, Stream stream,
                                         const DeviceDispatchOptions& options, Phases phases) {
  check();
  check_input(tokens, topk_ids, topk_weights, options);
  Channel& channel = begin("dispatch");
  set_input(channel, tokens, topk_ids, topk_weights, options);
  launch(channel, phases, stream);
  return channel;
}

DeviceHandle P2pExchange::dispatch_send(const TensorView& tokens, const TensorView& topk_ids,
                                        const TensorView& topk_weights, Stream stream,
                                        const DeviceDispatchOptions& options) {
  Channel& channel = start(tokens, topk_ids, topk_weights, stream, options, Phases::kSend);
  channel.stage = Stage::kSent;
  return handle_of(channel);
}

DeviceDispatched P2pExchange::dispatch_receive(const DeviceHandle& handle, Stream stream) {
  check();
  Channel& channel = find(handle, Stage::kSent, "dispatch_receive");
  launch(channel, Phases::kReceive, stream);
  channel.stage = Stage::kReceived;
  return describe(channel);
}

DeviceDispatched P2pExchange::dispatch(const TensorView& tokens, const TensorView& topk_ids,
                                       const TensorView& topk_weights, Stream stream,
                                       const DeviceDispatchOptions& options) {
  Channel& channel = start(tokens, topk_ids, topk_weights, stream, options, Phases::kBoth);
  channel.stage = Stage::kReceived;
  return describe(channel);
}

void P2pExchange::enter(Phase phase, const Channel& channel) {
  site_ = {phase, channel.id, -1};
  group_.engine().enter(phase, channel.id);
}

void P2pExchange::launch(Channel& channel, Phases phases, Stream stream) {
  enter(phases == Phases::kReceive ? Phase::kDispatchReceive : Phase::kDispatchSend, channel);
  DispatchArgs& args = channel.dispatch;
  choose_grid({num_ctas_, phases != Phases::kReceive, phases != Phases::kSend}, args);
  launch_dispatch(args, phases, options_.programmatic_launch, stream.get());
}

void P2pExchange::combine_send(const DeviceHandle& handle, const TensorView& rows, Stream stream,
                               const DeviceCombineOptions& options) {
  check();
  Channel& channel = find(handle, Stage::kReceived, "combine");
  set_results(channel, rows, options);
  launch_return(channel, Phases::kSend, stream);
  channel.stage = Stage::kReturned;
}

void P2pExchange::combine_receive(const DeviceHandle& handle, const TensorView& output,
                                  Stream stream, const DeviceCombineOptions& options) {
  check();
  Channel& channel = find(handle, Stage::kReturned, "combine_receive");
  set_output(channel, output, options);
  launch_return(channel, Phases::kReceive, stream);
  channel.stage = Stage::kFree;
}

void P2pExchange::combine(const DeviceHandle& handle, const TensorView& rows,
                          const TensorView& output, Stream stream,
                          const DeviceCombineOptions& options) {
  check();
  Channel& channel = find(handle, Stage::kReceived, "combine");
  set_results(channel, rows, options);
  set_output(channel, output, options);
  launch_return(channel, Phases::kBoth, stream);
  channel.stage = Stage::kFree;
}

void P2pExchange::launch_return(Channel& channel, Phases phases, Stream stream) {
  enter(phases == Phases::kReceive ? Phase::kCombineReceive : Phase::kCombineSend, channel);
  CombineArgs& args = channel.combine;
  args.num_tokens = static_cast<std::int32_t>(channel.num_tokens);
  choose_grid({num_ctas_, phases != Phases::kReceive, phases != Phases::kSend}, args);
  launch_combine(args, phases, options_.programmatic_launch, stream.get());
}

void P2pExchange::release(const DeviceHandle& handle) {
  find(handle, Stage::kReceived, "release").stage = Stage::kFree;
}

}  // namespace switchyard
