// SPDX-License-Identifier: Apache-2.0

#include "measure/cuda_target.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "core/log.h"
#include "core/settings.h"
#include "device/cuda_module.h"
#include "measure/cuda_floor.h"
#include "measure/cuda_run.h"
#include "measure/gather.h"
#include "measure/statistics.h"
#include "plan/host_map.h"
#include "quant/scheme.h"

namespace switchyard::measure {
namespace {

std::string cuda_text(int version) {
  return fmt::format("{}.{}", version / 1000, version / 10 % 100);
}

std::string nccl_text(const DeviceFacts& facts, const std::string& obstacle) {
  const int version = facts.nccl_version;
  if (!obstacle.empty()) return "none: " + obstacle;
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

// Computes the time of combine alone: a pair minus the median dispatch, both from the same
// measurement.
std::vector<double> without(std::vector<double> pairs, const std::vector<double>& dispatches) {
  const double dispatch = median(dispatches);
  for (double& us : pairs) us = std::max(0.0, us - dispatch);
  return pairs;
}

// Between hosts: a message to each, one from each whose tokens are forwarded, and one that returns
// from each; those alone, once more; the window's rows that return to forwarders.
double message_bytes(const BenchShape& shape, double row, double back_row) {
  if (shape.num_hosts() == 1) return 0;
  const HostMap map(shape.hosts);
  const auto tokens = static_cast<double>(shape.max_tokens_per_rank());
  const double num_others = map.num_hosts() - 1;
  const auto num_forwarded = static_cast<double>(map.max_forwarded());
  const int host_size = static_cast<int>(map.max_host_size());
  double width = shape.workload.num_topk;  // of what returns to a forwarder for a token
  if (shape.reduce == Reduce::kPerHost) width = 1;
  if (shape.reduce == Reduce::kPerRank) width = std::min(host_size, shape.workload.num_topk);
  const double returned = width * back_row;
  const double messages =
      2 * num_others * (row + returned) + 2 * num_forwarded * std::max(row, returned);
  return tokens * (messages + 2 * num_forwarded * returned);
}

class CudaTarget : public BenchTarget {
 public:
  explicit CudaTarget(const Group& group)
      : group_(group), meter_(cuda_module().make_meter(group)) {}

  std::vector<std::pair<std::string, std::string>> machine() const override {
    const DeviceFacts facts = cuda_module().describe_devices(setting("SWITCHYARD_HEAP").text);
    std::vector<std::pair<std::string, std::string>> machine;
    machine.emplace_back("gpu", fmt::format("{}x {}", meter_->num_gpus(), facts.gpus.at(0).name));
    machine.emplace_back("driver",
                         fmt::format("{}, CUDA {}; built with CUDA {}", facts.driver_version,
                                     cuda_text(facts.driver_cuda), cuda_text(facts.runtime_cuda)));
    machine.emplace_back("nccl", nccl_text(facts, meter_->why_no_nccl()));
    machine.emplace_back("heap", meter_->heap());
    machine.emplace_back(
        "grid", fmt::format("at most {} CTAs of 512 threads, or twice as many of 256, on {} SMs",
                            meter_->num_ctas(0), facts.gpus.at(0).num_sms));
    if (meter_->ranks_on_gpu() > 1) {
      machine.emplace_back(
          "shared_gpu",
          fmt::format("{} ranks on a GPU: for correctness only, times are meaningless",
                      meter_->ranks_on_gpu()));
    }
    return machine;
  }

  bool has_stages() const override { return meter_->has_stages(); }

  FloorModel measure_floor(int num_sms) override {
    if (!floor_.has_value()) floor_.emplace(group_, *meter_);
    return floor_->of(num_sms);
  }

  std::string why_left_out(const BenchShape& shape) override {
    const double free = 0.9 * static_cast<double>(meter_->queue().free_bytes());
    const double needed =
        static_cast<double>(cuda_bytes_needed(shape)) * static_cast<double>(meter_->ranks_on_gpu());
    if (needed <= free) return {};
    constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
    return fmt::format("needs {:.1f} GiB, more than 90 % of the GPU's free memory ({:.1f} GiB)",
                       needed / kGib, free / kGib);
  }

  ShapeResult measure(const BenchShape& shape, const std::string& baseline,
                      const std::function<void()>& tick) override {
    check_shape(shape);
    if (shape.operation == Operation::kLayer) {
      return measure_cuda_layer(group_, *meter_, shape, tick);
    }
    ShapeResult result;
    result.method = method_of(*meter_, shape);
    CudaRun run(group_, *meter_, shape);
    if (shape.operation == Operation::kCombine) {
      const std::vector<double> dispatches = run.times(Operation::kDispatch, [] {});
      result.us = without(run.times(Operation::kPair, tick), max_over_ranks(group_, dispatches));
      result.method += ", pair - dispatch";
    } else {
      result.us = run.times(shape.operation, tick);
    }
    if (shape.num_hosts() > 1) measure_host_messages(*meter_, shape, run.host_bytes(), result);
    if (shape.has_cold_code || shape.has_skew) {
      result.apart_us = run.times_apart(shape.operation, Before::kNothing);
    }
    if (shape.has_cold_code) {
      result.cold_us = run.times_apart(shape.operation, Before::kOtherCode);
    }
    if (shape.has_skew) result.skewed_us = run.times_apart(shape.operation, Before::kBeLate);
    if (shape.has_stages) {
      result.stages = run.stages(shape.operation == Operation::kDispatch ? Operation::kDispatch
                                                                         : Operation::kPair);
    }
    if (baseline == "nccl" && has_nccl()) result.baseline_us = run.nccl_times(shape.operation);
    result.num_wrong = run.count_wrong(shape.num_runs);
    return result;
  }

 private:
  // Asks once: a communicator that cannot be created now will not appear later.
  bool has_nccl() {
    if (why_no_nccl_.has_value()) return why_no_nccl_->empty();
    why_no_nccl_ = meter_->join_nccl();
    if (!why_no_nccl_->empty() && group_.rank() == 0) {
      log(LogLevel::kWarn, "bench", "--baseline nccl is left out: {}", *why_no_nccl_);
    }
    return why_no_nccl_->empty();
  }

  Group group_;
  std::unique_ptr<DeviceMeter> meter_;
  std::optional<CudaFloor> floor_;
  std::optional<std::string> why_no_nccl_;
};

}  // namespace

// Received rows and results, both slot sets of a window, inputs, and the baseline's buffers.
std::int64_t cuda_bytes_needed(const BenchShape& shape) {
  const Workload& workload = shape.workload;
  const double back_row = 2.0 * static_cast<double>(workload.hidden);
  const double row = shape.scheme.is_quantized()
                         ? 1.1 * static_cast<double>(row_bytes(shape.scheme, workload.hidden)) + 512
                         : back_row;
  const auto tokens = static_cast<double>(shape.max_tokens_per_rank());
  const double arriving = tokens * shape.num_ranks;
  const double num_local = (workload.num_experts + shape.num_ranks - 1) / shape.num_ranks;
  double num_rows = arriving;
  if (shape.layout == Layout::kBatched) num_rows *= num_local;
  if (shape.layout == Layout::kExpanded) num_rows *= std::min<double>(num_local, workload.num_topk);
  const double columns = shape.reduce != Reduce::kPerExpert
                             ? std::min(shape.num_ranks, workload.num_topk)
                             : workload.num_topk;
  const double windows = 2.3 * (arriving * (row + 256) + tokens * columns * back_row);
  const double blocks = 8 * tokens * columns * (row + back_row);
  double bytes = num_rows * (row + back_row) + windows + blocks + 10 * tokens * back_row;
  bytes += message_bytes(shape, row, back_row);
  if (shape.operation == Operation::kLayer) {
    const auto inner = static_cast<double>(workload.intermediate);
    bytes += num_local * 3 * back_row * inner + num_rows * (2 * back_row + 8 * inner);
    bytes += shape.num_shared_experts * (3 * back_row * inner + tokens * (back_row + 8 * inner));
  }
  constexpr double kMax = 9e18;
  return static_cast<std::int64_t>(std::min(bytes, kMax));
}

std::unique_ptr<BenchTarget> make_cuda_target(const Group& group) {
  return std::make_unique<CudaTarget>(group);
}

}  // namespace switchyard::measure
