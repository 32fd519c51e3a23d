// SPDX-License-Identifier: Apache-2.0
//
// service_thread.h: starts the library's own threads. They block every signal, so that signals
// reach the program's threads alone.
#pragma once

#include <unistd.h>

#include <signal.h>
#include <thread>
#include <utility>

namespace switchyard {

/// Errors: std::system_error when the system has no thread left.
template <typename Body>
std::thread start_service_thread(Body&& body) {
  struct Blocked {  // a thread starts with the mask of the one that makes it
    sigset_t before;
    Blocked() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  } const blocked;
  return std::thread(std::forward<Body>(body));
}

/// The process that made the object: a forked copy of it has none of its threads, and what it says
/// on shared sockets and memory its peers would take for the original's.
class OwnProcess {
 public:
  bool is_this_one() const noexcept { return getpid() == pid_; }

 private:
  pid_t pid_ = getpid();
};

/// Waits for the thread, if it was started; in a forked copy of its process there is none to wait
/// for, nor to give back.
inline void join_service_thread(std::thread& thread, const OwnProcess& process) {
  if (!thread.joinable()) return;
  if (process.is_this_one()) return thread.join();
  [[maybe_unused]] const auto* const lost = new std::thread(std::move(thread));
}

}  // namespace switchyard
