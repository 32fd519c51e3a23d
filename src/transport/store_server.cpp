// SPDX-License-Identifier: Apache-2.0

#include "transport/store_server.h"

#include <sys/eventfd.h>

#include <utility>

#include "core/fail.h"
#include "transport/secret.h"
#include "transport/store_loop.h"
#include "transport/stream_socket.h"

namespace switchyard {

StoreServer::StoreServer(Address address, Address local_address, std::unique_ptr<Loop> loop)
    : address_(std::move(address)),
      local_address_(std::move(local_address)),
      loop_(std::move(loop)) {}

StoreServer::~StoreServer() = default;

void StoreServer::end_when_over() { loop_->end_when_over(); }
void StoreServer::end_when_idle() { loop_->end_when_idle(); }
bool StoreServer::keep_serving() { return loop_->keep_serving(); }
bool StoreServer::has_ended() const { return loop_->has_ended(); }
bool StoreServer::only_awaits_ends() const { return loop_->only_awaits_ends(); }
std::vector<std::string> StoreServer::met_at() const { return loop_->met_at(); }

std::unique_ptr<StoreServer> StoreServer::start(const Address& address, std::string secret) {
  require_secret(address, secret);
  bool is_taken = false;
  std::vector<Fd> listeners = listen_on(address, &is_taken);
  if (is_taken) return nullptr;
  return start(std::move(listeners), address, std::move(secret));
}

std::unique_ptr<StoreServer> StoreServer::start_at(const std::vector<std::string>& hosts,
                                                   std::string secret) {
  constexpr int kMaxTries = 8;  // a port that is free at one address may be taken at another
  Address address{Address::Kind::kTcp, "", 0};
  require_secret(address, secret);
  for (int i = 0; i < kMaxTries; ++i) {
    bool is_taken = false;
    std::vector<Fd> listeners;
    address.port = 0;
    for (const std::string& host : hosts) {
      address.host = host;
      for (Fd& one : listen_on(address, &is_taken)) listeners.push_back(std::move(one));
      if (is_taken) break;
      address.port = bound_address(listeners.back(), address).port;
    }
    if (!is_taken) return start(std::move(listeners), address, std::move(secret));
  }
  fail(Errc::kSystem, "store: no port is free at all of {}", fmt::join(hosts, " and "));
}

std::unique_ptr<StoreServer> StoreServer::start(std::vector<Fd> listeners, const Address& address,
                                                std::string secret) {
  const Address bound = bound_address(listeners[0], address);
  const Address local = switchyard::local_address(listeners[0], address);
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.has_value()) fail_errno("eventfd", "store");
  auto loop = std::make_unique<Loop>(std::move(listeners), std::move(wake), std::move(secret));
  loop->start();
  return std::unique_ptr<StoreServer>(new StoreServer(bound, local, std::move(loop)));
}

}  // namespace switchyard
