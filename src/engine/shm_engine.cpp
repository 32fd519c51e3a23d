// SPDX-License-Identifier: Apache-2.0

#include "engine/shm_engine.h"

#include <atomic>
#include <utility>

#include "engine/rendezvous.h"
#include "engine/shm_control.h"
#include "engine/shm_windows.h"

namespace switchyard {
namespace {

// Groups that this process has joined. Collective calls come in one order, so ranks agree on it.
std::atomic<int> num_groups = 0;

}  // namespace

std::shared_ptr<Engine> join_shm(const JoinRequest& request) {
  try {
    auto control = std::make_unique<ShmControl>(request, open_store(request, num_groups));
    // The launcher's block serves one group; a later one of the same processes makes its own.
    control->join(num_groups == 0 ? request.control_fd : -1);
    ++num_groups;
    auto windows = std::make_unique<ShmWindows>(*control);
    return std::make_shared<Engine>("shm", std::move(control), std::move(windows));
  } catch (...) {
    close_store(request);
    throw;
  }
}

}  // namespace switchyard
