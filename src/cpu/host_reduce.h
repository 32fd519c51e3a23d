// SPDX-License-Identifier: Apache-2.0
//
// host_reduce.h: weight_and_reduce for CPUs; see weight_and_reduce.h.
#pragma once

#include "switchyard/weight_and_reduce.h"

namespace switchyard::host {

TensorView weight_and_reduce(const WeightAndReduce& policy,
                             const WeightAndReduceArguments& arguments, const TensorView& output);

}  // namespace switchyard::host
