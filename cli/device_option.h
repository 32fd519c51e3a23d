// SPDX-License-Identifier: Apache-2.0
//
// device_option.h: the option --device; a verb that asks for GPUs learns at once why there are
// none.
#pragma once

#include <string>

namespace switchyard::cli {

/// Does nothing for "cpu". Errors: kNotAvailable with the reason.
void require_device(const std::string& verb, const std::string& device);

/// Call this before the first use of CUDA; it affects this process and the ranks it starts. Ranks
/// that are threads and share a GPU need all kernels loaded in advance and a hardware queue each.
void prepare_for_shared_gpus();

}  // namespace switchyard::cli
