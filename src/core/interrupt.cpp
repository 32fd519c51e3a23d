// SPDX-License-Identifier: Apache-2.0

#include "core/interrupt.h"

#include <atomic>

namespace switchyard {
namespace {

std::atomic<InterruptCheck> current_check = nullptr;

}  // namespace

void set_interrupt_check(InterruptCheck check) noexcept {
  current_check.store(check, std::memory_order_release);  // pairs with the load below
}

bool is_interrupted() {
  const InterruptCheck check = current_check.load(std::memory_order_acquire);
  return check != nullptr && check();
}

}  // namespace switchyard
