// SPDX-License-Identifier: Apache-2.0
//
// cuda_target.h: measures Exchange. What needs CUDA itself is behind DeviceMeter.
#pragma once

#include <cstdint>
#include <memory>

#include "switchyard/group.h"

#include "device/device_meter.h"
#include "measure/bench_target.h"

namespace switchyard::measure {

/// Collective. Rank r uses GPU r mod the number of GPUs. Errors: kNotAvailable.
///
/// Times are GPU times between events around operations that are all enqueued before one word
/// releases every GPU. The floor: see cuda_floor.h.
std::unique_ptr<BenchTarget> make_cuda_target(const Group& group);

/// Collective. Measures Operation::kLayer: one prepare/finalize class and exact experts with random
/// bf16 weights; there is no baseline. The oracle checks a few tokens per rank.
ShapeResult measure_cuda_layer(const Group& group, DeviceMeter& meter, const BenchShape& shape,
                               const std::function<void()>& tick);

/// Returns the approximate bytes of GPU memory that measuring `shape` needs per rank.
std::int64_t cuda_bytes_needed(const BenchShape& shape);

}  // namespace switchyard::measure
