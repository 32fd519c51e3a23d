// SPDX-License-Identifier: Apache-2.0
//
// The extension module switchyard._native: the C++ interface, thinly. Python code is in
// python/switchyard.

#include "module.h"

#include "switchyard/version.h"

#include "errors.h"
#include "gil.h"
#include "owned.h"
#include "tensors.h"

NB_MODULE(_native, m) {
  using namespace switchyard::python;
  nb::set_leak_warnings(false);  // objects of module globals outlive the module
  count_forks();
  bind_gil(m);
  bind_errors(m);
  bind_tensors(m);
  bind_settings(m);
  bind_quantize(m);
  bind_quantize_batched(m);
  bind_group(m);
  bind_exchange(m);
  bind_permute(m);
  bind_reduce(m);
  bind_placement(m);
  bind_expert_placement(m);
  bind_router(m);
  bind_experts(m);
  bind_prepare(m);
  bind_kernel(m);
  bind_quant_config(m);
  bind_layer_config(m);
  bind_compat(m);
  m.def("version", &switchyard::version);
  m.def("build_summary", &switchyard::build_summary,
        "One line for reports: version, compiler, optional parts.");
}
