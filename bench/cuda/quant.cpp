// SPDX-License-Identifier: Apache-2.0
//
// quant.cpp: the rate of quantize, dequantize and the fused activation on a GPU, compared with a
// device-to-device copy that reads and writes as many bytes in total. A dynamic tensor scale reads
// the tensor twice, and both reads count. One call between two events, median of 30, over 4
// alternating sets of tensors, so that the L2 cache does not help.
//
// usage: cuda_quant [rows] [hidden]     A table goes to stderr, a JSON line per case to stdout.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <functional>
#include <string>
#include <vector>

#include "switchyard/error.h"
#include "switchyard/quantize_batched.h"

#include "core/random.h"
#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "quant/scalar.h"
#include "quant/scheme.h"
#include "run_bench.h"

namespace switchyard {
namespace {

constexpr int kSets = 4;
constexpr int kRounds = 30;
constexpr int kWarmUp = 5;

struct Shape {
  std::int64_t num_rows;
  std::int64_t hidden;
};

struct Set {
  cuda::DeviceBuffer x;
  cuda::DeviceBuffer q;
  cuda::DeviceBuffer scales;
  cuda::DeviceBuffer y;
};

class Bench {
 public:
  explicit Bench(const Shape& shape) : shape_(shape) {
    for (cudaEvent_t& event : events_) cuda::check_cuda(cudaEventCreate(&event), "event");
    const auto elements = static_cast<std::size_t>(shape.num_rows * shape.hidden);
    global_ = cuda::DeviceBuffer(sizeof(float));
    const float scale = 600.0f;
    cuda::check_cuda(cudaMemcpy(global_.data(), &scale, sizeof scale, cudaMemcpyHostToDevice),
                     "scale");
    for (Set& set : sets_) {
      set.x = cuda::DeviceBuffer(5 * elements);  // a copy may move more bytes than any call
      set.q = cuda::DeviceBuffer(4 * elements);
      set.scales = cuda::DeviceBuffer(elements / 2 + 1024);
      set.y = cuda::DeviceBuffer(5 * elements);
    }
    std::fprintf(stderr, "%-18s %-12s %-5s %9s %9s %9s %7s\n", "scheme", "call", "x", "us", "GB/s",
                 "copy GB/s", "of copy");
  }
  ~Bench() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }

  void fill(DType dtype) {
    const auto num_bytes =
        static_cast<std::size_t>(shape_.num_rows * shape_.hidden * bits_of(dtype) / 8);
    std::vector<std::byte> host(num_bytes);
    const auto count = static_cast<std::int64_t>(num_bytes) * 8 / bits_of(dtype);
    for (std::int64_t i = 0; i < count; ++i) {
      // Repeating values keep the set-up short; no block divides the period.
      scalar::store(host.data(), dtype, i, values_[static_cast<std::size_t>(i) % values_.size()]);
    }
    for (Set& set : sets_) {
      cuda::check_cuda(cudaMemcpy(set.x.data(), host.data(), num_bytes, cudaMemcpyHostToDevice),
                       "fill");
    }
  }

  void measure_scheme(const QuantScheme& scheme, DType dtype) {
    const DType stored = stored_dtype(scheme, dtype);
    const std::size_t x_bytes = bytes(dtype, shape_.hidden);
    const std::size_t stored_bytes = bytes(stored, shape_.hidden) + scale_bytes(scheme);
    const TensorView global = scheme.needs_tensor_scale() ? one(global_) : TensorView{};
    // The scale of a whole tensor must be known before the first element is rounded.
    const std::size_t num_reads = scheme.group == ScaleGroup::kTensor ? 2 : 1;
    report(scheme, "quantize", dtype, num_reads * x_bytes + stored_bytes, [&](Set& set) {
      quantize(rows(set.x, dtype), scheme, rows(set.q, stored), scales(scheme, set), stream(),
               global);
    });
    if (!scheme.is_simulated()) {
      report(scheme, "dequantize", dtype, x_bytes + stored_bytes, [&](Set& set) {
        dequantize(rows(set.q, stored), scales(scheme, set), scheme, rows(set.y, dtype), stream(),
                   global);
      });
    }
    if (scheme.is_simulated() || dtype != DType::kBF16) return;
    const bool is_tensor = scheme.group == ScaleGroup::kTensor;
    const TensorView given = is_tensor ? one(global_) : global;
    // Half as many rows of twice the width, so that x has the same size.
    report(scheme, "silu_mul", dtype, x_bytes + stored_bytes / 2, [&](Set& set) {
      const std::int64_t half = shape_.num_rows / 2;
      silu_mul_quantize(TensorView(set.x.data(), dtype, {half, 2 * shape_.hidden}, kGpu), scheme,
                        TensorView(set.q.data(), scheme.dtype, {half, shape_.hidden}, kGpu),
                        is_tensor ? TensorView{} : scales(scheme, set, half), stream(),
                        ActivationScale::kScheme, given);
    });
  }

 private:
  static constexpr std::size_t kPeriod = 100003;

  std::size_t bytes(DType dtype, std::int64_t hidden) const {
    return static_cast<std::size_t>(shape_.num_rows * hidden * bits_of(dtype) / 8);
  }
  std::size_t scale_bytes(const QuantScheme& scheme) const {
    if (scheme.group == ScaleGroup::kTensor) return sizeof(float);
    return static_cast<std::size_t>(shape_.num_rows) * scale_row_bytes(scheme, shape_.hidden);
  }
  TensorView rows(const cuda::DeviceBuffer& memory, DType dtype) const {
    return TensorView(memory.data(), dtype, {shape_.num_rows, shape_.hidden}, kGpu);
  }
  static TensorView one(const cuda::DeviceBuffer& memory) {
    return TensorView(memory.data(), DType::kF32, {1}, kGpu);
  }
  TensorView scales(const QuantScheme& scheme, const Set& set, std::int64_t num_rows = 0) const {
    if (!scheme.is_quantized() || scheme.is_simulated()) return {};
    if (scheme.group == ScaleGroup::kTensor) return one(set.scales);
    return TensorView(
        set.scales.data(), scale_dtype(scheme),
        {num_rows == 0 ? shape_.num_rows : num_rows, num_scales(scheme, shape_.hidden)}, kGpu);
  }
  Stream stream() const { return Stream::cuda(stream_.get(), kGpu.index); }

  // Median time of one call, in microseconds.
  double time(const std::function<void(Set&)>& call) {
    for (int i = 0; i < kWarmUp; ++i) call(sets_[static_cast<std::size_t>(i % kSets)]);
    for (int i = 0; i < kRounds; ++i) {
      const auto at = static_cast<std::size_t>(i);
      cuda::check_cuda(cudaEventRecord(events_[2 * at], stream_.get()), "event");
      call(sets_[at % kSets]);
      cuda::check_cuda(cudaEventRecord(events_[2 * at + 1], stream_.get()), "event");
    }
    cuda::check_cuda(cudaStreamSynchronize(stream_.get()), "synchronize");
    std::array<double, kRounds> times{};
    for (std::size_t i = 0; i < kRounds; ++i) {
      float milliseconds = 0;
      cuda::check_cuda(cudaEventElapsedTime(&milliseconds, events_[2 * i], events_[2 * i + 1]),
                       "time");
      times[i] = 1000.0 * static_cast<double>(milliseconds);
    }
    std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
    return times[kRounds / 2];
  }

  void report(const QuantScheme& scheme, const char* call, DType dtype, std::size_t num_bytes,
              const std::function<void(Set&)>& work) {
    const double us = time(work);
    const double copy_us = time([&](Set& set) {
      cuda::check_cuda(cudaMemcpyAsync(set.y.data(), set.x.data(), num_bytes / 2,
                                       cudaMemcpyDeviceToDevice, stream_.get()),
                       "copy");
    });
    const double gb = static_cast<double>(num_bytes) / 1000.0;
    const std::string name = name_of(scheme);
    const std::string input = name_of(dtype);
    std::fprintf(stderr, "%-18s %-12s %-5s %9.2f %9.1f %9.1f %6.1f%%\n", name.c_str(), call,
                 input.c_str(), us, gb / us, gb / copy_us, 100.0 * copy_us / us);
    std::printf(
        "{\"bench\": \"cuda_quant\", \"scheme\": \"%s\", \"call\": \"%s\", \"dtype\": \"%s\", "
        "\"rows\": %lld, \"hidden\": %lld, \"bytes\": %zu, \"us\": %.3f, \"copy_us\": %.3f, "
        "\"of_copy\": %.4f}\n",
        name.c_str(), call, input.c_str(), static_cast<long long>(shape_.num_rows),
        static_cast<long long>(shape_.hidden), num_bytes, us, copy_us, copy_us / us);
    std::fflush(stdout);
  }

  static std::vector<float> make_values() {
    std::vector<float> values(kPeriod);
    for (std::size_t i = 0; i < kPeriod; ++i) values[i] = static_cast<float>(random_normal(1, i));
    return values;
  }

  Shape shape_;
  cuda::OwnedStream stream_;
  std::array<cudaEvent_t, 2 * kRounds> events_{};
  std::array<Set, kSets> sets_;
  cuda::DeviceBuffer global_;
  std::vector<float> values_ = make_values();
};

void run(const Shape& shape) {
  Bench bench(shape);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    bench.fill(dtype);
    for (const QuantScheme& scheme : named_schemes()) bench.measure_scheme(scheme, dtype);
  }
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  const switchyard::Shape shape{argc > 1 ? std::atoll(argv[1]) : 4096,
                                argc > 2 ? std::atoll(argv[2]) : 7168};
  return switchyard::run_bench("cuda_quant", [&] { switchyard::run(shape); });
}
