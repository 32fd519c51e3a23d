// SPDX-License-Identifier: Apache-2.0
//
// Which class measures on which device.

#include "bench_run.h"
#include "core/fail.h"
#include "device/cuda_module.h"
#include "measure/cpu_target.h"
#include "measure/cuda_target.h"

namespace switchyard::cli {

void check_bench_device(const std::string& device) {
  if (device == "cpu") return;
  const std::string reason = why_no_cuda();
  require(reason.empty(), Errc::kNotAvailable, "bench: --device {}, but there is none: {}", device,
          reason);
}

std::unique_ptr<measure::BenchTarget> make_bench_target(const std::string& device,
                                                        const Group& group) {
  check_bench_device(device);
  if (device == "cuda") return measure::make_cuda_target(group);
  return measure::make_cpu_target(group);
}

}  // namespace switchyard::cli
