// SPDX-License-Identifier: Apache-2.0
//
// What a dispatch does besides its rows: it keeps ids, gathers them from all ranks and drops
// overflow; and it clears memory where rows without a token have a meaning.

#include <algorithm>

#include "core/fail.h"
#include "cuda/base/check.h"
#include "exchange/push/push_exchange.h"

namespace switchyard {
namespace {

constexpr int kNoIdByte = 0xFF;

}  // namespace

bool PushExchange::drops(const Slot& slot) const { return shape_.drops && !slot.dispatch.is_again; }

const PushExchange::Slot& PushExchange::kept_routing(const DispatchHandle& earlier,
                                                     const char* operation) const {
  require(options_.keeps_routing, Errc::kInvalidArgument,
          "{}: the exchange keeps no routing; set ExchangeOptions::keeps_routing", operation);
  const std::uint64_t id = handles_.routing_id(earlier);
  const bool is_own = handles_.former_slot(earlier) < handles_.size();
  require(id != 0, Errc::kInvalidArgument,
          "{}: the handle {}; pass one whose dispatch was received", operation,
          is_own ? "has no routing" : "is empty or of another Exchange");
  const Slot* found = nullptr;
  for (const Slot& slot : slots_) {
    if (slot.routing == id) found = &slot;
  }
  require(found != nullptr, Errc::kInvalidArgument,
          "{}: a new dispatch has reused the slot of the handle, and with it its routing; use it "
          "before, or raise max_in_flight, {}",
          operation, shape_.config.max_in_flight);
  const std::size_t slot = handles_.former_slot(earlier);
  require(handles_.stage(slot) != Stage::kSent || found != &slots_[slot], Errc::kInvalidArgument,
          "{}: the handle was sent by dispatch and not received; pass one whose dispatch was "
          "received",
          operation);
  return *found;
}

// Copies what is known of an earlier dispatch's routing, unless it used the same slot.
void PushExchange::copy_routing(Slot& slot, const Slot& earlier, Stream stream) const {
  if (&slot == &earlier) return;
  const auto copy = [&](std::int32_t* to, const std::int32_t* from, std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(std::int32_t);
    if (bytes == 0) return;
    cuda::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream.get()),
                     "dispatch_again");
  };
  const SlotMemory& to = slot.kernels.memory;
  const SlotMemory& from = earlier.kernels.memory;
  copy(to.own_ids, from.own_ids, earlier.dispatch.num_tokens() * shape_.config.num_topk);
  copy(to.num_dropped, from.num_dropped, 1);
  if (earlier.dispatch.sizing != Sizing::kCounted) return;
  slot.rows_per_rank = earlier.rows_per_rank;
  const auto num_words =
      static_cast<std::size_t>(group_.size() + shape_.main_ownership.count(group_.rank()));
  std::copy_n(earlier.kernels.counts.num_dropped, 1 + num_words, slot.kernels.counts.num_dropped);
}

void PushExchange::clear_rows(const Slot& slot, Stream stream) const {
  const ExchangeConfig& config = shape_.config;
  const auto rows = static_cast<std::size_t>(slot.dispatch.num_rows);
  const auto topk = static_cast<std::size_t>(config.num_topk);
  const auto clear = [&](void* memory, int byte, std::size_t bytes) {
    if (memory == nullptr || bytes == 0) return;
    cuda::check_cuda(cudaMemsetAsync(memory, byte, bytes, stream.get()), "dispatch");
  };
  const cuda::ReceiveBuffer to = receive_buffer(slot.kernels, slot.dispatch);
  if (config.layout == Layout::kByRank) {
    clear(to.row_ids, kNoIdByte, rows * topk * sizeof(std::int32_t));
    clear(to.row_weights, 0, rows * topk * sizeof(float));
  }
  if (config.zero_padding) clear(to.row_weights, 0, rows * sizeof(float));
  if (slot.dispatch.routing_only) return;
  // The tiles of a batch never change, so the rest of them keeps the zeros of allocation.
  const bool has_tiles =
      config.scale_layout == ScaleLayout::kSwizzled && config.layout != Layout::kBatched;
  if (has_tiles || config.zero_padding) {
    const cuda::ScalePlacement scales = scale_placement(slot.kernels, slot.dispatch);
    clear(scales.data, 0, scales.block.num_bytes());
  }
  if (!config.zero_padding) return;
  clear(to.rows, 0, rows * shape_.exchange.payload_bytes);
  for (std::size_t i = 0; i < config.payload_bytes.size(); ++i) {
    clear(slot.kernels.received.payloads[i], 0,
          rows * static_cast<std::size_t>(config.payload_bytes[i]));
  }
}

// What is dropped must be known before rows are sent: then this waits for all ranks.
void PushExchange::gather_routing(const Slot& slot, cuda::Phases phases, Stream stream) {
  const bool is_dropped = drops(slot);
  const bool is_published = shape_.gathers && shape_.gathers_routing;
  const bool is_kept = keeps_ids() && shape_.config.num_topk > 0;
  if (cuda::sends(phases) && is_kept && (is_published || !slot.dispatch.is_again)) {
    cuda::launch_keep_routing(routing_args(slot.kernels, slot.dispatch), stream.get());
  }
  const auto gather = [&](cuda::Phases of_gather) {
    const cuda::DispatchArgs args = gather_args(slot.kernels, slot.dispatch);
    if (hosts_ != nullptr) {
      const DispatchMessage message = routing_message(shape_, slot.dispatch.max_tokens);
      return launch_over_hosts(slot, {args}, message, of_gather, stream);
    }
    launch_rows(slot, args, of_gather, stream);
    sync_if_shared(of_gather, stream);
  };
  if (is_dropped && cuda::sends(phases)) {
    gather(cuda::Phases::kBoth);
    cuda::launch_drop_overflow(routing_args(slot.kernels, slot.dispatch), stream.get());
  } else if (!is_dropped && is_published) {
    gather(phases);
  }
  // Direct rows of peers may come as soon as this rank's counts have gone.
  if (slot.dispatch.is_direct ? cuda::sends(phases) : cuda::receives(phases)) {
    clear_rows(slot, stream);
  }
}

}  // namespace switchyard
