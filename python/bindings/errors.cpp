// SPDX-License-Identifier: Apache-2.0
//
// The classes of exceptions are Python (switchyard/errors.py); here is which one an Error becomes.

#include "errors.h"

#include <exception>
#include <memory>
#include <new>
#include <string>

#include "switchyard/error.h"

#include "core/fail.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "tensors.h"

#include <nanobind/stl/string.h>

// What nanobind raises where arguments fit no signature (CMakeLists.txt), instead of TypeError.
extern "C" PyObject* switchyard_argument_type_error;
PyObject* switchyard_argument_type_error = PyExc_TypeError;

namespace switchyard::python {
namespace {

// What this thread raised inside a callback, or in a signal handler during a wait.
thread_local std::shared_ptr<const void> raised_inside;
thread_local bool is_of_signal = false;

// Keeps the newest; the GIL is held.
void keep_raised(nb::object exception, bool by_signal) {
  raised_inside = keep(std::move(exception));
  is_of_signal = by_signal;
}

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
  keep_raised(nb::borrow(raised.value()), true);
  return true;
}

bool is_ordinary(nb::handle exception) {
  return PyErr_GivenExceptionMatches(exception.ptr(), PyExc_Exception) != 0;
}

void raise(nb::handle exception) { PyErr_SetObject(exception.type().ptr(), exception.ptr()); }

nb::object make_error(Errc code, std::string_view text) {
  return nb::module_::import_("switchyard.errors")
      .attr("make_error")(name_of(code), shown_text(text));
}

// What a signal handler raises ends the wait as itself, for example KeyboardInterrupt.
void raise_error(const Error& error) {
  const nb::object inside = take_raised();
  if (inside.is_valid() && (is_of_signal || !is_ordinary(inside))) return raise(inside);
  const nb::object made = make_error(error.code(), error.what());
  if (inside.is_valid()) PyException_SetCause(made.ptr(), nb::object(inside).release().ptr());
  raise(made);
}

void raise_known(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    raise_error(error);
  } catch (const CallbackError& error) {
    take_raised();
    raise(error.raised());
  } catch (const nb::cast_error&) {
    raise(nb::module_::import_("switchyard.errors")
              .attr("ArgumentTypeError")("an argument is of a type that the call does not take"));
  } catch (const std::bad_alloc&) {
    raise(make_error(Errc::kOutOfMemory, "out of memory"));
  } catch (const std::exception& error) {
    raise(make_error(Errc::kInternal, error.what()));
  }
}

// Making the Python exception may run a signal handler, which may raise.
void translate(const std::exception_ptr& thrown, void*) {
  try {
    raise_known(thrown);
  } catch (nb::python_error& raised) {
    raised.restore();
  }
}

}  // namespace

std::string text_of(nb::handle object) {
  const auto bytes = nb::steal<nb::bytes>(
      PyUnicode_AsEncodedString(nb::str(object).ptr(), "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) throw nb::python_error();
  return {bytes.c_str(), bytes.size()};
}

nb::object shown_text(std::string_view text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

void throw_callback_error(nb::python_error& raised) {
  const nb::object exception = nb::borrow(raised.value());
  const std::string text = text_of(exception.type().attr("__name__")) + ": " + text_of(exception);
  keep_raised(exception, false);
  throw CallbackError(text, raised_inside);
}

void fail_type(std::string_view name, nb::handle value, std::string_view type) {
  constexpr std::size_t kMaxShown = 80;
  const bool is_plain = value.is_none() || nb::isinstance<nb::str>(value) ||
                        nb::isinstance<nb::int_>(value) || nb::isinstance<nb::float_>(value);
  const std::string shown =
      is_plain ? text_of(nb::module_::import_("builtins").attr("ascii")(value)).substr(0, kMaxShown)
               : "a " + text_of(value.type().attr("__name__"));
  const bool is_too_large = nb::isinstance<nb::int_>(value) && type == "int";
  std::int64_t number = 0;
  const bool fits_64_bits = is_too_large && nb::try_cast(value, number);
  require(!is_too_large, Errc::kInvalidArgument, "{} is {}, must fit into {} bits", name, shown,
          fits_64_bits ? 32 : 64);
  raise(nb::module_::import_("switchyard.errors")
            .attr("ArgumentTypeError")(fmt::format("{}: {}, must be {}", name, shown, type)));
  throw nb::python_error();
}

void fail_keyword(std::string_view function, std::string_view name,
                  std::span<const std::string_view> known) {
  raise(nb::module_::import_("switchyard.errors")
            .attr("ArgumentTypeError")(fmt::format("{}() got an unexpected keyword argument '{}'{}",
                                                   function, name, nearest_names(name, known))));
  throw nb::python_error();
}

void bind_errors(nb::module_& m) {
  (void)m;
  nb::register_exception_translator(&translate);
  // The generator of stubs imports the extension alone.
  if (nb::module_::import_("sys").attr("modules").attr("__contains__")("switchyard").is(Py_True)) {
    nb::object ours = nb::module_::import_("switchyard.errors").attr("ArgumentTypeError");
    switchyard_argument_type_error = ours.release().ptr();
  }
  set_interrupt_check(&has_signal);
}

}  // namespace switchyard::python
