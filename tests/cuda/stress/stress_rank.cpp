// SPDX-License-Identifier: Apache-2.0

#include "stress_rank.h"

#include <algorithm>

#include "core/clock.h"
#include "cuda/base/check.h"
#include "cuda/exchange/exchange_args.h"
#include "exchange/exchange_shape.h"

namespace switchyard::test {
namespace {

constexpr std::uint32_t kStepsPerGraph = 8;  // per lane
constexpr std::size_t kNumGraphs = 8;
constexpr int kGraphsAtOnce = 16;
constexpr std::uint32_t kStepsByCalls = 16;
constexpr std::uint32_t kStepsByTurns = 4;
constexpr std::size_t kSweptBytes = std::size_t{80} << 20;  // larger than the L2 cache

int current_gpu() {
  int index = 0;
  cuda::check_cuda(cudaGetDevice(&index), "cudaGetDevice");
  return index;
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  cuda::check_cuda(cudaDeviceGetAttribute(&value, which, current_gpu()), "cudaDeviceGetAttribute");
  return value;
}

// Lanes must fit on the GPU together. Ranks that share it leave most of it to the kernels of this
// test: those of a rank must find room while its peers wait for it.
ExchangeOptions options_of(const StressCase& c, const StressOptions& wanted) {
  int num_gpus = 1;
  cuda::check_cuda(cudaGetDeviceCount(&num_gpus), "cudaGetDeviceCount");
  const int sharing = (c.shape.num_ranks + num_gpus - 1) / num_gpus;
  const int most = kExchangeCtasPerSm * attribute(cudaDevAttrMultiProcessorCount) / c.num_lanes;
  ExchangeOptions options;
  options.device = Device::cuda(current_gpu());
  options.programmatic_launch = c.programmatic;
  options.timeout_ms = wanted.timeout_ms;
  options.keeps_routing = c.shape.mixes_turns;
  options.num_ctas = c.num_ctas;
  if (c.num_lanes > 1) options.num_ctas = most;
  if (sharing > 1 && c.num_ctas == 0) options.num_ctas = std::max(3, most / sharing / 4);
  return options;
}

void wait(cudaStream_t stream) {
  cuda::check_cuda(cudaStreamSynchronize(stream), "exchange_stress");
}

class Event {
 public:
  Event() { cuda::check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  void order(cudaStream_t before, cudaStream_t after) const {
    cuda::check_cuda(cudaEventRecord(event_, before), "event");
    cuda::check_cuda(cudaStreamWaitEvent(after, event_), "event");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

StressRank::StressRank(const Group& group, const StressCase& c, const StressOptions& options)
    : group_(group),
      case_(c),
      options_(options),
      device_(Device::cuda(current_gpu())),
      num_ctas_(attribute(cudaDevAttrMultiProcessorCount)),
      tally_(sizeof(StressTally)),
      base_(sizeof(std::uint32_t)),
      swept_(kSweptBytes),
      tensor_scale_(sizeof(float)) {
  case_.shape.rank = group.rank();
  case_.shape.max_delay_ns = static_cast<std::uint32_t>(options.max_delay_us) * 1000;
  if (case_.shape.max_tokens <= 16) num_ctas_ = std::min(num_ctas_, 32);
  const ExchangeConfig config = config_of(case_);
  const std::int64_t max_rows =
      make_exchange_shape(config, group.size(), group.rank()).max_buffer_rows;
  for (int i = 0; i < case_.num_lanes; ++i) {
    lanes_.push_back(std::make_unique<StressLane>(case_.shape, max_rows));
  }
  const float one = 1.0f;
  cuda::check_cuda(cudaMemset(tally_.data(), 0, tally_.size_bytes()), "cudaMemset");
  cuda::check_cuda(cudaMemset(base_.data(), 0, base_.size_bytes()), "cudaMemset");
  cuda::check_cuda(cudaMemset(swept_.data(), 0, swept_.size_bytes()), "cudaMemset");
  cuda::check_cuda(cudaMemcpy(tensor_scale_.data(), &one, sizeof(one), cudaMemcpyHostToDevice),
                   "cudaMemcpy");
  load_make_kernels();
  load_check_kernels();
  cuda::check_cuda(cudaDeviceSynchronize(), "exchange_stress");
  exchange_ = std::make_unique<Exchange>(group, config, options_of(case_, options_));
  // There further streams may stand behind those of other ranks.
  if (exchange_->is_shared_gpu()) {
    for (const auto& lane : lanes_) lane->stream = lanes_[0]->own_stream.get();
  }
  if (case_.uses_graph && !options_.by_turns) capture();
  group_.barrier();
}

StressRank::~StressRank() = default;

StressLaunch StressRank::launch_on(const StressLane& lane) const {
  return {num_ctas_, lane.stream};
}

void StressRank::sweep(const StressLane& lane) {
  if (!case_.is_cold) return;
  cuda::check_cuda(cudaMemsetAsync(swept_.data(), 0, swept_.size_bytes(), lane.stream), "sweep");
}

// Racecheck and similar tools run one kernel at a time, so what a kernel waits for must have ended.
void StressRank::turn(const StressLane& lane) {
  if (!options_.by_turns) return;
  wait(lane.stream);
  exchange_->check();
  group_.barrier();
}

bool StressRank::splits() const { return case_.splits_phases || options_.by_turns; }

Stream StressRank::stream_of(const StressLane& lane) const {
  return Stream::cuda(lane.stream, device_.index);
}

void StressRank::dispatch(StressLane& lane) {
  const StressShape& s = case_.shape;
  const std::int64_t num_tokens = stress_tokens(s, lane.step.slot, s.rank);
  const bool is_given = s.form == StressForm::kStored || s.form == StressForm::kStoredFp4;
  DType dtype = DType::kBF16;
  if (is_given) dtype = s.form == StressForm::kStored ? DType::kE4M3 : DType::kE2M1;
  const TensorView tokens(lane.tokens.data(), dtype, {num_tokens, s.hidden}, device_);
  const TensorView ids(lane.ids.data(), s.ids_are_64_bits ? DType::kI64 : DType::kI32,
                       {num_tokens, s.num_topk}, device_);
  const TensorView weights(lane.weights.data(), DType::kF32, {num_tokens, s.num_topk}, device_);
  const Stream stream = stream_of(lane);
  DispatchOptions options;
  if (is_given) {
    options.scales =
        TensorView(lane.scales.data(), s.form == StressForm::kStored ? DType::kF32 : DType::kE4M3,
                   {num_tokens, s.num_scales()}, device_);
  }
  if (s.form == StressForm::kStoredFp4) {
    options.tensor_scale = TensorView(tensor_scale_.data(), DType::kF32, {1}, device_);
  }
  if (s.payload_words > 0) {
    options.payloads.emplace_back(
        lane.payload.data(), DType::kU8,
        std::initializer_list<std::int64_t>{num_tokens, s.payload_words * 4}, device_);
  }
  const bool is_again = lane.step.back > 0;
  const DispatchHandle earlier = lane.got.handle;
  if (splits()) {
    const DispatchHandle handle =
        is_again ? exchange_->dispatch_again_send(earlier, tokens, weights, stream, options)
                 : exchange_->dispatch_send(tokens, ids, weights, stream, options);
    turn(lane);
    launch_pause(s, lane.step, StressPause::kInDispatch, lane.stream);
    lane.receive(exchange_->dispatch_receive(handle, stream));
  } else if (is_again) {
    lane.receive(exchange_->dispatch_again(earlier, tokens, weights, stream, options));
  } else {
    lane.receive(exchange_->dispatch(tokens, ids, weights, stream, options));
  }
}

void StressRank::combine(StressLane& lane, const DispatchHandle& handle, bool returns_weights) {
  const StressShape& s = case_.shape;
  const std::int64_t num_tokens = stress_tokens(s, lane.step.slot, s.rank);
  const std::int64_t num_rows = lane.got.experts.rows.num_elements() / s.hidden;
  const TensorView rows(lane.results.data(), DType::kBF16, {num_rows, s.hidden}, device_);
  const TensorView output(lane.output.data(), s.outputs_f32 ? DType::kF32 : DType::kBF16,
                          {num_tokens, s.hidden}, device_);
  const Stream stream = stream_of(lane);
  CombineOptions options;
  if (returns_weights) {
    const std::int64_t columns = s.is_token_major() ? s.num_topk : 1;
    options.row_weights =
        TensorView(lane.row_weights.data(), DType::kF32, {num_rows, columns}, device_);
    options.returned_weights =
        TensorView(lane.returned.data(), DType::kF32, {num_tokens, s.num_topk}, device_);
  }
  if (splits()) {
    exchange_->combine_send(handle, rows, stream, options);
    turn(lane);
    launch_pause(s, lane.step, StressPause::kInCombine, lane.stream);
    exchange_->combine_receive(handle, output, stream, options);
  } else {
    exchange_->combine(handle, rows, output, stream, options);
  }
}

void StressRank::begin(StressLane& lane, std::uint32_t offset, std::uint32_t slot) {
  const StressShape& s = case_.shape;
  auto* tally = tally_.as<StressTally>();
  lane.turn = stress_turn(s, slot);
  // reopen waits for peers in one call.
  if (lane.turn == StressTurn::kReopen && options_.by_turns) lane.turn = StressTurn::kPair;
  if (lane.turn == StressTurn::kAgain && !lane.has_routing) lane.turn = StressTurn::kPair;
  lane.has_routing = true;
  const std::uint32_t back = lane.turn == StressTurn::kAgain ? lane.step.back + 1 : 0;
  lane.step = {base_.as<std::uint32_t>(), offset, slot - back, back};
  launch_make(s, lane.step, lane.input, lane.plan, launch_on(lane));
  sweep(lane);
  dispatch(lane);
  if (options_.injects) {
    launch_spoil_row(s, lane.step, lane.plan, lane.received, tally, lane.stream);
  }
  launch_check_rows(s, lane.step, lane.plan, lane.received,
                    {lane.results.as<std::uint16_t>(), lane.row_weights.as<std::uint32_t>()}, tally,
                    launch_on(lane));
  cuda::check_launch("exchange_stress");
  turn(lane);
}

void StressRank::end(StressLane& lane) {
  const StressShape& s = case_.shape;
  if (lane.turn == StressTurn::kRelease) return exchange_->release(lane.got.handle);
  auto* tally = tally_.as<StressTally>();
  StressOutput output{lane.output.data(), s.returns_weights ? lane.input.returned : nullptr};
  sweep(lane);
  combine(lane, lane.got.handle, s.returns_weights);
  if (options_.injects) launch_spoil_output(s, lane.step, output, tally, lane.stream);
  launch_check_output(s, lane.step, output, tally, launch_on(lane));
  if (lane.turn == StressTurn::kReopen) {
    output = {lane.output.data(), nullptr, true};
    cuda::check_cuda(cudaMemsetAsync(output.rows, 0xFF, lane.output.size_bytes(), lane.stream),
                     "exchange_stress");
    combine(lane, exchange_->reopen(lane.got.handle, stream_of(lane)), false);
    launch_check_output(s, lane.step, output, tally, launch_on(lane));
  }
  cuda::check_launch("exchange_stress");
  turn(lane);
}

// The ranks of a process are threads; each holds itself up.
void StressRank::pause_host(std::uint32_t step) const {
  const std::int64_t end =
      now_ns() + std::int64_t{stress_delay_ns(case_.shape, step, StressPause::kHost)};
  while (now_ns() < end) {
  }
}

// Runs one step per lane. All handles are alive before the first ends, so each lane keeps its
// in-flight slot of the exchange.
void StressRank::enqueue_lanes(std::uint32_t offset, std::uint32_t slot) {
  std::uint32_t i = 0;
  for (const auto& lane : lanes_) {
    begin(*lane, offset + i, slot + i);
    ++i;
  }
  for (const auto& lane : lanes_) end(*lane);
}

void StressRank::capture() {
  const auto num_lanes = static_cast<std::uint32_t>(lanes_.size());
  const std::uint32_t steps = kStepsPerGraph * num_lanes;
  for (std::size_t g = 0; g < kNumGraphs; ++g) {
    const cudaStream_t first = lanes_[0]->stream;
    for (const auto& lane : lanes_) lane->has_routing = false;  // of another graph
    const Event fork;
    const Event join;
    graphs_.emplace_back(first, [&] {
      const bool forks = lanes_.back()->stream != first;
      if (forks) fork.order(first, lanes_.back()->stream);
      for (std::uint32_t offset = 0; offset < steps; offset += num_lanes) {
        enqueue_lanes(offset, static_cast<std::uint32_t>(g) * steps + offset);
      }
      if (forks) join.order(lanes_.back()->stream, first);
      launch_advance(base_.as<std::uint32_t>(), steps, first);
    });
  }
}

std::int64_t StressRank::steps_per_round() const {
  if (options_.by_turns) return kStepsByTurns;
  return graphs_.empty() ? kStepsByCalls
                         : std::int64_t{kStepsPerGraph} * static_cast<std::int64_t>(lanes_.size());
}

// Few launches at a time: a launch that finds its GPU's queue full may keep other ranks on that GPU
// from launching.
void StressRank::run(int num_rounds) {
  const auto num_lanes = static_cast<std::uint32_t>(lanes_.size());
  for (int round = 1; round <= num_rounds; ++round) {
    if (!graphs_.empty()) {
      pause_host(static_cast<std::uint32_t>(next_graph_));
      graphs_[next_graph_++ % kNumGraphs].replay(lanes_[0]->stream);
      if (round % kGraphsAtOnce != 0 && round != num_rounds) continue;
    } else {
      for (std::int64_t i = 0; i < steps_per_round(); i += num_lanes) {
        pause_host(next_step_);
        enqueue_lanes(next_step_, next_step_);
        next_step_ += num_lanes;
      }
    }
    for (const auto& lane : lanes_) wait(lane->stream);
    exchange_->check();
  }
}

StressTally StressRank::tally() const {
  StressTally tally{};
  cuda::check_cuda(cudaMemcpy(&tally, tally_.data(), sizeof(tally), cudaMemcpyDeviceToHost),
                   "tally");
  return tally;
}

}  // namespace switchyard::test
