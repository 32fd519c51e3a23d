// SPDX-License-Identifier: Apache-2.0
//
// module.h: what each file of bindings adds to the module.
#pragma once

#include <string>

#include <nanobind/nanobind.h>

namespace switchyard::python {

namespace nb = nanobind;

/// A signature for nb::sig, which keeps the pointer.
inline const char* sig(const char* name, const char* arguments, const char* result) {
  return (new std::string("def " + std::string(name) + arguments + result))->c_str();
}

void bind_settings(nb::module_& m);
void bind_group(nb::module_& m);
void bind_quantize(nb::module_& m);
void bind_quantize_batched(nb::module_& m);
void bind_exchange(nb::module_& m);
void bind_permute(nb::module_& m);
void bind_reduce(nb::module_& m);
void bind_placement(nb::module_& m);
void bind_expert_placement(nb::module_& m);
void bind_router(nb::module_& m);
void bind_experts(nb::module_& m);
void bind_prepare(nb::module_& m);
void bind_kernel(nb::module_& m);
void bind_quant_config(nb::module_& m);
void bind_layer_config(nb::module_& m);
void bind_compat(nb::module_& m);

}  // namespace switchyard::python
