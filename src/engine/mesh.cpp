// SPDX-License-Identifier: Apache-2.0

#include "engine/mesh.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <list>
#include <sstream>

#include "switchyard/version.h"

#include "core/fail.h"
#include "core/log.h"
#include "core/settings.h"
#include "core/text.h"
#include "transport/secret.h"

namespace switchyard {
namespace {

constexpr std::size_t kMaxStrangers = 64;

// First packet on a connection; the connecting end sends it.
struct Hello {
  std::array<char, 32> nonce{};
  std::int32_t rank = -1;
  std::int32_t size = 0;
};

std::span<std::byte> bytes_of(Hello& hello) { return std::as_writable_bytes(std::span(&hello, 1)); }

Hello make_hello(const std::string& nonce, int rank, int size) {
  Hello hello;
  std::memcpy(hello.nonce.data(), nonce.data(), std::min(nonce.size(), hello.nonce.size()));
  hello.rank = rank;
  hello.size = size;
  return hello;
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  const bool has_no_descriptor = !file.is_open() && (errno == EMFILE || errno == ENFILE);
  if (has_no_descriptor) fail_errno("open", path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "net:[4026531840]": its number is unique while the kernel runs. Empty where /proc is missing.
std::string network_namespace() {
  std::array<char, 64> name{};
  const ssize_t size = readlink("/proc/thread-self/ns/net", name.data(), name.size());
  return {name.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
}

Fd open_process(const Fd& socket) {
  const std::optional<PeerIdentity> identity = peer_identity(socket);
  if (!identity || identity->pid <= 0) return Fd();  // of another pid namespace
#ifdef SYS_pidfd_open
  return Fd(static_cast<int>(syscall(SYS_pidfd_open, identity->pid, 0)));
#else
  return Fd();
#endif
}

PeerLink make_link(Fd socket) {
  Fd process = open_process(socket);
  return {std::move(socket), std::move(process)};
}

// The ranks above this one, as they come. Strangers may connect too: they are read without waiting
// for them, and dropped when what they say is no hello of this group.
class Acceptor {
 public:
  Acceptor(int rank, int size, const std::string& nonce, const Fd& listener,
           std::vector<PeerLink>& links)
      : rank_(rank), wanted_(make_hello(nonce, rank, size)), listener_(listener), links_(links) {}

  std::vector<std::int32_t> missing_ranks() const {
    std::vector<std::int32_t> missing;
    for (std::size_t peer = static_cast<std::size_t>(rank_) + 1; peer < links_.size(); ++peer) {
      if (!links_[peer].socket.has_value()) missing.push_back(static_cast<std::int32_t>(peer));
    }
    return missing;
  }

  void turn() {
    std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
    for (const Fd& socket : strangers_) entries.push_back({socket.get(), POLLIN, 0});
    poll(entries.data(), entries.size(), kSliceMs);
    std::size_t next = 1;
    for (Fd& socket : strangers_) {
      if (entries[next++].revents != 0) greet(socket);
    }
    strangers_.remove_if([](const Fd& socket) { return !socket.has_value(); });
    if (entries[0].revents == 0) return;
    std::optional<Fd> socket = accept_one(listener_, Deadline::after_ms(0));
    const auto identity = socket ? peer_identity(*socket) : std::nullopt;
    if (!identity || identity->uid != geteuid()) return;
    if (strangers_.size() >= kMaxStrangers) strangers_.pop_front();
    strangers_.push_back(std::move(*socket));
  }

 private:
  // Leaves `socket` empty: it has become a link, or it is dropped.
  void greet(Fd& socket) {
    Fd taken = std::move(socket);
    Hello hello;
    try {
      if (!receive_packet(taken, bytes_of(hello), Deadline::after_ms(0))) return;
    } catch (const Error& error) {
      log(LogLevel::kDebug, "shm", "drops a stranger: {}", error.what());
      return;
    }
    if (hello.nonce != wanted_.nonce || hello.size != wanted_.size) return;
    require(hello.rank > rank_ && hello.rank < hello.size, Errc::kInvalidArgument,
            "group: rank {} got a call from rank {} of {}; are two processes the same rank?", rank_,
            hello.rank, hello.size);
    PeerLink& link = links_[static_cast<std::size_t>(hello.rank)];
    require(!link.socket.has_value(), Errc::kInvalidArgument,
            "group: two processes say that they are rank {}", hello.rank);
    link = make_link(std::move(taken));
  }

  int rank_;
  Hello wanted_;
  const Fd& listener_;
  std::vector<PeerLink>& links_;
  std::list<Fd> strangers_;
};

// Nothing is sent before the kernel has vouched that a rank of the same user listens there:
// somebody else may have taken the name of a rank that is gone.
PeerLink call_rank(int rank, int peer, const std::vector<Introduction>& ranks,
                   const Deadline& deadline) {
  std::optional<Fd> socket =
      connect_for_packets(ranks[static_cast<std::size_t>(peer)].socket, deadline);
  require(socket.has_value(), Errc::kPeerLost, "nobody listens on its socket");
  const std::optional<PeerIdentity> identity = peer_identity(*socket);
  require(identity && identity->uid == geteuid(), Errc::kInvalidArgument,
          "group: the socket of rank {} is of user {}, but rank {} is of user {}; all ranks of a "
          "group must be of one user",
          peer, identity ? std::to_string(identity->uid) : "(unknown)", rank, geteuid());
  Hello hello = make_hello(ranks[0].nonce, rank, static_cast<int>(ranks.size()));
  send_packet(*socket, bytes_of(hello), -1, deadline);
  return make_link(*std::move(socket));
}

}  // namespace

bool PeerLink::is_dead() const noexcept {
  std::array<pollfd, 2> entries{{{socket.get(), POLLRDHUP, 0}, {process.get(), POLLIN, 0}}};
  if (poll(entries.data(), entries.size(), 0) <= 0) return false;
  return (entries[0].revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0 || entries[1].revents != 0;
}

std::string Introduction::machine() const { return host + "/" + boot_id + "/" + network; }

bool Introduction::has_loopback_of(const Introduction& other) const {
  const bool is_known = !boot_id.empty() && !network.empty();
  return is_known ? boot_id == other.boot_id && network == other.network
                  : machine() == other.machine();
}

std::string Introduction::host_id() const {
  return host_setting.empty() ? machine() : "=" + host_setting;
}

Introduction Introduction::of_this_process(int size, const std::string& socket) {
  constexpr std::size_t kMaxHostBytes = 128;
  Introduction own;
  own.version = switchyard::version();
  own.boot_id = first_line("/proc/sys/kernel/random/boot_id");
  own.network = network_namespace();
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  own.host = host.data();
  own.host_setting = setting("SWITCHYARD_HOST_ID").text;
  const bool is_line = own.host_setting.find('\n') == own.host_setting.npos;
  require(is_line && own.host_setting.size() <= kMaxHostBytes, Errc::kInvalidArgument,
          "setting SWITCHYARD_HOST_ID has {} characters{}, must be one line of at most {}",
          own.host_setting.size(), is_line ? "" : " on several lines", kMaxHostBytes);
  own.socket = socket;
  own.nonce = make_secret();
  own.size = size;
  return own;
}

std::string Introduction::text() const {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", version, boot_id, network, host,
                     host_setting, socket, nonce, size);
}

Introduction Introduction::parse(const std::string& text) {
  std::istringstream lines(text);
  Introduction peer;
  for (std::string* field : {&peer.version, &peer.boot_id, &peer.network, &peer.host,
                             &peer.host_setting, &peer.socket, &peer.nonce}) {
    std::getline(lines, *field);
  }
  lines >> peer.size;
  require(!lines.fail(), Errc::kSystem, "group: the store has a text that no rank wrote: \"{}\"",
          text.substr(0, 64));
  return peer;
}

void require_one_job(const std::vector<Introduction>& ranks) {
  const Introduction& first = ranks[0];
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const Introduction& other = ranks[rank];
    require(other.size == first.size, Errc::kInvalidArgument,
            "group: rank 0 says that there are {} ranks, but rank {} says {}", first.size, rank,
            other.size);
    require(other.version == first.version, Errc::kInvalidArgument,
            "group: rank 0 has version {} of the library, but rank {} has {}", first.version, rank,
            other.version);
  }
}

void require_one_host(const std::vector<Introduction>& ranks) {
  const Introduction& first = ranks[0];
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const Introduction& other = ranks[rank];
    require(other.boot_id == first.boot_id && other.host_setting == first.host_setting,
            Errc::kNotSupported,
            "group: rank 0 runs on host {}, but rank {} on host {}; engine \"shm\" serves ranks of "
            "one host, engine \"mpi\" those of several",
            first.host_name(), rank, other.host_name());
    const bool is_one_network =
        other.network == first.network || other.network.empty() || first.network.empty();
    require(is_one_network, Errc::kNotSupported,
            "group: ranks 0 and {} of host {} are in different network namespaces, so they cannot "
            "share memory; give their containers one, or leave engine and SWITCHYARD_HOST_ID unset "
            "to have two hosts",
            rank, first.host_name());
  }
}

std::vector<int> hosts_of(const std::vector<Introduction>& ranks) {
  std::vector<std::string> seen;
  std::vector<int> hosts;
  for (const Introduction& rank : ranks) {
    const auto found = std::find(seen.begin(), seen.end(), rank.host_id());
    hosts.push_back(static_cast<int>(found - seen.begin()));
    if (found == seen.end()) seen.push_back(rank.host_id());
  }
  return hosts;
}

void fail_with_peer(int rank, int peer, const Error& error) {
  if (error.code() == Errc::kPeerLost) {
    fail(Errc::kPeerLost, "group: rank {} was lost ({}) while rank {} waited in set-up", peer,
         error.what(), rank);
  }
  if (error.code() == Errc::kTimeout) {
    fail(Errc::kTimeout, "group: rank {} does not answer ({}) while rank {} waits in set-up", peer,
         error.what(), rank);
  }
  throw error;
}

std::vector<PeerLink> connect_mesh(int rank, const std::vector<Introduction>& ranks,
                                   const Fd& listener, const Deadline& deadline,
                                   const std::function<void()>& check) {
  const int size = static_cast<int>(ranks.size());
  std::vector<PeerLink> links(ranks.size());
  for (int peer = 0; peer < rank; ++peer) {
    links[static_cast<std::size_t>(peer)] =
        with_peer(rank, peer, [&] { return call_rank(rank, peer, ranks, deadline); });
  }
  Acceptor acceptor(rank, size, ranks[0].nonce, listener, links);
  for (;;) {
    const std::vector<std::int32_t> missing = acceptor.missing_ranks();
    if (missing.empty()) return links;
    check();
    require(!deadline.expired(), Errc::kTimeout,
            "group: no connection from rank{} {} within the timeout (rank {} of {})",
            missing.size() == 1 ? "" : "s", format_ranges(missing), rank, size);
    acceptor.turn();
  }
}

}  // namespace switchyard
