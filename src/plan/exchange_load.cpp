// SPDX-License-Identifier: Apache-2.0

#include "plan/exchange_load.h"

#include <algorithm>

#include "switchyard/exchange_config.h"

#include "core/fail.h"

namespace switchyard {
namespace {

constexpr auto kPerExpert = static_cast<std::size_t>(Reduce::kPerExpert);
constexpr auto kPerRank = static_cast<std::size_t>(Reduce::kPerRank);
constexpr auto kPerHost = static_cast<std::size_t>(Reduce::kPerHost);
static_assert(kPerExpert < 3 && kPerRank < 3 && kPerHost < 3);

/// The ranks that want a token, and with how many experts each.
class Wanted {
 public:
  void clear() { ranks_.clear(); }
  void add(int rank) {
    const auto found = std::find_if(ranks_.begin(), ranks_.end(),
                                    [&](const Rank& one) { return one.rank == rank; });
    if (found == ranks_.end()) {
      ranks_.push_back({rank, 1});
    } else {
      ++found->copies;
    }
  }

  struct Rank {
    int rank;
    std::int64_t copies;
  };
  const std::vector<Rank>& ranks() const { return ranks_; }

 private:
  std::vector<Rank> ranks_;
};

/// Counts the way of one source's tokens.
class SourceLoad {
 public:
  SourceLoad(int source, const HostMap& hosts, std::span<RankLoad> loads)
      : source_(source), hosts_(hosts), loads_(loads) {}

  void add(const std::vector<Wanted::Rank>& wanted) {
    if (!wanted.empty()) ++of(source_).tokens;
    const bool stays = wanted.empty() || (wanted.size() == 1 && wanted.front().rank == source_);
    if (!stays) ++of(source_).leaving;
    crossed_.clear();
    for (const Wanted::Rank& one : wanted) {
      RankLoad& there = of(one.rank);
      ++there.arrivals;
      there.placed += one.copies;
      for (const std::size_t contract : {kPerExpert, kPerRank, kPerHost}) {
        there.returned[contract] += contract == kPerExpert ? one.copies : 1;
      }
      if (hosts_.host_of(one.rank) == hosts_.host_of(source_)) {
        go_inside(source_, one);
        add_partials(one.copies, true);
      } else {
        go_across(one);
      }
    }
  }

 private:
  RankLoad& of(int rank) { return loads_[static_cast<std::size_t>(rank)]; }

  void add_partials(std::int64_t copies, bool is_first_of_host) {
    of(source_).partials[kPerExpert] += copies;
    of(source_).partials[kPerRank] += 1;
    of(source_).partials[kPerHost] += is_first_of_host ? 1 : 0;
  }

  // From `from`, the source or who passes its token on, to a rank of the same host, and back.
  void go_inside(int from, const Wanted::Rank& to) {
    if (from == to.rank) return;
    ++of(from).dispatch.inside_out;
    ++of(to.rank).dispatch.inside_in;
    for (const std::size_t contract : {kPerExpert, kPerRank, kPerHost}) {
      const std::int64_t rows = contract == kPerExpert ? to.copies : 1;
      of(to.rank).combine[contract].inside_out += rows;
      of(from).combine[contract].inside_in += rows;
    }
  }

  void go_across(const Wanted::Rank& to) {
    const int host = hosts_.host_of(to.rank);
    const int forwarder = hosts_.forwarder(source_, host);
    const bool is_first = std::find(crossed_.begin(), crossed_.end(), host) == crossed_.end();
    RankLoad& passing = of(forwarder);
    if (is_first) {
      crossed_.push_back(host);
      ++of(source_).dispatch.across_out;
      ++passing.dispatch.across_in;
      ++passing.passed_on;
    }
    go_inside(forwarder, to);
    for (const std::size_t contract : {kPerExpert, kPerRank, kPerHost}) {
      const std::int64_t one = contract == kPerHost && !is_first ? 0 : 1;
      const std::int64_t rows = contract == kPerExpert ? to.copies : one;
      passing.combine[contract].across_out += rows;
      of(source_).combine[contract].across_in += rows;
    }
    add_partials(to.copies, is_first);
  }

  int source_;
  const HostMap& hosts_;
  std::span<RankLoad> loads_;
  std::vector<int> crossed_;  ///< hosts to which the token has gone
};

}  // namespace

void add_load(int source, std::span<const std::int32_t> ids, std::int32_t num_topk,
              const ExpertOwnership& ownership, const HostMap& hosts, std::span<RankLoad> loads) {
  SourceLoad load(source, hosts, loads);
  Wanted wanted;
  const auto topk = static_cast<std::size_t>(num_topk);
  for (std::size_t at = 0; at + topk <= ids.size(); at += topk) {
    wanted.clear();
    for (const std::int32_t id : ids.subspan(at, topk)) {
      if (id == -1) continue;
      require(id >= 0 && id < ownership.num_experts, Errc::kInvalidArgument,
              "add_load: an id of rank {} is {}, must be from 0 to {}, or -1", source, id,
              ownership.num_experts - 1);
      wanted.add(ownership.owner(id));
    }
    load.add(wanted.ranks());
  }
}

}  // namespace switchyard
