// SPDX-License-Identifier: Apache-2.0

#include "switchyard/device.h"
#include "switchyard/group.h"

#include "core/fail.h"
#include "device/cuda_module.h"

namespace switchyard {

int num_cuda_devices() { return why_no_cuda().empty() ? cuda_module().device_count() : 0; }

Device default_gpu(const Group& group) {
  const int num_gpus = cuda_module().device_count();
  require(num_gpus > 0, Errc::kNotAvailable,
          "default_gpu: CUDA shows no GPU to this process (rank {} of {})", group.rank(),
          group.size());
  return Device::cuda(group.host_rank() % num_gpus);
}

}  // namespace switchyard
