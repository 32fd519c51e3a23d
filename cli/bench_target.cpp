// SPDX-License-Identifier: Apache-2.0
//
// Chooses the class that measures on a device.

#include "bench_run.h"
#include "device_option.h"
#include "measure/cpu_target.h"
#include "measure/cuda_target.h"

namespace switchyard::cli {

std::unique_ptr<measure::BenchTarget> make_bench_target(const std::string& device,
                                                        const Group& group) {
  require_device("bench", device);
  if (device == "cuda") return measure::make_cuda_target(group);
  return measure::make_cpu_target(group);
}

}  // namespace switchyard::cli
