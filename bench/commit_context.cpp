// SPDX-License-Identifier: Apache-2.0
//
// The commit in what Google Benchmark says of a run.

#include <benchmark/benchmark.h>

#include "core/commit.h"

namespace {

[[maybe_unused]] const bool kIsAdded = [] {
  benchmark::AddCustomContext("commit", switchyard::build_commit());
  return true;
}();

}  // namespace
