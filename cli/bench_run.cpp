// SPDX-License-Identifier: Apache-2.0

#include "bench_run.h"

#include <ctime>
#include <numeric>

#include <fmt/format.h>

#include "common_options.h"
#include "core/fail.h"
#include "group_hosts.h"
#include "machine.h"
#include "measure/cpu_target.h"
#include "measure/cuda_target.h"
#include "measure/gather.h"
#include "measure/statistics.h"
#include "progress.h"

namespace switchyard::cli {
namespace {

constexpr std::int64_t kCountedIterations = 16;  // iterations whose bytes are counted

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

// Rows of GPUs of several hosts have the floor inside these; messages between them have their own.
void add_traffic(BenchRow& row, const measure::FloorModel& floor) {
  const bool is_inside = floor.bytes == measure::FloorBytes::kWire && row.shape.num_hosts() > 1;
  std::vector<double> floors;
  std::vector<double> bytes;
  for (std::int64_t i = 0; i < std::min(kCountedIterations, row.shape.num_runs); ++i) {
    const measure::Traffic traffic = measure::traffic_of(row.shape, i);
    floors.push_back(measure::floor_us(
        floor, row.shape,
        is_inside ? measure::inside_hosts(traffic, HostMap(row.shape.hosts)) : traffic));
    bytes.push_back(static_cast<double>(measure::wire_bytes(row.shape, traffic)));
  }
  row.inside_us = measure::median(floors);
  row.floor_us = std::max(row.inside_us, row.host_us);
  row.wire_bytes = static_cast<std::int64_t>(measure::median(bytes));
}

// A copy of what leaves rank 0, of the rows that it gets, and of its sums.
void add_stage_floors(BenchRow& row, const measure::FloorModel& floor) {
  if (row.stages.empty() || floor.bytes != measure::FloorBytes::kCopied) return;
  const measure::Traffic traffic = measure::traffic_of(row.shape, 0);
  for (measure::StageTimes& one : row.stages) {
    const measure::Flow& flow = one.kernel == "combine" ? traffic.combine : traffic.dispatch;
    std::int64_t bytes = one.stage == "wait" ? 0 : flow.kept[0];
    if (one.stage == "pack") {
      bytes = std::accumulate(flow.wire.begin(), flow.wire.begin() + traffic.num_ranks,
                              std::int64_t{0});
    }
    if (bytes > 0)
      one.floor_us = static_cast<double>(bytes) * 1e-3 / rate_at(floor, static_cast<double>(bytes));
  }
}

// What the routing of these iterations asks of ranks and hosts.
void add_load(BenchRow& row, const HostsOfRanks& hosts) {
  const measure::BenchShape& shape = row.shape;
  const std::int32_t num_topk = shape.workload.num_topk;
  const ExpertOwnership ownership{shape.workload.num_experts, shape.num_ranks};
  std::vector<std::int64_t> load(static_cast<std::size_t>(shape.workload.num_experts));
  std::int64_t crossings = 0;
  std::int64_t num_tokens = 0;
  for (std::int64_t i = 0; i < std::min(kCountedIterations, shape.num_runs); ++i) {
    for (int r = 0; r < shape.num_ranks; ++r) {
      const std::vector<std::int32_t> ids =
          shape.routing.ids(shape.seed, i, r, shape.num_ranks, shape.num_tokens);
      for (const std::int32_t id : ids) {
        if (id >= 0) ++load[static_cast<std::size_t>(id)];
      }
      crossings += count_host_crossings(TensorView::of(ids.data(), {shape.num_tokens, num_topk}),
                                        ownership, hosts, r);
      num_tokens += shape.num_tokens;
    }
  }
  row.balance =
      balance_of(load, shape.num_ranks, count_even_hosts(hosts), shape.routing.num_groups());
  row.host_crossings =
      num_tokens == 0 ? 0 : static_cast<double>(crossings) / static_cast<double>(num_tokens);
}

// Of all ranks, in one iteration.
double tokens_of(const measure::BenchShape& shape) {
  return static_cast<double>(shape.num_tokens) * shape.num_ranks * shape.num_layers;
}

// Measures on `device`.
std::unique_ptr<measure::BenchTarget> make_bench_target(const std::string& device,
                                                        const Group& group) {
  require_device("bench", device);
  if (device == "cuda") return measure::make_cuda_target(group);
  return measure::make_cpu_target(group);
}

std::vector<measure::BenchShape> shapes_of(const Group& group, const BenchOptions& options,
                                           const HostsOfRanks& hosts) {
  std::vector<measure::BenchShape> shapes = bench_shapes(options, group.size());
  if (!has_several_hosts(group)) return shapes;
  for (measure::BenchShape& shape : shapes) {
    shape.hosts = hosts;
    check_shape(shape);
  }
  return shapes;
}

class BenchRun {
 public:
  BenchRun(const Group& group, const BenchOptions& options,
           const std::function<void(const std::string&)>& say)
      : group_(group),
        options_(options),
        say_(say),
        hosts_(hosts_of(group, "bench", options.hosts)),
        shapes_(shapes_of(group, options, hosts_)),
        target_(make_bench_target(options.device, group)) {}

  BenchReport run() {
    start();
    for (const measure::BenchShape& shape : shapes_) {
      report_.rows.push_back(measure(shape));
      if (!is_first()) continue;
      say_(row_text(report_, report_.rows.back()));
      say_(stages_text(report_.rows.back()));
    }
    if (is_first()) say_(footer_text(report_));
    return std::move(report_);
  }

 private:
  bool is_first() const { return group_.rank() == 0; }

  void start() {
    require(!options_.stages || target_->has_stages(), Errc::kNotAvailable,
            "bench: --stages needs kernels that record them, those of this build do not; configure "
            "with -DSWITCHYARD_STAGES=ON");
    report_.options = options_;
    report_.date = today();
    report_.num_ranks = group_.size();
    report_.num_hosts = count_hosts(hosts_);
    report_.has_several_hosts = has_several_hosts(group_);
    const bool has_nccl = options_.device == "cuda" && report_.has_several_hosts;
    report_.engine = has_nccl ? "nccl" : group_.engine_name();
    report_.workload = shapes_.front().workload;
    report_.machine = target_->machine();
    report_.machine.emplace_back("processor", processor_text());
    report_.machine.emplace_back("system", describe_machine().system);
    if (!options_.baseline_file.empty()) report_.baseline = read_baseline(options_.baseline_file);
    for (const measure::BenchShape& shape : shapes_) {
      if (!report_.floors.empty() && report_.floors.back().num_sms == shape.num_sms) continue;
      report_.floors.push_back({shape.num_sms, target_->measure_floor(shape.num_sms)});
    }
    if (is_first()) say_(header_text(report_));
  }

  const measure::FloorModel& floor_of(const measure::BenchShape& shape) const {
    for (const BudgetFloor& floor : report_.floors) {
      if (floor.num_sms == shape.num_sms) return floor.model;
    }
    return report_.floors.front().model;
  }

  BenchRow measure(const measure::BenchShape& shape) {
    BenchRow row;
    row.shape = shape;
    row.left_out = measure::first_text(group_, target_->why_left_out(shape));
    if (!row.left_out.empty()) return row;
    measure::ShapeResult result;
    {
      Progress progress(fmt::format("bench, {} tokens", shape.num_tokens), shape.num_runs,
                        is_first());
      std::int64_t done = 0;
      const std::string asked = options_.baseline == "nccl" ? options_.baseline : "";
      result = target_->measure(shape, asked, [&] { progress.update(++done); });
    }
    const std::vector<double> us = measure::max_over_ranks(group_, result.us);
    row.p50_us = measure::median(us);
    row.p99_us = measure::percentile(us, 0.99);
    row.min_us = measure::percentile(us, 0);
    row.apart_us = measure::median(result.apart_us);
    row.cold_us = measure::median(result.cold_us);
    row.skewed_us = measure::median(result.skewed_us);
    row.stages = std::move(result.stages);
    row.num_wrong = measure::sum_of(group_, result.num_wrong);
    const std::int64_t host_bytes = measure::sum_of(group_, result.host_bytes);
    row.host_us = measure::median(measure::max_over_ranks(group_, result.host_us));
    if (result.host_bytes_per_call) {
      row.host_dispatch = host_call(shape, result.host_bytes_per_call->dispatch);
      row.host_combine = host_call(shape, result.host_bytes_per_call->combine);
    }
    row.method = result.method;
    add_baseline(row, result.baseline_us);
    if (is_first()) {
      add_traffic(row, floor_of(shape));
      add_stage_floors(row, floor_of(shape));
      if (shape.num_ranks > 1) add_load(row, hosts_);
      row.host_bytes = static_cast<double>(host_bytes) / tokens_of(shape);
    }
    return row;
  }

  // Collective; `bytes` is what this rank sends in one call.
  HostCall host_call(const measure::BenchShape& shape, std::int64_t bytes) const {
    const double num_calls = static_cast<double>(shape.num_layers) * shape.num_micro_batches;
    const auto sum = static_cast<double>(measure::sum_of(group_, bytes));
    const double most = measure::max_over_ranks(group_, {static_cast<double>(bytes)})[0];
    return {sum * num_calls / tokens_of(shape), static_cast<std::int64_t>(most)};
  }

  void add_baseline(BenchRow& row, const std::vector<double>& own_us) {
    const std::vector<double> us = measure::max_over_ranks(group_, own_us);
    if (!us.empty()) {
      row.baseline = {options_.baseline, row.method, row.shape.operation, row.shape.num_tokens,
                      measure::median(us)};
    } else if (report_.baseline) {
      row.baseline = best_of(*report_.baseline, row.shape);
    }
  }

  Group group_;
  const BenchOptions& options_;
  const std::function<void(const std::string&)>& say_;
  HostsOfRanks hosts_;
  std::vector<measure::BenchShape> shapes_;
  std::unique_ptr<measure::BenchTarget> target_;
  BenchReport report_;
};

}  // namespace

BenchReport run_bench(const Group& group, const BenchOptions& options,
                      const std::function<void(const std::string&)>& say) {
  return BenchRun(group, options, say).run();
}

}  // namespace switchyard::cli
