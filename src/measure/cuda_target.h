// SPDX-License-Identifier: Apache-2.0
//
// cuda_target.h: measures Exchange. What needs CUDA itself is behind DeviceMeter.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "switchyard/group.h"

#include "device/device_meter.h"
#include "measure/bench_target.h"

namespace switchyard::measure {

/// Collective. Rank r uses GPU r mod the number of GPUs. Errors: kNotAvailable.
///
/// Times are of the GPU, between events around operations that were all enqueued before one word
/// opened every GPU. Its floor: bytes at the rate of stores to all peers at once, and for a start a
/// word's way to a peer, a launch, and a read and a write of a row.
std::unique_ptr<BenchTarget> make_cuda_target(const Group& group);

/// Collective. The floor by itself.
FloorModel measure_cuda_floor(const Group& group, DeviceMeter& meter, int num_sms);

/// Collective. Operation kLayer: one prepare/finalize class and exact experts with random bf16
/// weights; there is no baseline. The oracle looks at a few tokens of each rank.
ShapeResult measure_cuda_layer(const Group& group, DeviceMeter& meter, const BenchShape& shape,
                               const std::function<void()>& tick);

/// Bytes of one rank's GPU that measuring `shape` takes, about.
std::int64_t cuda_bytes_needed(const BenchShape& shape);

}  // namespace switchyard::measure
