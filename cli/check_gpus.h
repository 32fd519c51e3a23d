// SPDX-License-Identifier: Apache-2.0
//
// check_gpus.h: what `check` must know about GPUs: their names, and how many ranks can share one.
#pragma once

#include <string>
#include <vector>

#include "conformance/check_case.h"

namespace switchyard::cli {

/// Errors: kNotAvailable.
std::vector<std::string> names_of_gpus();

/// Marks as skipped the GPU cases that would put too many ranks on one GPU: kernels of ranks that
/// share a GPU wait for each other and are time-sliced.
void skip_crowded(std::vector<conformance::CheckCase>& cases, int num_gpus);

}  // namespace switchyard::cli
