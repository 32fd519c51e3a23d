// SPDX-License-Identifier: Apache-2.0
//
// service_thread.h: starts the library's own threads. They block every signal, so that signals
// reach the program's threads alone.
#pragma once

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

}  // namespace switchyard
