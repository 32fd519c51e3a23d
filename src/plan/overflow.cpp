// SPDX-License-Identifier: Apache-2.0

#include "plan/overflow.h"

#include <algorithm>
#include <limits>

namespace switchyard {
namespace {

struct Choice {
  float weight;
  std::int32_t source;
  std::int64_t index;  ///< token * K + k
};

float weight_of(const RankRouting& routing, std::int64_t index) {
  const float weight = routing.topk_weights == nullptr ? 1.0f : routing.topk_weights[index];
  return weight == weight ? weight : -std::numeric_limits<float>::infinity();
}

}  // namespace

std::int32_t find_overflow(std::span<const std::int64_t> expert_load, std::int64_t capacity) {
  const auto full = std::find_if(expert_load.begin(), expert_load.end(),
                                 [&](std::int64_t load) { return load > capacity; });
  return full == expert_load.end() ? -1 : static_cast<std::int32_t>(full - expert_load.begin());
}

void drop_overflow(int num_topk, std::int64_t capacity, std::span<const std::int64_t> expert_load,
                   std::span<RankRouting> table, std::vector<std::vector<std::uint16_t>>& ids) {
  std::vector<std::vector<Choice>> choices(expert_load.size());
  for (std::size_t s = 0; s < table.size(); ++s) {
    for (std::int64_t i = 0; i < table[s].num_tokens * num_topk; ++i) {
      const std::uint16_t id = table[s].topk_ids[i];
      if (id == kNoExpert || expert_load[id] <= capacity) continue;
      choices[id].push_back({weight_of(table[s], i), static_cast<std::int32_t>(s), i});
    }
  }
  ids.assign(table.size(), {});
  for (std::vector<Choice>& rows : choices) {
    // Rows are collected in tie-breaking order, which the stable sort preserves.
    std::stable_sort(rows.begin(), rows.end(),
                     [](const Choice& a, const Choice& b) { return a.weight > b.weight; });
    for (auto i = static_cast<std::size_t>(capacity); i < rows.size(); ++i) {
      RankRouting& routing = table[static_cast<std::size_t>(rows[i].source)];
      std::vector<std::uint16_t>& copy = ids[static_cast<std::size_t>(rows[i].source)];
      if (copy.empty()) {
        copy.assign(routing.topk_ids, routing.topk_ids + routing.num_tokens * num_topk);
        routing.topk_ids = copy.data();
      }
      copy[static_cast<std::size_t>(rows[i].index)] = kNoExpert;
    }
  }
}

}  // namespace switchyard
