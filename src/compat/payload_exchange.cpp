// SPDX-License-Identifier: Apache-2.0

#include "compat/payload_exchange.h"

#include <algorithm>
#include <cstring>

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"

namespace switchyard {
namespace {

std::int64_t row_bytes_of(const char* function, const TensorView& payload,
                          std::int64_t num_tokens) {
  require(payload.has_value() && payload.num_dims() >= 1 && payload.shape(0) == num_tokens &&
              payload.is_contiguous(),
          Errc::kInvalidArgument, "{}: a payload is {}, must be contiguous with {} rows", function,
          payload, num_tokens);
  std::int64_t bits = bits_of(payload.dtype());
  for (int d = 1; d < payload.num_dims(); ++d) bits = checked_mul(bits, payload.shape(d));
  require(bits > 0 && bits % 8 == 0, Errc::kInvalidArgument,
          "{}: a payload is {}, its rows must be whole bytes, at least one", function, payload);
  return bits / 8;
}

}  // namespace

ReceivedPayloads dispatch_payloads(const char* function, ExchangePool& pool,
                                   const PayloadRouting& routing,
                                   const std::vector<TensorView>& payloads,
                                   const TensorView& topk_weights) {
  ExchangeConfig config = routing.config;
  config.hidden = 1;  // the smallest token: the payloads are the rows
  config.sends_weights = topk_weights.has_value();
  for (const TensorView& payload : payloads) {
    config.payload_bytes.push_back(row_bytes_of(function, payload, routing.num_tokens));
  }
  const Tensor tokens(DType::kBF16, {routing.num_tokens, 1});
  DispatchOptions options;
  options.payloads = payloads;
  options.max_tokens = routing.max_tokens;
  options.routing_only = payloads.empty();
  ReceivedPayloads result{std::make_unique<KeptDispatch>(pool.get(config)), {}};
  result.kept->send(tokens, routing.topk_ids, topk_weights, options);
  result.received = result.kept->receive();
  return result;
}

void combine_rows(ExchangePool& pool, const PayloadRouting& routing, const TensorView& rows,
                  const TensorView& output, std::span<const std::int64_t> rows_per_rank) {
  const DType dtype = output.dtype();
  require(dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32,
          Errc::kInvalidArgument, "combine: rows are {}, must be bf16, f16 or f32", name_of(dtype));
  ExchangeConfig config = routing.config;
  config.hidden = output.shape(1);
  config.sends_weights = false;
  config.scheme.dtype = dtype;
  config.combine_scheme.dtype = dtype;
  DispatchOptions options;
  options.max_tokens = routing.max_tokens;
  options.routing_only = true;
  KeptDispatch kept(pool.get(config));
  check_matrix(rows, {"combine", "rows", {dtype}, kAnyRows, config.hidden});
  // The output has the shape of the tokens, which do not travel.
  kept.send(output, routing.topk_ids, {}, options);
  const Dispatched received = kept.receive();
  const std::int64_t wanted = received.experts.rows.shape(0);
  const bool is_as_said = rows_per_rank.empty() ||
                          std::equal(rows_per_rank.begin(), rows_per_rank.end(),
                                     received.rows_per_rank.begin(), received.rows_per_rank.end());
  if (rows.shape(0) != wanted || !is_as_said) {
    // Nothing earlier reveals this, and the peers are waiting for these rows.
    const std::string reason =
        fmt::format("its combine has {} rows, the ranks {} together{}", rows.shape(0), wanted,
                    is_as_said ? "" : ", and its sizes are not theirs");
    pool.group().abort(reason);
    fail(Errc::kInvalidArgument, "combine: rows is {}, must have {} rows{}; the group has ended",
         rows, wanted, is_as_said ? "" : ", and every rank must pass the same sizes");
  }
  kept.combine_send(rows, {}, output, {});
  kept.combine_receive(output, {});
}

Tensor copy_payload(const Dispatched& received, std::size_t index, const TensorView& like) {
  const TensorView& payload = received.payloads[index];
  std::vector<std::int64_t> shape{payload.shape(0)};
  for (int d = 1; d < like.num_dims(); ++d) shape.push_back(like.shape(d));
  Tensor copy(like.dtype(), shape);
  const auto bytes = static_cast<std::size_t>(received.num_rows * payload.shape(1));
  if (bytes > 0) std::memcpy(copy.data(), payload.data(), bytes);
  return copy;
}

}  // namespace switchyard
