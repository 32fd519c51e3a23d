// SPDX-License-Identifier: Apache-2.0

#include "switchyard/experts.h"

#include "core/fail.h"

namespace switchyard {

std::unique_ptr<Experts> make_experts(std::string_view name, const ExpertWeights& weights,
                                      const ExpertOptions& options) {
  if (name == "exact") return make_exact_experts(weights, options);
  if (name == "onednn") return make_onednn_experts(weights, options);
  fail(Errc::kInvalidArgument, "make_experts: experts are \"{}\", want \"exact\" or \"onednn\"",
       name);
}

}  // namespace switchyard
