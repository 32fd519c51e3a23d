// SPDX-License-Identifier: Apache-2.0
//
// Greedy: of some random combinations the one with the most pairs that no earlier one has. When
// none has any, each pair that is still missing is put into random combinations.

#include "conformance/pairwise.h"

#include <algorithm>
#include <cstdint>

#include "core/random.h"

namespace switchyard::conformance {
namespace {

class Pairs {
 public:
  explicit Pairs(const Levels& num_levels)
      : num_factors_(num_levels.size()),
        width_(num_levels.empty() ? 0 : *std::max_element(num_levels.begin(), num_levels.end())),
        seen_(num_factors_ * width_ * num_factors_ * width_, false) {}

  bool has(std::size_t a, std::size_t x, std::size_t b, std::size_t y) const {
    return seen_[index(a, x, b, y)];
  }
  std::size_t num_new(const Levels& levels) const {
    std::size_t count = 0;
    for_each(levels, [&](std::size_t pair) { count += seen_[pair] ? 0u : 1u; });
    return count;
  }
  void add(const Levels& levels) {
    for_each(levels, [&](std::size_t pair) { seen_[pair] = true; });
  }

 private:
  // b < a
  std::size_t index(std::size_t a, std::size_t x, std::size_t b, std::size_t y) const {
    return ((a * width_ + x) * num_factors_ + b) * width_ + y;
  }
  template <typename Visit>
  void for_each(const Levels& levels, Visit visit) const {
    for (std::size_t a = 0; a < num_factors_; ++a) {
      for (std::size_t b = 0; b < a; ++b) visit(index(a, levels[a], b, levels[b]));
    }
  }

  std::size_t num_factors_;
  std::size_t width_;
  std::vector<bool> seen_;
};

class Search {
 public:
  Search(const Levels& num_levels, const MakePossible& make_possible)
      : num_levels_(num_levels), make_possible_(make_possible), pairs_(num_levels) {}

  std::vector<Levels> run() {
    while (add_best()) {
    }
    for (std::size_t a = 0; a < num_levels_.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        for (std::size_t x = 0; x < num_levels_[a]; ++x) {
          for (std::size_t y = 0; y < num_levels_[b]; ++y) add_pair(a, x, b, y);
        }
      }
    }
    return std::move(found_);
  }

 private:
  Levels random_levels() {
    Levels levels(num_levels_.size());
    for (std::size_t f = 0; f < levels.size(); ++f) {
      levels[f] = random_bits(1, counter_++) % num_levels_[f];
    }
    return levels;
  }
  void add(const Levels& levels) {
    pairs_.add(levels);
    found_.push_back(levels);
  }

  bool add_best() {
    constexpr int kCandidates = 100;
    Levels best;
    std::size_t most = 0;
    for (int i = 0; i < kCandidates; ++i) {
      Levels levels = random_levels();
      if (make_possible_) make_possible_(levels);
      const std::size_t count = pairs_.num_new(levels);
      if (count <= most) continue;
      most = count;
      best = std::move(levels);
    }
    if (most > 0) add(best);
    return most > 0;
  }

  void add_pair(std::size_t a, std::size_t x, std::size_t b, std::size_t y) {
    constexpr int kTries = 200;
    for (int i = 0; i < kTries && !pairs_.has(a, x, b, y); ++i) {
      Levels levels = random_levels();
      levels[a] = x;
      levels[b] = y;
      if (make_possible_) make_possible_(levels);
      if (levels[a] == x && levels[b] == y) add(levels);
    }
  }

  const Levels& num_levels_;
  const MakePossible& make_possible_;
  Pairs pairs_;
  std::vector<Levels> found_;
  std::uint64_t counter_ = 0;
};

}  // namespace

std::vector<Levels> cover_pairs(const Levels& num_levels, const MakePossible& make_possible) {
  return Search(num_levels, make_possible).run();
}

}  // namespace switchyard::conformance
