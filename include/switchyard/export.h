// SPDX-License-Identifier: Apache-2.0
//
// export.h: what every public header needs: a compiler that knows C++20, and the mark of what the
// shared library exports. Everything that is not marked is hidden.
#pragma once

#if __cplusplus < 202002L
#error \
    "Switchyard's headers need C++20: compile with -std=c++20 or newer (g++ 12, clang 14, nvcc 12.4)"
#endif

/// Marks what the shared library exports.
#define SWITCHYARD_API __attribute__((visibility("default")))
