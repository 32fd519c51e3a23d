// SPDX-License-Identifier: Apache-2.0
//
// What other processes send: to the store's server, to its clients, in a store's file, and as the
// words by which ranks meet.

#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "switchyard/log.h"

#include "engine/mesh.h"
#include "fuzz/entries.h"
#include "fuzz/promises.h"
#include "support/temp_folder.h"
#include "transport/file_store.h"
#include "transport/socket_store.h"
#include "transport/store_server.h"
#include "transport/store_session.h"
#include "transport/stream_socket.h"

namespace switchyard::fuzz {
namespace {

namespace protocol = store_protocol;

constexpr std::int64_t kTimeoutMs = 5000;

Address own_address() {
  return Address::parse("unix:@switchyard-fuzz-" + std::to_string(getpid()));
}

// The peer may close at any time.
void send_or_not(const Fd& socket, std::string_view bytes) {
  only_errors({Errc::kPeerLost, Errc::kSystem, Errc::kTimeout}, [&] {
    send_all(socket, std::as_bytes(std::span(bytes)), Deadline::after_ms(kTimeoutMs));
  });
}

void decode(std::string_view bytes) {
  protocol::FrameBuffer frames;
  for (std::size_t at = 0; at < bytes.size(); at += 7) frames.append(bytes.substr(at, 7));
  while (!frames.is_oversized(protocol::kMaxFrameBytes)) {
    const auto payload = frames.pop_frame();
    if (!payload) return;
    const auto request = protocol::decode_request(*payload);
    if (request) check(protocol::encode(*request).substr(4) == *payload);
    const auto reply = protocol::decode_reply(*payload);
    if (reply) check(protocol::encode(*reply).substr(4) == *payload);
  }
}

}  // namespace

// The first byte says whether the client is a known one. Whatever it sends, others are served.
void store_server(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  set_log_level(LogLevel::kOff);
  const std::string_view bytes = text_of(data + 1, size - 1);
  decode(bytes);
  const Address address = own_address();
  const auto server = StoreServer::start(address, "");
  check(server != nullptr);
  std::optional<Fd> stranger;
  std::optional<StoreConnection> known;
  if (data[0] % 2 == 0) {
    known.emplace(address, "", kTimeoutMs);
  } else {
    stranger = connect_to(address, Deadline::after_ms(kTimeoutMs));
    check(stranger.has_value());
  }
  send_or_not(known ? known->socket() : *stranger, bytes);
  SocketStore store(address, "", kTimeoutMs);
  store.set("a key that nobody else has", "value");
  check(store.get("a key that nobody else has", Deadline::after_ms(kTimeoutMs)) == "value");
}

// The first byte says whether the server shakes hands before it sends the rest.
void store_client(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const Address address = own_address();
  std::vector<Fd> listeners = listen_on(address);
  const std::jthread server([&] {
    auto socket = accept_one(listeners.at(0), Deadline::after_ms(kTimeoutMs));
    listeners.clear();  // a client that is dropped comes again, and finds nobody
    if (!socket) return;
    StoreSession session(*std::move(socket), "the client");
    while (data[0] % 2 == 0 && !session.is_known() && !session.is_gone()) {
      if (!wait_readable(session.socket(), Deadline::after_ms(kTimeoutMs))) return;
      session.receive();
      (void)session.next_request("");
    }
    send_or_not(session.socket(), text_of(data + 1, size - 1));
  });
  only_errors(
      {Errc::kSystem, Errc::kTimeout, Errc::kPeerLost, Errc::kInvalidArgument, Errc::kOutOfMemory},
      [&] {
        SocketStore store(address, "", kTimeoutMs, true);
        (void)store.get("key", Deadline::after_ms(0));
        store.set("key", "value");
        (void)store.get("key", Deadline::after_ms(0));
      });
}

void store_file(const std::uint8_t* data, std::size_t size) {
  static const test::TempFolder folder;
  const std::string path = folder.write("store", std::string(text_of(data, size)));
  only_errors({Errc::kInvalidArgument, Errc::kSystem}, [&] {
    FileStore store(path, kTimeoutMs);
    (void)store.get("key", Deadline::after_ms(0));
    store.set("key", "value");
    check(store.get("key", Deadline::after_ms(0)) == "value");
    FileStore other(path, kTimeoutMs);
    check(other.get("key", Deadline::after_ms(0)) == "value");
  });
}

// An address, and introductions of ranks behind it, each after a byte of zero.
void rendezvous(const std::uint8_t* data, std::size_t size) {
  std::string_view rest = text_of(data, size);
  const std::size_t end = rest.find('\0');
  only_errors({Errc::kInvalidArgument}, [&] {
    const std::string address = Address::parse(rest.substr(0, end)).text();
    check(Address::parse(address).text() == address);
  });
  std::vector<Introduction> ranks;
  while (rest.find('\0') != rest.npos && ranks.size() < 8) {
    rest.remove_prefix(rest.find('\0') + 1);
    only_errors({Errc::kSystem}, [&] {
      ranks.push_back(Introduction::parse(std::string(rest.substr(0, rest.find('\0')))));
    });
  }
  for (const Introduction& rank : ranks) {
    check(Introduction::parse(rank.text()).text() == rank.text());
    only_errors({Errc::kInvalidArgument, Errc::kSystem, Errc::kTimeout}, [&] {
      check(!connect_for_packets("switchyard-fuzz " + rank.socket, Deadline::after_ms(0)));
    });
  }
  if (ranks.empty()) return;
  only_errors({Errc::kInvalidArgument, Errc::kNotSupported}, [&] { require_one_job(ranks); });
}

}  // namespace switchyard::fuzz
