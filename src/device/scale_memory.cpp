// SPDX-License-Identifier: Apache-2.0

#include "device/scale_memory.h"

#include "quant/scale_plane.h"

namespace switchyard {

cuda::ScaleMemory memory_of(const TensorView& scales) {
  if (!scales.has_value()) return {};
  const ScalePlane plane = plane_of(scales);
  const bool is_tiles = is_swizzled(scales);
  cuda::ScaleMemory memory{plane.data, 0, plane.row_stride, plane.step,
                           is_tiles ? plane.num_scales : 0};
  if (is_batched(scales)) {
    memory.expert_stride = scales.stride(0);
  } else if (is_tiles) {
    memory.expert_stride = scales.num_elements();
  }
  return memory;
}

}  // namespace switchyard
