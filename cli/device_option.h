// SPDX-License-Identifier: Apache-2.0
//
// device_option.h: --device; a verb that is asked for GPUs says at once why there are none.
#pragma once

#include <string>

namespace switchyard::cli {

/// Nothing for "cpu". Errors: kNotAvailable with the reason.
void require_device(const std::string& verb, const std::string& device);

/// Before the first use of CUDA, here and in the ranks that are started. Ranks that are threads and
/// share a GPU must find all kernels loaded, and each its own way to the GPU.
void prepare_for_shared_gpus();

}  // namespace switchyard::cli
