// SPDX-License-Identifier: Apache-2.0

#include <cuda_runtime_api.h>
#include <limits>

#include "core/fail.h"
#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "cuda/experts/expert_blas.h"
#include "cuda/experts/grouped_product.h"

namespace switchyard::cuda {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

class Cutlass final : public ExpertBlas {
 public:
  explicit Cutlass(Device device) : device_(device.index), stream_(Stream::default_of(device)) {
    const int major = attribute(cudaDevAttrComputeCapabilityMajor, device_);
    const int minor = attribute(cudaDevAttrComputeCapabilityMinor, device_);
    require(major == 9 && minor == 0, Errc::kNotAvailable,
            "cutlass: cuda:{} has compute capability {}.{}, must be 9.0; use \"cublas\"", device_,
            major, minor);
  }

  bool is_capturable(bool) const override { return true; }
  std::size_t scratch_bytes(std::int64_t num_experts) const override {
    const DeviceGuard guard(device_);
    return grouped_scratch_bytes(num_experts);
  }
  std::size_t row_alignment() const override { return kGroupedAlignment; }
  void begin(const RowRanges&, std::byte* scratch, Stream stream) override {
    scratch_ = scratch;
    stream_ = stream;
  }
  void multiply(const ExpertProduct& p, bool adds) override {
    constexpr std::int64_t kMost = std::numeric_limits<int>::max();
    if (p.ranges.total_rows == 0 || p.ranges.num_experts == 0) return;
    require(p.num_outputs <= kMost && p.depth <= kMost && p.ranges.capacity <= kMost,
            Errc::kNotSupported, "cutlass: {} rows of {} elements to {}, each must be below 2^31",
            p.ranges.capacity, p.depth, p.num_outputs);
    const DeviceGuard guard(device_);
    launch_grouped_product(p, adds, scratch_, stream_);
  }

 private:
  int device_;
  std::byte* scratch_ = nullptr;
  Stream stream_;  // of begin()
};

}  // namespace

std::unique_ptr<ExpertBlas> make_cutlass(Device device) {
  return std::make_unique<Cutlass>(device);
}

}  // namespace switchyard::cuda
