// SPDX-License-Identifier: Apache-2.0
//
// cublas.cpp: a batch is one strided call. Rows that follow each other expert by expert are one
// grouped call, or one call per expert if the library, the addresses or an f32 result rule that
// out. cuBLAS matrices are column-major: our y = x w^T is its y^T = w x^T.

#include <limits>
#include <vector>

#include "core/bytes.h"
#include "core/fail.h"
#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "cuda/experts/cublas_api.h"
#include "cuda/experts/expert_blas.h"

namespace switchyard::cuda {
namespace {

// NVIDIA's recommendation for Hopper and newer.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr int kSlots = 2;  // products per call

int narrow(std::int64_t size) {
  require(size >= 0 && size <= std::numeric_limits<int>::max(), Errc::kNotSupported,
          "cublas: a matrix has a side or rows {} apart, must be at most 2^31 - 1", size);
  return static_cast<int>(size);
}

cudaDataType_t type_of(DType dtype) { return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF; }

class Cublas final : public ExpertBlas {
 public:
  explicit Cublas(const std::string& path) : api_(cublas_api(path)) {
    check_cublas(api_, api_.create(&handle_), "cublasCreate");
    api_.set_math_mode(handle_, kCublasWholePrecisionReduction);
  }
  ~Cublas() override { api_.destroy(handle_); }

  bool is_capturable(bool is_batched) const override { return is_batched; }
  std::size_t scratch_bytes(std::int64_t num_experts) const override {
    return checked_add(kWorkspaceBytes, kSlots * pointer_bytes(num_experts));
  }
  std::size_t row_alignment() const override { return 1; }
  void begin(const RowRanges& ranges, std::byte* scratch, Stream stream) override;
  void multiply(const ExpertProduct& product, bool adds) override;

 private:
  struct Matrices {
    const void* x;
    const void* weights;
    void* y;
  };

  static std::size_t pointer_bytes(std::int64_t num_experts) {
    return checked_mul(static_cast<std::size_t>(num_experts), sizeof(Matrices));
  }
  void read_counts(const RowRanges& ranges);
  Matrices matrices_of(const ExpertProduct& product, std::size_t e) const;
  bool can_group(const ExpertProduct& product) const;
  void multiply_batch(const ExpertProduct& product, float beta);
  void multiply_each(const ExpertProduct& product, float beta);
  void multiply_groups(const ExpertProduct& product, float beta);

  const CublasApi& api_;
  CublasHandle handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  int device_ = 0;
  std::byte* pointers_ = nullptr;
  int slot_ = 0;
  std::vector<std::int64_t> first_row_;
  std::vector<std::int32_t> num_rows_;
  std::vector<RowRange> rows_;  // of each expert; empty for a batch
};

void Cublas::begin(const RowRanges& ranges, std::byte* scratch, Stream stream) {
  const DeviceGuard guard(stream.device().index);
  stream_ = stream.get();
  device_ = stream.device().index;
  pointers_ = scratch + kWorkspaceBytes;
  slot_ = 0;
  check_cublas(api_, api_.set_stream(handle_, stream_), "cublasSetStream");
  check_cublas(api_, api_.set_workspace(handle_, scratch, kWorkspaceBytes), "cublasSetWorkspace");
  rows_.clear();
  if (ranges.first_row != nullptr) read_counts(ranges);
}

void Cublas::read_counts(const RowRanges& ranges) {
  const auto count = static_cast<std::size_t>(ranges.num_experts);
  first_row_.resize(count);
  num_rows_.resize(count);
  const auto read = [&](auto& to, const auto* from) {
    check_cuda(
        cudaMemcpyAsync(to.data(), from, count * sizeof(to[0]), cudaMemcpyDeviceToHost, stream_),
        "cublas: counts");
  };
  read(first_row_, ranges.first_row);
  read(num_rows_, ranges.num_rows);
  check_cuda(cudaStreamSynchronize(stream_), "cublas: counts");
  RowRanges here = ranges;
  here.first_row = first_row_.data();
  here.num_rows = num_rows_.data();
  for (std::int64_t e = 0; e < ranges.num_experts; ++e) rows_.push_back(here.of(e));
}

void Cublas::multiply(const ExpertProduct& product, bool adds) {
  const DeviceGuard guard(device_);
  if (product.ranges.total_rows == 0 || product.ranges.num_experts == 0) return;
  const float beta = adds ? 1.0f : 0.0f;
  if (product.ranges.first_row == nullptr) {
    multiply_batch(product, beta);
  } else if (can_group(product)) {
    multiply_groups(product, beta);
  } else {
    multiply_each(product, beta);
  }
}

void Cublas::multiply_batch(const ExpertProduct& p, float beta) {
  const float alpha = 1.0f;
  const std::int64_t capacity = p.ranges.capacity;
  check_cublas(
      api_,
      api_.gemm_strided(handle_, kCublasTranspose, kCublasKeep, narrow(p.num_outputs),
                        narrow(capacity), narrow(p.depth), &alpha, p.weights, CUDA_R_16BF,
                        narrow(p.depth), p.num_outputs * p.depth, p.x, CUDA_R_16BF,
                        narrow(p.x_stride), capacity * p.x_stride, &beta, p.y, type_of(p.y_dtype),
                        narrow(p.y_stride), capacity * p.y_stride, narrow(p.ranges.num_experts),
                        kCublasCompute32F, kCublasDefaultAlgorithm),
      "cublasGemmStridedBatchedEx");
}

Cublas::Matrices Cublas::matrices_of(const ExpertProduct& p, std::size_t e) const {
  const std::int64_t first = rows_[e].first;
  const std::int64_t y_bytes = p.y_dtype == DType::kF32 ? 4 : 2;
  const auto matrix = static_cast<std::int64_t>(e) * p.num_outputs * p.depth;
  return {static_cast<const std::byte*>(p.x) + first * p.x_stride * 2, p.weights + matrix * 2,
          static_cast<std::byte*>(p.y) + first * p.y_stride * y_bytes};
}

void Cublas::multiply_each(const ExpertProduct& p, float beta) {
  const float alpha = 1.0f;
  for (std::size_t e = 0; e < rows_.size(); ++e) {
    if (rows_[e].count == 0) continue;
    const Matrices at = matrices_of(p, e);
    check_cublas(api_,
                 api_.gemm(handle_, kCublasTranspose, kCublasKeep, narrow(p.num_outputs),
                           narrow(rows_[e].count), narrow(p.depth), &alpha, at.weights, CUDA_R_16BF,
                           narrow(p.depth), at.x, CUDA_R_16BF, narrow(p.x_stride), &beta, at.y,
                           type_of(p.y_dtype), narrow(p.y_stride), kCublasCompute32F,
                           kCublasDefaultAlgorithm),
                 "cublasGemmEx");
  }
}

// The grouped call has no f32 results for bf16 inputs, and needs matrices aligned to 16 bytes.
bool Cublas::can_group(const ExpertProduct& p) const {
  const auto is_aligned = [](const void* data, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
  };
  return api_.gemm_grouped != nullptr && p.y_dtype == DType::kBF16 && is_aligned(p.x, p.x_stride) &&
         is_aligned(p.y, p.y_stride) && is_aligned(p.weights, p.depth);
}

void Cublas::multiply_groups(const ExpertProduct& p, float beta) {
  std::vector<const void*> pointers;  // all weights, then all x, then all y
  std::vector<int> counts;
  std::vector<Matrices> matrices;
  for (std::size_t e = 0; e < rows_.size(); ++e) {
    if (rows_[e].count == 0) continue;
    matrices.push_back(matrices_of(p, e));
    counts.push_back(narrow(rows_[e].count));
  }
  if (matrices.empty()) return;
  for (const Matrices& each : matrices) pointers.push_back(each.weights);
  for (const Matrices& each : matrices) pointers.push_back(each.x);
  for (const Matrices& each : matrices) pointers.push_back(each.y);
  const std::size_t size = matrices.size();
  std::byte* const to =
      pointers_ + static_cast<std::size_t>(slot_++ % kSlots) * pointer_bytes(p.ranges.num_experts);
  // The source is pageable memory, so it has been read when the call returns.
  check_cuda(cudaMemcpyAsync(to, pointers.data(), pointers.size() * sizeof(void*),
                             cudaMemcpyHostToDevice, stream_),
             "cublas: pointers");
  const auto table = reinterpret_cast<const void**>(to);
  const auto all = [&](std::int64_t value) { return std::vector<int>(size, narrow(value)); };
  const std::vector<float> alphas(size, 1.0f);
  const std::vector<float> betas(size, beta);
  check_cublas(api_,
               api_.gemm_grouped(handle_, all(kCublasTranspose).data(), all(kCublasKeep).data(),
                                 all(p.num_outputs).data(), counts.data(), all(p.depth).data(),
                                 alphas.data(), table, CUDA_R_16BF, all(p.depth).data(),
                                 table + size, CUDA_R_16BF, all(p.x_stride).data(), betas.data(),
                                 const_cast<void* const*>(table + 2 * size), CUDA_R_16BF,
                                 all(p.y_stride).data(), static_cast<int>(size), all(1).data(),
                                 kCublasCompute32F),
               "cublasGemmGroupedBatchedEx");
}

}  // namespace

std::unique_ptr<ExpertBlas> make_cublas(Device device, const std::string& path) {
  const DeviceGuard guard(device.index);
  return std::make_unique<Cublas>(path);
}

}  // namespace switchyard::cuda
