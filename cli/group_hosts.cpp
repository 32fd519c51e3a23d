// SPDX-License-Identifier: Apache-2.0

#include "group_hosts.h"

#include <set>

#include "core/fail.h"
#include "engine/control.h"

namespace switchyard::cli {

bool has_several_hosts(const Group& group) { return group.host_size() < group.size(); }

HostsOfRanks hosts_of(const Group& group, const char* verb, int asked) {
  if (!has_several_hosts(group)) return even_host_map(group.size(), asked);
  HostsOfRanks hosts;
  for (int rank = 0; rank < group.size(); ++rank) hosts.push_back(group.control().host_of(rank));
  require(asked == 1 || asked == count_hosts(hosts), Errc::kInvalidArgument,
          "{}: --hosts is {}, but the ranks are on {}; leave --hosts out", verb, asked,
          count_hosts(hosts));
  return hosts;
}

int count_hosts(const HostsOfRanks& hosts) {
  return static_cast<int>(std::set<std::int32_t>(hosts.begin(), hosts.end()).size());
}

int count_even_hosts(const HostsOfRanks& hosts) {
  const auto num_ranks = static_cast<int>(hosts.size());
  const int num_hosts = count_hosts(hosts);
  const bool is_even = num_ranks % num_hosts == 0 && hosts == even_host_map(num_ranks, num_hosts);
  return is_even ? num_hosts : 1;
}

}  // namespace switchyard::cli
