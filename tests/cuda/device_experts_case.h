// SPDX-License-Identifier: Apache-2.0
//
// device_experts_case.h: runs the problems of the CPU experts on a GPU: as consecutive experts or,
// where every expert has the same room, as a batch.
#pragma once

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/device_experts.h"

#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "gpu.h"
#include "unit/moe/expert_problem.h"

namespace switchyard::test {

/// A copy of host memory on the GPU.
class Upload {
 public:
  Upload() = default;
  Upload(const void* data, std::size_t bytes) : memory_(bytes) {
    if (bytes == 0) return;
    check_cuda(cudaMemcpy(memory_.data(), data, bytes, cudaMemcpyHostToDevice), "upload");
    check_cuda(cudaStreamSynchronize(nullptr), "upload");
  }
  template <typename T>
  explicit Upload(const std::vector<T>& values)
      : Upload(values.data(), values.size() * sizeof(T)) {}
  /// Includes the gaps between strided rows.
  explicit Upload(const TensorView& tensor) : Upload(tensor.data(), extent(tensor)) {}
  std::byte* data() const { return memory_.data(); }

 private:
  static std::size_t extent(const TensorView& tensor) {
    if (tensor.num_elements() == 0 || !tensor.has_value()) return 0;
    std::int64_t last = 0;
    for (int dim = 0; dim < tensor.num_dims(); ++dim) {
      last += (tensor.shape(dim) - 1) * tensor.stride(dim);
    }
    return static_cast<std::size_t>(((last + 1) * bits_of(tensor.dtype()) + 7) / 8);
  }

  DeviceBuffer memory_;
};

/// A `Problem` in which every expert has room for `capacity` rows, of which `counts` are valid.
inline Problem batch_problem(std::int64_t hidden, std::int64_t intermediate, std::int32_t capacity,
                             std::vector<std::int32_t> counts,
                             const WeightFormat& format = DType::kBF16,
                             const QuantScheme& scheme = schemes::kNone) {
  const std::vector<std::int32_t> places(counts.size(), capacity - 2);
  Problem problem(hidden, intermediate, places, format, scheme);
  problem.num_rows = std::move(counts);
  return problem;
}

/// The input of a problem on the GPU.
struct DeviceInput {
  Upload rows, scales, first_row, num_rows, tensor_scale;
  DeviceExpertRows input;

  DeviceInput(const ExpertRows& from, bool is_batched)
      : rows(from.rows),
        scales(from.scales),
        first_row(from.first_row.data(), from.first_row.size_bytes()),
        num_rows(from.num_rows.data(), from.num_rows.size_bytes()),
        tensor_scale(from.tensor_scale) {
    const auto experts = static_cast<std::int64_t>(from.num_rows.size());
    const std::int64_t total = from.rows.shape(0);
    const std::int64_t hidden = from.rows.shape(1);
    input.rows =
        is_batched ? TensorView(rows.data(), from.rows.dtype(), {experts, total / experts, hidden})
                   : TensorView(rows.data(), from.rows.dtype(), {total, hidden});
    input.scales = moved(from.scales, scales);
    input.scheme = from.scheme;
    if (!is_batched) input.first_row = TensorView(first_row.data(), DType::kI64, {experts});
    input.num_rows = TensorView(num_rows.data(), DType::kI32, {experts});
    input.tensor_scale = moved(from.tensor_scale, tensor_scale);
    input.scale_layout = from.scale_layout;
  }

 private:
  /// The same shape and strides over other memory.
  static TensorView moved(const TensorView& from, const Upload& to) {
    switch (from.num_dims()) {
      case 0: return {};
      case 3:
        return TensorView(to.data(), from.dtype(), {from.shape(0), from.shape(1), from.shape(2)},
                          {from.stride(0), from.stride(1), from.stride(2)});
      default: break;
    }
    std::vector<std::int64_t> shape;
    for (int dim = 0; dim < from.num_dims(); ++dim) shape.push_back(from.shape(dim));
    return TensorView(to.data(), from.dtype(), shape);
  }
};

/// A workspace of exactly the required size, unaligned, and an output between guards.
class DeviceCall {
 public:
  DeviceCall(DeviceExperts& experts, const DeviceExpertRows& input)
      : experts_(experts),
        input_(input),
        workspace_bytes_(experts.workspace_bytes(input.rows)),
        workspace_(workspace_bytes_ + 1),
        elements_(static_cast<std::size_t>(input.rows.num_elements())),
        output_(2 * (elements_ + 2 * kGuard)) {
    check_cuda(cudaMemset(output_.data(), 0xAB, output_.size_bytes()), "fill");
    check_cuda(cudaDeviceSynchronize(), "fill");
  }

  TensorView output() const {
    std::byte* data = output_.data() + 2 * kGuard;
    const TensorView& rows = input_.rows;
    return rows.num_dims() == 3
               ? TensorView(data, DType::kBF16, {rows.shape(0), rows.shape(1), rows.shape(2)})
               : TensorView(data, DType::kBF16, {rows.shape(0), rows.shape(1)});
  }
  TensorView workspace() const {
    return TensorView(workspace_.data() + 1, DType::kU8,
                      {static_cast<std::int64_t>(workspace_bytes_)});
  }
  void enqueue(Stream stream) { experts_.apply(input_, output(), workspace(), stream); }

  std::vector<std::uint16_t> result() const {
    check_cuda(cudaDeviceSynchronize(), "apply");
    std::vector<std::uint16_t> all(elements_ + 2 * kGuard);
    check_cuda(cudaMemcpy(all.data(), output_.data(), 2 * all.size(), cudaMemcpyDeviceToHost),
               "download");
    for (std::size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(all[i], 0xABAB) << "before the output";
      EXPECT_EQ(all[all.size() - 1 - i], 0xABAB) << "behind the output";
      if (::testing::Test::HasFailure()) break;
    }
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  static constexpr std::size_t kGuard = 128;
  DeviceExperts& experts_;
  const DeviceExpertRows& input_;
  std::size_t workspace_bytes_;
  DeviceBuffer workspace_;
  std::size_t elements_;
  DeviceBuffer output_;
};

inline std::vector<std::uint16_t> run_on_gpu(DeviceExperts& experts, const ExpertRows& from,
                                             bool is_batched) {
  const DeviceInput input(from, is_batched);
  DeviceCall call(experts, input.input);
  call.enqueue(Stream(nullptr));
  return call.result();
}

/// Returns the elements of the valid rows.
inline std::vector<std::uint16_t> valid_part(const Problem& problem,
                                             const std::vector<std::uint16_t>& all) {
  std::vector<std::uint16_t> valid;
  for (std::size_t e = 0; e < problem.num_rows.size(); ++e) {
    const auto first = all.begin() + problem.first_row[e] * problem.hidden;
    valid.insert(valid.end(), first, first + problem.num_rows[e] * problem.hidden);
  }
  return valid;
}

}  // namespace switchyard::test
