// SPDX-License-Identifier: Apache-2.0
//
// check_run.h: starts the ranks of all cases and collects the results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "check_result.h"

namespace switchyard::cli {

struct CheckPlan {
  std::vector<conformance::CheckCase> cases;
  std::uint64_t seed = 1;
  std::int64_t timeout_ms = 0;
  bool shows_progress = true;
  std::vector<int> hosts{};  ///< of the ranks of local-hosts; empty: two ranks each
};

/// Errors: kNotAvailable.
std::vector<std::string> names_of_gpus();

/// Marks as skipped the GPU cases that would put too many ranks on one GPU: kernels of ranks that
/// share a GPU wait for each other and are time-sliced.
void skip_crowded(std::vector<conformance::CheckCase>& cases, int num_gpus);

/// Runs every case and returns one result per case. A case that fails does not stop the others.
std::vector<CheckResult> run_plan(const CheckPlan& plan, char** argv);

/// Runs in each process that run_plan started: the cases of this number of ranks, beginning at the
/// first without a result. Returns the exit code.
int run_as_rank(const CheckPlan& plan, const std::string& results);

}  // namespace switchyard::cli
