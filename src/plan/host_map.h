// SPDX-License-Identifier: Apache-2.0
//
// host_map.h: which ranks share a host, and which rank of a host passes on the tokens of another
// host's rank: the one of the same local index, modulo the number of ranks there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace switchyard {

class HostMap {
 public:
  /// `hosts`: by rank, any numbers. Hosts are counted from 0 in ascending order of their numbers.
  explicit HostMap(const std::vector<int>& hosts) {
    std::vector<int> numbers = hosts;
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
    ranks_.resize(numbers.size());
    for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
      const auto at = std::lower_bound(numbers.begin(), numbers.end(), hosts[rank]);
      host_.push_back(static_cast<int>(at - numbers.begin()));
      std::vector<int>& ranks = ranks_[static_cast<std::size_t>(host_.back())];
      local_.push_back(static_cast<int>(ranks.size()));
      ranks.push_back(static_cast<int>(rank));
    }
  }

  int num_hosts() const { return static_cast<int>(ranks_.size()); }
  int host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  /// The place of a rank among the ranks of its host.
  int local_of(int rank) const { return local_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& ranks_of(int host) const {
    return ranks_[static_cast<std::size_t>(host)];
  }

  /// The rank of `host` that passes on the tokens of `source`, which is on another host.
  int forwarder(int source, int host) const {
    const std::vector<int>& ranks = ranks_of(host);
    return ranks[static_cast<std::size_t>(local_of(source)) % ranks.size()];
  }
  /// The sources of other hosts whose tokens `rank` passes on, ascending.
  std::vector<int> forwarded_by(int rank) const {
    std::vector<int> sources;
    for (std::size_t s = 0; s < host_.size(); ++s) {
      const int source = static_cast<int>(s);
      if (host_of(source) != host_of(rank) && forwarder(source, host_of(rank)) == rank) {
        sources.push_back(source);
      }
    }
    return sources;
  }
  /// The ranks of other hosts that pass on the tokens of `rank`, and those whose tokens it passes
  /// on, ascending.
  std::vector<std::int32_t> linked_with(int rank) const {
    const std::vector<int> sources = forwarded_by(rank);
    std::vector<std::int32_t> ranks(sources.begin(), sources.end());
    for (int host = 0; host < num_hosts(); ++host) {
      if (host != host_of(rank)) ranks.push_back(forwarder(rank, host));
    }
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }
  /// The largest number of sources that any rank passes on.
  std::size_t max_forwarded() const {
    std::size_t most = 0;
    for (std::size_t rank = 0; rank < host_.size(); ++rank) {
      most = std::max(most, forwarded_by(static_cast<int>(rank)).size());
    }
    return most;
  }
  std::size_t max_host_size() const {
    std::size_t most = 0;
    for (const std::vector<int>& ranks : ranks_) most = std::max(most, ranks.size());
    return most;
  }

 private:
  std::vector<int> host_;                ///< by rank
  std::vector<int> local_;               ///< by rank
  std::vector<std::vector<int>> ranks_;  ///< by host, ascending
};

}  // namespace switchyard
