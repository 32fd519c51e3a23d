// SPDX-License-Identifier: Apache-2.0
//
// The classes of exceptions are Python (switchyard/errors.py); here is which one an Error becomes.

#include "errors.h"

#include <memory>
#include <optional>
#include <string>

#include "switchyard/error.h"

#include "core/interrupt.h"
#include "tensors.h"

namespace switchyard::python {
namespace {

// What this thread raised inside a callback or a wait.
thread_local std::shared_ptr<const void> raised_inside;

// Keeps the newest; the GIL is held.
void keep_raised(nb::object exception) { raised_inside = keep(std::move(exception)); }

nb::object take_raised() {
  const std::shared_ptr<const void> taken = std::move(raised_inside);
  return nb::borrow(static_cast<PyObject*>(const_cast<void*>(taken.get())));
}

// Asked by waits. Only Python's main thread ever runs signal handlers.
bool has_signal() {
  if (!Py_IsInitialized() || !may_take_gil()) return false;
  const WithGil held;
  if (PyErr_CheckSignals() == 0) return false;
  nb::python_error raised;
  keep_raised(nb::borrow(raised.value()));
  return true;
}

bool is_ordinary(nb::handle exception) {
  return PyErr_GivenExceptionMatches(exception.ptr(), PyExc_Exception) != 0;
}

void raise(nb::handle exception) { PyErr_SetObject(exception.type().ptr(), exception.ptr()); }

void raise_error(const Error& error) {
  const nb::object inside = take_raised();
  if (inside.is_valid() && !is_ordinary(inside)) return raise(inside);  // KeyboardInterrupt
  const nb::object made = nb::module_::import_("switchyard.errors")
                              .attr("make_error")(name_of(error.code()), error.what());
  if (inside.is_valid()) PyException_SetCause(made.ptr(), nb::object(inside).release().ptr());
  raise(made);
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    raise_error(error);
  } catch (const CallbackError& error) {
    take_raised();
    raise(error.raised());
  }
}

}  // namespace

void throw_callback_error(nb::python_error& raised) {
  const nb::object exception = nb::borrow(raised.value());
  const std::string text = std::string(nb::str(exception.type().attr("__name__")).c_str()) + ": " +
                           nb::str(exception).c_str();
  keep_raised(exception);
  throw CallbackError(text, raised_inside);
}

void bind_errors(nb::module_& m) {
  (void)m;
  nb::register_exception_translator(&translate);
  set_interrupt_check(&has_signal);
}

}  // namespace switchyard::python
