// SPDX-License-Identifier: Apache-2.0

#include "compat/flashinfer/moe_alltoall.h"

#include <algorithm>

#include "compat/arguments.h"
#include "core/bytes.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/live.h"
#include "device/compat_rows.h"
#include "exchange/pool/payload_exchange.h"

namespace switchyard::flashinfer {
namespace {

// Ids for the exchange: any negative id becomes -1, "none".
Tensor known_ids(const TensorPool& pool, const TensorView& ids, Stream stream) {
  Tensor known = copy_ids("dispatch", pool, ids, stream);
  if (stream.device().is_cuda()) return known;  // the copy has done it
  for (std::int64_t i = 0; i < known.view().num_elements(); ++i) {
    std::int64_t& id = known.as<std::int64_t>()[i];
    id = std::max<std::int64_t>(id, -1);
  }
  return known;
}

// [P * Tr, bytes] u8 viewed as [P, Tr, ...] of the payload's dtype.
TensorView by_rank(const TensorView& received, const TensorView& payload, std::int64_t num_ranks) {
  std::vector<std::int64_t> shape{num_ranks, received.shape(0) / num_ranks};
  for (int d = 1; d < payload.num_dims(); ++d) shape.push_back(payload.shape(d));
  return TensorView(received.data(), payload.dtype(), shape, received.device());
}

void sanitize(const TensorView& ids, const TensorView& counts, std::int32_t invalid,
              Stream stream) {
  const std::int64_t max_tokens = ids.shape(1);
  const std::int64_t num_topk = ids.shape(2);
  if (stream.device().is_cuda()) {
    return on_gpu::fill_tails(
        {ids.data(), sizeof(std::int32_t), invalid, static_cast<std::int32_t>(ids.shape(0)),
         max_tokens, num_topk, counts.as<std::int32_t>()},
        stream);
  }
  for (std::int64_t s = 0; s < ids.shape(0); ++s) {
    const std::int64_t valid = counts.as<std::int32_t>()[s];
    std::fill_n(ids.as<std::int32_t>() + (s * max_tokens + valid) * num_topk,
                (max_tokens - valid) * num_topk, invalid);
  }
}

constexpr const char* kNoMasks =
    "moe_alltoall: {} is given, must not be: without the rows of a masked rank a result would look "
    "complete; a rank that does not come ends the group";

}  // namespace

class MoeAlltoAllImpl {
 public:
  MoeAlltoAllImpl(const Group& group, const MoeAlltoAllOptions& given,
                  const ExchangeOptions& exchange)
      : pool(group, exchange), options(given) {
    require(!options.enable_rank_mask, Errc::kNotSupported, kNoMasks, "enable_rank_mask");
    routing.config.num_experts = options.num_experts;
    routing.config.num_topk = options.top_k;
    routing.config.max_tokens_per_rank = options.max_num_tokens;
    routing.config.layout = Layout::kByRank;
  }

  ExchangePool pool;
  MoeAlltoAllOptions options;
  Tensor ids;  ///< [T, K] i64 of the last dispatch
  PayloadRouting routing;
  Tensor recv_counts;  ///< [P] i32
  std::vector<std::int64_t> num_received;
  ReceivedPayloads dispatched;  ///< held from dispatch to combine
};

namespace {

void check_dispatch(const MoeAlltoAllImpl& moe, const TensorView& ids,
                    const std::vector<TensorView>& payloads, std::int64_t max_tokens,
                    const MoeDispatchOptions& options) {
  require(!options.active_rank_mask.has_value(), Errc::kNotSupported, kNoMasks, "active_rank_mask");
  require(moe.dispatched.kept == nullptr, Errc::kInvalidArgument,
          "dispatch: an earlier dispatch waits for its combine; combine first");
  require(ids.num_dims() == 2 && ids.shape(1) == moe.options.top_k, Errc::kInvalidArgument,
          "dispatch: token_selected_experts is {}, must be i32 or i64 [T, {}]", ids,
          moe.options.top_k);
  require(max_tokens >= 1 && max_tokens <= moe.options.max_num_tokens, Errc::kInvalidArgument,
          "dispatch: runtime_max_tokens_per_rank is {}, must be from 1 to {}", max_tokens,
          moe.options.max_num_tokens);
  require(!payloads.empty(), Errc::kInvalidArgument, "dispatch: no payloads, must be at least one");
  if (!options.invalid_token_expert_id.has_value()) return;
  const auto index = static_cast<std::size_t>(options.expert_id_payload_index);
  require(options.expert_id_payload_index >= 0 && index < payloads.size() &&
              payloads[index].dtype() == DType::kI32 && payloads[index].num_dims() == 2,
          Errc::kInvalidArgument,
          "dispatch: expert_id_payload_index is {}, must be that of i32 [T, columns] among {} "
          "payloads",
          options.expert_id_payload_index, payloads.size());
}

}  // namespace

std::vector<TensorView> MoeAlltoAll::dispatch(const TensorView& ids,
                                              const std::vector<TensorView>& payloads,
                                              std::int64_t max_tokens, Stream stream,
                                              const MoeDispatchOptions& options) {
  MoeAlltoAllImpl& own = live(impl_, "MoeAlltoAll");
  own.pool.check_call("dispatch", stream, {{"token_selected_experts", ids}});
  check_dispatch(own, ids, payloads, max_tokens, options);
  own.ids = known_ids(own.pool.results(), ids, stream);
  own.routing.topk_ids = own.ids;
  own.routing.num_tokens = ids.shape(0);
  own.routing.max_tokens = max_tokens;
  // kByRank without worst_case_rows: the size follows max_tokens, not the rows that arrive.
  own.dispatched = dispatch_payloads("dispatch", own.pool, own.routing, payloads, stream);
  own.recv_counts = own.pool.results().make(DType::kI32, {own.pool.group().size()});
  own.dispatched.kept->exchange().write_row_sources(own.dispatched.kept->handle(),
                                                    {.rows_per_rank = own.recv_counts}, stream);
  if (own.dispatched.received.host.has_value()) {
    const auto& arrived = own.dispatched.received.host->rows_per_rank;
    own.num_received.assign(arrived.begin(), arrived.end());
  }
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    views.push_back(
        by_rank(own.dispatched.received.payloads[i], payloads[i], own.pool.group().size()));
  }
  if (options.invalid_token_expert_id.has_value()) {
    sanitize(views[static_cast<std::size_t>(options.expert_id_payload_index)], own.recv_counts,
             *options.invalid_token_expert_id, stream);
  }
  return views;
}

std::span<const std::int64_t> MoeAlltoAll::num_received() const {
  MoeAlltoAllImpl& own = live(impl_, "MoeAlltoAll");
  require(!own.pool.is_on_gpu(), Errc::kNotSupported,
          "num_received: the counts are on {}, and the host does not wait for them; read "
          "recv_counts()",
          name_of(own.pool.device()));
  return own.num_received;
}

Tensor MoeAlltoAll::combine(const TensorView& payload, Stream stream) {
  MoeAlltoAllImpl& own = live(impl_, "MoeAlltoAll");
  own.pool.check_call("combine", stream, {{"payload", payload}});
  require(own.dispatched.kept != nullptr, Errc::kInvalidArgument,
          "combine: nothing was dispatched; dispatch first");
  const std::int64_t num_ranks = own.pool.group().size();
  require(payload.has_value() && payload.num_dims() == 3 && payload.shape(0) == num_ranks &&
              payload.shape(1) == own.routing.max_tokens && payload.is_contiguous(),
          Errc::kInvalidArgument, "combine: payload is {}, must be [{}, {}, H], contiguous",
          payload, num_ranks, own.routing.max_tokens);
  Tensor output =
      own.pool.results().make(payload.dtype(), {own.routing.num_tokens, payload.shape(2)});
  combine_rows(
      own.pool, own.routing,
      reshaped(payload, payload.dtype(), {num_ranks * own.routing.max_tokens, payload.shape(2)}),
      output, stream);
  own.dispatched = {};
  return output;
}

MoeAlltoAll::MoeAlltoAll(const Group& group, const MoeAlltoAllOptions& options,
                         const ExchangeOptions& exchange_options)
    : impl_(std::make_unique<MoeAlltoAllImpl>(group, options, exchange_options)) {}
MoeAlltoAll::MoeAlltoAll(MoeAlltoAll&&) noexcept = default;
MoeAlltoAll& MoeAlltoAll::operator=(MoeAlltoAll&&) noexcept = default;
MoeAlltoAll::~MoeAlltoAll() = default;
void MoeAlltoAll::close(bool waits_for_peers) {
  live(impl_, "MoeAlltoAll").pool.close(waits_for_peers);
}

std::size_t MoeAlltoAll::get_workspace_size_per_rank(std::int64_t ep_size,
                                                     std::int64_t max_num_tokens,
                                                     std::int64_t dispatch_bytes_per_token,
                                                     std::int64_t combine_bytes_per_token,
                                                     std::int64_t aux_bytes) {
  require(ep_size >= 1 && max_num_tokens >= 0 && dispatch_bytes_per_token >= 0 &&
              combine_bytes_per_token >= 0 && aux_bytes >= 0,
          Errc::kInvalidArgument,
          "get_workspace_size_per_rank: {} ranks, {} tokens, {} + {} bytes, {} aux bytes, must not "
          "be negative",
          ep_size, max_num_tokens, dispatch_bytes_per_token, combine_bytes_per_token, aux_bytes);
  constexpr std::int64_t kLine = 128;
  const std::int64_t rows = checked_mul(ep_size, max_num_tokens);
  std::int64_t total = 0;
  for (const std::int64_t bytes : {aux_bytes, checked_mul(rows, dispatch_bytes_per_token),
                                   checked_mul(rows, combine_bytes_per_token)}) {
    total = checked_add(total, checked_add(bytes, kLine - 1) / kLine * kLine);
  }
  return static_cast<std::size_t>(total);
}

const TensorView& MoeAlltoAll::recv_counts() const {
  return live(impl_, "MoeAlltoAll").recv_counts.view();
}

}  // namespace switchyard::flashinfer
