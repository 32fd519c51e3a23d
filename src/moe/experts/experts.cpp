// SPDX-License-Identifier: Apache-2.0

#include "switchyard/experts.h"

#include "core/fail.h"

namespace switchyard {

std::unique_ptr<Experts> make_experts(std::string_view name, const ExpertWeights& weights,
                                      const ExpertOptions& options, Device device) {
  if (name == "exact") return make_exact_experts(weights, options, device);
  if (name == "onednn" && device.is_cpu()) return make_onednn_experts(weights, options);
  if (name == "cublas" && device.is_cuda()) return make_cublas_experts(weights, options, device);
  if (name == "cutlass" && device.is_cuda()) return make_cutlass_experts(weights, options, device);
  fail(Errc::kInvalidArgument, "make_experts: experts are \"{}\" on {}, must be {}", name,
       name_of(device),
       device.is_cpu() ? "\"exact\" or \"onednn\"" : "\"exact\", \"cublas\" or \"cutlass\"");
}

}  // namespace switchyard
