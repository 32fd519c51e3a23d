// SPDX-License-Identifier: Apache-2.0

#include "device/call_checks.h"

#include <limits>

#include "core/bytes.h"
#include "core/format.h"
#include "plan/permute_views.h"

namespace switchyard {

std::int64_t checked_num_choices(const char* function, const IdTable& ids) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  require(ids.num_tokens >= 0 && ids.num_topk >= 0, Errc::kInvalidArgument,
          "{}: {} tokens, {} choices, none may be negative", function, ids.num_tokens,
          ids.num_topk);
  const std::int64_t num_choices = checked_mul(ids.num_tokens, ids.num_topk);
  require(num_choices <= kMax, Errc::kInvalidArgument,
          "{}: {} choices, must be at most 2^31 - 1 on a GPU", function, num_choices);
  return num_choices;
}

void check_grid(const char* function, const IdTable& ids) {
  constexpr std::int64_t kMaxTopk = 1024;
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;  // other blocks join them in a grid
  checked_num_choices(function, ids);
  require(ids.num_topk <= kMaxTopk, Errc::kInvalidArgument,
          "{}: {} choices per token, must be at most {} on a GPU", function, ids.num_topk,
          kMaxTopk);
  require(ids.num_tokens <= kMaxTokens, Errc::kInvalidArgument,
          "{}: {} tokens, must be at most 2^30 on a GPU", function, ids.num_tokens);
}

ChoiceMapMemory checked_choice_map(const char* function, const IdTable& ids,
                                   std::int64_t num_local_experts) {
  check_grid(function, ids);
  checked_num_experts(function, num_local_experts);
  return choice_map_memory(checked_num_choices(function, ids), num_local_experts);
}

void check_workspace(const char* function, std::span<std::byte> workspace, std::size_t num_bytes) {
  require(workspace.size() >= num_bytes, Errc::kWorkspaceTooSmall,
          "{}: workspace has {} bytes, needs {}; ask its workspace_bytes()", function,
          workspace.size(), num_bytes);
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  require(num_bytes == 0 || (address != 0 && address % 16 == 0), Errc::kInvalidArgument,
          "{}: workspace begins at {}, must be a multiple of 16 bytes and not null", function,
          static_cast<const void*>(workspace.data()));
}

std::int32_t* error_word(const char* function, const TensorView& num_errors) {
  if (!num_errors.has_value()) return nullptr;
  check_flat(function, "num_errors", num_errors, DType::kI32, 1);
  return num_errors.as<std::int32_t>();
}

}  // namespace switchyard
