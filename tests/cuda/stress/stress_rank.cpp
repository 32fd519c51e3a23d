// SPDX-License-Identifier: Apache-2.0

#include "stress_rank.h"

#include <algorithm>

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
  const int most =
      cuda::kExchangeCtasPerSm * attribute(cudaDevAttrMultiProcessorCount) / c.num_lanes;
  ExchangeOptions options;
  options.device = Device::cuda(current_gpu());
  options.programmatic_launch = c.programmatic;
  options.timeout_ms = wanted.timeout_ms;
  if (c.num_lanes > 1) options.num_ctas = most;
  if (sharing > 1) options.num_ctas = std::max(3, most / sharing / 4);
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

struct StressRank::Lane {
  cuda::OwnedStream own_stream;
  cudaStream_t stream = own_stream.get();
  cuda::DeviceBuffer tokens, scales, ids, weights, output, results;
  cuda::DeviceBuffer rows, counts, first_row;
  StressInput input;
  StressPlan plan;
  StressStep step;
  Dispatched got;
  StressReceived received;
};

StressRank::StressRank(const Group& group, const StressCase& c, const StressOptions& options)
    : group_(group),
      case_(c),
      options_(options),
      device_(Device::cuda(current_gpu())),
      num_ctas_(attribute(cudaDevAttrMultiProcessorCount)),
      tally_(sizeof(StressTally)),
      base_(sizeof(std::uint32_t)),
      swept_(kSweptBytes),
      tensor_scale_(sizeof(float)),
      lanes_(static_cast<std::size_t>(c.num_lanes)) {
  case_.shape.rank = group.rank();
  if (case_.shape.max_tokens <= 16) num_ctas_ = std::min(num_ctas_, 32);
  const ExchangeConfig config = config_of(case_);
  const std::int64_t max_rows =
      make_exchange_shape(config, group.size(), group.rank()).max_buffer_rows;
  for (Lane& lane : lanes_) make_lane(lane, max_rows);
  const float one = 1.0f;
  cuda::check_cuda(cudaMemset(tally_.data(), 0, tally_.size_bytes()), "cudaMemset");
  cuda::check_cuda(cudaMemset(base_.data(), 0, base_.size_bytes()), "cudaMemset");
  cuda::check_cuda(cudaMemset(swept_.data(), 0, swept_.size_bytes()), "cudaMemset");
  cuda::check_cuda(cudaMemcpy(tensor_scale_.data(), &one, sizeof(one), cudaMemcpyHostToDevice),
                   "cudaMemcpy");
  load_stress_kernels();
  cuda::check_cuda(cudaDeviceSynchronize(), "exchange_stress");
  exchange_ = std::make_unique<Exchange>(group, config, options_of(case_, options_));
  // There further streams may stand behind those of other ranks.
  if (exchange_->is_shared_gpu()) {
    for (Lane& lane : lanes_) lane.stream = lanes_[0].own_stream.get();
  }
  if (case_.uses_graph && !options_.by_turns) capture();
  group_.barrier();
}

StressRank::~StressRank() = default;

void StressRank::make_lane(Lane& lane, std::int64_t max_rows) {
  const StressShape& s = case_.shape;
  const auto tokens = static_cast<std::size_t>(s.max_tokens);
  const auto topk = static_cast<std::size_t>(s.num_topk);
  const auto local = static_cast<std::size_t>(s.num_local);
  const auto hidden = static_cast<std::size_t>(s.hidden);
  const auto num_rows = static_cast<std::size_t>(max_rows);
  lane.tokens = cuda::DeviceBuffer(tokens * static_cast<std::size_t>(s.token_bytes()));
  lane.scales = cuda::DeviceBuffer(tokens * static_cast<std::size_t>(s.num_scales()) * 4 + 4);
  lane.ids = cuda::DeviceBuffer(tokens * topk * 8);
  lane.weights = cuda::DeviceBuffer(tokens * topk * 4);
  lane.output = cuda::DeviceBuffer(tokens * hidden * 4);
  lane.results = cuda::DeviceBuffer(num_rows * hidden * 2);
  lane.rows = cuda::DeviceBuffer(num_rows * sizeof(StressRow));
  const std::size_t num_counts =
      (local + 1) * static_cast<std::size_t>(s.num_ranks * stress_chunks(s));
  lane.counts = cuda::DeviceBuffer((num_counts + local + 1) * sizeof(std::int32_t));
  lane.first_row = cuda::DeviceBuffer(local * sizeof(std::int64_t));
  lane.input = {lane.tokens.as<std::uint32_t>(), lane.scales.data(), lane.ids.data(),
                lane.weights.as<float>(), lane.output.data()};
  lane.plan.rows = lane.rows.as<StressRow>();
  lane.plan.counts = lane.counts.as<std::int32_t>();
  lane.plan.num_rows = lane.plan.counts + num_counts;
  lane.plan.total = lane.plan.num_rows + local;
  lane.plan.first_row = lane.first_row.as<std::int64_t>();
  lane.plan.capacity = std::int64_t{s.num_ranks} * s.max_tokens;
}

StressLaunch StressRank::launch_on(const Lane& lane) const { return {num_ctas_, lane.stream}; }

void StressRank::sweep(const Lane& lane) {
  if (!case_.is_cold) return;
  cuda::check_cuda(cudaMemsetAsync(swept_.data(), 0, swept_.size_bytes(), lane.stream), "sweep");
}

// Racecheck and similar tools run one kernel at a time, so what a kernel waits for must have ended.
void StressRank::turn(const Lane& lane) {
  if (!options_.by_turns) return;
  wait(lane.stream);
  exchange_->check();
  group_.barrier();
}

void StressRank::dispatch(Lane& lane, const StressStep& step) {
  const StressShape& s = case_.shape;
  const std::int64_t num_tokens = stress_tokens(s, step.slot, s.rank);
  const bool is_given = s.form == StressForm::kStored || s.form == StressForm::kStoredFp4;
  DType dtype = DType::kBF16;
  if (is_given) dtype = s.form == StressForm::kStored ? DType::kE4M3 : DType::kE2M1;
  const TensorView tokens(lane.tokens.data(), dtype, {num_tokens, s.hidden}, device_);
  const TensorView ids(lane.ids.data(), s.ids_are_64_bits ? DType::kI64 : DType::kI32,
                       {num_tokens, s.num_topk}, device_);
  const TensorView weights(lane.weights.data(), DType::kF32, {num_tokens, s.num_topk}, device_);
  const Stream stream = Stream::cuda(lane.stream, device_.index);
  DispatchOptions options;
  if (is_given) {
    options.scales =
        TensorView(lane.scales.data(), s.form == StressForm::kStored ? DType::kF32 : DType::kE4M3,
                   {num_tokens, s.num_scales()}, device_);
  }
  if (s.form == StressForm::kStoredFp4) {
    options.tensor_scale = TensorView(tensor_scale_.data(), DType::kF32, {1}, device_);
  }
  if (case_.splits_phases || options_.by_turns) {
    const DispatchHandle handle = exchange_->dispatch_send(tokens, ids, weights, stream, options);
    turn(lane);
    lane.got = exchange_->dispatch_receive(handle, stream);
  } else {
    lane.got = exchange_->dispatch(tokens, ids, weights, stream, options);
  }
  const Dispatched& got = lane.got;
  const auto bytes_of = [](const TensorView& view) {
    return view.has_value() ? const_cast<std::byte*>(view.as<std::byte>()) : nullptr;
  };
  const ExpertRows& experts = got.experts;
  lane.received = {bytes_of(experts.rows),
                   bytes_of(experts.scales),
                   experts.num_rows.as<std::int32_t>(),
                   experts.first_row.has_value() ? experts.first_row.as<std::int64_t>() : nullptr,
                   got.total_rows.as<std::int32_t>(),
                   got.topk_ids.has_value() ? got.topk_ids.as<std::int32_t>() : nullptr,
                   got.topk_weights.as<float>()};
}

void StressRank::combine(Lane& lane, const StressStep& step) {
  const StressShape& s = case_.shape;
  const std::int64_t num_tokens = stress_tokens(s, step.slot, s.rank);
  const TensorView& like = lane.got.experts.rows;
  const std::int64_t num_rows = like.num_elements() / s.hidden;
  const TensorView rows(lane.results.data(), DType::kBF16, {num_rows, s.hidden}, device_);
  const TensorView output(lane.output.data(), s.outputs_f32 ? DType::kF32 : DType::kBF16,
                          {num_tokens, s.hidden}, device_);
  const Stream stream = Stream::cuda(lane.stream, device_.index);
  if (case_.splits_phases || options_.by_turns) {
    exchange_->combine_send(lane.got.handle, rows, stream);
    turn(lane);
    exchange_->combine_receive(lane.got.handle, output, stream);
  } else {
    exchange_->combine(lane.got.handle, rows, output, stream);
  }
}

void StressRank::begin(Lane& lane, const StressStep& step) {
  const StressShape& s = case_.shape;
  auto* tally = tally_.as<StressTally>();
  lane.step = step;
  launch_make(s, step, lane.input, lane.plan, launch_on(lane));
  sweep(lane);
  dispatch(lane, step);
  if (options_.injects) {
    launch_spoil_row(s, step, lane.plan, lane.received, tally, lane.stream);
  }
  launch_check_rows(s, step, lane.plan, lane.received, lane.results.as<std::uint16_t>(), tally,
                    launch_on(lane));
  cuda::check_launch("exchange_stress");
  turn(lane);
}

void StressRank::end(Lane& lane) {
  const StressShape& s = case_.shape;
  auto* tally = tally_.as<StressTally>();
  sweep(lane);
  combine(lane, lane.step);
  if (options_.injects) {
    launch_spoil_output(s, lane.step, lane.output.data(), tally, lane.stream);
  }
  launch_check_output(s, lane.step, lane.output.data(), tally, launch_on(lane));
  cuda::check_launch("exchange_stress");
  turn(lane);
}

// Runs one step per lane. All handles are alive before the first ends, so each lane keeps its
// in-flight slot of the exchange.
void StressRank::enqueue_lanes(std::uint32_t offset, std::uint32_t slot) {
  std::uint32_t i = 0;
  for (Lane& lane : lanes_) {
    begin(lane, {base_.as<std::uint32_t>(), offset + i, slot + i});
    ++i;
  }
  for (Lane& lane : lanes_) end(lane);
}

void StressRank::capture() {
  const auto num_lanes = static_cast<std::uint32_t>(lanes_.size());
  const std::uint32_t steps = kStepsPerGraph * num_lanes;
  for (std::size_t g = 0; g < kNumGraphs; ++g) {
    const cudaStream_t first = lanes_[0].stream;
    const Event fork;
    const Event join;
    graphs_.emplace_back(first, [&] {
      const bool forks = lanes_.back().stream != first;
      if (forks) fork.order(first, lanes_.back().stream);
      for (std::uint32_t offset = 0; offset < steps; offset += num_lanes) {
        enqueue_lanes(offset, static_cast<std::uint32_t>(g) * steps + offset);
      }
      if (forks) join.order(lanes_.back().stream, first);
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
      graphs_[next_graph_++ % kNumGraphs].replay(lanes_[0].stream);
      if (round % kGraphsAtOnce != 0 && round != num_rounds) continue;
    } else {
      for (std::int64_t i = 0; i < steps_per_round(); i += num_lanes) {
        enqueue_lanes(next_step_, next_step_);
        next_step_ += num_lanes;
      }
    }
    for (const Lane& lane : lanes_) wait(lane.stream);
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
