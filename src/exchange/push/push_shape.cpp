// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/push_shape.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/fail.h"
#include "cuda/exchange/wire_form.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

// Kernels use 32-bit row numbers and keep counts in shared memory.
constexpr std::int64_t kMaxRows = std::int64_t{1} << 31;
constexpr int kMaxExperts = 16384;
constexpr std::int64_t kMaxRowElements = std::int64_t{1} << 24;

void refuse(bool is_bad, const std::string& what) {
  require(!is_bad, Errc::kNotSupported, "exchange: {}", what);
}

// Kernels exist for named schemes; other schemes differ in block or scale format.
bool has_kernels(const QuantScheme& scheme) {
  const std::vector<QuantScheme> named = named_schemes();
  return !scheme.is_quantized() || std::find(named.begin(), named.end(), scheme) != named.end();
}

// Dispatch also supports fp8 blocks whose scales are powers of two but stored as f32.
bool can_dispatch(QuantScheme scheme) {
  if (has_kernels(scheme)) return true;
  if (scheme.scale_format != ScaleFormat::kF32PowerOfTwo) return false;
  scheme.scale_format = ScaleFormat::kF32;
  return scheme == schemes::kFp8Block || scheme == schemes::kFp8BlockDeepEp;
}

void require_supported(const ExchangeConfig& config, int num_ranks, bool is_by_rank,
                       RankLimit limit) {
  refuse(config.num_topk > kMaxPushTopk,
         fmt::format("num_topk is {}, must be at most {}", config.num_topk, kMaxPushTopk));
  refuse(limit == RankLimit::kOfKernels && num_ranks > kMaxPushRanks,
         fmt::format("{} ranks, must be at most {}", num_ranks, kMaxPushRanks));
  refuse(is_by_rank && num_ranks > kMaxPushTopk,
         fmt::format("{} ranks, must be at most {} for layout all_gather or overflow drop",
                     num_ranks, kMaxPushTopk));
  refuse(!can_dispatch(config.scheme),
         fmt::format("scheme is {}, must be bf16, f16, f32, one of switchyard::schemes, or one of "
                     "its fp8 blocks with f32 power-of-two scales",
                     name_of(config.scheme)));
  refuse(!has_kernels(config.combine_scheme) || !cuda::is_return_scheme(config.combine_scheme),
         fmt::format("combine_scheme is {}, must be bf16, f16, f32, or one of "
                     "switchyard::schemes with codes of 8 bits and a scale for each block",
                     name_of(config.combine_scheme)));
  refuse(config.num_experts > kMaxExperts,
         fmt::format("num_experts is {}, must be at most {}", config.num_experts, kMaxExperts));
  refuse(config.hidden > kMaxRowElements,
         fmt::format("hidden is {}, must be at most {}", config.hidden, kMaxRowElements));
  for (const std::int64_t bytes : config.payload_bytes) {
    refuse(bytes > kMaxRowElements,
           fmt::format("payload_bytes has {}, must be at most {}", bytes, kMaxRowElements));
  }
}

PushLayout main_layout(const PushExchangeShape& shape) {
  const ExchangeConfig& config = shape.config;
  PushShape push;
  push.max_tokens = config.max_tokens_per_rank;
  push.hidden = config.hidden;
  push.num_ranks = shape.main_ownership.num_ranks;
  push.num_topk = shape.main_topk;
  push.max_local_experts = shape.main_ownership.max_count();
  push.element_bits =
      config.scheme.is_simulated() ? bits_of(DType::kBF16) : bits_of(config.scheme.dtype);
  push.chunk_scale_bytes = cuda::chunk_scale_bytes(config.scheme);
  push.return_element_bits = bits_of(config.combine_scheme.dtype);
  push.return_scale_bytes = cuda::return_scale_bytes(config.combine_scheme);
  push.sends_routes = is_expert_major(config.layout);
  push.sends_weights = config.sends_weights && !shape.gathers;
  push.keeps_every_choice = config.reduce == Reduce::kPerExpert;
  return make_push_layout(push);
}

// A route holds an expert and a row's place among the rows of one rank for it, in 32 bits.
void require_places(const PushLayout& layout) {
  const PushShape& shape = layout.shape;
  const std::int64_t most = checked_mul<std::int64_t>(shape.max_tokens, shape.num_topk);
  const std::int64_t limit = (std::int64_t{1} << layout.place_bits) - 1;
  refuse(shape.sends_routes && most >= limit,
         fmt::format("max_tokens_per_rank {} x num_topk {} is {}, must be below {} with {} experts "
                     "a rank",
                     shape.max_tokens, shape.num_topk, most, limit, shape.max_local_experts));
}

// The layout of rows of bytes that go where the tokens go; none are returned.
PushLayout bytes_layout(PushShape push, std::int64_t row_bytes) {
  push.hidden = row_bytes;
  push.element_bits = 8;
  push.chunk_scale_bytes = 0;
  push.return_element_bits = 0;
  push.return_scale_bytes = 0;
  push.sends_weights = false;
  return make_push_layout(push);
}

PushLayout routing_layout(const PushExchangeShape& shape) {
  PushShape push = shape.main.shape;
  push.num_topk = shape.main_ownership.num_ranks;
  push.max_local_experts = 1;
  push.sends_routes = false;
  push.keeps_every_choice = false;
  return bytes_layout(push, shape.routing_row_bytes());
}

}  // namespace

std::int64_t PushExchangeShape::buffer_rows(int rank, std::int64_t max_tokens) const {
  ReceiveShape receive = exchange.receive;
  receive.max_tokens = max_tokens;
  return max_buffer_rows(rank, exchange.ownership, config.num_topk, receive);
}

PushExchangeShape make_push_exchange_shape(const ExchangeConfig& config, int num_ranks, int rank,
                                           RankLimit limit) {
  PushExchangeShape shape;
  shape.config = config;
  shape.config.worst_case_rows = true;
  shape.exchange = make_exchange_shape(shape.config, num_ranks, rank);
  shape.gathers = config.layout == Layout::kAllGather;
  shape.drops = config.overflow == Overflow::kDrop && config.capacity > 0;
  shape.gathers_routing = (shape.gathers && config.num_topk > 0) || shape.drops;
  require_supported(config, num_ranks, shape.gathers || shape.drops, limit);
  // A check against the rows of the rank with the most experts fails alike on every rank.
  const int largest = shape.exchange.ownership.largest_rank();
  const std::int64_t max_rows = shape.buffer_rows(largest, config.max_tokens_per_rank);
  refuse(max_rows >= kMaxRows,
         fmt::format("the receive buffer has {} rows, must be fewer than {}", max_rows, kMaxRows));
  shape.main_topk = shape.gathers ? num_ranks : config.num_topk;
  shape.main_ownership =
      shape.gathers ? ExpertOwnership{num_ranks, num_ranks} : shape.exchange.ownership;
  shape.main = main_layout(shape);
  require_places(shape.main);
  shape.window_bytes = shape.main.total_bytes;
  for (const std::int64_t bytes : config.payload_bytes) {
    shape.payloads.push_back(bytes_layout(shape.main.shape, bytes));
    shape.window_bytes = checked_add(shape.window_bytes, shape.payloads.back().total_bytes);
  }
  if (shape.gathers_routing) {
    shape.routing = routing_layout(shape);
    shape.window_bytes = checked_add(shape.window_bytes, shape.routing.total_bytes);
  }
  shape.returns_weights = config.sends_weights && config.num_topk > 0 && !config.slices_experts;
  if (shape.returns_weights) {
    shape.weights = make_weight_slots(config.max_tokens_per_rank, num_ranks, config.num_topk);
    shape.window_bytes = checked_add(shape.window_bytes, shape.weights.total_bytes);
  }
  return shape;
}

}  // namespace switchyard
