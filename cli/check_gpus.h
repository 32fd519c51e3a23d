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

/// Marks the cases between GPUs that would crowd too many ranks on one. Kernels of threads must run
/// at once: a GPU takes work from few streams at a time. Those of processes take turns of
/// milliseconds.
void skip_crowded(std::vector<conformance::CheckCase>& cases, int num_gpus);

}  // namespace switchyard::cli
