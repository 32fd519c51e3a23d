// SPDX-License-Identifier: Apache-2.0
//
// grouped_product.cu: CUTLASS's grouped GEMM for Hopper, which reads sizes, addresses and strides
// of its groups from GPU memory. A small kernel writes them there from the counts, one group per
// expert, so rows that no token fills cost nothing. We compute y^T = w x^T: outputs, of which there
// are always many, fill the 128 rows of a tile, and the rows of an expert its columns. Two GEMMs
// share the experts by their number of rows: few rows are bound by reading the weights, and take
// narrow tiles; many are bound by arithmetic, and take wide ones. Groups of the other GEMM are
// empty.
//
// Design: CUTLASS 4, example 57 (grouped GEMM for Hopper).

#include <algorithm>
#include <string>
#include <type_traits>

#include "switchyard/error.h"

#include "core/round_up.h"
#include "cuda/base/check.h"
#include "cuda/experts/grouped_product.h"

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

namespace switchyard::cuda {
namespace {

using Bf16 = cutlass::bfloat16_t;
using Shapes = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
using Shape = Shapes::UnderlyingProblemShape;  // outputs, rows, depth
using RowStride =
    cute::Stride<std::int64_t, cute::_1, cute::_0>;  // of w and x: depth is contiguous
using OutputStride = cute::Stride<cute::_1, std::int64_t, cute::_0>;

constexpr int kFewRows = 32;
constexpr int kOutputsPerTile = 128;
constexpr int kDepthPerStage = 64;
constexpr std::size_t kAlignment = 256;

/// The GEMM whose tiles have kRows rows of an expert. kCluster CTAs share the rows they load.
template <typename Output, int kRows, int kCluster>
struct GroupedGemm {
  using Tile = cute::Shape<cute::Int<kOutputsPerTile>, cute::Int<kRows>, cute::Int<kDepthPerStage>>;
  using Cluster = cute::Shape<cute::Int<kCluster>, cute::_1, cute::_1>;
  using OutputLayout = cutlass::layout::ColumnMajor*;
  static constexpr int kOutputVector = kGroupedAlignment / sizeof(Output);
  static constexpr int kInputVector = kGroupedAlignment / sizeof(Bf16);

  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Output, OutputLayout,
      kOutputVector, Output, OutputLayout, kOutputVector,
      cutlass::epilogue::PtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Bf16, cutlass::layout::RowMajor*,
      kInputVector, Bf16, cutlass::layout::ColumnMajor*, kInputVector, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelPtrArrayTmaWarpSpecializedCooperative>::CollectiveOp;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<
      cutlass::gemm::kernel::GemmUniversal<Shapes, Mainloop, Epilogue>>;
};

template <typename Output>
using NarrowGemm = typename GroupedGemm<Output, kFewRows, 1>::Gemm;
template <typename Output>
using WideGemm = typename GroupedGemm<Output, 256, 2>::Gemm;

// Arrays with an element per expert, in GPU memory.
struct Groups {
  Shape* few = nullptr;   // of experts with up to kFewRows rows; the others have none here
  Shape* many = nullptr;  // the others
  const Bf16** weights = nullptr;
  const Bf16** x = nullptr;
  void** y = nullptr;
  RowStride* weight_stride = nullptr;
  RowStride* x_stride = nullptr;
  OutputStride* y_stride = nullptr;
  std::byte* workspace = nullptr;  // of one GEMM after another
};

/// Parts of `scratch` for all arrays; returns the bytes that they take. Null: only counts them.
std::size_t carve(Groups& groups, std::int64_t num_experts, std::byte* scratch) {
  std::size_t used = 0;
  const auto take = [&](auto*& array) {
    using Element = std::remove_reference_t<decltype(*array)>;
    if (scratch != nullptr) array = reinterpret_cast<Element*>(scratch + used);
    used += align_up(static_cast<std::size_t>(num_experts) * sizeof(Element), kAlignment);
  };
  take(groups.few);
  take(groups.many);
  take(groups.weights);
  take(groups.x);
  take(groups.y);
  take(groups.weight_stride);
  take(groups.x_stride);
  take(groups.y_stride);
  if (scratch != nullptr) groups.workspace = scratch + used;
  return used;
}

template <typename Output>
__global__ void write_groups(ExpertProduct p, Groups groups) {
  const auto e = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (e >= p.ranges.num_experts) return;
  const RowRange rows = p.ranges.of(e);
  const auto outputs = static_cast<int>(p.num_outputs);
  const auto depth = static_cast<int>(p.depth);
  const auto count = static_cast<int>(rows.count);
  const bool is_few = count <= kFewRows;
  groups.few[e] = {outputs, is_few ? count : 0, depth};
  groups.many[e] = {outputs, is_few ? 0 : count, depth};
  groups.weights[e] = reinterpret_cast<const Bf16*>(p.weights) + e * p.num_outputs * p.depth;
  groups.x[e] = static_cast<const Bf16*>(p.x) + rows.first * p.x_stride;
  groups.y[e] = static_cast<Output*>(p.y) + rows.first * p.y_stride;
  groups.weight_stride[e] = {p.depth, {}, {}};
  groups.x_stride[e] = {p.x_stride, {}, {}};
  groups.y_stride[e] = {{}, p.y_stride, {}};
}

int current_gpu() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

template <typename Gemm>
typename Gemm::Arguments arguments_of(const Groups& groups, Shape* shapes, std::int64_t num_experts,
                                      bool adds) {
  using Kernel = typename Gemm::GemmKernel;
  typename Gemm::Arguments arguments;
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
  arguments.problem_shape = {static_cast<int>(num_experts), shapes, nullptr};
  arguments.mainloop = {groups.weights, groups.weight_stride, groups.x, groups.x_stride};
  arguments.epilogue.thread.alpha = 1.0f;
  arguments.epilogue.thread.beta = adds ? 1.0f : 0.0f;
  arguments.epilogue.ptr_C =
      reinterpret_cast<const typename Kernel::ElementC**>(const_cast<const void**>(groups.y));
  arguments.epilogue.dC = groups.y_stride;
  arguments.epilogue.ptr_D = reinterpret_cast<typename Kernel::ElementD**>(groups.y);
  arguments.epilogue.dD = groups.y_stride;
  arguments.hw_info.device_id = current_gpu();
  check_cuda(cudaDeviceGetAttribute(&arguments.hw_info.sm_count, cudaDevAttrMultiProcessorCount,
                                    arguments.hw_info.device_id),
             "cudaDeviceGetAttribute");
  return arguments;
}

void check_cutlass(cutlass::Status status, const char* what) {
  if (status == cutlass::Status::kSuccess) return;
  throw Error(Errc::kSystem,
              std::string("cutlass: ") + what + ": " + cutlass::cutlassGetStatusString(status));
}

template <typename Gemm>
void run_gemm(const Groups& groups, Shape* shapes, std::int64_t num_experts, bool adds,
              cudaStream_t stream) {
  Gemm gemm;
  check_cutlass(gemm.initialize(arguments_of<Gemm>(groups, shapes, num_experts, adds),
                                groups.workspace, stream),
                "initialize");
  check_cutlass(gemm.run(stream), "run");
}

template <typename Output>
void run_both(const ExpertProduct& product, bool adds, std::byte* scratch, cudaStream_t stream) {
  constexpr unsigned kThreads = 128;
  const std::int64_t num_experts = product.ranges.num_experts;
  Groups groups;
  carve(groups, num_experts, scratch);
  write_groups<Output>
      <<<static_cast<unsigned>(cdiv(num_experts, std::int64_t{kThreads})), kThreads, 0, stream>>>(
          product, groups);
  check_launch("write_groups");
  run_gemm<NarrowGemm<Output>>(groups, groups.few, num_experts, adds, stream);
  if (product.ranges.capacity <= kFewRows) return;
  run_gemm<WideGemm<Output>>(groups, groups.many, num_experts, adds, stream);
}

template <typename Gemm>
std::size_t workspace_bytes(const Groups& groups, std::int64_t num_experts) {
  return Gemm::get_workspace_size(arguments_of<Gemm>(groups, groups.few, num_experts, false));
}

}  // namespace

std::size_t grouped_scratch_bytes(std::int64_t num_experts) {
  Groups groups;
  return carve(groups, num_experts, nullptr) +
         std::max({workspace_bytes<NarrowGemm<float>>(groups, num_experts),
                   workspace_bytes<WideGemm<float>>(groups, num_experts),
                   workspace_bytes<NarrowGemm<Bf16>>(groups, num_experts),
                   workspace_bytes<WideGemm<Bf16>>(groups, num_experts)});
}

void launch_grouped_product(const ExpertProduct& product, bool adds, std::byte* scratch,
                            Stream stream) {
  if (product.y_dtype == DType::kF32) {
    run_both<float>(product, adds, scratch, stream.get());
  } else {
    run_both<Bf16>(product, adds, scratch, stream.get());
  }
}

}  // namespace switchyard::cuda
