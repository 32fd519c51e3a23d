// SPDX-License-Identifier: Apache-2.0
//
// check_launched.h: `check` between ranks that mpirun or another launcher started, of one host or
// of several: the cases of the exchange for so many ranks.
#pragma once

#include <vector>

#include "check.h"

namespace switchyard::cli {

/// Collective over the launcher's ranks; rank 0 prints the report. Returns the exit code.
/// Errors: kInvalidArgument, those of Group::from_environment.
int check_launched(const CheckOptions& options);

/// "3,1": the host of each rank, 0, 0, 0, 1. Errors: kInvalidArgument.
std::vector<int> parse_ranks_per_host(const std::string& text);

}  // namespace switchyard::cli
