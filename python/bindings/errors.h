// SPDX-License-Identifier: Apache-2.0
//
// errors.h: C++ errors become Python exceptions, and what Python callbacks raise becomes C++ errors
// and, behind the library, Python exceptions again.
#pragma once

#include <stdexcept>
#include <utility>

#include "gil.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

/// What a callback raised, on its way through the library. The Python exception is kept for the
/// thread and is raised, or becomes the cause of the Error that the library makes of this.
class CallbackError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Keeps `raised` for this thread and throws a CallbackError. With the GIL.
[[noreturn]] void throw_callback_error(nb::python_error& raised);

/// Runs Python code from inside a call of the library.
template <typename Function>
auto in_callback(Function&& function) {
  const WithGil held;
  try {
    return std::forward<Function>(function)();
  } catch (nb::python_error& raised) {
    throw_callback_error(raised);
  } catch (const nb::cast_error&) {
    PyErr_SetString(PyExc_TypeError, "the callback returned something of the wrong type");
    nb::python_error raised;
    throw_callback_error(raised);
  }
}

/// Translators, and Ctrl-C in waits.
void bind_errors(nb::module_& m);

}  // namespace switchyard::python
