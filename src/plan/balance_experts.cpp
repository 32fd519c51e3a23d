// SPDX-License-Identifier: Apache-2.0
//
// Placement from load, in three steps: groups onto hosts, copies of experts within each host,
// copies onto the ranks of the host. Without groups that divide among hosts there is one group and
// one host. The steps and their order are those of DeepSeek's EPLB, so that placements are the
// same; loads per copy are compared as fractions, so that ties do not depend on rounding.

#include <algorithm>
#include <numeric>

#include "switchyard/eplb.h"

#include "core/fail.h"

namespace switchyard {
namespace {

constexpr const char* kName = "balance_experts";
constexpr std::int64_t kMaxExperts = 65535;

using Ids = std::vector<std::int32_t>;
__extension__ typedef __int128 Wide;  // NOLINT: an alias declaration would warn

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// Rows of an expert divided by its copies.
struct Share {
  std::int64_t rows = 0;
  std::int64_t copies = 1;

  double value() const { return static_cast<double>(rows) / static_cast<double>(copies); }
  friend bool operator>(const Share& a, const Share& b) {
    return static_cast<Wide>(a.rows) * b.copies > static_cast<Wide>(b.rows) * a.copies;
  }
};

void check_divides(const char* name, std::int64_t value, const char* divisor_name,
                   std::int64_t divisor) {
  require(value % divisor == 0, Errc::kInvalidArgument,
          "{}: {} is {}, must be a multiple of {} ({})", kName, name, value, divisor_name, divisor);
}

void check(std::span<const std::int64_t> load, const BalanceConfig& config) {
  const auto num_logical = static_cast<std::int64_t>(load.size());
  require(num_logical >= 1 && num_logical <= kMaxExperts, Errc::kInvalidArgument,
          "{}: the load has {} logical experts, must have from 1 to {}", kName, num_logical,
          kMaxExperts);
  require(config.num_physical >= num_logical && config.num_physical <= kMaxExperts,
          Errc::kInvalidArgument,
          "{}: num_physical is {}, must be from {} (the logical experts) to {}", kName,
          config.num_physical, num_logical, kMaxExperts);
  require(config.num_ranks >= 1 && config.num_hosts >= 1 && config.num_groups >= 1,
          Errc::kInvalidArgument,
          "{}: num_ranks is {}, num_hosts {}, num_groups {}, must be at least 1 each", kName,
          config.num_ranks, config.num_hosts, config.num_groups);
  check_divides("num_physical", config.num_physical, "num_ranks", config.num_ranks);
  check_divides("num_ranks", config.num_ranks, "num_hosts", config.num_hosts);
  check_divides("the number of logical experts", num_logical, "num_groups", config.num_groups);
  std::int64_t total = 0;
  for (std::size_t e = 0; e < load.size(); ++e) {
    require(load[e] >= 0, Errc::kInvalidArgument,
            "{}: the load of logical expert {} is {}, must be at least 0", kName, e, load[e]);
    require(
        !__builtin_add_overflow(total, load[e], &total), Errc::kInvalidArgument,
        "{}: the loads of logical experts 0 to {} sum to more than 2^63 - 1, must be at most that",
        kName, e);
  }
}

// Places items in packs of equally many: heaviest first, each in the lightest pack that has room.
// Returns the items of all packs, one pack after another.
template <typename Weight>
Ids pack(const std::vector<Weight>& weights, std::int32_t num_packs) {
  const std::size_t room = weights.size() / at(num_packs);
  Ids packed(weights.size());
  std::iota(packed.begin(), packed.end(), 0);
  if (room == 1) return packed;
  Ids order = packed;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t a, std::int32_t b) { return weights[at(a)] > weights[at(b)]; });
  std::vector<double> sums(at(num_packs));
  std::vector<std::size_t> sizes(at(num_packs));
  for (const std::int32_t item : order) {
    std::size_t lightest = sums.size();
    for (std::size_t p = 0; p < sums.size(); ++p) {
      if (sizes[p] == room) continue;
      if (lightest == sums.size() || sums[p] < sums[lightest]) lightest = p;
    }
    packed[lightest * room + sizes[lightest]++] = item;
    sums[lightest] += Share(weights[at(item)]).value();
  }
  return packed;
}

// The expert of each copy: every expert once, then each further copy for the largest share.
// `shares` become those of the copies.
Ids replicate(std::vector<Share>& shares, std::int32_t num_copies) {
  Ids experts(shares.size());
  std::iota(experts.begin(), experts.end(), 0);
  while (experts.size() < at(num_copies)) {
    std::size_t largest = 0;
    for (std::size_t e = 1; e < shares.size(); ++e) {
      if (shares[e] > shares[largest]) largest = e;
    }
    ++shares[largest].copies;
    experts.push_back(static_cast<std::int32_t>(largest));
  }
  return experts;
}

// The logical experts in the order of their groups' hosts.
Ids order_by_host(std::span<const std::int64_t> load, std::int32_t num_groups,
                  std::int32_t num_hosts) {
  const std::size_t group_size = load.size() / at(num_groups);
  std::vector<Share> groups(at(num_groups));
  for (std::size_t e = 0; e < load.size(); ++e) groups[e / group_size].rows += load[e];
  Ids experts;
  for (const std::int32_t group : pack(groups, num_hosts)) {
    for (std::size_t i = 0; i < group_size; ++i) {
      experts.push_back(static_cast<std::int32_t>(at(group) * group_size + i));
    }
  }
  return experts;
}

}  // namespace

std::vector<std::int32_t> balance_experts(std::span<const std::int64_t> logical_load,
                                          const BalanceConfig& config) {
  check(logical_load, config);
  const bool is_hierarchical = config.num_groups % config.num_hosts == 0;
  const std::int32_t num_hosts = is_hierarchical ? config.num_hosts : 1;
  const Ids by_host =
      order_by_host(logical_load, is_hierarchical ? config.num_groups : 1, num_hosts);
  const std::size_t per_host = by_host.size() / at(num_hosts);
  Ids placed;
  for (std::size_t first = 0; first < by_host.size(); first += per_host) {
    std::vector<Share> shares;
    for (std::size_t i = 0; i < per_host; ++i) {
      shares.push_back({logical_load[at(by_host[first + i])]});
    }
    const Ids experts = replicate(shares, config.num_physical / num_hosts);
    std::vector<Share> copies;
    for (const std::int32_t e : experts) copies.push_back(shares[at(e)]);
    for (const std::int32_t copy : pack(copies, config.num_ranks / num_hosts)) {
      placed.push_back(by_host[first + at(experts[at(copy)])]);
    }
  }
  return placed;
}

double load_balance(std::span<const std::int64_t> logical_load,
                    std::span<const std::int32_t> physical_to_logical, std::int32_t num_ranks) {
  const auto num_logical = static_cast<std::int64_t>(logical_load.size());
  require(num_ranks >= 1 && physical_to_logical.size() % at(num_ranks) == 0, Errc::kInvalidArgument,
          "load_balance: num_ranks is {}, must be a divisor of {} physical experts", num_ranks,
          physical_to_logical.size());
  std::vector<std::int64_t> copies(logical_load.size());
  for (std::size_t p = 0; p < physical_to_logical.size(); ++p) {
    const std::int32_t logical = physical_to_logical[p];
    require(
        logical >= -1 && logical < num_logical, Errc::kInvalidArgument,
        "load_balance: physical expert {} is logical expert {}, must be from 0 to {}, or -1 for "
        "none",
        p, logical, num_logical - 1);
    if (logical >= 0) ++copies[at(logical)];
  }
  double total = 0;
  for (std::size_t e = 0; e < logical_load.size(); ++e) {
    require(logical_load[e] >= 0 && (logical_load[e] == 0 || copies[e] > 0), Errc::kInvalidArgument,
            "load_balance: logical expert {} has {} rows and {} copies, must have at least 0 rows, "
            "and a "
            "copy for them",
            e, logical_load[e], copies[e]);
    total += static_cast<double>(logical_load[e]);
  }
  if (total == 0) return 1;
  double largest = 0;
  const std::size_t per_rank = physical_to_logical.size() / at(num_ranks);
  for (std::size_t first = 0; first < physical_to_logical.size(); first += per_rank) {
    double sum = 0;
    for (const std::int32_t logical : physical_to_logical.subspan(first, per_rank)) {
      if (logical >= 0) sum += Share{logical_load[at(logical)], copies[at(logical)]}.value();
    }
    largest = std::max(largest, sum);
  }
  return std::min(1.0, total / num_ranks / largest);
}

}  // namespace switchyard
