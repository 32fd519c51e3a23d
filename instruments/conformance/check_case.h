// SPDX-License-Identifier: Apache-2.0
//
// check_case.h: what `switchyard check` tries: named cases, each a call of the library on one or
// more ranks whose result is judged by the oracle.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/group.h"

#include "conformance/compare.h"

namespace switchyard::conformance {

struct CheckCase {
  std::string group;  ///< the table that reports it
  std::string name;   ///< group/..., unique, the same in every run
  std::string row;    ///< its place in the table
  std::string column;
  std::string device = "cpu";  ///< or "cuda"
  std::string engine;          ///< of kPlaces or kApartPlaces; empty: no ranks
  int num_ranks = 0;
  bool is_quick = true;  ///< part of check --quick
  std::string skipped;   ///< why this machine does not run it; empty: it does
  /// Collective over `group`, which is empty without ranks. Every seed is another set of values.
  /// Throws Difference, or the Error of a call that must not fail.
  std::function<Agreement(const Group& group, std::uint64_t seed)> body;
};

/// Everything, in the order in which it is run: cases without ranks first, then by engine and
/// number of ranks.
std::vector<CheckCase> all_cases();

/// The exchange between ranks that a launcher started: cases for so many, over `engine`, a name
/// that lives as long as the program.
std::vector<CheckCase> launched_cases(const char* engine, int num_ranks);

/// Where cases without ranks run: each of them is tried on both.
inline constexpr std::array<const char*, 2> kDevices{"cpu", "cuda"};

/// What a device adds to the name and the column of a case.
inline std::string name_part(const std::string& device) {
  return device == "cpu" ? "" : device + "/";
}
inline std::string column_part(const std::string& device) {
  return device == "cpu" ? "" : device + " ";
}

/// Where the ranks of a case are.
struct Place {
  const char* device;
  const char* engine;

  bool has_gpus() const { return device == std::string_view("cuda"); }
  bool is_local() const { return engine == std::string_view("local"); }
  std::string name() const { return std::string(has_gpus() ? "cuda/" : "") + engine; }
};
inline constexpr std::array<Place, 4> kPlaces{
    {{"cpu", "local"}, {"cpu", "shm"}, {"cuda", "local"}, {"cuda", "shm"}}};

/// Threads that exchange messages only, or, in hosts of two, with windows inside each host.
inline constexpr std::array<Place, 2> kApartPlaces{
    {{"cpu", "local-messages"}, {"cpu", "local-hosts"}}};

// ---- the groups --------------------------------------------------------------------------------

using Cases = std::vector<CheckCase>;

void add_quantize_cases(Cases& cases);   ///< every scheme, dtype, scale layout
void add_batched_cases(Cases& cases);    ///< rows by expert, and the activation between GEMMs
void add_permute_cases(Cases& cases);    ///< rows by expert and back
void add_reduce_cases(Cases& cases);     ///< weights and sums of rows that come back
void add_config_cases(Cases& cases);     ///< tables of the configuration
void add_placement_cases(Cases& cases);  ///< which rank holds which expert
void add_exchange_cases(Cases& cases);   ///< dispatch and combine
void add_class_cases(Cases& cases);      ///< prepare/finalize around exact experts
void add_layer_cases(Cases& cases);      ///< layers of published sizes, by tolerance

}  // namespace switchyard::conformance
