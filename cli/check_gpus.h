// SPDX-License-Identifier: Apache-2.0
//
// check_gpus.h: what `check` must know of GPUs: their names, and how many ranks one of them takes.
#pragma once

#include <string>
#include <vector>

#include "conformance/check_case.h"

namespace switchyard::cli {

/// Errors: kNotAvailable.
std::vector<std::string> names_of_gpus();

/// Marks the cases between GPUs that would crowd too many ranks on one: their kernels wait for each
/// other and take turns.
void skip_crowded(std::vector<conformance::CheckCase>& cases, int num_gpus);

}  // namespace switchyard::cli
