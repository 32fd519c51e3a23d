// SPDX-License-Identifier: Apache-2.0

#include "engine/group_server.h"

#include <poll.h>

#include <algorithm>
#include <sstream>

#include "core/fail.h"
#include "core/log.h"
#include "transport/network.h"
#include "transport/raw_socket.h"
#include "transport/secret.h"
#include "transport/stream_socket.h"

namespace switchyard {
namespace {

constexpr int kTryMs = 2000;  // at one address, before the next
constexpr int kPauseMs = 20;

// Ranks that failed may try again over the same store, with a new server.
std::string server_key(const std::vector<Introduction>& ranks) {
  return "server/" + ranks[0].nonce;
}

bool have_one_loopback(const std::vector<Introduction>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const Introduction& rank) { return rank.has_loopback_of(ranks[0]); });
}

}  // namespace

std::string ServerAddress::text() const {
  std::string lines = secret;
  for (const Address& address : addresses) lines += "\n" + address.text();
  return lines;
}

ServerAddress ServerAddress::parse(const std::string& text) {
  std::istringstream lines(text);
  ServerAddress server;
  std::getline(lines, server.secret);
  for (std::string line; std::getline(lines, line);) {
    try {
      server.addresses.push_back(Address::parse(line));
    } catch (const Error&) {
      fail(Errc::kSystem, "group: the store has a text that no rank wrote: \"{}\"",
           line.substr(0, 64));
    }
  }
  require(!server.addresses.empty(), Errc::kSystem, "group: the store names no server of rank 0");
  return server;
}

std::shared_ptr<StoreServer> serve_group(const ServerHosts& hosts, ServerAddress& address) {
  std::vector<std::string> found = hosts.met_at;
  if (hosts.have_one_loopback) found = {kLoopback};
  std::shared_ptr<StoreServer> server;
  if (!found.empty()) {
    server = StoreServer::start_at(found, address.secret);
  } else {
    found = reachable_addresses(network_interfaces());
    if (found.empty()) found.emplace_back(kLoopback);
    server = StoreServer::start({Address::Kind::kTcp, kEveryInterface, 0}, address.secret);
    log(LogLevel::kInfo, "group",
        "its server listens on every interface, port {}; an address of this machine in "
        "SWITCHYARD_STORE names one",
        server->address().port);
  }
  if (!hosts.first.empty() && !hosts.have_one_loopback) found.insert(found.begin(), hosts.first);
  for (const std::string& host : found) {
    address.addresses.push_back({Address::Kind::kTcp, host, server->address().port});
  }
  return server;
}

StoreConnection connect_to_group(const ServerAddress& address, const Deadline& deadline,
                                 const std::function<void()>& check) {
  std::vector<std::string> texts;
  for (const Address& candidate : address.addresses) texts.push_back(candidate.text());
  std::string last = "none was tried";
  do {
    std::size_t num_refusals = 0;
    for (const Address& candidate : address.addresses) {
      check();
      try {
        return StoreConnection(candidate, address.secret,
                               std::min(kTryMs, std::max(deadline.remaining_ms(), 1)), true);
      } catch (const Error& error) {
        // No address has descriptors for us, or the program wants no more of this.
        if (error.code() == Errc::kOutOfMemory || error.code() == Errc::kAborted) throw;
        last = error.what();
        if (error.code() == Errc::kPeerLost) ++num_refusals;
      }
    }
    require(
        num_refusals < texts.size(), Errc::kPeerLost,
        "group: rank 0 was lost, or a firewall is in between: nobody serves the group at {} any "
        "more",
        fmt::join(texts, " and "));
    poll(nullptr, 0, kPauseMs);
  } while (!deadline.expired());
  fail(Errc::kTimeout,
       "group: rank 0 serves the group at {}, which this host does not reach ({}); open the ports "
       "between the hosts",
       fmt::join(texts, " and "), last);
}

ServerAddress share_group_server(const Meeting& meeting, int rank,
                                 std::shared_ptr<StoreServer>& server,
                                 const std::function<void()>& check) {
  const std::string& job_secret = meeting.place().secret;
  const std::vector<Introduction>& ranks = meeting.ranks();
  const std::string derived = job_secret.empty() ? "" : derive_secret(job_secret, ranks[0].nonce);
  if (rank == 0) {
    ServerAddress address{derived.empty() ? make_secret() : derived, {}};
    const MeetingPlace& place = meeting.place();
    ServerHosts hosts{have_one_loopback(ranks), {}, place.first_host};
    if (place.met_at) hosts.met_at = place.met_at();
    require(hosts.have_one_loopback || !hosts.met_at.empty() ||
                !reachable_addresses(network_interfaces()).empty(),
            Errc::kSystem,
            "group: ranks are on several hosts or in several network namespaces, and that of rank "
            "0 has no interface up for the others; give the containers of one machine one network "
            "namespace, or each an interface");
    server = serve_group(hosts, address);
    ServerAddress shown = address;
    if (!derived.empty()) shown.secret.clear();
    meeting.with_store([&] { meeting.store()->set(server_key(ranks), shown.text()); });
    return address;
  }
  for (;;) {
    check();
    const auto text =
        meeting.look_up(server_key(ranks), std::min(kSliceMs, meeting.deadline().remaining_ms()));
    if (text) {
      ServerAddress address = ServerAddress::parse(*text);
      if (!derived.empty()) address.secret = derived;
      return address;
    }
    require(
        !meeting.deadline().expired(), Errc::kTimeout,
        "group: no address of the group's server from rank 0 within the timeout (rank {} of {})",
        rank, ranks.size());
  }
}

}  // namespace switchyard
