// SPDX-License-Identifier: Apache-2.0
//
// random.h: counter-based random numbers. Value i of a seed does not depend on which rank draws it,
// so inputs are the same for any number of ranks. Mixing: SplitMix64 (Steele et al., 2014).
#pragma once

#include <cmath>
#include <cstdint>

namespace switchyard {

inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t counter) noexcept {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15u + (counter + 1) * 0xD1B54A32D192ED03u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// Uniform in [0, 1), with 53 random bits.
inline double random_uniform(std::uint64_t seed, std::uint64_t counter) noexcept {
  return static_cast<double>(random_bits(seed, counter) >> 11) * 0x1p-53;
}

/// N(0, 1) by the Box-Muller transform.
inline double random_normal(std::uint64_t seed, std::uint64_t counter) noexcept {
  const double u = 1.0 - random_uniform(seed, 2 * counter);
  const double v = random_uniform(seed, 2 * counter + 1);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
}

}  // namespace switchyard
