// SPDX-License-Identifier: Apache-2.0
//
// gate.h: holds a stream until the host sets a flag, so that all GPUs start together.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace switchyard {

void launch_gate(const std::uint32_t* flag, cudaStream_t stream);

}  // namespace switchyard
