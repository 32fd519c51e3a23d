// SPDX-License-Identifier: Apache-2.0
//
// MPI_Init and MPI_Finalize wait for every process and have no deadline. Where the program has not
// called MPI_Init, a thread does, and lives until the process ends to call MPI_Finalize: MPI wants
// both from one thread. Whoever waits for it looks at its own deadline meanwhile.

#include "mpi/mpi_process.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mpi.h>
#include <system_error>

#include "core/service_thread.h"

namespace switchyard::mpi {
namespace {

constexpr std::int64_t kExitTimeouts = 10;  // another rank may end much later than this one

// Never destroyed: the thread may outlive the static objects of the process.
struct Keeper {
  std::mutex mutex;
  std::condition_variable changed;
  bool has_started = false;
  bool is_initialized = false;
  bool is_finalize_wanted = false;
  bool is_finalized = false;
  std::int64_t exit_timeout_ms = 0;
  void (*when_finalized)() = nullptr;
  std::atomic<bool> may_finalize = true;
  OwnProcess process;
};

Keeper& keeper() {
  static Keeper& keeper = *new Keeper;
  return keeper;
}

void keep() {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  Keeper& own = keeper();
  std::unique_lock lock(own.mutex);
  own.is_initialized = true;
  own.changed.wait(lock, [&] { return own.is_finalize_wanted; });
  lock.unlock();
  MPI_Finalize();
  lock.lock();
  own.is_finalized = true;
  own.changed.notify_all();
}

// A rank that was lost would be waited for; a rank that ends late is waited for up to a limit.
void finalize_at_exit() {
  Keeper& own = keeper();
  if (!own.process.is_this_one()) return;  // a forked copy, in which nobody would finalize
  std::unique_lock lock(own.mutex);
  int is_finalized = 0;
  MPI_Finalized(&is_finalized);
  if (is_finalized == 0) {
    if (!own.is_initialized || !own.may_finalize) return;
    own.is_finalize_wanted = true;
    own.changed.notify_all();
    own.changed.wait_for(lock, std::chrono::milliseconds(own.exit_timeout_ms),
                         [&] { return own.is_finalized || !own.may_finalize; });
    if (!own.is_finalized) return;
  }
  lock.unlock();
  own.when_finalized();
}

bool flag_of(int (*ask)(int*)) {
  int flag = 0;
  ask(&flag);
  return flag != 0;
}

}  // namespace

std::mutex& call_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

std::string library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int size = 0;
  MPI_Get_library_version(text.data(), &size);
  const std::string line(text.data());
  return line.substr(0, line.find_first_of(",\n"));
}

MpiInit init_state() {
  if (flag_of(&MPI_Finalized)) return MpiInit::kFinalized;
  Keeper& own = keeper();
  const std::lock_guard lock(own.mutex);
  if (own.has_started) return own.is_initialized ? MpiInit::kDone : MpiInit::kRunning;
  return flag_of(&MPI_Initialized) ? MpiInit::kDone : MpiInit::kNone;
}

std::string start_init(std::int64_t timeout_ms, void (*when_finalized)()) {
  Keeper& own = keeper();
  const std::lock_guard lock(own.mutex);
  own.exit_timeout_ms = std::max(own.exit_timeout_ms, kExitTimeouts * timeout_ms);
  if (own.has_started || flag_of(&MPI_Initialized)) return "";
  try {
    start_service_thread(keep).detach();
  } catch (const std::system_error& error) {
    return std::string("no thread to call MPI_Init: ") + error.what();
  }
  own.has_started = true;
  own.when_finalized = when_finalized;
  std::atexit(finalize_at_exit);
  return "";
}

bool will_finalize() {
  Keeper& own = keeper();
  const std::lock_guard lock(own.mutex);
  return own.has_started && own.process.is_this_one();
}

std::string why_not_here() {
  int level = 0;
  int is_main = 0;
  MPI_Query_thread(&level);
  MPI_Is_thread_main(&is_main);
  if (level >= MPI_THREAD_SERIALIZED || is_main != 0) return "";
  return "the program initialized MPI for its main thread alone, and this is another; call "
         "MPI_Init_thread with MPI_THREAD_SERIALIZED or more";
}

void forbid_finalize() {
  Keeper& own = keeper();
  const std::lock_guard lock(own.mutex);
  own.may_finalize = false;
  own.changed.notify_all();
}
bool may_finalize() { return keeper().may_finalize; }

}  // namespace switchyard::mpi
