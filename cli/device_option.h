// SPDX-License-Identifier: Apache-2.0
//
// device_option.h: --device; a verb that is asked for a GPU says at once why there is none.
#pragma once

#include <string>

namespace switchyard::cli {

/// Nothing for "cpu". Errors: kNotAvailable with the reason.
void require_device(const std::string& verb, const std::string& device);

}  // namespace switchyard::cli
