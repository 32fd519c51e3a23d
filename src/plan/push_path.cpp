// SPDX-License-Identifier: Apache-2.0

#include "plan/push_path.h"

#include "core/fail.h"

namespace switchyard {

PushPath parse_push_path(const std::string& text) {
  if (text == "auto") return PushPath::kAuto;
  if (text == "slots") return PushPath::kSlots;
  if (text == "direct") return PushPath::kDirect;
  fail(Errc::kInvalidArgument, "SWITCHYARD_PUSH_PATH is \"{}\", must be auto, slots or direct",
       text);
}

bool can_be_direct(const ExchangeConfig& config, const PathFacts& facts, PushPath asked) {
  if (asked == PushPath::kSlots) return false;
  const bool is_token_major =
      config.layout != Layout::kExpanded && config.layout != Layout::kBatched;
  const bool has_fixed_scales = config.scheme.group != ScaleGroup::kBlock ||
                                config.scale_layout == ScaleLayout::kRowMajor ||
                                config.scale_layout == ScaleLayout::kSwizzled;
  return facts.gpu_can && facts.num_ranks > 1 && !facts.is_over_hosts &&
         !facts.takes_memory_to_size && is_token_major && has_fixed_scales &&
         config.reduce == Reduce::kPerRank && !config.combine_scheme.is_quantized() &&
         config.combine_scheme.dtype == DType::kBF16 &&
         (asked == PushPath::kDirect || config.max_tokens_per_rank > kMaxSlotTokens);
}

bool is_direct(PushPath asked, std::int64_t max_tokens, bool routing_only) {
  if (routing_only) return false;
  return asked == PushPath::kDirect || max_tokens > kMaxSlotTokens;
}

}  // namespace switchyard
