// SPDX-License-Identifier: Apache-2.0

#include "gil.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <dlfcn.h>
#include <pthread.h>
#include <thread>

namespace switchyard::python {
namespace {

constexpr int kForeverMs = -1;
constexpr int kPollMs = 1;
constexpr int kMaxPolls = 1000;

std::atomic<bool> is_exiting = false;
std::atomic<int> num_taking = 0;  // threads between the look at is_exiting and the lock
std::atomic<std::thread::id> exiting_thread;

// Announces that this thread asks for the lock; does not return when that would kill it.
void announce_taking() noexcept {
  num_taking.fetch_add(1);  // seq_cst: either this thread sees is_exiting, or prepare_exit waits
  if (may_take_gil()) return;
  num_taking.fetch_sub(1);
  for (;;) poll(nullptr, 0, kForeverMs);
}

// Runs in atexit, while threads still get the lock: lets those have it that ask already.
void prepare_exit() {
  exiting_thread = std::this_thread::get_id();
  is_exiting = true;
  const WithoutGil released;
  for (int i = 0; i < kMaxPolls && num_taking > 0; ++i) poll(nullptr, 0, kPollMs);
}

// Threads of the parent that asked for the lock do not exist in the child.
void forget_threads() { num_taking = 0; }

}  // namespace

bool may_take_gil() noexcept {
  return !is_exiting || exiting_thread.load() == std::this_thread::get_id();
}

// PyGILState_Check is not in the limited API, which wheels for several versions are built with.
bool holds_gil() noexcept {
  using Check = int (*)();
  static const auto check = reinterpret_cast<Check>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return check != nullptr && Py_IsInitialized() && may_take_gil() && check() != 0;
}

WithoutGil::WithoutGil() : state_(PyEval_SaveThread()) {}

WithoutGil::~WithoutGil() {
  announce_taking();
  PyEval_RestoreThread(state_);
  num_taking.fetch_sub(1);
}

WithGil::WithGil() : state_(PyGILState_UNLOCKED) {
  announce_taking();
  state_ = PyGILState_Ensure();
  num_taking.fetch_sub(1);
}

WithGil::~WithGil() { PyGILState_Release(state_); }

void bind_gil(nb::module_& m) {
  (void)m;
  pthread_atfork(nullptr, nullptr, &forget_threads);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&prepare_exit));
}

}  // namespace switchyard::python
