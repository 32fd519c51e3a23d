// SPDX-License-Identifier: Apache-2.0
//
// errors.h: C++ errors become Python exceptions, and what Python callbacks raise becomes C++ errors
// and, behind the library, Python exceptions again.
#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "gil.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

/// str(object), and what is no UTF-8 of it with backslashes.
std::string text_of(nb::handle object);

/// Whether it has elements: then its text is never asked for, because torch reads the memory for
/// it, which ends the process where that is freed.
inline bool is_array(nb::handle object) { return nb::hasattr(object, "__dlpack__"); }

/// A str of text that need not be UTF-8, as paths. With the GIL.
nb::object shown_text(std::string_view text);

/// What a callback raised, on its way through the library. The Python exception is also kept for
/// the thread, as the cause of the Error that the library may make of this.
class CallbackError : public std::runtime_error {
 public:
  CallbackError(const std::string& text, std::shared_ptr<const void> raised)
      : std::runtime_error(text), raised_(std::move(raised)) {}

  /// Also when it crossed threads.
  nb::handle raised() const { return static_cast<PyObject*>(const_cast<void*>(raised_.get())); }

 private:
  std::shared_ptr<const void> raised_;
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

/// Raises ArgumentTypeError "name: value, must be type"; InvalidArgumentError where the value is an
/// int and an int was wanted, which is then out of range. With the GIL.
[[noreturn]] void fail_type(std::string_view name, nb::handle value, std::string_view type);

/// Raises ArgumentTypeError "function() got an unexpected keyword argument 'name'", with the names
/// of `known` that are spelled like it. With the GIL.
[[noreturn]] void fail_keyword(std::string_view function, std::string_view name,
                               std::span<const std::string_view> known);

/// An argument as a T, or fail_type.
template <typename T>
T argument(nb::handle value, std::string_view name, std::string_view type) {
  T converted{};
  if (!nb::try_cast(value, converted)) fail_type(name, value, type);
  return converted;
}

/// Translators, and Ctrl-C in waits.
void bind_errors(nb::module_& m);

}  // namespace switchyard::python
