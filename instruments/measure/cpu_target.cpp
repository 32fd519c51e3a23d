// SPDX-License-Identifier: Apache-2.0

#include "measure/cpu_target.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "switchyard/exchange.h"

#include "core/bytes.h"
#include "core/clock.h"
#include "core/fail.h"
#include "core/memory.h"
#include "core/waiting.h"
#include "measure/bench_batch.h"
#include "measure/bench_oracle.h"
#include "measure/host_bytes.h"
#include "measure/statistics.h"
#include "plan/expert_ownership.h"

namespace switchyard::measure {
namespace {

double us_between(std::int64_t start_ns, std::int64_t end_ns) {
  return static_cast<double>(end_ns - start_ns) * 1e-3;
}

// What the experts return in timed iterations when the received rows are not bf16. The rows must be
// backed by real memory, or combine would read one page of zeros over and over.
class ResultRows {
 public:
  ResultRows(const BenchShape& shape, int rank, std::int64_t max_rows)
      : shape_(shape),
        rank_(rank),
        rows_(DType::kBF16, {max_rows, shape.workload.hidden}),
        touched_(static_cast<std::size_t>(ownership().count(rank) + 1), 0) {}

  TensorView first(std::int64_t num_rows) const {
    return TensorView(rows_.data(), DType::kBF16, {num_rows, shape_.workload.hidden});
  }

  /// Touches the rows that an iteration fills, so that they are backed by memory.
  void cover(std::int64_t iteration) {
    std::vector<std::int64_t> counts(touched_.size(), 0);
    for (int r = 0; r < shape_.num_ranks; ++r) {
      for (const std::int32_t id :
           shape_.routing.ids(shape_.seed, iteration, r, shape_.num_ranks, shape_.num_tokens)) {
        if (id < 0 || ownership().owner(id) != rank_) continue;
        ++counts[static_cast<std::size_t>(ownership().local_index(id))];
        ++counts.back();
      }
    }
    const std::int64_t capacity = shape_.num_ranks * shape_.max_tokens_per_rank();
    if (shape_.layout == Layout::kBatched) {
      for (std::size_t e = 0; e + 1 < counts.size(); ++e) {
        touch(static_cast<std::int64_t>(e) * capacity, counts[e], touched_[e]);
      }
    } else {
      touch(0, shape_.layout == Layout::kExpanded ? counts.back() : capacity, touched_.back());
    }
  }

 private:
  ExpertOwnership ownership() const { return {shape_.workload.num_experts, shape_.num_ranks}; }

  void touch(std::int64_t first, std::int64_t count, std::int64_t& touched) {
    count = std::min(count, rows_.shape(0) - first);
    constexpr std::uint16_t kOne = 0x3F80;
    const std::int64_t hidden = shape_.workload.hidden;
    for (; touched < count; ++touched) {
      std::fill_n(rows_.as<std::uint16_t>() + (first + touched) * hidden, hidden, kOne);
    }
  }

  const BenchShape& shape_;
  int rank_;
  Tensor rows_;
  std::vector<std::int64_t> touched_;  ///< [L + 1] rows per expert, then over all experts
};

std::int64_t num_rows_of(const Dispatched& got) {
  const TensorView& rows = got.experts.rows;
  return rows.num_dims() == 3 ? rows.shape(0) * rows.shape(1) : rows.shape(0);
}

std::span<const std::int32_t> counts_of(const Dispatched& got) {
  const TensorView& counts = got.experts.num_rows;
  return {counts.as<std::int32_t>(), static_cast<std::size_t>(counts.num_elements())};
}

// What a rank does in the phases of a call, and what it waits meanwhile, for messages to come and
// to go and in what moves them.
class PhaseTimes {
 public:
  template <typename Phase>
  void add(const char* call, const char* stage, Phase&& phase) {
    const std::int64_t waited_ns = Waiting::total_ns();
    const std::int64_t start = now_ns();
    phase();
    const double us = us_between(start, now_ns());
    const double waited_us = us_between(waited_ns, Waiting::total_ns());
    us_[{call, stage}].push_back(us - waited_us);
    waited_us_ += waited_us;
  }
  void end_call(const char* call) { us_[{call, "wait"}].push_back(std::exchange(waited_us_, 0)); }

  std::vector<StageTimes> stages() const {
    std::vector<StageTimes> rows;
    for (const char* call : {"dispatch", "combine"}) {
      for (const char* stage : {"pack", "wait", "place", "sum"}) {
        const auto found = us_.find({call, stage});
        if (found == us_.end()) continue;
        const std::vector<double>& us = found->second;
        rows.push_back({call, "rank", stage, percentile(us, 0), median(us), percentile(us, 1),
                        static_cast<std::int64_t>(us.size())});
      }
    }
    return rows;
  }

 private:
  std::map<std::pair<std::string, std::string>, std::vector<double>> us_;
  double waited_us_ = 0;  ///< in this call
};

class ExchangeRun {
 public:
  ExchangeRun(const Group& group, const BenchShape& shape)
      : group_(group),
        shape_(shape),
        exchange_(group, shape.exchange_config()),
        batch_(shape, group.rank()),
        results_(shape, group.rank(),
                 shape.scheme.is_quantized() ? exchange_.max_buffer_rows() : 0),
        output_(DType::kBF16, {shape.num_tokens, shape.workload.hidden}),
        host_bytes_(group, shape) {}

  const HostBytes& host_bytes() const { return host_bytes_; }

  /// Returns the microseconds of this rank.
  double time(std::int64_t iteration) {
    prepare(iteration);
    Dispatched got;
    if (shape_.operation == Operation::kCombine) got = dispatch();
    group_.barrier();
    host_bytes_.begin();
    const std::int64_t start = now_ns();
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      if (shape_.operation != Operation::kCombine) got = dispatch();
      if (shape_.operation != Operation::kDispatch) combine(got);
    }
    const std::int64_t end = now_ns();
    host_bytes_.end(iteration);
    if (shape_.operation == Operation::kDispatch) exchange_.release(got.handle);
    return us_between(start, end);
  }

  /// In more iterations like the timed ones.
  std::vector<StageTimes> stages() {
    PhaseTimes times;
    for (std::int64_t i = 0; i < shape_.num_runs; ++i) {
      prepare(i);
      const bool is_timed = shape_.operation != Operation::kCombine;
      group_.barrier();
      Dispatched got = dispatch_in_phases(times, is_timed);
      if (shape_.operation == Operation::kDispatch) {
        exchange_.release(got.handle);
        continue;
      }
      if (!is_timed) group_.barrier();
      combine_in_phases(got, times);
    }
    return times.stages();
  }

  std::int64_t count_wrong(std::int64_t iteration) {
    prepare(iteration);
    const BenchOracle oracle(shape_, iteration, group_.rank());
    group_.barrier();
    const Dispatched got = dispatch();
    std::int64_t wrong =
        oracle.count_wrong_received(got.experts.rows, got.experts.scales, counts_of(got));
    exchange_.combine(got.handle, oracle.results(num_rows_of(got)), output_);
    return wrong + oracle.count_wrong_output(output_);
  }

 private:
  void prepare(std::int64_t iteration) {
    batch_.make(iteration);
    if (shape_.scheme.is_quantized()) results_.cover(iteration);
    std::memset(output_.data(), 0xFF, output_.view().num_bytes());
  }

  Dispatched dispatch_in_phases(PhaseTimes& times, bool is_timed) {
    PhaseTimes unused;
    PhaseTimes& to = is_timed ? times : unused;
    DispatchHandle handle;
    Dispatched got;
    to.add("dispatch", "pack", [&] {
      handle = exchange_.dispatch_send(batch_.tokens(), batch_.topk_ids(), batch_.topk_weights(),
                                       Stream::host(), batch_.dispatch_options());
    });
    to.add("dispatch", "place", [&] { got = exchange_.dispatch_receive(handle); });
    to.end_call("dispatch");
    return got;
  }

  void combine_in_phases(const Dispatched& got, PhaseTimes& times) {
    times.add("combine", "pack", [&] { exchange_.combine_send(got.handle, returned(got)); });
    times.add("combine", "sum", [&] { exchange_.combine_receive(got.handle, output_); });
    times.end_call("combine");
  }

  Dispatched dispatch() {
    return exchange_.dispatch(batch_.tokens(), batch_.topk_ids(), batch_.topk_weights(),
                              Stream::host(), batch_.dispatch_options());
  }

  void combine(const Dispatched& got) { exchange_.combine(got.handle, returned(got), output_); }

  TensorView returned(const Dispatched& got) const {
    return shape_.scheme.is_quantized() ? results_.first(num_rows_of(got)) : got.experts.rows;
  }

  Group group_;
  const BenchShape& shape_;
  Exchange exchange_;
  BenchBatch batch_;
  ResultRows results_;
  Tensor output_;
  HostBytes host_bytes_;
};

// Of the exchange, on all ranks; each has about as much as rank 0.
std::size_t reserved_bytes(const BenchShape& shape) {
  const ExchangeMemory one = exchange_memory(shape.exchange_config(), shape.num_ranks, 0);
  return checked_mul(checked_add(one.window_bytes, one.receive_bytes),
                     static_cast<std::size_t>(shape.num_ranks));
}

class CpuTarget : public BenchTarget {
 public:
  explicit CpuTarget(const Group& group) : group_(group) {}

  std::vector<std::pair<std::string, std::string>> machine() const override { return {}; }
  bool has_stages() const override { return true; }

  FloorModel measure_floor(int) override { return measure_cpu_floor(group_); }

  std::string why_left_out(const BenchShape& shape) override {
    const auto available = static_cast<std::int64_t>(available_memory_bytes());
    const std::int64_t needed = cpu_bytes_needed(shape);
    if (available > 0 && needed > available / 10 * 6) {
      constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
      return fmt::format("needs {:.1f} GiB, more than 60 % of the {:.1f} GiB that are free",
                         static_cast<double>(needed) / kGib, static_cast<double>(available) / kGib);
    }
    try {
      require_reservation("its exchange", reserved_bytes(shape));
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  }

  ShapeResult measure(const BenchShape& shape, const std::string&,
                      const std::function<void()>& tick) override {
    check_shape(shape);
    if (shape.operation == Operation::kLayer) return measure_cpu_layer(group_, shape, tick);
    ExchangeRun run(group_, shape);
    ShapeResult result = measure_calls(run, shape, tick);
    if (shape.has_stages) result.stages = run.stages();
    return result;
  }

 private:
  Group group_;
};

}  // namespace

// Tokens and output; rows in windows; received rows; results in timed runs and in the check.
std::int64_t cpu_bytes_needed(const BenchShape& shape) {
  const Workload& workload = shape.workload;
  const double row = 2.0 * static_cast<double>(workload.hidden);
  const double tokens =
      static_cast<double>(shape.num_ranks) * static_cast<double>(shape.max_tokens_per_rank());
  const int columns = std::min(shape.num_ranks, workload.num_topk);
  double bytes = tokens * row * (2.0 + 2.0 * columns + 3.0 * workload.num_topk);
  if (shape.operation == Operation::kLayer) {
    const double num_experts =
        workload.num_experts + static_cast<double>(shape.num_ranks) * shape.num_shared_experts;
    bytes += 1.5 * row * static_cast<double>(workload.intermediate) * 2.0 * num_experts;
  }
  constexpr double kMax = 9e18;
  return static_cast<std::int64_t>(std::min(bytes, kMax));
}

std::unique_ptr<BenchTarget> make_cpu_target(const Group& group) {
  return std::make_unique<CpuTarget>(group);
}

}  // namespace switchyard::measure
