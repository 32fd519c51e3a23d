// SPDX-License-Identifier: Apache-2.0
//
// mesh.h: one packet socket between each two ranks of a host.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "switchyard/error.h"

#include "transport/socket.h"

namespace switchyard {

/// This rank's end of what joins it to a peer. Empty for the rank itself.
struct PeerLink {
  Fd socket;
  Fd process;  ///< pidfd, where the system has it: sees death also when a fork keeps the socket

  bool is_dead() const noexcept;
};

/// What a rank tells the others before they connect; goes through the store.
struct Introduction {
  std::string version;       ///< of the library
  std::string boot_id;       ///< the same for processes of one running kernel
  std::string network;       ///< the network namespace, within which abstract sockets reach
  std::string host;          ///< the name that the machine, or the container, has
  std::string host_setting;  ///< the setting SWITCHYARD_HOST_ID, or empty
  std::string socket;        ///< where the rank listens, within its machine
  std::string nonce;         ///< rank 0's counts for the group
  int size = 0;

  /// Equal for ranks of one machine, or of one container.
  std::string machine() const;
  /// Whether 127.0.0.1 is the same for both: containers of one network namespace may have names of
  /// their own.
  bool has_loopback_of(const Introduction& other) const;
  /// Equal for ranks that share a host: by the setting, or else those of one machine.
  std::string host_id() const;
  /// Of the host, for messages.
  const std::string& host_name() const { return host_setting.empty() ? host : host_setting; }

  /// Errors: kInvalidArgument (the setting).
  static Introduction of_this_process(int size, const std::string& socket);
  std::string text() const;
  /// Errors: kSystem.
  static Introduction parse(const std::string& text);
};

/// Throws unless all are of one job; names the first rank that differs. Errors: kInvalidArgument.
void require_one_job(const std::vector<Introduction>& ranks);
/// The same for one host whose ranks can share memory. Errors: kNotSupported.
void require_one_host(const std::vector<Introduction>& ranks);

/// The number of each rank's host; hosts are numbered as they come.
std::vector<int> hosts_of(const std::vector<Introduction>& ranks);

/// Throws `error`, which sending to `peer` or receiving from it gave during set-up, in words that
/// name the peer when that is lost or does not answer.
[[noreturn]] void fail_with_peer(int rank, int peer, const Error& error);

/// What `action` returns; it sends to `peer` or receives from it. Errors: as fail_with_peer.
template <typename Action>
auto with_peer(int rank, int peer, Action&& action) {
  try {
    return action();
  } catch (const Error& error) {
    fail_with_peer(rank, peer, error);
  }
}

/// Connects to all lower ranks and accepts all higher ones. `check` is called between short waits
/// and throws when the set-up should end. Errors: kTimeout, kPeerLost, kInvalidArgument, kSystem.
std::vector<PeerLink> connect_mesh(int rank, const std::vector<Introduction>& ranks,
                                   const Fd& listener, const Deadline& deadline,
                                   const std::function<void()>& check);

}  // namespace switchyard
