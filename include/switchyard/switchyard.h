// SPDX-License-Identifier: Apache-2.0
//
// switchyard.h: the whole library in one include. Calls shaped like DeepEP's and FlashInfer's are a
// library of their own: switchyard/compat/.
#pragma once

#include "switchyard/activation.h"
#include "switchyard/all2all_backend.h"
#include "switchyard/device.h"
#include "switchyard/dtype.h"
#include "switchyard/eplb.h"
#include "switchyard/error.h"
#include "switchyard/exchange.h"
#include "switchyard/exchange_config.h"
#include "switchyard/exchange_types.h"
#include "switchyard/expert_placement.h"
#include "switchyard/expert_rows.h"
#include "switchyard/experts.h"
#include "switchyard/experts_factory.h"
#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/group_from_mpi.h"
#include "switchyard/group_shape.h"
#include "switchyard/layout.h"
#include "switchyard/log.h"
#include "switchyard/micro_batches.h"
#include "switchyard/modular_kernel.h"
#include "switchyard/moe_config.h"
#include "switchyard/parallel_config.h"
#include "switchyard/permute.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/prepare_finalize_factory.h"
#include "switchyard/quant.h"
#include "switchyard/quant_config.h"
#include "switchyard/quant_config_options.h"
#include "switchyard/quant_dtype.h"
#include "switchyard/quantize_batched.h"
#include "switchyard/quantize_input.h"
#include "switchyard/router.h"
#include "switchyard/scale_layout.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"
#include "switchyard/token_counts.h"
#include "switchyard/version.h"
#include "switchyard/weight_and_reduce.h"

/// The library: classes, and the functions that belong to none.
namespace switchyard {}
