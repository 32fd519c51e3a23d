// SPDX-License-Identifier: Apache-2.0
//
// store_loop.h: the thread of a StoreServer, and what it knows. store_accept.cpp lets clients in,
// store_loop.cpp serves them.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/service_thread.h"
#include "transport/roster.h"
#include "transport/store_server.h"
#include "transport/store_session.h"

namespace switchyard {

class StoreServer::Loop {
 public:
  Loop(std::vector<Fd> listeners, Fd wake, std::string secret);
  ~Loop();

  void start();
  void end_when_over();
  void end_when_idle();
  bool keep_serving();
  bool has_ended() const { return has_ended_; }
  bool only_awaits_ends() const { return only_awaits_ends_; }
  std::vector<std::string> met_at() const;

 private:
  enum class Use { kUsed, kEndsWhenIdle, kOver };

  // A get request whose key does not exist yet.
  struct Waiter {
    std::string key;
    std::uint32_t id = 0;
    std::int64_t end_ns = 0;
  };
  struct Client {
    StoreSession session;
    std::vector<Waiter> waiters{};
    int rank = -1;  // of the group whose server this is, once it has joined
  };

  void wake();
  void run();
  void turn();
  bool is_to_end();
  int poll_timeout_ms() const;

  bool may_accept() const;
  void accept_clients(const Fd& listener);
  bool make_room_for_stranger();
  bool drop_stranger(bool is_silent);
  void admit(Fd socket, bool is_turned_away = false);
  bool lend_spare(const Fd& listener);
  bool has_lent() const;
  void take_spares_back();
  void pause_after(int error);
  void warn_of(const std::string& stranger, std::string_view what);
  void remember_where(const Fd& client);

  void receive(Client& client);
  void serve(Client& client, const store_protocol::Request& request);
  void serve_set(Client& client, const store_protocol::Request& request);
  void serve_get(Client& client, const store_protocol::Request& request);
  void serve_join(Client& client, const store_protocol::Request& request);
  void serve_member(Client& client, const store_protocol::Request& request);
  void send_event(int rank, const std::string& event);
  void look_at_members();
  void remove_gone();
  void end_waits();
  void say_goodbye();

  std::vector<Fd> listeners_;
  Fd wake_;                 // eventfd
  std::vector<Fd> spares_;  // given up to tell a client that there is no other descriptor
  std::string secret_;
  std::list<Client> clients_;  // oldest first
  std::size_t max_strangers_;
  std::unordered_map<std::string, std::string> values_;
  std::size_t stored_bytes_ = 0;
  std::int64_t accept_from_ns_ = 0;
  int num_warnings_ = 0;
  int num_pauses_ = 0;
  Roster roster_{[this](int rank, const std::string& event) { send_event(rank, event); }};
  std::int64_t next_look_ns_ = 0;  // at the members
  mutable std::mutex met_mutex_;
  std::set<std::string> met_at_;
  std::atomic<Use> use_ = Use::kUsed;
  std::atomic<bool> is_stopping_ = false;
  std::atomic<bool> ends_when_over_ = false;
  std::atomic<bool> has_ended_ = false;
  std::atomic<bool> only_awaits_ends_ = false;
  OwnProcess process_;
  std::thread thread_;
};

}  // namespace switchyard
