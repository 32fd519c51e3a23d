// SPDX-License-Identifier: Apache-2.0
//
// layer_arguments.h: arguments that prepare/finalize objects, kernels and sums share.
#pragma once

#include "switchyard/c/prepare.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/weight_and_reduce.h"

namespace switchyard::capi {

PrepareArguments prepare_arguments_of(const sy_prepare_arguments* arguments);

}  // namespace switchyard::capi
