// SPDX-License-Identifier: Apache-2.0
//
// export.h: what the shared library exports. Everything else is hidden.
#pragma once

#define SWITCHYARD_API __attribute__((visibility("default")))
