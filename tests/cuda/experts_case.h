// SPDX-License-Identifier: Apache-2.0
//
// experts_case.h: runs the problems of the CPU experts on a GPU: as consecutive experts or, where
// every expert has the same room, as a batch.
#pragma once

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/experts.h"

#include "cuda/base/check.h"
#include "gpu_arena.h"
#include "unit/moe/expert_problem.h"

namespace switchyard::test {

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

/// The input of a problem on kGpu.
struct GpuInput {
  Tensor rows, scales, first_row, num_rows, tensor_scale;
  ExpertRows input;

  GpuInput(const ExpertRows& from, bool is_batched) : input(from) {
    input.rows = upload(rows, from.rows);
    input.scales = upload(scales, from.scales);
    input.first_row = is_batched ? TensorView() : upload(first_row, from.first_row);
    input.num_rows = upload(num_rows, from.num_rows);
    input.tensor_scale = upload(tensor_scale, from.tensor_scale);
    if (!is_batched) return;
    const std::int64_t experts = from.num_rows.shape(0);
    input.rows = TensorView(rows.data(), from.rows.dtype(),
                            {experts, from.rows.shape(0) / experts, from.rows.shape(1)}, kGpu);
  }

 private:
  // Includes the gaps between strided rows.
  static TensorView upload(Tensor& to, const TensorView& from) {
    if (!from.has_value()) return {};
    to = copy_to(bytes_view(from), kGpu);
    return moved_to(from, to.data(), kGpu);
  }
};

/// A workspace of exactly the required size, unaligned, and an output between guards.
class GpuCall {
 public:
  GpuCall(Experts& experts, const ExpertRows& input)
      : experts_(experts),
        input_(input),
        workspace_bytes_(experts.workspace_bytes(input.rows)),
        workspace_(DType::kU8, {static_cast<std::int64_t>(workspace_bytes_) + 1}, kGpu),
        output_(DType::kBF16, {input.rows.num_elements() + 2 * kGuard}, kGpu) {
    cuda::check_cuda(cudaMemset(output_.data(), 0xAB, output_.view().num_bytes()), "fill");
    cuda::check_cuda(cudaDeviceSynchronize(), "fill");
  }

  TensorView output() const {
    const std::uint16_t* data = output_.as<std::uint16_t>() + kGuard;
    const TensorView& rows = input_.rows;
    return rows.num_dims() == 3
               ? TensorView(data, DType::kBF16, {rows.shape(0), rows.shape(1), rows.shape(2)}, kGpu)
               : TensorView(data, DType::kBF16, {rows.shape(0), rows.shape(1)}, kGpu);
  }
  std::span<std::byte> workspace() const {
    return {workspace_.as<std::byte>() + 1, workspace_bytes_};
  }
  void apply(Stream stream) { experts_.apply(input_, output(), workspace(), stream); }

  std::vector<std::uint16_t> result() const {
    cuda::check_cuda(cudaDeviceSynchronize(), "apply");
    const Tensor host = output_.to(Device::cpu());
    const auto* all = host.as<const std::uint16_t>();
    const std::int64_t size = host.view().num_elements();
    for (std::int64_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(all[i], 0xABAB) << "before the output";
      EXPECT_EQ(all[size - 1 - i], 0xABAB) << "behind the output";
      if (::testing::Test::HasFailure()) break;
    }
    return {all + kGuard, all + size - kGuard};
  }

 private:
  static constexpr std::int64_t kGuard = 128;
  Experts& experts_;
  const ExpertRows& input_;
  std::size_t workspace_bytes_;
  Tensor workspace_;
  Tensor output_;
};

inline std::vector<std::uint16_t> run_on_gpu(Experts& experts, const ExpertRows& from,
                                             bool is_batched) {
  const GpuInput input(from, is_batched);
  GpuCall call(experts, input.input);
  call.apply(kGpuStream);
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
