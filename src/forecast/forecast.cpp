// SPDX-License-Identifier: Apache-2.0

#include "forecast/forecast.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "core/fail.h"
#include "forecast/layer_costs.h"

namespace switchyard::forecast {
namespace {

// Differences below this are less than the model's error.
constexpr double kSameTime = 1.02;

HostsShape shape_of(const Question& question, int num_hosts) {
  HostsShape shape = question.shape;
  shape.num_hosts = num_hosts;
  shape.num_ranks = num_hosts * question.ranks_per_host;
  return shape;
}

std::vector<std::string> backends_of(const Machine& machine, int num_hosts) {
  if (machine.is_gpu) return {num_hosts == 1 ? "push" : "hosts"};
  return {num_hosts == 1 ? "pull" : "hosts", "messages"};
}

LinkBytes bytes_of(const std::vector<RankLoad>& loads, double row_bytes,
                   const LinkRows& (*rows_of)(const RankLoad&, std::size_t), std::size_t contract) {
  LinkBytes bytes;
  for (const RankLoad& load : loads) {
    const LinkRows& rows = rows_of(load, contract);
    bytes.inside += static_cast<double>(rows.inside_out) * row_bytes;
    bytes.across += static_cast<double>(rows.across_out) * row_bytes;
    bytes.busiest_inside =
        std::max(bytes.busiest_inside, static_cast<double>(rows.busier_inside()) * row_bytes);
    bytes.busiest_across =
        std::max(bytes.busiest_across, static_cast<double>(rows.busier_across()) * row_bytes);
  }
  return bytes;
}

class Forecaster {
 public:
  Forecaster(const Question& question, int num_hosts)
      : question_(question), shape_(shape_of(question, num_hosts)) {
    placement_.is_balanced = question.is_balanced;
    placement_.num_redundant = question.num_redundant >= 0
                                   ? question.num_redundant
                                   : min_redundant(shape_.workload.num_experts, shape_.num_ranks);
    require_experts();
    whole_ = simulate(shape_, placement_, 0);
    layer_.emplace(question.machine, shape_, placement_, question.experts, whole_, 0);
  }

  Forecast run() {
    result_.num_hosts = shape_.num_hosts;
    result_.num_ranks = shape_.num_ranks;
    result_.num_physical = whole_.num_physical;
    result_.balance = whole_.balance;
    count_ways();
    result_.experts_us = layer_->experts_us();
    for (const Layout layout :
         {Layout::kExpanded, Layout::kBatched, Layout::kCompact, Layout::kByRank}) {
      for (const Reduce reduce : {Reduce::kPerRank, Reduce::kPerExpert, Reduce::kPerHost}) {
        add(layout, reduce);
      }
    }
    choose();
    return result_;
  }

 private:
  void require_experts() const {
    const std::int32_t num_physical = shape_.workload.num_experts + placement_.num_redundant;
    require(num_physical >= shape_.num_ranks, Errc::kInvalidArgument,
            "plan: {} experts on {} ranks, must be at least one for each; add copies with "
            "--redundant {}",
            num_physical, shape_.num_ranks,
            min_redundant(shape_.workload.num_experts, shape_.num_ranks));
  }

  void count_ways() {
    std::int64_t tokens = 0;
    std::int64_t arrivals = 0;
    std::int64_t crossings = 0;
    for (const RankLoad& load : whole_.loads) {
      tokens += load.tokens;
      arrivals += load.arrivals;
      crossings += load.dispatch.across_out;
    }
    if (tokens == 0) return;
    result_.ranks_per_token = static_cast<double>(arrivals) / static_cast<double>(tokens);
    result_.crossings_per_token = static_cast<double>(crossings) / static_cast<double>(tokens);
  }

  void add(Layout layout, Reduce reduce) {
    if (reduce == Reduce::kPerExpert && !is_expert_major(layout)) return;
    if (reduce == Reduce::kPerHost && shape_.num_hosts == 1) return;
    const std::vector<std::string> backends = backends_of(question_.machine, shape_.num_hosts);
    for (const std::string& backend : backends) {
      Choice choice;
      choice.layout = layout;
      choice.reduce = reduce;
      choice.backend = backend;
      choice.is_timed = backend != "messages";
      if (reduce == Reduce::kPerHost && backend == "messages") continue;
      HostsShape shape = shape_;
      shape.layout = layout;
      shape.reduce = reduce;
      choice.memory = memory_use(shape, whole_.num_physical, backend);
      if (choice.is_timed) set_times(choice, shape);
      result_.choices.push_back(std::move(choice));
    }
  }

  void set_times(Choice& choice, const HostsShape& shape) {
    choice.time =
        ExchangeCosts(question_.machine, shape, whole_.num_physical).slowest(whole_.loads);
    choice.layer_us = layer_->layer_us(shape.layout, shape.reduce);
  }

  bool is_possible(const Choice& choice) const {
    const double most = question_.max_memory_bytes;
    return choice.is_timed && choice.memory.obstacle.empty() &&
           (most == 0 || static_cast<double>(choice.memory.total()) <= most);
  }

  // Of layouts whose rows lie by expert: others leave work to the experts that is not counted.
  void choose() {
    double fastest = 0;
    for (const Choice& choice : result_.choices) {
      if (!is_possible(choice) || !is_expert_major(choice.layout)) continue;
      if (fastest == 0 || choice.layer_us < fastest) fastest = choice.layer_us;
    }
    for (std::size_t i = 0; i < result_.choices.size(); ++i) {
      const Choice& choice = result_.choices[i];
      if (!is_possible(choice) || !is_expert_major(choice.layout) ||
          choice.layer_us > fastest * kSameTime) {
        continue;
      }
      if (result_.best < 0 ||
          choice.memory.total() <
              result_.choices[static_cast<std::size_t>(result_.best)].memory.total()) {
        result_.best = static_cast<int>(i);
      }
    }
    if (result_.best >= 0) describe_best();
  }

  void describe_best() {
    const Choice& best = result_.choices[static_cast<std::size_t>(result_.best)];
    HostsShape shape = shape_;
    shape.layout = best.layout;
    shape.reduce = best.reduce;
    const ExchangeCosts costs(question_.machine, shape, whole_.num_physical);
    result_.dispatch_path = costs.dispatch_path();
    result_.combine_path = costs.combine_path();
    const auto contract = static_cast<std::size_t>(best.reduce);
    result_.dispatch = bytes_of(
        whole_.loads, costs.dispatch_row_bytes(),
        [](const RankLoad& load, std::size_t) -> const LinkRows& { return load.dispatch; }, 0);
    result_.combine = bytes_of(
        whole_.loads, costs.combine_row_bytes(),
        [](const RankLoad& load, std::size_t at) -> const LinkRows& { return load.combine[at]; },
        contract);
    result_.why = why(best);
  }

  std::string why(const Choice& best) const {
    const Choice* slower = nullptr;  // the next contract of the same layout
    const Choice* larger = nullptr;  // the other layout of the same contract
    for (const Choice& other : result_.choices) {
      if (!other.is_timed || !is_expert_major(other.layout)) continue;
      const bool is_same = other.layout == best.layout;
      if (is_same && other.reduce != best.reduce &&
          (slower == nullptr || other.layer_us < slower->layer_us)) {
        slower = &other;
      }
      if (!is_same && other.reduce == best.reduce) larger = &other;
    }
    std::string text = fmt::format("dispatch waits for {}, combine for {}",
                                   best.time.dispatch.bound(), best.time.combine.bound());
    if (slower != nullptr) {
      text += fmt::format("; {} takes {:.0f} us, {} {:.0f}", name_of(best.reduce), best.layer_us,
                          name_of(slower->reduce), slower->layer_us);
    }
    if (larger != nullptr && larger->memory.obstacle.empty()) {
      text += fmt::format("; {} takes {:.3g} GB, {} {:.3g}", name_of(best.layout),
                          static_cast<double>(best.memory.total()) * 1e-9, name_of(larger->layout),
                          static_cast<double>(larger->memory.total()) * 1e-9);
    }
    return text;
  }

  const Question& question_;
  HostsShape shape_;
  Placement placement_;
  Simulation whole_;
  std::optional<LayerCosts> layer_;
  Forecast result_;
};

}  // namespace

Forecast forecast(const Question& question, int num_hosts) {
  return Forecaster(question, num_hosts).run();
}

}  // namespace switchyard::forecast
