// SPDX-License-Identifier: Apache-2.0
//
// Why slots of a push window may be used again without an acknowledgement (docs/lab/protocols.md):
// every interleaving of a few ranks that dispatch and combine over a model of their windows. The
// tasks of a kernel run in any order; a store to a peer arrives any time after it was issued, also
// after its kernel has ended; reading a slot and emptying it are two steps. A kernel ends when its
// tasks are done, and the next one of the rank follows. Which set of rows a call uses is asked of
// PushLayout; returned rows have one.

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "plan/push_layout.h"

namespace switchyard {
namespace {

constexpr int kRanks = 2;
constexpr int kMaxCalls = 6;
constexpr int kSets = 2;

/// What a call moves: rows of rank a for rank b, and whether it is combined or released.
struct Call {
  bool sends[kRanks][kRanks];
  bool is_combined;
};

struct Rules {
  bool has_two_sets = true;
  bool announces_to_all = true;  ///< else only where rows go
};

enum Kind : int { kAnnouncement, kRow, kReturn, kNumKinds };
enum class Act : std::uint8_t { kSend, kAwait, kRead, kEmpty };

struct Task {
  Act act;
  Kind kind;
  int peer;
  int call;
};

/// Words hold the number of the call that wrote them, from 1; 0: empty.
struct State {
  std::array<std::uint8_t, kRanks> kernel{};
  std::array<std::uint16_t, kRanks> done{};  ///< tasks of the kernel, a bit each
  std::array<std::uint8_t, kNumKinds * kRanks * kRanks * kSets> words{};
  std::array<std::uint8_t, kNumKinds * kRanks * kRanks> under_way{};  ///< a bit for each call

  std::string key() const { return {reinterpret_cast<const char*>(this), sizeof(*this)}; }
};
static_assert(sizeof(State) == 42, "no padding: equal states have equal bytes");

class Explorer {
 public:
  Explorer(std::vector<Call> calls, Rules rules) : calls_(std::move(calls)), rules_(rules) {
    PushShape shape;
    shape.max_tokens = 1;
    shape.hidden = 16;
    shape.num_ranks = kRanks;
    layout_ = make_push_layout(shape);
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int c = 0; c < static_cast<int>(calls_.size()); ++c) {
        add_dispatch(rank, c);
        if (calls_[static_cast<std::size_t>(c)].is_combined) add_combine(rank, c);
      }
    }
  }

  /// Empty, or what some interleaving does.
  std::string violation() {
    add({});
    while (!open_.empty() && found_.empty()) {
      const State state = open_.front();
      open_.pop_front();
      const std::size_t before = num_steps_;
      deliver(state);
      for (int rank = 0; rank < kRanks; ++rank) run(state, rank);
      if (num_steps_ == before && !is_over(state)) found_ = "deadlock";
    }
    return found_;
  }
  std::size_t num_states() const { return seen_.size(); }

 private:
  using Kernel = std::vector<Task>;

  void add_dispatch(int rank, int c) {
    const Call& call = calls_[static_cast<std::size_t>(c)];
    const int peer = 1 - rank;
    const bool gives = call.sends[rank][peer];
    const bool gets = call.sends[peer][rank];
    Kernel kernel;
    if (gives || rules_.announces_to_all) kernel.push_back({Act::kSend, kAnnouncement, peer, c});
    if (gets || rules_.announces_to_all) kernel.push_back({Act::kAwait, kAnnouncement, peer, c});
    if (gives) kernel.push_back({Act::kSend, kRow, peer, c});
    if (gets) add_reading(kernel, kRow, peer, c);
    kernels_[static_cast<std::size_t>(rank)].push_back(kernel);
  }
  void add_combine(int rank, int c) {
    const Call& call = calls_[static_cast<std::size_t>(c)];
    const int peer = 1 - rank;
    Kernel kernel;
    if (call.sends[peer][rank]) kernel.push_back({Act::kSend, kReturn, peer, c});
    if (call.sends[rank][peer]) add_reading(kernel, kReturn, peer, c);
    kernels_[static_cast<std::size_t>(rank)].push_back(kernel);
  }
  static void add_reading(Kernel& kernel, Kind kind, int peer, int c) {
    kernel.push_back({Act::kRead, kind, peer, c});
    kernel.push_back({Act::kEmpty, kind, peer, c});
  }

  std::size_t word(Kind kind, int to, int from, int c) const {
    const bool is_odd =
        kind != kReturn && rules_.has_two_sets && layout_.set(static_cast<std::uint64_t>(c)) != 0;
    return static_cast<std::size_t>(((kind * kRanks + to) * kRanks + from) * kSets) + is_odd;
  }
  static std::size_t path(Kind kind, int to, int from) {
    return static_cast<std::size_t>((kind * kRanks + to) * kRanks + from);
  }
  static std::uint8_t number(int c) { return static_cast<std::uint8_t>(c + 1); }

  void add(const State& state) {
    ++num_steps_;
    if (seen_.insert(state.key()).second) open_.push_back(state);
  }
  void find(const std::string& what) {
    if (found_.empty()) found_ = what;
  }

  void deliver(const State& state) {
    for (int kind = 0; kind < kNumKinds; ++kind) {
      for (int to = 0; to < kRanks; ++to) {
        const int from = 1 - to;
        const std::size_t at = path(static_cast<Kind>(kind), to, from);
        for (int c = 0; c < static_cast<int>(calls_.size()); ++c) {
          if ((state.under_way[at] >> c & 1) == 0) continue;
          State next = state;
          next.under_way[at] = static_cast<std::uint8_t>(next.under_way[at] & ~(1 << c));
          std::uint8_t& slot = next.words[word(static_cast<Kind>(kind), to, from, c)];
          if (kind == kAnnouncement ? slot > number(c) : slot != 0) {
            return find(fmt::format("a word of call {} meets one of call {}", c, slot - 1));
          }
          slot = number(c);
          add(next);
        }
      }
    }
  }

  void run(const State& state, int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::vector<Kernel>& kernels = kernels_[r];
    if (state.kernel[r] == kernels.size()) return;
    const Kernel& kernel = kernels[state.kernel[r]];
    if (state.done[r] == (1u << kernel.size()) - 1) {
      State next = state;
      ++next.kernel[r];
      next.done[r] = 0;
      return add(next);
    }
    for (std::size_t i = 0; i < kernel.size(); ++i) {
      if ((state.done[r] >> i & 1) == 0) try_task(state, rank, kernel[i], i);
    }
  }

  void try_task(const State& state, int rank, const Task& task, std::size_t i) {
    const auto r = static_cast<std::size_t>(rank);
    State next = state;
    next.done[r] = static_cast<std::uint16_t>(next.done[r] | 1u << i);
    if (task.act == Act::kSend) {
      std::uint8_t& calls = next.under_way[path(task.kind, task.peer, rank)];
      calls = static_cast<std::uint8_t>(calls | 1 << task.call);
      return add(next);
    }
    std::uint8_t& slot = next.words[word(task.kind, rank, task.peer, task.call)];
    if (task.act == Act::kAwait) {
      if (slot == number(task.call)) add(next);
      return;
    }
    const bool has_read = i > 0 && (state.done[r] >> (i - 1) & 1) != 0;
    if (task.act == Act::kRead ? slot == 0 : !has_read) return;
    if (slot != number(task.call)) {
      return find(fmt::format("call {} reads or empties a word of call {}", task.call, slot - 1));
    }
    if (task.act == Act::kEmpty) slot = 0;
    add(next);
  }

  bool is_over(const State& state) const {
    for (std::size_t r = 0; r < kRanks; ++r) {
      if (state.kernel[r] != kernels_[r].size()) return false;
    }
    return true;
  }

  std::vector<Call> calls_;
  Rules rules_;
  PushLayout layout_;
  std::array<std::vector<Kernel>, kRanks> kernels_;
  std::unordered_set<std::string> seen_;
  std::deque<State> open_;
  std::size_t num_steps_ = 0;
  std::string found_;
};

constexpr bool kBoth[kRanks][kRanks] = {{false, true}, {true, false}};
constexpr bool kOneWay[kRanks][kRanks] = {{false, true}, {false, false}};
constexpr bool kSilent[kRanks][kRanks] = {};

std::vector<Call> calls_of(int size, const bool (&sends)[kRanks][kRanks], int combined_mask) {
  std::vector<Call> calls;
  for (int c = 0; c < size; ++c) {
    Call call{};
    for (int a = 0; a < kRanks; ++a) {
      for (int b = 0; b < kRanks; ++b) call.sends[a][b] = sends[a][b];
    }
    call.is_combined = (combined_mask >> c & 1) != 0;
    calls.push_back(call);
  }
  return calls;
}

constexpr int kAll = (1 << kMaxCalls) - 1;

TEST(PushReuseTest, TwoSetsSufficeWithoutAcknowledgement) {
  std::vector<Call> late = calls_of(4, kSilent, 0b0101);
  const std::vector<Call> then = calls_of(2, kOneWay, kAll);
  late.insert(late.end(), then.begin(), then.end());
  const std::vector<std::vector<Call>> programs{calls_of(4, kBoth, kAll),   calls_of(5, kBoth, 0),
                                                calls_of(4, kBoth, 0b0110), calls_of(6, kOneWay, 0),
                                                calls_of(6, kOneWay, kAll), late};
  for (const std::vector<Call>& calls : programs) {
    Explorer explorer(calls, {});
    EXPECT_EQ(explorer.violation(), "");
    EXPECT_GT(explorer.num_states(), 100u);
  }
}

TEST(PushReuseTest, OneSetDoesNot) {
  const Rules one_set{.has_two_sets = false};
  EXPECT_NE(Explorer(calls_of(4, kBoth, 0), one_set).violation(), "");
}

// Ranks that send each other nothing drift apart, and a sender outruns its reader.
TEST(PushReuseTest, NorDoAnnouncementsOnlyWhereRowsGo) {
  const Rules rules{.announces_to_all = false};
  EXPECT_NE(Explorer(calls_of(6, kOneWay, 0), rules).violation(), "");
}

}  // namespace
}  // namespace switchyard
