// SPDX-License-Identifier: Apache-2.0
//
// Explores every interleaving of a few ranks that run the exchange's operations over real
// CallLedgers and a model of their windows. A cell of memory remembers the call that wrote it; a
// reader that finds another call has detected a slot set that was reused too early.
//
// A program is a sequence of steps "start operation i" and "finish operation i". A dispatch is
// written to the rank's own window and read by every peer; a combine is written to every peer's
// window and read there. Both use the same bytes of a slot set, as in WindowLayout.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "plan/call_ledger.h"
#include "support/errors.h"

namespace switchyard {
namespace {

struct Operation {
  bool is_dispatch = true;
  bool writes = true;  // false: T = 0, or nothing for any peer; header and report only
  // false: nothing for this rank, or a dispatch that every rank refused after its headers. A
  // combine then waits for nobody.
  bool reads = true;
};

struct Step {
  bool is_start;
  std::uint64_t call;
  Operation operation;
};
using Program = std::vector<Step>;

struct Rules {
  int ledger_sets = 2;        // n of the rule
  int memory_sets = 2;        // slot sets that really exist
  bool waits_for_all = true;  // for every peer, not only the one written to
};

struct Rank {
  CallLedger ledger{2};
  std::size_t step = 0;
  int micro = 0;  // progress within the step
  std::uint64_t consumed = 0;
};

class Explorer {
 public:
  Explorer(std::vector<Program> programs, Rules rules)
      : programs_(std::move(programs)),
        rules_(rules),
        num_ranks_(static_cast<int>(programs_.size())) {}

  // True when some interleaving reads a cell written by the wrong call.
  bool finds_overwrite() {
    State start;
    start.ranks.assign(programs_.size(), Rank{CallLedger(rules_.ledger_sets)});
    const auto cells = static_cast<std::size_t>(num_ranks_ * rules_.memory_sets * num_ranks_);
    start.memory.assign(cells, 0);
    start.headers.assign(cells, 0);
    explore(start);
    return overwritten_;
  }
  int num_deadlocks() const { return deadlocks_; }
  int num_completed() const { return completed_; }
  std::size_t num_states() const { return seen_.size(); }

 private:
  struct State {
    std::vector<Rank> ranks;
    std::vector<std::uint64_t> memory;   // [owner][set][column]
    std::vector<std::uint64_t> headers;  // [owner][set][writer]
  };

  std::size_t cell(int owner, std::uint64_t call, int column) const {
    const int set = static_cast<int>(call % static_cast<std::uint64_t>(rules_.memory_sets));
    return static_cast<std::size_t>((owner * rules_.memory_sets + set) * num_ranks_ + column);
  }

  bool writes_in(int rank, std::uint64_t call) const {
    const Program& program = programs_[static_cast<std::size_t>(rank)];
    return std::any_of(program.begin(), program.end(), [&](const Step& step) {
      return step.call == call && step.operation.writes;
    });
  }

  // Partial sums of one peer may lie where rows for another peer were.
  int partial_column(int writer) const { return (writer + 1) % num_ranks_; }

  bool may_write(const State& state, int r, int peer, std::uint64_t call) const {
    const Rank& rank = state.ranks[static_cast<std::size_t>(r)];
    const std::uint64_t needed = rank.ledger.needed(call);
    for (int p = 0; p < num_ranks_; ++p) {
      if (!rules_.waits_for_all && p != peer) continue;
      if (state.ranks[static_cast<std::size_t>(p)].consumed < needed) return false;
    }
    return true;
  }

  // Performs one atomic action of rank r. Returns false when it must wait.
  bool advance(State& state, int r) {
    Rank& rank = state.ranks[static_cast<std::size_t>(r)];
    const Step& step = programs_[static_cast<std::size_t>(r)][rank.step];
    const bool done = step.is_start ? start(state, r, step) : finish(state, r, step);
    return done;
  }

  // Start: begin; then for each peer write (after the wait) and announce.
  bool start(State& state, int r, const Step& step) {
    Rank& rank = state.ranks[static_cast<std::size_t>(r)];
    if (rank.micro == 0) {
      rank.ledger.begin("test");
      ++rank.micro;
      return true;
    }
    const int peer = (rank.micro - 1) / 2;
    if (peer == num_ranks_) {
      ++rank.step;
      rank.micro = 0;
      return true;
    }
    const bool writes = (rank.micro - 1) % 2 == 0;
    const int owner = step.operation.is_dispatch ? r : peer;
    if (writes) {
      if (!may_write(state, r, peer, step.call)) return false;
      const int column = step.operation.is_dispatch ? peer : partial_column(r);
      if (step.operation.writes) state.memory[cell(owner, step.call, column)] = step.call;
    } else {
      const int writer = step.operation.is_dispatch ? peer : r;
      state.headers[cell(owner, step.call, writer)] = step.call;
    }
    ++rank.micro;
    return true;
  }

  // Finish: for each peer wait for its announcement, then read; at the end report.
  bool finish(State& state, int r, const Step& step) {
    Rank& rank = state.ranks[static_cast<std::size_t>(r)];
    const int peer = rank.micro / 2;
    if (peer == num_ranks_) {
      rank.ledger.finish(step.call);
      rank.consumed = rank.ledger.consumed();
      ++rank.step;
      rank.micro = 0;
      return true;
    }
    const int owner = step.operation.is_dispatch ? peer : r;
    const bool reads = step.operation.reads && writes_in(peer, step.call);
    if (rank.micro % 2 == 0) {
      const int writer = step.operation.is_dispatch ? r : peer;
      const bool waits = step.operation.is_dispatch || reads;
      if (waits && state.headers[cell(owner, step.call, writer)] != step.call) return false;
    } else if (reads) {
      const int column = step.operation.is_dispatch ? r : partial_column(peer);
      if (state.memory[cell(owner, step.call, column)] != step.call) overwritten_ = true;
    }
    ++rank.micro;
    return true;
  }

  static std::string key(const State& state) {
    std::string text;
    for (const Rank& rank : state.ranks) {
      text += std::to_string(rank.step) + "." + std::to_string(rank.micro) + "." +
              std::to_string(rank.consumed) + "." + std::to_string(rank.ledger.consumed()) + " ";
    }
    for (const std::uint64_t value : state.memory) text += std::to_string(value) + ",";
    for (const std::uint64_t value : state.headers) text += std::to_string(value) + ",";
    return text;
  }

  void explore(const State& first) {
    std::vector<State> stack{first};
    while (!stack.empty()) {
      const State state = stack.back();
      stack.pop_back();
      if (!seen_.insert(key(state)).second) continue;
      bool moved = false;
      bool all_done = true;
      for (int r = 0; r < num_ranks_; ++r) {
        const auto i = static_cast<std::size_t>(r);
        if (state.ranks[i].step == programs_[i].size()) continue;
        all_done = false;
        State next = state;
        if (!advance(next, r)) continue;
        moved = true;
        stack.push_back(std::move(next));
      }
      if (all_done) ++completed_;
      if (!moved && !all_done) ++deadlocks_;
    }
  }

  std::vector<Program> programs_;
  Rules rules_;
  int num_ranks_;
  std::set<std::string> seen_;
  bool overwritten_ = false;
  int deadlocks_ = 0;
  int completed_ = 0;
};

using Operations = std::vector<Operation>;

// S1 R1 S2 R2 ...: blocking calls.
Program blocking(const Operations& operations) {
  Program program;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    program.push_back({true, i + 1, operations[i]});
    program.push_back({false, i + 1, operations[i]});
  }
  return program;
}

// S1 S2 R1 R2 ...: two outstanding operations; `swapped` receives each pair in reverse order.
Program split(const Operations& operations, bool swapped) {
  Program program;
  for (std::size_t i = 0; i + 1 < operations.size(); i += 2) {
    const std::size_t first = swapped ? i + 1 : i;
    const std::size_t second = swapped ? i : i + 1;
    program.push_back({true, i + 1, operations[i]});
    program.push_back({true, i + 2, operations[i + 1]});
    program.push_back({false, first + 1, operations[first]});
    program.push_back({false, second + 1, operations[second]});
  }
  return program;
}

constexpr Operation kDispatch{true};
constexpr Operation kCombine{false};
constexpr Operation kRefused{true, true, false};

// Six operations each: layer after layer, released dispatches, micro-batches, empty operations,
// combines of reopened handles, dispatches that ranks refuse after their headers. A dispatch with
// kept routing counts as one; returned weights share memory with its weights, as rows do with rows.
std::vector<Operations> sequences() {
  constexpr Operation kNothingSent{true, false, false};
  constexpr Operation kNothingReturned{false, false, false};
  return {
      {kDispatch, kCombine, kDispatch, kCombine, kDispatch, kCombine},
      {kDispatch, kDispatch, kDispatch, kDispatch, kDispatch, kDispatch},
      {kDispatch, kDispatch, kCombine, kCombine, kDispatch, kDispatch},
      {kDispatch, kNothingReturned, kNothingSent, kCombine, kDispatch, kCombine},
      {kNothingSent, kNothingReturned, kDispatch, kNothingReturned, kDispatch, kCombine},
      {kDispatch, kCombine, kCombine, kCombine, kDispatch, kCombine},
      {kRefused, kRefused, kDispatch, kCombine, kRefused, kDispatch},
      {kNothingReturned, kNothingReturned, kNothingReturned, kCombine, kDispatch, kCombine},
  };
}

// The operations of two ranks when only rank 1 has tokens.
std::vector<Operations> one_sided(const Operations& operations) {
  std::vector<Operations> ranks(2);
  for (const Operation& operation : operations) {
    const bool is_dispatch = operation.is_dispatch;
    ranks[0].push_back({is_dispatch, !is_dispatch, is_dispatch});
    ranks[1].push_back({is_dispatch, is_dispatch, !is_dispatch});
  }
  return ranks;
}

TEST(EpochInterleavingTest, TwoSetsServeBlockingCalls) {
  for (const Operations& operations : sequences()) {
    Explorer explorer({blocking(operations), blocking(operations)}, {2, 2, true});
    EXPECT_FALSE(explorer.finds_overwrite());
    EXPECT_EQ(explorer.num_deadlocks(), 0);
    EXPECT_GT(explorer.num_completed(), 0);
    EXPECT_GT(explorer.num_states(), 100u);
  }
}

TEST(EpochInterleavingTest, ThreeSetsServeTwoOutstandingOperations) {
  for (const Operations& operations : sequences()) {
    for (const Program& other :
         {split(operations, false), split(operations, true), blocking(operations)}) {
      Explorer explorer({split(operations, false), other}, {3, 3, true});
      EXPECT_FALSE(explorer.finds_overwrite());
      EXPECT_EQ(explorer.num_deadlocks(), 0);
      EXPECT_GT(explorer.num_completed(), 0);
    }
  }
}

// A rank without tokens waits for nobody in its combines and may be far ahead or behind.
TEST(EpochInterleavingTest, ARankWithoutTokensOverwritesNothing) {
  for (const Operations& operations : sequences()) {
    const std::vector<Operations> ranks = one_sided(operations);
    Explorer calls({blocking(ranks[0]), blocking(ranks[1])}, {2, 2, true});
    Explorer pairs({split(ranks[0], true), split(ranks[1], false)}, {3, 3, true});
    for (Explorer* explorer : {&calls, &pairs}) {
      EXPECT_FALSE(explorer->finds_overwrite());
      EXPECT_EQ(explorer->num_deadlocks(), 0);
      EXPECT_GT(explorer->num_completed(), 0);
    }
  }
  const std::vector<Operations> ranks = one_sided(sequences()[5]);
  EXPECT_TRUE(Explorer({blocking(ranks[0]), blocking(ranks[1])}, {3, 1, true}).finds_overwrite());
}

// With one slot set fewer than the rule requires, some interleaving must read rows of a later
// operation. Consecutive dispatches show it; alternating operations hide it by their own order.
TEST(EpochInterleavingTest, OneSetFewerIsCaught) {
  const Operations dispatches = sequences()[1];
  EXPECT_TRUE(
      Explorer({blocking(dispatches), blocking(dispatches)}, {2, 1, true}).finds_overwrite());
  EXPECT_TRUE(Explorer({split(dispatches, false), split(dispatches, true)}, {3, 2, true})
                  .finds_overwrite());
}

// A combine writes into the owner's window, where a third rank may still read the owner's rows of
// an earlier dispatch. The negative test waits for the owner alone and must fail.
TEST(EpochInterleavingTest, ThreeRanksMustWaitForEveryPeer) {
  const std::vector<Program> programs(3, split({kDispatch, kDispatch, kCombine, kCombine}, false));
  Explorer all(programs, {3, 3, true});
  EXPECT_FALSE(all.finds_overwrite());
  EXPECT_EQ(all.num_deadlocks(), 0);
  EXPECT_GT(all.num_completed(), 0);
  EXPECT_TRUE(Explorer(programs, {3, 3, false}).finds_overwrite());
}

TEST(EpochLedgerTest, OneUnreceivedOperationTooManyIsAnError) {
  CallLedger ledger(3);
  EXPECT_EQ(ledger.begin("dispatch"), 1u);
  EXPECT_EQ(ledger.begin("dispatch"), 2u);
  EXPECT_EQ(ledger.consumed(), 0u);
  ledger.finish(2);
  EXPECT_EQ(ledger.consumed(), 0u);
  EXPECT_EQ(ledger.begin("combine"), 3u);
  test::expect_invalid(
      "dispatch: call 1 was sent but not received, it must be before call 4; receive it "
      "first or raise max_in_flight",
      [&] { ledger.begin("dispatch"); });
  ledger.finish(1);
  EXPECT_EQ(ledger.consumed(), 2u);
  EXPECT_EQ(ledger.begin("dispatch"), 4u);
}

}  // namespace
}  // namespace switchyard
