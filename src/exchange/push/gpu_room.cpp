// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/gpu_room.h"

#include <algorithm>

#include "cuda/exchange/exchange_args.h"

namespace switchyard {

GpuRoom::GpuRoom(int num_sms, int ranks_on_gpu, int max_in_flight, const ExchangeOptions& options)
    : has_sides_(ranks_on_gpu == 1 && max_in_flight > 1) {
  const int limit = options.num_ctas > 0 ? options.num_ctas : cuda::kExchangeCtasPerSm * num_sms;
  const auto share = [&](int num_kernels) {
    const int ctas = cuda::kExchangeCtasPerSm * num_sms / num_kernels;
    return std::max(cuda::kMinCtas, std::min(ctas, limit));
  };
  const bool is_alone = ranks_on_gpu == 1;
  full_.num_ctas = share(is_alone ? 1 : ranks_on_gpu * max_in_flight);
  full_.is_whole_gpu = is_alone && options.num_ctas == 0;
  full_.is_programmatic = is_alone && options.programmatic_launch;
  side_.num_ctas = share(2 * std::max(1, max_in_flight - 1));
}

}  // namespace switchyard
