// SPDX-License-Identifier: Apache-2.0
//
// bench_run.h: what each rank does in `bench`.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "switchyard/group.h"

#include "bench_report.h"

namespace switchyard::cli {

/// What measures on a device. Errors: as require_device.
std::unique_ptr<measure::BenchTarget> make_bench_target(const std::string& device,
                                                        const Group& group);

/// Collective. Floors first, then shape after shape. On rank 0 the report is complete and `say`
/// gets the lines of text as they are known; other ranks' is empty.
BenchReport run_bench(const Group& group, const BenchOptions& options,
                      const std::function<void(const std::string&)>& say);

}  // namespace switchyard::cli
