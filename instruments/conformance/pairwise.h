// SPDX-License-Identifier: Apache-2.0
//
// pairwise.h: few combinations of many factors in which every two values of two factors meet.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace switchyard::conformance {

/// A value of each factor, by its number.
using Levels = std::vector<std::size_t>;

/// Changes values that cannot go together; never those of a combination that is possible.
using MakePossible = std::function<void(Levels&)>;

/// Combinations that hold every pair of values that occurs in any possible one. Deterministic. A
/// pair that random search misses 200 times, given its two values, counts as impossible.
///
///   num_levels  how many values each factor has
std::vector<Levels> cover_pairs(const Levels& num_levels, const MakePossible& make_possible = {});

}  // namespace switchyard::conformance
