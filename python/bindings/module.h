// SPDX-License-Identifier: Apache-2.0
//
// module.h: what each file of bindings adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace switchyard::python {

namespace nb = nanobind;

void bind_group(nb::module_& m);
void bind_quantize(nb::module_& m);
void bind_exchange(nb::module_& m);

}  // namespace switchyard::python
