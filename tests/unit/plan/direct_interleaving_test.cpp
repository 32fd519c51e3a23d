// SPDX-License-Identifier: Apache-2.0
//
// Explores every interleaving of a few ranks that dispatch and combine as
// cuda/exchange/direct_dispatch.cuh and direct_combine.cuh do. A cell of memory remembers the call
// that wrote it. A reader that finds another call has read what was stored too early or too late; a
// record that a waiter missed leaves it waiting for ever. Each rule that the reuse arguments name
// can be left out, and then some interleaving must fail.

#include <algorithm>
#include <map>
#include <string>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

namespace switchyard {
namespace {

struct Rules {
  bool waits_for_counts = true;       ///< senders store only when they know all counts
  bool counts_follow_readers = true;  ///< a rank tells counts after what read rows has ended
  bool waits_for_all_senders = true;  ///< the end of a dispatch waits for each sender of a peer
  int num_sender_sets = 2;            ///< of the records of how many senders a rank has
  bool learns_ways_first = true;      ///< nobody reads or stores results before it knows all ways
};

struct Shape {
  int num_ranks = 2;
  int num_senders = 1;
  int num_calls = 3;
  bool combines = true;  ///< false: handles are released, and dispatch follows on dispatch
  bool pushes = false;   ///< rows return to slots of their owners
};

enum class Act : char { kStore, kAwait, kRead };

struct Step {
  Act act;
  std::vector<int> cells;  ///< of one kStore: in no order that anybody may rely on
  int call;
};
using Actor = std::vector<Step>;    // CTAs or warps that run one after another
using Kernel = std::vector<Actor>;  // its actors run side by side; kernels of a rank in order

class Cells {
 public:
  int operator()(const std::string& name, int owner, int a, int b = 0) {
    const std::string key =
        name + std::to_string(owner) + "," + std::to_string(a) + "," + std::to_string(b);
    return numbers_.emplace(key, static_cast<int>(numbers_.size())).first->second;
  }
  std::size_t count() const { return numbers_.size(); }

 private:
  std::map<std::string, int> numbers_;
};

class Program {
 public:
  Program(const Shape& shape, const Rules& rules) : shape_(shape), rules_(rules) {
    for (int rank = 0; rank < shape.num_ranks; ++rank) {
      for (int call = 1; call <= shape.num_calls; ++call) add_call(rank, call);
    }
  }

  const std::vector<std::vector<Kernel>>& kernels() const { return kernels_; }
  std::size_t num_cells() const { return cells_.count(); }

 private:
  template <typename CellOf>
  std::vector<int> for_ranks(CellOf cell_of, int except = -1) {
    std::vector<int> cells;
    for (int q = 0; q < shape_.num_ranks; ++q) {
      if (q != except) cells.push_back(cell_of(q));
    }
    return cells;
  }

  void add_call(int rank, int call) {
    kernels_.resize(static_cast<std::size_t>(shape_.num_ranks));
    std::vector<Kernel>& kernels = kernels_[static_cast<std::size_t>(rank)];
    Kernel dispatch;
    for (int s = 0; s < shape_.num_senders; ++s) {
      const Step counts{Act::kStore, for_ranks([&](int q) { return cells_("count", q, rank, s); }),
                        call};
      Actor sender;
      if (rules_.counts_follow_readers || kernels.empty()) {
        sender.push_back(counts);
      } else {
        kernels.back().push_back({counts});
      }
      add_sends(sender, rank, call, s);
      dispatch.push_back(sender);
    }
    dispatch.push_back(last_cta(rank, call));
    kernels.push_back(dispatch);
    // Experts read what came, and write results in place or before they are pushed.
    Actor experts;
    for (int q = 0; q < shape_.num_ranks; ++q) {
      for (int s = 0; s < shape_.num_senders; ++s) {
        experts.push_back({Act::kRead, {cells_("row", rank, q, s)}, call});
      }
    }
    if (!shape_.pushes) experts.push_back({Act::kStore, {cells_("result", rank, 0)}, call});
    kernels.push_back({experts});
    if (shape_.combines) kernels.push_back(combine(rank, call));
  }

  void add_sends(Actor& sender, int rank, int call, int s) {
    for (int q = 0; rules_.waits_for_counts && q < shape_.num_ranks; ++q) {
      for (int part = 0; q != rank && part < shape_.num_senders; ++part) {
        sender.push_back({Act::kAwait, {cells_("count", rank, q, part)}, call});
      }
    }
    for (int q = 0; q < shape_.num_ranks; ++q) {
      sender.push_back({Act::kStore, {cells_("row", q, rank, s)}, call});
    }
    sender.push_back(
        {Act::kStore, for_ranks([&](int q) { return cells_("flag", q, rank, s); }, rank), call});
  }

  // Says how many senders there are, and waits for those of peers.
  Actor last_cta(int rank, int call) {
    const int set = call % rules_.num_sender_sets;
    Actor last{{Act::kStore,
                for_ranks([&](int q) { return cells_("senders", q, rank, set); }, rank), call}};
    for (int q = 0; q < shape_.num_ranks; ++q) {
      if (q == rank) continue;
      last.push_back({Act::kAwait, {cells_("senders", rank, q, set)}, call});
      const int count = rules_.waits_for_all_senders ? shape_.num_senders : 1;
      for (int s = 0; s < count; ++s) {
        last.push_back({Act::kAwait, {cells_("flag", rank, q, s)}, call});
      }
    }
    return last;
  }

  Kernel combine(int rank, int call) {
    Actor sums{
        {Act::kStore, for_ranks([&](int q) { return cells_("ready", q, rank); }, rank), call}};
    for (int q = 0; rules_.learns_ways_first && q < shape_.num_ranks; ++q) {
      if (q != rank) sums.push_back({Act::kAwait, {cells_("ready", rank, q)}, call});
    }
    Actor pushes = sums;
    for (int q = 0; q < shape_.num_ranks; ++q) {
      if (q == rank) continue;
      if (shape_.pushes) {
        pushes.push_back({Act::kStore, {cells_("slot", q, rank)}, call});
        pushes.push_back({Act::kStore, {cells_("returned", q, rank)}, call});
        sums.push_back({Act::kAwait, {cells_("returned", rank, q)}, call});
      }
      sums.push_back(
          {Act::kRead, {shape_.pushes ? cells_("slot", rank, q) : cells_("result", q, 0)}, call});
    }
    return shape_.pushes ? Kernel{pushes, sums} : Kernel{sums};
  }

  Shape shape_;
  Rules rules_;
  Cells cells_;
  std::vector<std::vector<Kernel>> kernels_;  // by rank
};

struct Outcome {
  bool is_wrong = false;  ///< a reader found another call
  bool hangs = false;
  std::size_t num_states = 0;

  bool is_good() const { return !is_wrong && !hangs && num_states > 0; }
};

class Explorer {
 public:
  explicit Explorer(const Program& program) : program_(program) {
    for (const std::vector<Kernel>& kernels : program.kernels()) {
      std::size_t most = 0;
      for (const Kernel& kernel : kernels) most = std::max(most, kernel.size());
      num_actors_.push_back(most);
      first_of_.push_back(size_);
      size_ += 1 + most;  // the kernel of the rank, and where each of its actors is
    }
    cells_at_ = size_;
    size_ += program.num_cells();
  }

  Outcome run() {
    std::vector<std::string> stack{std::string(size_, '\0')};
    while (!stack.empty() && outcome_.is_good_so_far()) {
      std::string state = std::move(stack.back());
      stack.pop_back();
      if (!seen_.insert(state).second) continue;
      expand(state, stack);
    }
    outcome_.num_states = seen_.size();
    return outcome_;
  }

 private:
  struct Progress : Outcome {
    bool is_good_so_far() const { return !is_wrong && !hangs; }
  };

  void expand(const std::string& state, std::vector<std::string>& stack) {
    bool has_moved = false;
    bool has_ended = true;
    for (std::size_t r = 0; r < num_actors_.size(); ++r) {
      const auto kernel = static_cast<std::size_t>(state[first_of_[r]]);
      const std::vector<Kernel>& kernels = program_.kernels()[r];
      if (kernel == kernels.size()) continue;
      has_ended = false;
      for (std::size_t i = 0; i < kernels[kernel].size(); ++i) {
        std::string next = state;
        if (!advance(next, r, kernels[kernel], i)) continue;
        has_moved = true;
        stack.push_back(std::move(next));
      }
    }
    if (!has_moved && !has_ended) outcome_.hangs = true;
  }

  // False: the actor has ended or must wait.
  bool advance(std::string& state, std::size_t r, const Kernel& kernel, std::size_t i) {
    char& at = state[first_of_[r] + 1 + i];
    if (static_cast<std::size_t>(at) == kernel[i].size()) return false;
    const Step& step = kernel[i][static_cast<std::size_t>(at)];
    for (const int cell : step.cells) {
      char& value = state[cells_at_ + static_cast<std::size_t>(cell)];
      if (step.act == Act::kAwait && value != step.call) return false;
      if (step.act == Act::kRead && value != step.call) outcome_.is_wrong = true;
      if (step.act == Act::kStore) value = static_cast<char>(step.call);
    }
    ++at;
    for (std::size_t k = 0; k < kernel.size(); ++k) {
      if (static_cast<std::size_t>(state[first_of_[r] + 1 + k]) < kernel[k].size()) return true;
    }
    ++state[first_of_[r]];
    std::fill_n(state.begin() + static_cast<std::ptrdiff_t>(first_of_[r]) + 1, num_actors_[r],
                '\0');
    return true;
  }

  const Program& program_;
  std::vector<std::size_t> num_actors_;
  std::vector<std::size_t> first_of_;
  std::size_t cells_at_ = 0;
  std::size_t size_ = 0;
  std::unordered_set<std::string> seen_;
  Progress outcome_;
};

Outcome explore(const Shape& shape, const Rules& rules = {}) {
  const Program program(shape, rules);
  return Explorer(program).run();
}

TEST(DirectInterleavingTest, EveryInterleavingIsRight) {
  for (const bool combines : {true, false}) {
    for (const bool pushes : {false, true}) {
      if (pushes && !combines) continue;
      for (const Shape& shape : {Shape{2, 1, 4}, Shape{2, 2, 2}, Shape{3, 1, 2}}) {
        Shape whole = shape;
        whole.combines = combines;
        whole.pushes = pushes;
        const Outcome outcome = explore(whole);
        EXPECT_TRUE(outcome.is_good())
            << shape.num_ranks << " ranks, combines " << combines << ", pushes " << pushes
            << ": wrong " << outcome.is_wrong << ", hangs " << outcome.hangs;
        EXPECT_GT(outcome.num_states, 100u);
      }
    }
  }
}

// Where combines follow, their announcements say the same.
TEST(DirectInterleavingTest, SendersWaitForCounts) {
  Rules rules;
  rules.waits_for_counts = false;
  EXPECT_TRUE(explore({.combines = false}, rules).is_wrong);
  EXPECT_TRUE(explore({}, rules).is_good());
}

TEST(DirectInterleavingTest, CountsFollowWhatReadsRows) {
  Rules rules;
  rules.counts_follow_readers = false;
  EXPECT_TRUE(explore({.combines = false}, rules).is_wrong);
  EXPECT_TRUE(explore({}, rules).is_good());
}

TEST(DirectInterleavingTest, ADispatchWaitsForEachSender) {
  Rules rules;
  rules.waits_for_all_senders = false;
  EXPECT_TRUE(explore({.num_senders = 2, .num_calls = 2}, rules).is_wrong);
}

TEST(DirectInterleavingTest, RecordsOfSendersNeedTwoSets) {
  Rules rules;
  rules.num_sender_sets = 1;
  EXPECT_FALSE(explore({.combines = false}, rules).is_good());
}

TEST(DirectInterleavingTest, ResultsAreReadWhenTheirWayIsKnown) {
  Rules rules;
  rules.learns_ways_first = false;
  EXPECT_TRUE(explore({.num_calls = 2}, rules).is_wrong);
}

}  // namespace
}  // namespace switchyard
