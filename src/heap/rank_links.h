// SPDX-License-Identifier: Apache-2.0
//
// rank_links.h: messages between GPUs of different hosts, over NCCL's send and receive. The tokens
// of a rank cross to its forwarders (plan/host_map.h), and their results come back: there is one
// communicator for each local index, of the ranks with that index and, on hosts with fewer ranks,
// of those that forward for them.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <memory>
#include <string>
#include <vector>

#include "engine/control.h"
#include "plan/host_map.h"

namespace switchyard {

/// CTAs of NCCL's at a time, for each of which it takes an SM: enough for any network.
inline constexpr int kMaxMessageCtas = 16;

/// A message to `peer` or from it.
struct LinkMessage {
  int source = 0;  ///< the rank whose tokens are concerned: this rank or the peer
  int peer = 0;
  std::byte* data = nullptr;  ///< device memory
  std::size_t num_bytes = 0;
};

/// Without memory: those of `rank` as a source of tokens, one to each of its forwarders.
inline std::vector<LinkMessage> messages_of_source(const HostMap& map, int rank) {
  std::vector<LinkMessage> messages;
  for (int host = 0; host < map.num_hosts(); ++host) {
    if (host != map.host_of(rank))
      messages.push_back({rank, map.forwarder(rank, host), nullptr, 0});
  }
  return messages;
}
/// The same as a forwarder: one to, or from, each source.
inline std::vector<LinkMessage> messages_of_forwarder(const HostMap& map, int rank) {
  std::vector<LinkMessage> messages;
  for (const int source : map.forwarded_by(rank)) messages.push_back({source, source, nullptr, 0});
  return messages;
}

/// Calls come in the same order on every rank. Communicators do not block: what NCCL does on the
/// host is waited for with the deadline of the group, what it does on the GPU has none.
class RankLinks {
 public:
  RankLinks() = default;
  RankLinks(const RankLinks&) = delete;
  RankLinks& operator=(const RankLinks&) = delete;
  virtual ~RankLinks() = default;

  /// Enqueues all messages as one operation, which ends when all have been sent and received.
  /// Messages between two ranks arrive in order. May be captured in a graph. Errors: kSystem,
  /// kTimeout, kPeerLost, kAborted.
  virtual void exchange(const std::vector<LinkMessage>& sent,
                        const std::vector<LinkMessage>& received, const WaitSite& site,
                        cudaStream_t stream) = 0;
  /// What NCCL found behind a call; empty: nothing. Any thread.
  virtual std::string failure() noexcept = 0;
  /// Tells what is under way to end, on the GPU too; does not wait until it has, and no call may
  /// follow. NCCL frees its memory when graphs with its calls are gone, too. Any thread.
  virtual void abort() noexcept = 0;
};

/// Collective, with this rank's GPU current: connects every two ranks between which messages go, or
/// takes links that a closed exchange of the group has kept, since NCCL is slow to make new ones.
/// `control` must outlive the links. Errors: kNotAvailable (see nccl_links_obstacle), kSystem,
/// kTimeout, kPeerLost.
std::shared_ptr<RankLinks> make_rank_links(Control& control, const HostMap& map);

/// Keeps links for the next make_rank_links of the group, until the group ends. Every rank has made
/// the same calls with them, and all of these have ended, as after a collective close.
void keep_rank_links(Control& control, std::shared_ptr<RankLinks> links) noexcept;

}  // namespace switchyard
