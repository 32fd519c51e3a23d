// SPDX-License-Identifier: Apache-2.0
//
// interrupt.h: how a program that hosts the library ends its long waits, for example Python on
// Ctrl-C.
#pragma once

namespace switchyard {

/// Asked by a waiting thread about every 50 ms, and by nobody who does not wait. True: the wait
/// ends with kAborted, and the group with it.
using InterruptCheck = bool (*)();

/// For the whole process; null: waits are never interrupted, which is the default.
void set_interrupt_check(InterruptCheck check) noexcept;

bool is_interrupted();

}  // namespace switchyard
