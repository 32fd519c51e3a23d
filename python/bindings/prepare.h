// SPDX-License-Identifier: Apache-2.0
//
// prepare.h: the arguments of prepare, which ModularKernel takes too.
#pragma once

#include "switchyard/prepare_finalize.h"

#include "tensors.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

/// `function`: for messages.
struct PrepareCall {
  PrepareCall(nb::handle hidden, nb::handle topk_ids, nb::handle topk_weights,
              const nb::kwargs& keywords, const char* function);

  Arrays arrays;
  PrepareArguments arguments;
};

}  // namespace switchyard::python
