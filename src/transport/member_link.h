// SPDX-License-Identifier: Apache-2.0
//
// member_link.h: a rank's connection to the server of its group, over which it shows that it is
// alive and learns who left, who was lost and why the group ended. A thread of its own sends and
// receives, so all this works while the rank computes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/service_thread.h"
#include "transport/member_protocol.h"
#include "transport/socket.h"
#include "transport/store_connection.h"

namespace switchyard {

class MemberLink {
 public:
  /// Joins over `connection`, which it takes. `silence_ms`: without a sign of life from the other
  /// end for so long, it is lost; equal on all ranks. Errors: kInvalidArgument (another process has
  /// this number), kTimeout, kPeerLost.
  MemberLink(StoreConnection connection, int rank, int size, std::int64_t silence_ms);
  ~MemberLink();  ///< leaves
  MemberLink(const MemberLink&) = delete;
  MemberLink& operator=(const MemberLink&) = delete;

  /// The rank waits for nobody from now on. Called again, or in a forked copy of the process, it
  /// does nothing.
  void leave() noexcept;

  /// As leave, but stays connected, and so learns why the group of the others ended. They learn, as
  /// this rank of them, when it is lost before it is done. Returns when the server knows, or soon
  /// after if it does not answer.
  void leave_but_listen() noexcept;
  /// After leave_but_listen: what happens to this process concerns nobody any more.
  void be_done() noexcept;
  /// The connection has ended: nothing more will be heard.
  bool is_over() const noexcept { return is_over_; }

  int size() const { return static_cast<int>(left_ns_.size()); }
  const Address& server_address() const { return connection_.address(); }
  /// This machine's address, a number, as the server sees it; empty if that is on this machine.
  std::string own_host() const;

  /// Where this rank is; the server learns of it with the next sign of life.
  void enter(const member_protocol::Place& place) noexcept;

  /// Tells the server that this rank is at meeting `number`; has_met once all ranks are.
  void meet(std::uint64_t number) noexcept;
  bool has_met(std::uint64_t number) const noexcept {
    return met_.load(std::memory_order_acquire) >= number;
  }

  /// Ends the group, unless it has ended. Returns when the server has said which cause counts, or
  /// soon after if it does not. True when it is this one.
  bool end(std::uint32_t code, int culprit, const std::string& reason) noexcept;
  bool has_ended() const noexcept { return has_ended_.load(std::memory_order_acquire); }
  /// Valid once has_ended().
  member_protocol::End cause() const;
  /// Calls `action` once the group has ended, or a rank that had left was lost before it was done,
  /// from any thread; at once if it has ended. The last one given counts. It must not use the link.
  void when_ended(std::function<void()> action);

  /// When the rank left, in now_ns(); 0: it has not.
  std::int64_t left_ns(int rank) const noexcept;

  /// The server's answer; nothing when it has none, or does not answer soon. Any thread.
  std::optional<std::string> ask(member_protocol::Question question,
                                 std::uint64_t argument) noexcept;

  /// Moves whenever something of the above has changed; a futex word.
  std::atomic<std::uint32_t>& bell() noexcept { return bell_; }

 private:
  void run();
  void beat();
  void send(store_protocol::Operation operation, std::string value, std::uint32_t id = 0) noexcept;
  void flush() noexcept;
  bool has_unsent() const;
  bool receive();
  void take_received();
  void take_event(std::string_view event);
  void set_cause(const member_protocol::End& end) noexcept;
  void act() noexcept;
  void give_up_server();
  void lose_server(const std::string& reason);
  void ring() noexcept;
  void say_goodbye() noexcept;

  const int rank_;
  const std::int64_t silence_ns_;
  StoreConnection connection_;
  Fd wake_;  // eventfd: something is to be sent, or the thread is to end
  std::atomic<std::uint32_t> bell_ = 0;
  std::atomic<std::uint64_t> met_ = 0;
  std::atomic<bool> has_ended_ = false;
  std::atomic<bool> is_leaving_ = false;
  std::atomic<bool> is_listening_ = false;          // has left, and is not done
  std::atomic<bool> is_over_ = false;               // the connection
  std::vector<std::atomic<std::int64_t>> left_ns_;  // by rank

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string unsent_;
  member_protocol::Place place_;
  member_protocol::End cause_;
  std::uint32_t num_questions_ = 0;
  std::map<std::uint32_t, std::optional<store_protocol::Reply>> answers_;  // to open questions
  std::function<void()> when_ended_;

  store_protocol::FrameBuffer received_;  // of the thread
  std::int64_t heard_ns_ = 0;
  std::int64_t next_beat_ns_ = 0;
  OwnProcess process_;
  std::thread thread_;
};

}  // namespace switchyard
