// SPDX-License-Identifier: Apache-2.0
//
// c.h: the library for C11, and for languages that call C. docs/c.md is the guide: handles,
// structs that grow, memory, errors, and what may change between versions.
//
// The headers in c/ say what each function takes. Its full contract is that of the C++ function
// that it names, in the header of that name beside this one.
#pragma once

#include "switchyard/c/base.h"
#include "switchyard/c/config.h"
#include "switchyard/c/exchange.h"
#include "switchyard/c/group.h"
#include "switchyard/c/kernel.h"
#include "switchyard/c/permute.h"
#include "switchyard/c/placement.h"
#include "switchyard/c/prepare.h"
#include "switchyard/c/quantize.h"
