// SPDX-License-Identifier: Apache-2.0

#include "forecast/forecast.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "core/fail.h"
#include "forecast/layer_costs.h"
#include "plan/push_layout.h"

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

// CPU ranks that share a host with nobody have messages alone.
std::vector<std::string> backends_of(const Machine& machine, const HostsShape& shape) {
  const bool is_one = shape.num_hosts == 1;
  if (machine.is_gpu) return {is_one ? "push" : "hosts"};
  if (!is_one && shape.num_hosts == shape.num_ranks) return {"messages"};
  return {is_one ? "pull" : "hosts", "messages"};
}

std::string gb_text(double bytes) { return fmt::format("{:.3g} GB", bytes * 1e-9); }

double bytes_of(const MemoryUse& memory) { return static_cast<double>(memory.total()); }

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
    for (const std::string& backend : backends_of(question_.machine, shape_)) {
      Choice choice;
      choice.layout = layout;
      choice.reduce = reduce;
      choice.backend = backend;
      choice.is_timed = backend != "messages";
      if (reduce == Reduce::kPerHost && backend == "messages") continue;
      HostsShape shape = shape_;
      shape.layout = layout;
      shape.reduce = reduce;
      choice.memory = memory_use(shape, whole_.num_physical, backend, question_.machine.is_gpu);
      if (choice.is_timed) set_times(choice, shape);
      choice.why_not = why_not(choice);
      result_.choices.push_back(std::move(choice));
    }
  }

  void set_times(Choice& choice, const HostsShape& shape) {
    choice.time =
        ExchangeCosts(question_.machine, shape, whole_.num_physical).slowest(whole_.loads);
    choice.layer_us = layer_->layer_us(shape.layout, shape.reduce);
  }

  std::string why_not(const Choice& choice) const {
    const std::string too_large =
        fits(choice) ? ""
                     : fmt::format("takes {}, must be at most {}", gb_text(bytes_of(choice.memory)),
                                   gb_text(question_.max_memory_bytes));
    if (!choice.memory.obstacle.empty()) {
      const bool is_stated = choice.memory.exceeds_ranks && !too_large.empty();
      return choice.memory.obstacle + (is_stated ? "; " + too_large : "");
    }
    if (!choice.is_timed) return "its time is not predicted";
    return too_large;
  }

  bool fits(const Choice& choice) const {
    const double max_bytes = question_.max_memory_bytes;
    return max_bytes == 0 || bytes_of(choice.memory) <= max_bytes;
  }

  const Choice& choice_at(int index) const {
    return result_.choices[static_cast<std::size_t>(index)];
  }

  /// Of the choices that may be the best and are `wanted`, the one for which `is_before` any other
  /// holds. Those layouts have rows by expert: others leave work to the experts that is not
  /// counted. -1: there is none.
  template <typename Wanted, typename Before>
  int find(const Wanted& wanted, const Before& is_before) const {
    int found = -1;
    for (int i = 0; i < static_cast<int>(result_.choices.size()); ++i) {
      const Choice& choice = choice_at(i);
      if (!is_expert_major(choice.layout) || !wanted(choice)) continue;
      if (found < 0 || is_before(choice, choice_at(found))) found = i;
    }
    return found;
  }

  void choose() {
    const auto is_faster = [](const Choice& a, const Choice& b) { return a.layer_us < b.layer_us; };
    const auto is_smaller = [&](const Choice& a, const Choice& b) {
      if (a.memory.total() != b.memory.total()) return a.memory.total() < b.memory.total();
      return is_faster(a, b);
    };
    const auto find_best = [&](const auto& is_possible) {
      const int fastest = find(is_possible, is_faster);
      if (fastest < 0) return -1;
      const double most = choice_at(fastest).layer_us * kSameTime;
      return find([&](const Choice& one) { return is_possible(one) && one.layer_us <= most; },
                  is_smaller);
    };
    result_.best = find_best([](const Choice& one) { return one.why_not.empty(); });
    if (result_.best < 0) {
      result_.best_without_limit = find_best(
          [&](const Choice& one) { return one.memory.exceeds_ranks && one.is_timed && fits(one); });
    }
    if (result_.best >= 0) {
      result_.shown = result_.best;
      result_.why = why(choice_at(result_.best));
    } else if (result_.best_without_limit >= 0) {
      result_.shown = result_.best_without_limit;
      result_.why = fmt::format("{}; without the limit of {} ranks: {}", why_none(), kMaxPushRanks,
                                why(choice_at(result_.shown)));
    } else {
      result_.shown =
          find([](const Choice& one) { return one.is_timed && one.memory.is_known(); }, is_smaller);
      if (result_.shown < 0) {
        result_.shown = find([](const Choice& one) { return one.is_timed; }, is_faster);
      }
      result_.why = why_none();
    }
    if (result_.shown >= 0) describe(choice_at(result_.shown));
  }

  void describe(const Choice& shown) {
    HostsShape shape = shape_;
    shape.layout = shown.layout;
    shape.reduce = shown.reduce;
    const ExchangeCosts costs(question_.machine, shape, whole_.num_physical);
    result_.dispatch_path = costs.dispatch_path();
    result_.combine_path = costs.combine_path();
    for (const RankLoad& load : whole_.loads) {
      result_.dispatch.add(costs.dispatch_bytes(load));
      result_.combine.add(costs.combine_bytes(load));
    }
  }

  std::string why(const Choice& best) const {
    const Choice* contract = nullptr;  // the fastest other one of the same layout
    const Choice* layout = nullptr;    // the other one of the same contract
    for (const Choice& other : result_.choices) {
      if (!other.is_timed || !is_expert_major(other.layout)) continue;
      const bool is_same = other.layout == best.layout;
      if (is_same && other.reduce != best.reduce &&
          (contract == nullptr || other.layer_us < contract->layer_us)) {
        contract = &other;
      }
      if (!is_same && other.reduce == best.reduce) layout = &other;
    }
    std::string text;
    if (contract != nullptr) {
      text += fmt::format("{} takes {:.0f} us, {} {:.0f}", name_of(best.reduce), best.layer_us,
                          name_of(contract->reduce), contract->layer_us);
      if (!contract->why_not.empty() && !contract->memory.exceeds_ranks)
        text += fmt::format(" (but {})", contract->why_not);
    }
    if (layout != nullptr && layout->memory.is_known()) {
      text += fmt::format("{}{} takes {}, {} {}", text.empty() ? "" : "; ", name_of(best.layout),
                          gb_text(bytes_of(best.memory)), name_of(layout->layout),
                          gb_text(bytes_of(layout->memory)));
    }
    return text;
  }

  // Contracts of a layout with the same reason stand together.
  std::string why_none() const {
    struct Reason {
      std::string whose;
      std::string contracts;
      std::string why_not;
    };
    std::vector<Reason> reasons;
    for (const Choice& one : result_.choices) {
      if (!is_expert_major(one.layout)) continue;
      const std::string whose = fmt::format("{} over {}", name_of(one.layout), one.backend);
      const auto same = std::ranges::find_if(reasons, [&](const Reason& other) {
        return other.whose == whose && other.why_not == one.why_not;
      });
      if (same == reasons.end()) {
        reasons.push_back({whose, name_of(one.reduce), one.why_not});
      } else {
        same->contracts += fmt::format(", {}", name_of(one.reduce));
      }
    }
    std::string text = "no choice is possible";
    for (const Reason& one : reasons) {
      text += fmt::format("{} {} ({}): {}", &one == &reasons.front() ? ":" : ";", one.whose,
                          one.contracts, one.why_not);
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

void CallBytes::add(const LinkBytes& rank) {
  inside += rank.inside_out;
  across += rank.across_out;
  busiest_inside = std::max(busiest_inside, rank.busier_inside);
  busiest_across = std::max(busiest_across, rank.busier_across);
}

Forecast forecast(const Question& question, int num_hosts) {
  return Forecaster(question, num_hosts).run();
}

}  // namespace switchyard::forecast
