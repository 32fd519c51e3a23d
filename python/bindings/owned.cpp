// SPDX-License-Identifier: Apache-2.0

#include "owned.h"

#include <atomic>
#include <pthread.h>

namespace switchyard::python {
namespace {

std::atomic<int> num_forks = 0;

}  // namespace

int fork_generation() noexcept { return num_forks.load(std::memory_order_relaxed); }

void count_forks() {
  pthread_atfork(nullptr, nullptr, [] { num_forks.fetch_add(1, std::memory_order_relaxed); });
}

}  // namespace switchyard::python
