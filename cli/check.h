// SPDX-License-Identifier: Apache-2.0
//
// check.h: the verb `check` compares every engine, layout, class and scheme with the oracle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/check_case.h"

namespace CLI {
class App;
}

namespace switchyard::cli {

struct CheckOptions {
  std::string device = "cpu";
  std::string engine = "all";
  std::string filter;
  std::string ranks_per_host;  ///< "3,1": of local-hosts and of a launcher's ranks; may be empty
  bool quick = false;
  bool list = false;
  std::string json;  ///< a file, or "-" for stdout; empty: no JSON
  std::uint64_t seed = 1;
  std::int64_t timeout_ms = 0;
  std::string results;  ///< hidden option: where a rank that check started writes its results
};

/// Declares the verb and its options.
CLI::App* add_check(CLI::App& app, CheckOptions& options);

/// Returns the exit code: 0, or 1 when a case failed. Ranks that are processes are started with
/// `argv`; the program they run must call check with the same cases.
int check(const CheckOptions& options, char** argv,
          std::vector<conformance::CheckCase> cases = conformance::all_cases());

/// `*` matches any text. A pattern without `*` matches anywhere in the name.
bool matches(const std::string& pattern, const std::string& name);

}  // namespace switchyard::cli
