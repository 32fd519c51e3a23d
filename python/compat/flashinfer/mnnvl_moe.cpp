// SPDX-License-Identifier: Apache-2.0

#include "compat/flashinfer/mnnvl_moe.h"

#include <algorithm>

#include "switchyard/collectives.h"

#include "compat/arguments.h"
#include "core/bytes.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/live.h"
#include "device/compat_rows.h"
#include "exchange/pool/payload_exchange.h"
#include "plan/expert_ownership.h"
#include "plan/id_tensor.h"

namespace switchyard::flashinfer {

struct TwoSidedRouting {
  Tensor ids;  ///< [T, K] i64, -1: none
  PayloadRouting shared;
};

namespace {

constexpr const char* kPrepare = "prepare_without_allgather";

ExchangeConfig config_of(std::int64_t max_tokens, std::int32_t slot_count, std::int32_t top_k) {
  ExchangeConfig config;
  config.num_experts = slot_count;
  config.num_topk = top_k;
  config.max_tokens_per_rank = max_tokens;
  config.layout = Layout::kCompact;
  config.worst_case_rows = true;
  return config;
}

// Ids for the exchange: everything that means "none" becomes -1.
Tensor known_ids(const TensorPool& pool, const TensorView& expert_ids, std::int32_t slot_count,
                 Stream stream) {
  if (stream.device().is_cuda()) {
    Tensor ids = pool.make(DType::kI64, {expert_ids.shape(0), expert_ids.shape(1)});
    cuda::RenameIdsArgs args;
    args.from = ids_for_kernel(expert_ids);
    args.to = ids_for_kernel(ids);
    args.num_ids = slot_count;
    on_gpu::rename_ids(args, stream);
    return ids;
  }
  Tensor ids = copy_ids(kPrepare, pool, expert_ids, stream);
  for (std::int64_t i = 0; i < ids.view().num_elements(); ++i) {
    std::int64_t& id = ids.as<std::int64_t>()[i];
    require(id <= slot_count, Errc::kInvalidArgument,
            "{}: element {} of expert_ids is {}, must be below slot_count, {}, or none", kPrepare,
            i, id, slot_count);
    if (id < 0 || id == slot_count) id = -1;
  }
  return ids;
}

// One sent row per (token, rank that serves it): the token, and token * K + lowest k.
void fill_send_lists(MoEAlltoallInfo& info, const TensorView& ids, const ExpertOwnership& ownership,
                     std::int64_t max_tokens) {
  const std::int64_t num_topk = ids.shape(1);
  const auto num_ranks = static_cast<std::size_t>(ownership.num_ranks);
  std::vector<std::vector<std::int32_t>> sent(num_ranks);
  for (std::int64_t i = 0; i < ids.num_elements(); ++i) {
    const std::int64_t id = ids.as<std::int64_t>()[i];
    if (id < 0) continue;
    auto& list = sent[static_cast<std::size_t>(ownership.owner(static_cast<int>(id)))];
    // k ascends, so the first occurrence of a rank is the lowest k there.
    if (list.empty() || list.back() / num_topk != i / num_topk) {
      list.push_back(static_cast<std::int32_t>(i));
    }
  }
  const std::int64_t room =
      checked_mul(max_tokens, std::max(ownership.num_ranks + std::int64_t{0}, num_topk));
  info.send_rank_count_cumsum = Tensor(DType::kI32, {ownership.num_ranks});
  info.send_rank_local_indices = Tensor(DType::kI32, {room});
  info.backward_recv_rank_local_indices = Tensor(DType::kI32, {room});
  auto* tokens = info.send_rank_local_indices.as<std::int32_t>();
  auto* backward = info.backward_recv_rank_local_indices.as<std::int32_t>();
  std::fill_n(tokens, room, -1);
  std::fill_n(backward, room, -1);
  std::int32_t count = 0;
  for (std::size_t r = 0; r < num_ranks; ++r) {
    for (const std::int32_t place : sent[r]) {
      tokens[count] = static_cast<std::int32_t>(place / num_topk);
      backward[count++] = place;
    }
    info.send_rank_count_cumsum.as<std::int32_t>()[r] = count;
  }
}

void fill_receive_lists(MoEAlltoallInfo& info, const Dispatched& received) {
  std::vector<std::int64_t> ends(received.host->rows_per_rank.begin(),
                                 received.host->rows_per_rank.end());
  for (std::size_t r = 1; r < ends.size(); ++r) ends[r] += ends[r - 1];
  info.recv_rank_count_cumsum = to_i32(ends);
  info.local_token_allocation_count = received.topk_ids.shape(0);
  info.recv_rank_local_indices = Tensor(DType::kI32, {info.local_token_allocation_count});
  for (std::int64_t i = 0; i < info.local_token_allocation_count; ++i) {
    info.recv_rank_local_indices.as<std::int32_t>()[i] = static_cast<std::int32_t>(i);
  }
}

// Local indices become slots; everything else becomes slot_count. On GPUs weights of rows without a
// token become 0; CPUs receive them so.
Tensor slots_of(const TensorPool& pool, const Dispatched& received, std::int32_t first_slot,
                std::int32_t slot_count, const TensorView& weights, Stream stream) {
  const TensorView& local_ids = received.topk_ids;
  Tensor slots = pool.make(DType::kI32, {local_ids.shape(0), local_ids.shape(1)});
  if (stream.device().is_cuda()) {
    cuda::RenameIdsArgs args;
    args.from = ids_for_kernel(local_ids);
    args.to = ids_for_kernel(slots);
    args.num_ids = slot_count - first_slot;
    args.offset = first_slot;
    args.none = slot_count;
    args.invalid = slot_count;
    args.num_rows = received.total_rows.as<std::int32_t>();
    args.weights = weights.has_value() ? weights.as<float>() : nullptr;
    on_gpu::rename_ids(args, stream);
    return slots;
  }
  for (std::int64_t i = 0; i < local_ids.num_elements(); ++i) {
    const std::int32_t local = local_ids.as<std::int32_t>()[i];
    slots.as<std::int32_t>()[i] = local < 0 ? slot_count : first_slot + local;
  }
  return slots;
}

// The two sums that do not need the host.
void sum_counts_on_gpu(MoEAlltoallInfo& info, const TensorPool& pool, const TensorView& ids,
                       const ExpertOwnership& ownership, const ReceivedPayloads& got,
                       Stream stream) {
  const std::int64_t num_ranks = ownership.num_ranks;
  const Tensor sent = pool.make(DType::kI32, {num_ranks});
  const Tensor received = pool.make(DType::kI32, {num_ranks});
  const Tensor flags = pool.make(DType::kU8, {ids.shape(0), num_ranks});
  on_gpu::count_sent_tokens(
      {ids_for_kernel(ids), ownership, sent.as<std::int32_t>(), flags.as<std::uint8_t>()}, stream);
  got.kept->exchange().write_row_sources(got.kept->handle(), {.rows_per_rank = received}, stream);
  const auto sum = [&](const Tensor& counts) {
    Tensor sums = pool.make(DType::kI32, {num_ranks});
    on_gpu::running_sums({counts.as<std::int32_t>(), sums.as<std::int32_t>(), ownership.num_ranks},
                         stream);
    return sums;
  };
  info.send_rank_count_cumsum = sum(sent);
  info.recv_rank_count_cumsum = sum(received);
  info.local_token_allocation_count = got.received.topk_ids.shape(0);
}

void check_prepare(const MnnvlMoeOptions& options, const TensorView& expert_ids,
                   std::int64_t max_tokens, std::int32_t expert_count) {
  require(expert_ids.num_dims() == 2, Errc::kInvalidArgument,
          "{}: expert_ids is {}, must be [T, K]", kPrepare, expert_ids);
  require_ids(kPrepare, "expert_ids", expert_ids);
  require(max_tokens >= 1 && max_tokens <= options.max_token_count_per_rank, Errc::kInvalidArgument,
          "{}: max_token_count_per_rank is {}, must be from 1 to {}", kPrepare, max_tokens,
          options.max_token_count_per_rank);
  require(expert_count >= 1, Errc::kInvalidArgument, "{}: expert_count is {}, must be at least 1",
          kPrepare, expert_count);
}

const TwoSidedRouting& routing_of(const char* function, const MoEAlltoallInfo& info) {
  require(info.routing != nullptr, Errc::kInvalidArgument,
          "{}: info is empty, must be from prepare_without_allgather", function);
  return *info.routing;
}

}  // namespace

class MnnvlMoeImpl {
 public:
  MnnvlMoeImpl(const Group& group, const MnnvlMoeOptions& given, const ExchangeOptions& exchange)
      : pool(group, exchange), options(given), statics(group, 1, exchange) {}

  ExchangePool pool;
  MnnvlMoeOptions options;
  Collectives statics;
};

MoEAlltoallPrepared MnnvlMoe::prepare_without_allgather(
    const TensorView& expert_ids, const TensorView& scales, const TensorView& expert_statics,
    std::int64_t max_tokens, std::int32_t expert_count, std::int32_t slot_count, Stream stream) {
  MnnvlMoeImpl& own = live(impl_, "MnnvlMoe");
  own.pool.check_call(
      kPrepare, stream,
      {{"expert_ids", expert_ids}, {"scales", scales}, {"expert_statics", expert_statics}});
  check_prepare(own.options, expert_ids, max_tokens, expert_count);
  const TensorView& statics = expert_statics;
  require(!statics.has_value() || (statics.dtype() == DType::kI32 && statics.num_dims() == 1 &&
                                   statics.shape(0) == expert_count && statics.is_contiguous()),
          Errc::kInvalidArgument, "{}: expert_statics is {}, must be i32 [{}]", kPrepare, statics,
          expert_count);
  auto routing = std::make_shared<TwoSidedRouting>();
  const TensorPool& results = own.pool.results();
  routing->ids = known_ids(results, expert_ids, slot_count, stream);
  routing->shared = {config_of(own.options.max_token_count_per_rank, slot_count,
                               narrow_size(kPrepare, "K", expert_ids.shape(1))),
                     routing->ids, expert_ids.shape(0), max_tokens};
  const ReceivedPayloads got =
      dispatch_payloads(kPrepare, own.pool, routing->shared, {}, stream, scales);
  const ExpertOwnership ownership{slot_count, own.pool.group().size()};
  MoEAlltoallPrepared result;
  if (own.pool.is_on_gpu()) {
    sum_counts_on_gpu(result.info, results, routing->ids, ownership, got, stream);
  } else {
    fill_send_lists(result.info, routing->ids, ownership, max_tokens);
    fill_receive_lists(result.info, got.received);
  }
  result.info.routing = routing;
  if (scales.has_value()) result.scales = copy_of(results, got.received.topk_weights, stream);
  result.expert_ids = slots_of(results, got.received, ownership.first(own.pool.group().rank()),
                               slot_count, result.scales, stream);
  if (statics.has_value()) {
    result.gathered_expert_statics =
        own.statics.all_gatherv(reshaped(statics, DType::kI32, {1, expert_count}), stream);
  }
  return result;
}

std::vector<Tensor> MnnvlMoe::alltoallv(const std::vector<TensorView>& payloads,
                                        const MoEAlltoallInfo& info, Stream stream) {
  MnnvlMoeImpl& own = live(impl_, "MnnvlMoe");
  constexpr const char* kName = "alltoallv";
  own.pool.check_call(kName, stream, {});
  const PayloadRouting& routing = routing_of(kName, info).shared;
  require(!payloads.empty(), Errc::kInvalidArgument, "{}: no payloads, must be at least one",
          kName);
  const ReceivedPayloads got = dispatch_payloads(kName, own.pool, routing, payloads, stream);
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    result.push_back(copy_payload(own.pool.results(), got.received, i, payloads[i], stream));
  }
  return result;
}

Tensor MnnvlMoe::alltoallv_combine(const TensorView& x, const MoEAlltoallInfo& info,
                                   Stream stream) {
  MnnvlMoeImpl& own = live(impl_, "MnnvlMoe");
  constexpr const char* kName = "alltoallv_combine";
  own.pool.check_call(kName, stream, {{"x", x}});
  const PayloadRouting& routing = routing_of(kName, info).shared;
  require(x.num_dims() == 2 && x.shape(0) == info.local_token_allocation_count,
          Errc::kInvalidArgument, "{}: x is {}, must be [{}, H]", kName, x,
          info.local_token_allocation_count);
  Tensor output = own.pool.results().make(x.dtype(), {routing.num_tokens, x.shape(1)});
  combine_rows(own.pool, routing, x, output, stream);
  return output;
}

MnnvlMoe::MnnvlMoe(const Group& group, const MnnvlMoeOptions& options,
                   const ExchangeOptions& exchange_options)
    : impl_(std::make_unique<MnnvlMoeImpl>(group, options, exchange_options)) {}
MnnvlMoe::MnnvlMoe(MnnvlMoe&&) noexcept = default;
MnnvlMoe& MnnvlMoe::operator=(MnnvlMoe&&) noexcept = default;
MnnvlMoe::~MnnvlMoe() = default;
void MnnvlMoe::close(bool waits_for_peers) {
  MnnvlMoeImpl& own = live(impl_, "MnnvlMoe");
  own.pool.close(waits_for_peers);
  own.statics.close(waits_for_peers);
}

ExchangeMemory MnnvlMoe::workspace_size_per_rank(std::int64_t max_token_count_per_rank,
                                                 std::int32_t slot_count, std::int32_t top_k,
                                                 std::int64_t row_bytes, int ep_size, int ep_rank) {
  ExchangeConfig config = config_of(max_token_count_per_rank, slot_count, top_k);
  config.hidden = 1;
  config.sends_weights = false;
  config.payload_bytes = {row_bytes};
  return exchange_memory(config, ep_size, ep_rank);
}

Tensor MnnvlMoe::alltoallv(const TensorView& x, const MoEAlltoallInfo& info, Stream stream) {
  return std::move(alltoallv(std::vector{x}, info, stream).front());
}

}  // namespace switchyard::flashinfer
