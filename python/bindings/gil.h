// SPDX-License-Identifier: Apache-2.0
//
// gil.h: when the interpreter's lock (GIL) is held. Every call that may wait, or that works longer
// than a few microseconds, runs without it; callbacks take it.
//
// An interpreter that ends kills threads that ask for its lock, with C++ frames on their stacks.
// Threads that come back from a wait after that moment therefore sleep until the process is gone.
#pragma once

#include <utility>

#include <nanobind/nanobind.h>

namespace switchyard::python {

namespace nb = nanobind;

/// Releases the lock for its lifetime.
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

/// Holds the lock for its lifetime; any thread, with or without it.
class WithGil {
 public:
  WithGil();
  ~WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

template <typename Function>
auto without_gil(Function&& function) {
  const WithoutGil released;
  return std::forward<Function>(function)();
}

/// False once the interpreter ends, except in the thread that ends it. Python objects that other
/// threads still hold then are never released.
bool may_take_gil() noexcept;

/// Whether this thread holds the lock of a running interpreter.
bool holds_gil() noexcept;

/// Runs `function` without the lock, whether or not the caller holds it.
template <typename Function>
void with_gil_released(Function&& function) {
  if (holds_gil()) {
    without_gil(std::forward<Function>(function));
  } else {
    std::forward<Function>(function)();
  }
}

void bind_gil(nb::module_& m);

}  // namespace switchyard::python
