// SPDX-License-Identifier: Apache-2.0

#include "engine/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "core/fail.h"
#include "core/interrupt.h"
#include "core/service_thread.h"
#include "engine/mesh.h"
#include "transport/hash_store.h"
#include "transport/prefix_store.h"
#include "transport/socket_store.h"

namespace switchyard {
namespace {

constexpr std::int64_t kAnswerMs = 3000;
constexpr int kRetryMs = 20;

// What this process serves, by address. Each group that meets there holds a share; without one, a
// server stays for clients that are ahead, or behind, and ends once it has none.
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
    std::erase_if(served_, [](const auto& entry) { return entry.second.server->has_ended(); });
    const std::string text = address.text();
    if (const auto found = served_.find(text); found != served_.end()) {
      if (auto share = found->second.share.lock()) return share;
      if (found->second.server->keep_serving()) return share_of(found->second);
      served_.erase(found);
    }
    std::unique_ptr<StoreServer> server = StoreServer::start(address, secret);
    if (!server) return nullptr;
    return share_of(served_[text] = {std::move(server), {}});
  }

  void stop_unless_used(const Address& address) {
    const std::lock_guard lock(mutex_);
    const auto found = served_.find(address.text());
    if (found != served_.end() && found->second.share.expired()) served_.erase(found);
  }

 private:
  struct Served {
    std::shared_ptr<StoreServer> server;
    std::weak_ptr<StoreServer> share;
  };

  ServedStores() = default;

  std::shared_ptr<StoreServer> share_of(Served& served) {
    const auto end = [this, server = served.server, process = OwnProcess()](StoreServer*) {
      if (process.is_this_one()) end_unless_used(*server);
    };
    std::shared_ptr<StoreServer> share(served.server.get(), end);
    served.share = share;
    return share;
  }

  void end_unless_used(StoreServer& server) {
    const std::lock_guard lock(mutex_);
    for (const auto& [text, served] : served_) {
      if (served.server.get() == &server && served.share.expired()) server.end_when_idle();
    }
  }

  std::mutex mutex_;
  std::map<std::string, Served> served_;
};

Address address_of(const JoinRequest& request) {
  const Address address =
      Address::parse(request.store.empty() ? meeting_address(request.ranks) : request.store);
  require(address.kind == Address::Kind::kUnix || address.port > 0, Errc::kInvalidArgument,
          "group: the store is {}, must be a port from 1 to 65535: ranks must know it",
          request.store);
  return address;
}

bool serves_store(const JoinRequest& request) {
  return request.ranks.size > 1 && request.ranks.rank == 0 && request.control_fd < 0 &&
         !request.meeting;
}

[[noreturn]] void fail_taken(const JoinRequest& request, std::string_view by_what) {
  fail(Errc::kSystem, "group: {} is in use, {}; give this job an address of its own (rank 0 of {})",
       address_of(request).text(), by_what, request.ranks.size);
}

// On rank 0. Null when a store serves there already. While nobody listens there and it cannot
// either, a connection of some program has that port for its own end, or the server of a former
// group has just ended: it tries again.
std::shared_ptr<StoreServer> serve_unless_served(const JoinRequest& request) {
  const Address address = address_of(request);
  for (const Deadline deadline = Deadline::after_ms(request.timeout_ms);;) {
    if (auto server = ServedStores::instance().serve(address, request.secret)) return server;
    try {
      // A store answers at once, so what does not is none; not worth the whole timeout.
      StoreConnection(address, request.secret, std::min(request.timeout_ms, kAnswerMs), true);
      return nullptr;
    } catch (const Error& error) {
      if (error.code() == Errc::kTimeout) fail_taken(request, "and not by a store");
      if (error.code() != Errc::kPeerLost) fail_with_peer(0, 0, error);
    }
    require(!is_interrupted(), Errc::kAborted, "group: interrupted before rank 0 could serve at {}",
            address.text());
    if (deadline.expired()) fail_taken(request, "though nobody listens there");
    poll(nullptr, 0, kRetryMs);
  }
}

std::shared_ptr<Store> connect_to_store(const JoinRequest& request, const StoreServer* own) {
  const RankInfo& ranks = request.ranks;
  const Address address = own != nullptr ? own->local_address() : address_of(request);
  try {
    return std::make_shared<SocketStore>(address, request.secret, request.timeout_ms,
                                         own == nullptr && serves_store(request));
  } catch (const Error& error) {
    if (request.control_fd >= 0 || own != nullptr) throw;
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
    access.server = serve_unless_served(request);
  }
  access.store = std::make_shared<PrefixStore>(
      fmt::format("group/{}/", group),
      request.meeting ? request.meeting : connect_to_store(request, access.server.get()));
  return access;
}

void close_store(const JoinRequest& request) {
  if (serves_store(request)) ServedStores::instance().stop_unless_used(address_of(request));
}

}  // namespace switchyard
