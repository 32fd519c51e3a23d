// SPDX-License-Identifier: Apache-2.0
//
// no_onednn_experts.cpp: replaces onednn_experts.cpp in a build without oneDNN.
#include "switchyard/experts.h"

#include "core/fail.h"

namespace switchyard {

std::unique_ptr<Experts> make_onednn_experts(const ExpertWeights&, const ExpertOptions&) {
  fail(Errc::kNotAvailable,
       "make_onednn_experts: this build has no oneDNN; choose \"exact\" experts, or install oneDNN "
       "and "
       "configure with SWITCHYARD_WITH_ONEDNN=ON");
}

}  // namespace switchyard
