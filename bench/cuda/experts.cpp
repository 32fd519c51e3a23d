// SPDX-License-Identifier: Apache-2.0
//
// experts.cpp: experts on a GPU at the sizes of DeepSeek-V3 on 8 ranks: 32 experts, H 7168, I 2048,
// bf16 weights. Decode: a batch with 512 slots per expert, of which 16 hold rows. Prefill: 4096
// rows, 128 per expert, and 65,536, one expert after another. The floor is the time to read the
// weights once, at the rate at which a long device-to-device copy reads and writes in this run. It
// does not apply where arithmetic takes longer, so the arithmetic rate over valid rows is printed
// as well. Medians of 20 calls between two events.
//
// usage: cuda_experts_bench     Prints a table to stderr, and one JSON line per case to stdout.

#include "switchyard/experts.h"

#include <algorithm>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <memory>
#include <string>
#include <vector>

#include "switchyard/error.h"

#include "core/random.h"
#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "quant/scalar.h"
#include "run_bench.h"

namespace switchyard {
namespace {

constexpr std::int64_t kExperts = 32;
constexpr std::int64_t kHidden = 7168;
constexpr std::int64_t kIntermediate = 2048;
constexpr int kRounds = 20;
constexpr int kWarmUp = 3;
constexpr double kWeightBytes = 2.0 * 3 * kExperts * kIntermediate * kHidden;

struct Case {
  const char* name;
  bool is_batched;
  std::int64_t places;  // per expert
  std::int32_t count;   // rows per expert
  QuantScheme scheme;
};

class Event {
 public:
  Event() { cuda::check_cuda(cudaEventCreate(&event_), "event"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  void record(const cuda::OwnedStream& stream) {
    cuda::check_cuda(cudaEventRecord(event_, stream.get()), "event");
  }
  double us_since(const Event& start) const {
    float milliseconds = 0;
    cuda::check_cuda(cudaEventElapsedTime(&milliseconds, start.event_, event_), "event");
    return 1000.0 * static_cast<double>(milliseconds);
  }

 private:
  cudaEvent_t event_ = nullptr;
};

template <typename Call>
double median_us(const cuda::OwnedStream& stream, const Call& call) {
  std::vector<double> times;
  Event begin, end;
  for (int i = -kWarmUp; i < kRounds; ++i) {
    begin.record(stream);
    call();
    end.record(stream);
    cuda::check_cuda(cudaStreamSynchronize(stream.get()), "synchronize");
    if (i >= 0) times.push_back(end.us_since(begin));
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  return times[kRounds / 2];
}

// On the host all experts share the same weights: [1, n, k] with a stride of 0. On the GPU each has
// its own copy.
class HostWeights {
 public:
  HostWeights() : values_(static_cast<std::size_t>(kIntermediate * kHidden)) {
    constexpr std::size_t kPeriod = 100003;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = i < kPeriod ? bf16_from_f32(static_cast<float>(0.02 * random_normal(1, i)))
                               : values_[i - kPeriod];
    }
  }
  ExpertWeights weights() const {
    const TensorView first(values_.data(), DType::kBF16, {kExperts, kIntermediate, kHidden},
                           {0, kHidden, 1});
    const TensorView second(values_.data(), DType::kBF16, {kExperts, kHidden, kIntermediate},
                            {0, kIntermediate, 1});
    ExpertWeights weights;
    weights.gate = first;
    weights.up = first;
    weights.down = second;
    return weights;
  }

 private:
  std::vector<std::uint16_t> values_;
};

// Rows of zeros take as many operations but draw less power, so all rows get one random pattern.
class Rows {
 public:
  explicit Rows(const Case& of)
      : elements_(kExperts * of.places * kHidden),
        rows_(static_cast<std::size_t>(elements_) * 2),
        scales_(static_cast<std::size_t>(elements_ / 128) * 4),
        output_(static_cast<std::size_t>(elements_) * 2),
        first_row_(kExperts * 8),
        num_rows_(kExperts * 4) {
    std::vector<std::uint16_t> pattern(static_cast<std::size_t>(kHidden));
    for (std::size_t i = 0; i < pattern.size(); ++i) {
      pattern[i] = bf16_from_f32(static_cast<float>(random_normal(2, i)));
      if (of.scheme.is_quantized())
        pattern[i] = static_cast<std::uint16_t>(random_bits(2, i) & 0x7777);
    }
    // Uploads the pattern, then doubles what is there.
    std::size_t have = 2 * pattern.size();
    cuda::check_cuda(cudaMemcpy(rows_.data(), pattern.data(), have, cudaMemcpyHostToDevice),
                     "rows");
    for (; have < rows_.size_bytes(); have *= 2) {
      cuda::check_cuda(
          cudaMemcpy(rows_.data() + have, rows_.data(), std::min(have, rows_.size_bytes() - have),
                     cudaMemcpyDeviceToDevice),
          "rows");
    }
    const std::vector<float> ones(scales_.size_bytes() / 4, 0.01f);
    std::vector<std::int64_t> first;
    for (std::int64_t e = 0; e < kExperts; ++e) first.push_back(e * of.places);
    const std::vector<std::int32_t> counts(kExperts, of.count);
    cuda::check_cuda(
        cudaMemcpy(scales_.data(), ones.data(), scales_.size_bytes(), cudaMemcpyHostToDevice),
        "scales");
    cuda::check_cuda(
        cudaMemcpy(first_row_.data(), first.data(), 8 * kExperts, cudaMemcpyHostToDevice),
        "first_row");
    cuda::check_cuda(
        cudaMemcpy(num_rows_.data(), counts.data(), 4 * kExperts, cudaMemcpyHostToDevice),
        "num_rows");
    cuda::check_cuda(cudaDeviceSynchronize(), "rows");
    const auto shaped = [&](const cuda::DeviceBuffer& memory, DType dtype) {
      return of.is_batched
                 ? TensorView(memory.data(), dtype, {kExperts, of.places, kHidden}, kGpu)
                 : TensorView(memory.data(), dtype, {kExperts * of.places, kHidden}, kGpu);
    };
    input.rows = shaped(rows_, stored_dtype(of.scheme));
    output = shaped(output_, DType::kBF16);
    input.scheme = of.scheme;
    if (of.scheme.is_quantized()) {
      // Column-major scales per expert, as masked grouped GEMMs of fp8 want them.
      input.scales = TensorView(scales_.data(), DType::kF32, {kExperts, of.places, kHidden / 128},
                                {of.places * (kHidden / 128), 1, of.places}, kGpu);
      input.scale_layout = ScaleLayout::kColumnMajor;
    }
    input.first_row = TensorView(first_row_.data(), DType::kI64, {kExperts}, kGpu);
    input.num_rows = TensorView(num_rows_.data(), DType::kI32, {kExperts}, kGpu);
  }

  ExpertRows input;
  TensorView output;

 private:
  std::int64_t elements_;
  cuda::DeviceBuffer rows_, scales_, output_, first_row_, num_rows_;
};

// Bytes per microsecond, read and written together.
double copy_rate(const cuda::OwnedStream& stream) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  const cuda::DeviceBuffer from(kBytes), to(kBytes);
  const double us = median_us(stream, [&] {
    cuda::check_cuda(
        cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream.get()),
        "copy");
  });
  return 2.0 * static_cast<double>(kBytes) / us;
}

void measure(Experts& experts, const Case& each, const cuda::OwnedStream& stream, double rate,
             const char* device) {
  const Rows rows(each);
  const std::size_t bytes = experts.workspace_bytes(rows.input.rows);
  const cuda::DeviceBuffer workspace(bytes);
  const double us = median_us(stream, [&] {
    experts.apply(rows.input, rows.output, {workspace.data(), bytes},
                  Stream::cuda(stream.get(), kGpu.index));
  });
  const double floor_us = kWeightBytes / rate;
  const double flops = 2.0 * 3 * kIntermediate * kHidden * kExperts * each.count;
  const std::string name(experts.name());
  std::fprintf(stderr, "%-8s %-22s %9.0f %9.0f %7.1f%% %9.1f %12.0f\n", name.c_str(), each.name, us,
               floor_us, 100 * floor_us / us, flops / us * 1e-6,
               static_cast<double>(bytes) / (1 << 20));
  std::printf(
      "{\"bench\": \"cuda_experts\", \"device\": \"%s\", \"experts\": \"%s\", \"case\": "
      "\"%s\", \"places\": %lld, \"rows_an_expert\": %d, \"us\": %.1f, "
      "\"weights_floor_us\": %.1f, \"tflops\": %.2f, \"workspace_bytes\": %zu}\n",
      device, name.c_str(), each.name, static_cast<long long>(each.places), each.count, us,
      floor_us, flops / us * 1e-6, bytes);
  std::fflush(stdout);
}

void run() {
  cudaDeviceProp properties{};
  cuda::check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  const cuda::OwnedStream stream;
  const double rate = copy_rate(stream);
  std::fprintf(stderr, "%s, copies at %.0f GB/s\n%-8s %-22s %9s %9s %8s %9s %12s\n",
               properties.name, rate * 1e-3, "experts", "case", "us", "floor us", "of floor",
               "TFLOP/s", "scratch MiB");
  const Case cases[] = {
      {"batch 16 of 512, bf16", true, 512, 16, schemes::kNone},
      {"batch 16 of 512, fp8", true, 512, 16, schemes::kFp8Block},
      {"batch 16 of 16, bf16", true, 16, 16, schemes::kNone},
      {"4096 rows, bf16", false, 128, 128, schemes::kNone},
      {"4096 rows, fp8", false, 128, 128, schemes::kFp8Block},
      {"65536 rows, bf16", false, 2048, 2048, schemes::kNone},
  };
  const HostWeights weights;
  for (const char* name : {"exact", "cublas", "cutlass"}) {
    try {
      const auto experts = make_experts(name, weights.weights(), {}, kGpu);
      for (const Case& each : cases) measure(*experts, each, stream, rate, properties.name);
    } catch (const Error& error) {
      if (error.code() != Errc::kNotAvailable) throw;
      std::fprintf(stderr, "%s: %s\n", name, error.what());
    }
  }
}

}  // namespace
}  // namespace switchyard

int main() {
  return switchyard::run_bench("cuda_experts_bench", [] { switchyard::run(); });
}
