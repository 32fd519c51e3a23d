// SPDX-License-Identifier: Apache-2.0
//
// Rows stored straight to their places (plan/push_path.h): the memory and the launches.

#include <algorithm>
#include <string>
#include <vector>

#include "core/settings.h"
#include "cuda/base/check.h"
#include "exchange/log_calls.h"
#include "exchange/push/push_exchange.h"
#include "exchange/push/received_memory.h"

namespace switchyard {
namespace {

constexpr int kZeroByte = 0;
constexpr const char* kDirectPath = "final places";  // in the log

}  // namespace

// Collective where it is asked for. Every rank lays out its window alike.
void PushExchange::plan_direct() {
  path_ = parse_push_path(setting("SWITCHYARD_PUSH_PATH").text);
  const PathFacts facts{.num_ranks = group_.size(),
                        .is_over_hosts = hosts_ != nullptr,
                        .takes_memory_to_size = options_.exact_memory,
                        .gpu_can = cuda::gpu_can_store_directly()};
  const bool can = can_be_direct(shape_.config, facts, path_);
  const std::vector<std::string> all =
      group_.control().all_gather_text({Phase::kExchange, "direct rows"}, can ? "direct" : "slots");
  if (std::find(all.begin(), all.end(), "slots") != all.end()) return;
  lay_out_direct(shape_, group_.rank());
}

// Peers write them, too.
void PushExchange::take_direct_arrivals(const Slot& slot, SlotMemory& memory) const {
  std::byte* window = slot.window->base(group_.rank());
  memory.state.arrival_token =
      reinterpret_cast<std::int32_t*>(window + shape_.direct.arrival_tokens_offset);
  memory.state.arrival_rows =
      reinterpret_cast<std::int32_t*>(window + shape_.direct.arrival_rows_offset);
}

void PushExchange::take_received_in_window(Slot& slot, cudaStream_t stream) const {
  std::byte* memory = slot.window->base(group_.rank()) + shape_.direct.received_offset;
  slot.num_received_rows = shape_.exchange.max_buffer_rows;
  slot.kernels.received = lay_out_received(memory, shape_, group_.rank(), slot.num_received_rows);
  if (slot.kernels.received.num_bytes == 0) return;
  cuda::check_cuda(cudaMemsetAsync(memory, kZeroByte, slot.kernels.received.num_bytes, stream),
                   "cudaMemsetAsync");
}

// See run_kernels().
void PushExchange::run_direct_kernels() const {
  const SlotKernels& slot = slots_[0].kernels;
  PushDispatch call;
  for (const DType dtype : {DType::kBF16, shape_.config.scheme.dtype}) {
    call.tokens.dtype = dtype;
    cuda::launch_direct_dispatch(direct_dispatch_args(slot, call), cuda::Phases::kNone, false,
                                 nullptr);
  }
  cuda::launch_direct_combine(direct_combine_args(slot, {}, cuda::Phases::kBoth),
                              cuda::Phases::kNone, false, nullptr);
}

void PushExchange::launch_direct_rows(const Slot& slot, cuda::Phases phases, Stream stream) const {
  cuda::DirectDispatchArgs args = direct_dispatch_args(slot.kernels, slot.dispatch);
  const KernelRoom room = room_.of(stream);
  args.grid = cuda::direct_dispatch_grid(grid_request(slot, room, phases), args);
  log_kernel("dispatch", kDirectPath,
             args.grid.num_ctas(cuda::sends(phases), cuda::receives(phases)));
  cuda::launch_direct_dispatch(args, phases, room.is_programmatic && is_short(slot), stream.get());
}

void PushExchange::launch_direct_return(const Slot& slot, const PushCombine& call,
                                        cuda::Phases phases, Stream stream) const {
  cuda::DirectCombineArgs args = direct_combine_args(slot.kernels, call, phases);
  const KernelRoom room = room_.of(stream);
  args.grid = cuda::direct_combine_grid(grid_request(slot, room, phases), args.layout,
                                        slot.dispatch.tokens.count);
  log_kernel("combine", kDirectPath,
             args.grid.num_ctas(cuda::sends(phases), cuda::receives(phases)));
  cuda::launch_direct_combine(args, phases, room.is_programmatic && is_short(slot), stream.get());
}

}  // namespace switchyard
