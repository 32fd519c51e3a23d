// SPDX-License-Identifier: Apache-2.0
//
// call_checks.h: what only calls for a GPU check: sizes that a grid and 32-bit places can have, the
// workspace and the error word. Messages start with `function`.
#pragma once

#include <cstddef>
#include <span>

#include "switchyard/tensor.h"

#include "plan/choice_map.h"
#include "plan/permute.h"

namespace switchyard {

/// T K, below 2^31. Errors: kInvalidArgument.
std::int64_t checked_num_choices(const char* function, const IdTable& ids);

/// Kernels give a token a block, its choices shared memory: K to 1024. Errors: kInvalidArgument.
void check_grid(const char* function, const IdTable& ids);

/// Sizes of the map of these choices, after both checks. Errors: kInvalidArgument.
ChoiceMapMemory checked_choice_map(const char* function, const IdTable& ids,
                                   std::int64_t num_local_experts);

/// Errors: kWorkspaceTooSmall; kInvalidArgument (not aligned to 16 bytes).
void check_workspace(const char* function, std::span<std::byte> workspace, std::size_t num_bytes);

/// Null when absent. Errors: kInvalidArgument.
std::int32_t* error_word(const char* function, const TensorView& num_errors);

}  // namespace switchyard
