// SPDX-License-Identifier: Apache-2.0
//
// require_device.h: every tensor of a call has memory where the call works, and so does its stream.
#pragma once

#include <initializer_list>

#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

struct Argument {
  const char* name;
  const TensorView& view;
};

/// Absent tensors, and those without elements, lie anywhere; all others have an address. Errors:
/// kInvalidArgument, with the tensor's name and both devices.
void require_device(const char* function, Device device, std::initializer_list<Argument> tensors);

/// Errors: kInvalidArgument, with both devices.
void require_stream(const char* function, Device device, Stream stream);

/// The work of a function that only CPUs have.
inline void require_host(const char* function, std::initializer_list<Argument> tensors) {
  require_device(function, Device::cpu(), tensors);
}

}  // namespace switchyard
