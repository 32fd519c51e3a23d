// SPDX-License-Identifier: Apache-2.0

#include "core/require_device.h"

#include "core/fail.h"
#include "core/format.h"

namespace switchyard {

void require_device(const char* function, Device device, std::initializer_list<Argument> tensors) {
  for (const Argument& tensor : tensors) {
    if (tensor.view.num_elements() == 0 || tensor.view.device() == device) continue;
    fail(Errc::kInvalidArgument, "{}: {} is {}, which lies on {}, must lie on {}; copy it there",
         function, tensor.name, tensor.view, name_of(tensor.view.device()), name_of(device));
  }
}

void require_stream(const char* function, Device device, Stream stream) {
  require(stream.device() == device, Errc::kInvalidArgument,
          "{}: the stream is of {}, must be of {}", function, name_of(stream.device()),
          name_of(device));
}

}  // namespace switchyard
