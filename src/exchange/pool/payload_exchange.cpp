// SPDX-License-Identifier: Apache-2.0

#include "exchange/pool/payload_exchange.h"

#include <algorithm>
#include <cstring>

#include "core/bytes.h"
#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"
#include "device/compat_rows.h"

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
                                   const std::vector<TensorView>& payloads, Stream stream,
                                   const TensorView& topk_weights) {
  ExchangeConfig config = routing.config;
  config.hidden = 1;  // the smallest token: the payloads are the rows
  config.sends_weights = topk_weights.has_value();
  for (const TensorView& payload : payloads) {
    config.payload_bytes.push_back(row_bytes_of(function, payload, routing.num_tokens));
  }
  const Tensor tokens = pool.results().make(DType::kBF16, {routing.num_tokens, 1});
  DispatchOptions options;
  options.payloads = payloads;
  options.max_tokens = routing.max_tokens;
  options.routing_only = payloads.empty();
  ReceivedPayloads result{std::make_unique<KeptDispatch>(pool.get(config)), {}};
  result.received = result.kept->dispatch(tokens, routing.topk_ids, topk_weights, stream, options);
  return result;
}

void combine_rows(ExchangePool& pool, const PayloadRouting& routing, const TensorView& rows,
                  const TensorView& output, Stream stream,
                  std::span<const std::int64_t> rows_per_rank) {
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
  const Dispatched received = kept.dispatch(output, routing.topk_ids, {}, stream, options);
  const std::int64_t wanted = received.experts.rows.shape(0);
  TensorView all_rows = rows;
  if (!received.host.has_value() && !rows_per_rank.empty()) {
    // Rows behind those of the last rank are never read: no token is there.
    all_rows = TensorView(rows.data(), dtype, {wanted, config.hidden}, rows.device());
  }
  const bool is_as_said =
      !received.host.has_value() || rows_per_rank.empty() ||
      std::equal(rows_per_rank.begin(), rows_per_rank.end(), received.host->rows_per_rank.begin(),
                 received.host->rows_per_rank.end());
  if (all_rows.shape(0) != wanted || !is_as_said) {
    // Nothing earlier reveals this, and the peers are waiting for these rows.
    const std::string reason =
        fmt::format("its combine has {} rows, the ranks {} together{}", rows.shape(0), wanted,
                    is_as_said ? "" : ", and its sizes are not theirs");
    pool.group().abort(reason);
    fail(Errc::kInvalidArgument, "combine: rows is {}, must have {} rows{}; the group has ended",
         rows, wanted, is_as_said ? "" : ", and every rank must pass the same sizes");
  }
  kept.combine(all_rows, {}, routing.topk_ids, output, stream, {});
}

Tensor copy_payload(const TensorPool& pool, const Dispatched& received, std::size_t index,
                    const TensorView& like, Stream stream, std::int64_t num_rows) {
  const TensorView& payload = received.payloads[index];
  const bool is_whole = num_rows < 0;
  std::vector<std::int64_t> shape{is_whole ? payload.shape(0) : num_rows};
  for (int d = 1; d < like.num_dims(); ++d) shape.push_back(like.shape(d));
  Tensor copy = pool.make(like.dtype(), shape);
  const std::int64_t row_bytes = payload.shape(1);
  if (stream.device().is_cpu()) {
    const auto bytes =
        static_cast<std::size_t>((is_whole ? received.host->num_rows : num_rows) * row_bytes);
    if (bytes > 0) std::memcpy(copy.data(), payload.data(), bytes);
    return copy;
  }
  on_gpu::copy(TensorView(payload.data(), DType::kU8, {shape[0], row_bytes}, payload.device()),
               TensorView(copy.data(), DType::kU8, {shape[0], row_bytes}, payload.device()),
               stream);
  if (!is_whole) return copy;
  const bool has_words = row_bytes % 4 == 0;  // memory of the pool is aligned
  cuda::FillTailsArgs args;
  args.data = copy.data();
  args.element_bytes = has_words ? 4 : 1;
  args.num_blocks = 1;
  args.rows_per_block = shape[0];
  args.elements_per_row = has_words ? row_bytes / 4 : row_bytes;
  args.num_rows = received.total_rows.as<std::int32_t>();
  on_gpu::fill_tails(args, stream);
  return copy;
}

}  // namespace switchyard
