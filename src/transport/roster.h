// SPDX-License-Identifier: Apache-2.0
//
// roster.h: who belongs to a group whose ranks share no memory, as its server knows it: who has
// joined, was heard of, has left or was lost, and why the group ended. It sends events and has no
// sockets of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/member_protocol.h"

namespace switchyard {

class Roster {
 public:
  /// `send` takes an event to one rank.
  explicit Roster(std::function<void(int rank, const std::string& event)> send)
      : send_(std::move(send)) {}

  bool is_empty() const { return members_.empty(); }

  /// True once no rank needs the server: each of them has left or was lost, and nobody's end is
  /// awaited; or the group has ended and all were told why.
  bool is_over() const;
  /// True when all ranks have left, and the server is there for those whose end is awaited.
  bool only_awaits_ends() const;

  /// False when the numbers contradict those of an earlier rank, or the rank has joined before.
  bool join(const member_protocol::Join& join, std::int64_t now_ns);
  /// Sends a rank that has joined what happened before it did.
  void greet(int rank) const;
  void beat(int rank, const member_protocol::Place& place, std::int64_t now_ns);
  /// The rank is at meeting `number`; once all ranks are, each learns of it.
  void meet(int rank, std::uint64_t number);
  /// Ends the group; the first cause is kept and sent to all.
  void end(const member_protocol::End& end);
  /// The rank waits for nobody any more: its end is no loss to the group. It gets events as long as
  /// it listens. If its end is awaited, all ranks that are connected learn when it is lost, until
  /// it leaves again without.
  void leave(int rank, bool is_end_awaited);
  /// The rank's connection ended: a loss, unless it had left.
  void lose(int rank);
  /// Sends signs of life, and ends the group when a rank is silent for too long. Call it each
  /// kBeatMs: time in which nobody called does not count as silence.
  void look(std::int64_t now_ns);
  /// What `question` asks of `argument`, a rank or the number of a meeting; nothing if there is no
  /// answer.
  std::optional<std::string> answer(member_protocol::Question question,
                                    std::uint64_t argument) const;

 private:
  struct Member {
    bool is_here = false;  // joined, and neither left nor lost
    bool has_left = false;
    bool is_connected = false;  // gets events; a rank that has left may still listen
    bool is_end_awaited = false;
    std::int64_t heard_ns = 0;
    std::uint64_t met = 0;  // number of its last meeting
    member_protocol::Place place;
  };

  Member* find(int rank);
  bool is_anybody_here() const;
  void lose_awaited(int rank);
  void tell_all(member_protocol::Event event, std::string_view content);

  std::function<void(int rank, const std::string& event)> send_;
  std::vector<Member> members_;  // by rank
  std::int64_t silence_ns_ = 0;
  std::int64_t last_look_ns_ = 0;
  std::uint64_t met_ = 0;  // by all
  bool has_lost_awaited_ = false;
  std::optional<member_protocol::End> end_;
};

}  // namespace switchyard
