// SPDX-License-Identifier: Apache-2.0

#include "core/require_device.h"

#include "core/fail.h"
#include "core/format.h"

namespace switchyard {

void require_device(const char* function, Device device, std::initializer_list<Argument> tensors) {
  for (const Argument& tensor : tensors) {
    if (tensor.view.num_elements() == 0) continue;
    require(tensor.view.data() != nullptr, Errc::kInvalidArgument,
            "{}: {} is {} at a null pointer, must have memory", function, tensor.name, tensor.view);
    if (tensor.view.device() == device) continue;
    // describe() names the device of GPU memory only.
    fail(Errc::kInvalidArgument, "{}: {} is {}{}, must lie on {}; copy it there", function,
         tensor.name, tensor.view, tensor.view.device().is_cpu() ? " on cpu" : "", name_of(device));
  }
}

void require_stream(const char* function, Device device, Stream stream) {
  require(stream.device() == device, Errc::kInvalidArgument,
          "{}: the stream is of {}, must be of {}", function, name_of(stream.device()),
          name_of(device));
}

}  // namespace switchyard
