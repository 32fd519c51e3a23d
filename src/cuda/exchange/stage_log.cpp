// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/stage_log.h"

#include <algorithm>
#include <utility>

#include "cuda/base/check.h"

namespace switchyard::cuda {
namespace {

thread_local StageLog* thread_log = nullptr;

void add_ctas(KernelStages& kernel, CtaRole role, int count) {
  for (int i = 0; i < count; ++i) kernel.ctas.push_back({role, {}});
}

// `args` may be of a build whose kernels have nowhere to write.
template <class Args>
void record(Args& args, KernelStages kernel) {
  if constexpr (requires { args.stages; }) {
    args.stages = thread_log->next(std::move(kernel));
  }
}

}  // namespace

StageLog::StageLog(int max_ctas)
    : max_ctas_(static_cast<std::size_t>(max_ctas)),
      launches_(kMaxLaunches),
      memory_(kMaxLaunches * max_ctas_ * kNumStages * sizeof(std::uint64_t)) {
  check_cuda(cudaMemset(memory_.data(), 0, memory_.size_bytes()), "cudaMemset");
}

StageRecord StageLog::next(KernelStages kernel) {
  if (kernel.ctas.size() > max_ctas_) return {};
  const std::size_t at = num_launches_++ % kMaxLaunches;
  launches_[at] = std::move(kernel);
  return {memory_.as<std::uint64_t>() + at * record_words()};
}

std::vector<KernelStages> StageLog::take() {
  const std::size_t num_used = std::min(num_launches_, kMaxLaunches);
  std::vector<std::uint64_t> words(num_used * record_words());
  const std::size_t num_bytes = words.size() * sizeof(std::uint64_t);
  check_cuda(cudaMemcpy(words.data(), memory_.data(), num_bytes, cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  check_cuda(cudaMemset(memory_.data(), 0, num_bytes), "cudaMemset");
  check_cuda(cudaDeviceSynchronize(), "take_stages");
  std::vector<KernelStages> taken;
  for (std::size_t i = 0; i < num_used; ++i) {
    KernelStages kernel = launches_[i];
    const std::uint64_t* from = words.data() + i * record_words();
    for (CtaStages& cta : kernel.ctas) {
      std::copy_n(from, kNumStages, cta.ns.begin());
      from += kNumStages;
    }
    if (!kernel.ctas.empty() && kernel.ctas[0].ns[0] != 0) taken.push_back(std::move(kernel));
  }
  std::sort(taken.begin(), taken.end(), [](const KernelStages& a, const KernelStages& b) {
    return a.ctas[0].ns[0] < b.ctas[0].ns[0];
  });
  return taken;
}

void set_stage_log(StageLog* log) { thread_log = log; }

void record_stages(DispatchArgs& args, Phases phases) {
  if (!kHasStages || thread_log == nullptr) return;
  KernelStages kernel;
  const DispatchGrid& grid = args.grid;
  if (grid.shares_work) {
    add_ctas(kernel, CtaRole::kEverything, grid.num_ctas(sends(phases), receives(phases)));
  } else {
    if (sends(phases)) add_ctas(kernel, CtaRole::kNotify, grid.num_notify_ctas);
    if (sends(phases)) add_ctas(kernel, CtaRole::kSend, grid.num_senders);
    if (receives(phases)) add_ctas(kernel, CtaRole::kReceive, grid.num_receivers);
  }
  record(args, std::move(kernel));
}

void record_stages(CombineArgs& args, Phases phases) {
  if (!kHasStages || thread_log == nullptr) return;
  KernelStages kernel;
  kernel.is_combine = true;
  if (args.grid.streams) {
    add_ctas(kernel, CtaRole::kEverything, args.grid.num_ctas(sends(phases), receives(phases)));
  } else {
    if (sends(phases)) add_ctas(kernel, CtaRole::kSend, args.grid.num_senders);
    if (receives(phases)) add_ctas(kernel, CtaRole::kReceive, args.grid.num_receivers);
  }
  record(args, std::move(kernel));
}

}  // namespace switchyard::cuda
