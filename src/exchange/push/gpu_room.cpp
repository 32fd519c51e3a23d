// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/gpu_room.h"

#include <algorithm>

#include "cuda/base/check.h"
#include "cuda/exchange/exchange_args.h"
#include "heap/rank_links.h"

namespace switchyard {
namespace {

bool is_captured(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda::check_cuda(cudaStreamIsCapturing(stream.get(), &status), "dispatch");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

GpuRoom::GpuRoom(int num_sms, int ranks_on_gpu, int max_in_flight, bool has_hosts,
                 const ExchangeOptions& options)
    : is_alone_(ranks_on_gpu == 1),
      has_sides_(is_alone_ && max_in_flight > 1),
      beside_messages_(num_sms - kMaxMessageCtas) {
  const int limit = options.num_ctas > 0 ? options.num_ctas : kExchangeCtasPerSm * num_sms;
  const auto share = [&](int num_kernels) {
    const int ctas = kExchangeCtasPerSm * num_sms / num_kernels;
    return std::max(kMinCtas, std::min(ctas, limit));
  };
  full_.num_ctas = share(is_alone_ ? 1 : ranks_on_gpu * max_in_flight);
  full_.is_whole_gpu = is_alone_ && options.num_ctas == 0;
  full_.is_programmatic = is_alone_ && options.programmatic_launch;
  const int num_sides = std::max(1, max_in_flight - 1);
  side_.num_ctas = share(2 * num_sides);
  if (has_hosts) {
    side_.num_ctas = std::max(kMinCtas, std::min(side_.num_ctas, beside_messages_ / num_sides));
  }
  if (has_sides_) ends_.resize(static_cast<std::size_t>(max_in_flight) - 1);
}

void GpuRoom::begin(std::size_t slot, Stream stream) {
  if (!has_sides_ || slot != 0 || stream == main_) return;
  main_ = stream;
  if (is_captured(stream)) return;
  for (const cuda::OwnedEvent& end : ends_) end.make_wait(stream.get());
}

void GpuRoom::end(std::size_t slot, Stream stream) {
  if (slot == 0 || stream != main_ || is_captured(stream)) return;
  ends_[slot - 1].record(stream.get());
}

KernelRoom GpuRoom::beside_messages(Stream stream) const {
  KernelRoom room = of(stream);
  if (!is_alone_) return room;
  room.num_ctas = std::max(kMinCtas, std::min(room.num_ctas, beside_messages_));
  room.is_whole_gpu = false;
  return room;
}

}  // namespace switchyard
