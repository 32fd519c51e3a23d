// SPDX-License-Identifier: Apache-2.0

#include "plan/host_crossings.h"

#include <algorithm>

#include "core/fail.h"
#include "plan/id_tensor.h"

namespace switchyard {

HostsOfRanks even_host_map(int num_ranks, int num_hosts) {
  require(num_hosts >= 1 && num_ranks % num_hosts == 0, Errc::kInvalidArgument,
          "hosts: {} ranks on {} hosts, must be as many ranks on each", num_ranks, num_hosts);
  HostsOfRanks hosts;
  for (int rank = 0; rank < num_ranks; ++rank) hosts.push_back(rank / (num_ranks / num_hosts));
  return hosts;
}

std::int64_t count_host_crossings(const TensorView& topk_ids, const ExpertOwnership& ownership,
                                  const HostsOfRanks& host_of_rank, int rank) {
  constexpr const char* kName = "count_host_crossings";
  const IdTensor ids(kName, "topk_ids", topk_ids);
  require(topk_ids.num_dims() == 2, Errc::kInvalidArgument, "{}: topk_ids is {}, must be [T, K]",
          kName, topk_ids);
  require(host_of_rank.size() == static_cast<std::size_t>(ownership.num_ranks) && rank >= 0 &&
              rank < ownership.num_ranks,
          Errc::kInvalidArgument,
          "{}: hosts of {} ranks and rank {}, must be those of a group of {}", kName,
          host_of_rank.size(), rank, ownership.num_ranks);
  const std::int32_t home = host_of_rank[static_cast<std::size_t>(rank)];
  const std::int64_t num_topk = topk_ids.shape(1);
  std::vector<std::int32_t> seen;  // other hosts of one token
  std::int64_t crossings = 0;
  for (std::int64_t t = 0; t < topk_ids.shape(0); ++t) {
    seen.clear();
    for (std::int64_t k = 0; k < num_topk; ++k) {
      const std::int64_t id = ids[t * num_topk + k];
      if (id == -1) continue;
      require(id >= 0 && id < ownership.num_experts, Errc::kInvalidArgument,
              "{}: topk_ids[{}, {}] is {}, must be from 0 to {}, or -1", kName, t, k, id,
              ownership.num_experts - 1);
      const int owner = ownership.owner(static_cast<int>(id));
      const std::int32_t host = host_of_rank[static_cast<std::size_t>(owner)];
      if (host != home && std::find(seen.begin(), seen.end(), host) == seen.end()) {
        seen.push_back(host);
      }
    }
    crossings += static_cast<std::int64_t>(seen.size());
  }
  return crossings;
}

}  // namespace switchyard
