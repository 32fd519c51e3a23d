// SPDX-License-Identifier: Apache-2.0

#include "switchyard/eplb.h"

#include <algorithm>
#include <new>

#include "core/bytes.h"
#include "core/fail.h"
#include "plan/id_tensor.h"

namespace switchyard {
namespace {

constexpr std::int64_t kMaxPhysicalExperts = 65535;

void check_num_experts(const char* function, const char* name, std::int64_t count) {
  require(count >= 1 && count <= kMaxPhysicalExperts, Errc::kInvalidArgument,
          "{}: {} is {}, must be from 1 to {}", function, name, count, kMaxPhysicalExperts);
}

// Counts the replicas of each logical expert.
std::vector<std::int32_t> count_replicas(const char* function,
                                         std::span<const std::int32_t> physical_to_logical,
                                         std::int32_t num_logical) {
  check_num_experts(function, "num_logical", num_logical);
  check_num_experts(function, "number of physical experts",
                    static_cast<std::int64_t>(physical_to_logical.size()));
  std::vector<std::int32_t> counts(static_cast<std::size_t>(num_logical));
  for (std::size_t p = 0; p < physical_to_logical.size(); ++p) {
    const std::int32_t logical = physical_to_logical[p];
    require(logical >= -1 && logical < num_logical, Errc::kInvalidArgument,
            "{}: physical expert {} is logical expert {}, must be from 0 to {}, or -1 for none",
            function, p, logical, num_logical - 1);
    if (logical >= 0) ++counts[static_cast<std::size_t>(logical)];
  }
  return counts;
}

void check_matrix_of_ids(const char* function, const TensorView& ids) {
  require(ids.num_dims() == 2, Errc::kInvalidArgument, "{}: ids are {}, must be [T, K]", function,
          ids);
}

}  // namespace

std::vector<std::int32_t> initial_physical_to_logical(std::int32_t num_logical,
                                                      std::int32_t num_redundant) {
  check_num_experts("initial_physical_to_logical", "num_logical", num_logical);
  require(num_redundant >= 0 && num_redundant <= kMaxPhysicalExperts - num_logical,
          Errc::kInvalidArgument,
          "initial_physical_to_logical: num_redundant is {}, must be from 0 to {}", num_redundant,
          kMaxPhysicalExperts - num_logical);
  std::vector<std::int32_t> logical(static_cast<std::size_t>(num_logical + num_redundant));
  for (std::size_t p = 0; p < logical.size(); ++p) {
    logical[p] = static_cast<std::int32_t>(p) % num_logical;
  }
  return logical;
}

LogicalMaps compute_logical_maps(std::span<const std::int32_t> physical_to_logical,
                                 std::int32_t num_logical) {
  LogicalMaps maps;
  maps.num_logical = num_logical;
  maps.replica_counts = count_replicas("compute_logical_maps", physical_to_logical, num_logical);
  const auto fewest = std::min_element(maps.replica_counts.begin(), maps.replica_counts.end());
  require(*fewest >= 1, Errc::kInvalidArgument,
          "compute_logical_maps: logical expert {} has no physical expert, must have at least 1",
          fewest - maps.replica_counts.begin());
  maps.max_replicas = *std::max_element(maps.replica_counts.begin(), maps.replica_counts.end());

  const auto width = static_cast<std::size_t>(maps.max_replicas);
  maps.logical_to_physical.assign(maps.replica_counts.size() * width, -1);
  std::vector<std::size_t> next(maps.replica_counts.size());
  for (std::size_t p = 0; p < physical_to_logical.size(); ++p) {
    if (physical_to_logical[p] < 0) continue;
    const auto logical = static_cast<std::size_t>(physical_to_logical[p]);
    maps.logical_to_physical[logical * width + next[logical]++] = static_cast<std::int32_t>(p);
  }
  return maps;
}

void map_logical_to_physical(const TensorView& topk_ids, const LogicalMaps& maps,
                             const TensorView& out) {
  check_matrix_of_ids("map_logical_to_physical", topk_ids);
  const std::int64_t num_topk = std::max<std::int64_t>(1, topk_ids.shape(1));
  map_ids("map_logical_to_physical", topk_ids, maps.num_logical, out,
          [&](std::int64_t i, std::int64_t logical) -> std::int64_t {
            const auto l = static_cast<std::size_t>(logical);
            const std::int32_t replica = choose_replica(i / num_topk, maps.replica_counts[l]);
            return maps.logical_to_physical[l * static_cast<std::size_t>(maps.max_replicas) +
                                            static_cast<std::size_t>(replica)];
          });
}

ExpertLoad::ExpertLoad(std::int32_t num_physical, std::int32_t window) : window_(window) {
  check_num_experts("expert_load", "num_physical", num_physical);
  require(window >= 1, Errc::kInvalidArgument,
          "expert_load: window is {} steps, must be at least 1", window);
  try {
    sums_.resize(static_cast<std::size_t>(num_physical));
    steps_.reserve(sums_.size() * static_cast<std::size_t>(window));
  } catch (const std::bad_alloc&) {
    fail(Errc::kOutOfMemory, "expert_load: no memory for {} experts x {} steps, {} bytes",
         num_physical, window, std::int64_t{8} * num_physical * window);
  }
}

void ExpertLoad::add_step(std::span<const std::int64_t> expert_load) {
  const std::size_t num_physical = sums_.size();
  require(expert_load.size() == num_physical, Errc::kInvalidArgument,
          "expert_load: the step has {} counts, must have {}", expert_load.size(), num_physical);
  const bool is_full = num_steps_ == window_;
  const auto place = static_cast<std::size_t>(next_) * num_physical;
  for (std::size_t e = 0; e < num_physical; ++e) {
    require(expert_load[e] >= 0, Errc::kInvalidArgument,
            "expert_load: expert {} has {} rows, must have at least 0", e, expert_load[e]);
    (void)checked_add(sums_[e] - (is_full ? steps_[place + e] : 0), expert_load[e]);
  }
  if (!is_full) steps_.resize(steps_.size() + num_physical);
  for (std::size_t e = 0; e < num_physical; ++e) {
    sums_[e] += expert_load[e] - steps_[place + e];
    steps_[place + e] = expert_load[e];
  }
  next_ = (next_ + 1) % window_;
  num_steps_ += is_full ? 0 : 1;
}

void ExpertLoad::add_step(const TensorView& physical_ids, std::int64_t num_tokens) {
  check_matrix_of_ids("expert_load", physical_ids);
  const IdTensor ids("expert_load", "physical_ids", physical_ids);
  require(num_tokens >= 0 && num_tokens <= physical_ids.shape(0), Errc::kInvalidArgument,
          "expert_load: num_tokens is {}, must be from 0 to {}", num_tokens, physical_ids.shape(0));
  std::vector<std::int64_t> counts(sums_.size());
  for (std::int64_t i = 0; i < num_tokens * physical_ids.shape(1); ++i) {
    const std::int64_t id = ids[i];
    if (id < 0) continue;
    require(id < static_cast<std::int64_t>(counts.size()), Errc::kInvalidArgument,
            "expert_load: element {} of physical_ids is {}, must be below {}", i, id,
            counts.size());
    ++counts[static_cast<std::size_t>(id)];
  }
  add_step(counts);
}

std::vector<std::int64_t> ExpertLoad::logical_load(
    std::span<const std::int32_t> physical_to_logical, std::int32_t num_logical) const {
  require(physical_to_logical.size() == sums_.size(), Errc::kInvalidArgument,
          "logical_load: the map has {} physical experts, must have {}", physical_to_logical.size(),
          sums_.size());
  // Checks every id; the counts themselves are not needed.
  (void)count_replicas("logical_load", physical_to_logical, num_logical);
  std::vector<std::int64_t> load(static_cast<std::size_t>(num_logical));
  for (std::size_t p = 0; p < sums_.size(); ++p) {
    if (physical_to_logical[p] < 0) continue;
    std::int64_t& sum = load[static_cast<std::size_t>(physical_to_logical[p])];
    sum = checked_add(sum, sums_[p]);
  }
  return load;
}

void ExpertLoad::reset() {
  num_steps_ = 0;
  next_ = 0;
  steps_.clear();
  std::fill(sums_.begin(), sums_.end(), 0);
}

}  // namespace switchyard
