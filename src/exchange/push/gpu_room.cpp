// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/gpu_room.h"

#include <algorithm>

#include "cuda/base/check.h"
#include "cuda/exchange/exchange_args.h"

namespace switchyard {
namespace {

bool is_captured(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::check_cuda(cudaStreamIsCapturing(stream.get(), &status), "dispatch");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

GpuRoom::GpuRoom(int num_sms, int ranks_on_gpu, int max_in_flight, const ExchangeOptions& options)
    : has_sides_(ranks_on_gpu == 1 && max_in_flight > 1) {
  const int limit = options.num_ctas > 0 ? options.num_ctas : kExchangeCtasPerSm * num_sms;
  const auto share = [&](int num_kernels) {
    const int ctas = kExchangeCtasPerSm * num_sms / num_kernels;
    return std::max(kMinCtas, std::min(ctas, limit));
  };
  const bool is_alone = ranks_on_gpu == 1;
  full_.num_ctas = share(is_alone ? 1 : ranks_on_gpu * max_in_flight);
  full_.is_whole_gpu = is_alone && options.num_ctas == 0;
  full_.is_programmatic = is_alone && options.programmatic_launch;
  side_.num_ctas = share(2 * std::max(1, max_in_flight - 1));
  if (has_sides_) ends_.resize(static_cast<std::size_t>(max_in_flight) - 1);
}

void GpuRoom::begin(std::size_t slot, Stream stream) {
  if (!has_sides_ || slot != 0 || stream == main_) return;
  main_ = stream;
  if (is_captured(stream)) return;
  for (const cuda::OwnedEvent& end : ends_) {
    cuda::check_cuda(cudaStreamWaitEvent(stream.get(), end.get()), "dispatch");
  }
}

void GpuRoom::end(std::size_t slot, Stream stream) {
  if (slot == 0 || stream != main_ || is_captured(stream)) return;
  cuda::check_cuda(cudaEventRecord(ends_[slot - 1].get(), stream.get()), "dispatch");
}

}  // namespace switchyard
