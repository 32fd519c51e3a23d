// SPDX-License-Identifier: Apache-2.0

#include "engine/rendezvous.h"

#include <map>
#include <mutex>
#include <string>

#include "core/fail.h"
#include "engine/mesh.h"
#include "transport/hash_store.h"
#include "transport/prefix_store.h"
#include "transport/socket_store.h"

namespace switchyard {
namespace {

// What this process serves, by address.
class ServedStores {
 public:
  // Never destroyed: in a forked copy of the process there is no thread to join.
  static ServedStores& instance() {
    static ServedStores& stores = *new ServedStores;
    return stores;
  }

  // Null when somebody else serves there already; then that is the store.
  std::shared_ptr<StoreServer> serve(const Address& address, const std::string& secret) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<StoreServer>& server = servers_[address.text()];
    if (!server) server = StoreServer::start(address, secret);
    return server;
  }

  void stop_unless_used(const Address& address) {
    const std::lock_guard lock(mutex_);
    const auto found = servers_.find(address.text());
    if (found != servers_.end() && found->second.use_count() <= 1) servers_.erase(found);
  }

 private:
  ServedStores() = default;

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<StoreServer>> servers_;
};

Address address_of(const JoinRequest& request) {
  const Address address =
      Address::parse(request.store.empty() ? meeting_address(request.ranks) : request.store);
  require(address.kind == Address::Kind::kUnix || address.port > 0, Errc::kInvalidArgument,
          "group: the store is {}, want a port from 1 to 65535: ranks must know it", request.store);
  return address;
}

bool serves_store(const JoinRequest& request) {
  return request.ranks.size > 1 && request.ranks.rank == 0 && request.control_fd < 0 &&
         !request.meeting;
}

std::shared_ptr<Store> connect_to_store(const JoinRequest& request, bool is_own) {
  const RankInfo& ranks = request.ranks;
  try {
    return std::make_shared<SocketStore>(address_of(request), request.secret, request.timeout_ms);
  } catch (const Error& error) {
    if (request.control_fd >= 0 || is_own) throw;
    const bool is_silent = error.code() == Errc::kTimeout || error.code() == Errc::kPeerLost;
    require(ranks.rank != 0 || !is_silent, Errc::kSystem,
            "group: {} is in use, and not by a store; give this job an address of its own (rank 0 "
            "of {})",
            address_of(request).text(), ranks.size);
    if (error.code() != Errc::kTimeout) fail_with_peer(ranks.rank, 0, error);
    fail(Errc::kTimeout, "group: no sign of rank 0, which serves the store (rank {} of {}); {}",
         ranks.rank, ranks.size, error.what());
  }
}

}  // namespace

StoreAccess open_store(const JoinRequest& request, int group) {
  StoreAccess access;
  if (request.ranks.size == 1) {  // nobody to meet
    access.store = std::make_shared<HashStore>();
    return access;
  }
  if (serves_store(request)) {
    access.server = ServedStores::instance().serve(address_of(request), request.secret);
  }
  const bool is_own = access.server != nullptr;
  access.store = std::make_shared<PrefixStore>(
      fmt::format("group/{}/", group),
      request.meeting ? request.meeting : connect_to_store(request, is_own));
  return access;
}

void close_store(const JoinRequest& request) {
  if (serves_store(request)) ServedStores::instance().stop_unless_used(address_of(request));
}

}  // namespace switchyard
