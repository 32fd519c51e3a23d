// SPDX-License-Identifier: Apache-2.0
//
// prepare.h: the arguments of prepare, which ModularKernel takes too, and where the calls of
// PrepareFinalize are bound.
#pragma once

#include <span>
#include <string_view>

#include "switchyard/prepare_finalize.h"

#include "layer.h"
#include "tensors.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

/// `function`: for messages. `without`: keywords that it does not take.
struct PrepareCall {
  PrepareCall(nb::handle hidden, nb::handle topk_ids, nb::handle topk_weights,
              const nb::kwargs& keywords, const char* function,
              std::span<const std::string_view> without = {});

  Arrays arrays;
  PrepareArguments arguments;
};

/// Prepared, Pending.
void bind_prepare_results(nb::module_& m);
void bind_prepare_calls(nb::class_<PyPrepareFinalize>& type);

}  // namespace switchyard::python
