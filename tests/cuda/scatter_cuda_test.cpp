// SPDX-License-Identifier: Apache-2.0
//
// ep_scatter and its relatives write the same bytes on a GPU as on the CPU, and nothing else. Needs
// a GPU except for the errors; skips without one.

#include <gtest/gtest.h>

#include "switchyard/permute.h"

#include "tensor_pair.h"

namespace switchyard::test {
namespace {

enum class Scales { kNone, kRows, kColumns, kPacked, kPackedColumns, kStrided };

struct ScatterCase {
  std::int64_t num_tokens = 33;
  std::int64_t num_topk = 3;
  std::int64_t num_local = 8;
  std::int64_t hidden = 128;
  std::int64_t alignment = 8;
  std::int64_t more_rows = 0;  ///< extra rows in the buffer, beyond what any routing needs
  DType dtype = DType::kBF16;
  Scales scales = Scales::kNone;
  DType scale_dtype = DType::kF32;
  std::int64_t num_scales = 5;
  Routing routing = Routing::kRandom;
  DType id_dtype = DType::kI32;
  bool is_strided = false;  ///< ids and x have gaps and odd start addresses
  bool has_map = false;
  CompatPadding padding = CompatPadding::kNone;
};

std::ostream& operator<<(std::ostream& out, const ScatterCase& test) {
  return out << "T " << test.num_tokens << " K " << test.num_topk << " L " << test.num_local
             << " H " << test.hidden << " alignment " << test.alignment << " "
             << name_of(test.dtype) << " scales " << static_cast<int>(test.scales) << " "
             << name_of(test.scale_dtype) << " routing " << static_cast<int>(test.routing)
             << " strided " << test.is_strided << " map " << test.has_map;
}

// Inputs and outputs of one call.
struct ScatterTensors {
  explicit ScatterTensors(const ScatterCase& test)
      : ids(make_ids(test.id_dtype, test.num_tokens, test.num_topk, num_experts(test), test.routing,
                     test.is_strided)),
        num_rows(compute_aligned_m(test.num_tokens, test.num_topk, test.num_local, test.alignment) +
                 test.more_rows) {
    const std::int64_t gap = test.is_strided ? 3 : 0;
    x = TensorPair(test.dtype, test.num_tokens, test.hidden, {test.hidden + gap, 1, gap});
    x.randomize(3);
    out_x = TensorPair(test.dtype, num_rows, test.hidden, {test.hidden + gap, 1, gap});
    m_indices = TensorPair::flat(DType::kI32, num_rows);
    inv_perm = TensorPair(DType::kI32, test.num_tokens, test.num_topk);
    first_row = TensorPair::flat(DType::kI64, test.num_local);
    counts = TensorPair::flat(DType::kI32, test.num_local);
    needed = TensorPair::flat(DType::kI64, 1);
    if (test.has_map) map = make_map(num_experts(test));
    if (test.scales != Scales::kNone) make_scales(test);
  }

  static std::int64_t num_experts(const ScatterCase& test) {
    return test.has_map ? 2 * test.num_local : test.num_local;
  }

  void make_scales(const ScatterCase& test) {
    const bool packs = test.scales == Scales::kPacked || test.scales == Scales::kPackedColumns;
    const DType to = packs ? DType::kI32 : test.scale_dtype;
    const std::int64_t columns = packs ? (test.num_scales + 3) / 4 : test.num_scales;
    const bool is_turned = test.scales == Scales::kColumns || test.scales == Scales::kPackedColumns;
    const std::int64_t aligned = (num_rows + 3) / 4 * 4;
    const Placement to_place = test.scales == Scales::kStrided ? Placement{3 * columns + 1, 3, 1}
                               : is_turned                     ? Placement{1, aligned, 0}
                                                               : Placement{columns, 1, 0};
    const Placement from_place = test.scales == Scales::kStrided
                                     ? Placement{1, test.num_tokens + 2, 1}
                                     : Placement{test.num_scales, 1, 0};
    scales = TensorPair(test.scale_dtype, test.num_tokens, test.num_scales, from_place);
    scales.randomize(5);
    out_scales = TensorPair(to, num_rows, columns, to_place);
  }

  template <typename Pick>
  ScatterOutputs outputs(const Pick& pick) const {
    return {pick(out_x),     pick(out_scales), pick(m_indices), pick(inv_perm),
            pick(first_row), pick(counts),     pick(needed)};
  }

  void expect_equal() const {
    for (const TensorPair* pair : {&out_x, &out_scales, &m_indices, &inv_perm, &first_row, &counts,
                                   &needed, &x, &scales, &ids}) {
      if (!pair->host.has_value()) continue;
      EXPECT_TRUE(pair->is_equal());
    }
  }

  TensorPair ids;
  std::int64_t num_rows;
  TensorPair x, scales, map;
  TensorPair out_x, out_scales, m_indices, inv_perm, first_row, counts, needed;
};

constexpr auto kOnHost = [](const TensorPair& pair) { return pair.host; };
constexpr auto kOnDevice = [](const TensorPair& pair) { return pair.device; };

void expect_cpu_bytes(const ScatterCase& test) {
  SCOPED_TRACE(test);
  const ScatterTensors tensors(test);
  const auto options = [&](const auto& pick) {
    return PermuteOptions{pick(tensors.map), {}, test.alignment, test.padding};
  };
  ep_scatter(tensors.x.host, tensors.scales.host, tensors.ids.host, options(kOnHost),
             tensors.outputs(kOnHost));
  const GuardedWorkspace workspace(
      ep_scatter_workspace_bytes(test.num_tokens, test.num_topk, test.num_local));
  const cuda::OwnedStream own_stream;
  const Stream stream = Stream::cuda(own_stream.get(), kGpu.index);
  const ErrorWord errors;
  ep_scatter(tensors.x.device, tensors.scales.device, tensors.ids.device, options(kOnDevice),
             tensors.outputs(kOnDevice), stream, workspace.span(), errors.view());
  cuda::check_cuda(cudaStreamSynchronize(stream.get()), "ep_scatter");
  tensors.expect_equal();
  EXPECT_TRUE(workspace.has_guards());
  EXPECT_EQ(errors.value(), 0);
}

TEST(ScatterCudaTest, EverySizeAndRouting) {
  REQUIRE_GPU();
  for (const std::int64_t num_tokens : {0, 1, 2, 31, 127, 260}) {
    for (std::int64_t num_topk = 1; num_topk <= 9; num_topk += num_topk == 1 ? 1 : 2) {
      for (const Routing routing : {Routing::kRandom, Routing::kNone, Routing::kOneExpert}) {
        for (const bool has_map : {false, true}) {
          ScatterCase test;
          test.num_tokens = num_tokens;
          test.num_topk = num_topk;
          test.routing = routing;
          test.has_map = has_map;
          test.num_local = num_topk == 9 ? 61 : 8;
          test.alignment = num_tokens % 2 == 0 ? 128 : 5;
          test.id_dtype = num_topk % 2 == 0 ? DType::kI64 : DType::kI32;
          test.is_strided = num_topk == 4;
          test.more_rows = num_topk == 8 ? 77 : 0;
          test.padding = has_map ? CompatPadding::kOwner : CompatPadding::kNone;
          test.scales = num_topk == 6 ? Scales::kRows : Scales::kNone;
          expect_cpu_bytes(test);
        }
      }
    }
  }
}

TEST(ScatterCudaTest, EveryDTypeAndRowLength) {
  REQUIRE_GPU();
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kE4M3, DType::kE2M1}) {
    for (const std::int64_t hidden : {0, 1, 2, 7, 128, 1001, 2050, 7168}) {
      for (const bool is_strided : {false, true}) {
        if (dtype == DType::kE2M1 && (hidden % 2 != 0 || is_strided)) continue;
        ScatterCase test;
        test.dtype = dtype;
        test.hidden = hidden;
        test.is_strided = is_strided;
        expect_cpu_bytes(test);
      }
    }
  }
}

TEST(ScatterCudaTest, EveryScaleLayout) {
  REQUIRE_GPU();
  for (const Scales scales : {Scales::kRows, Scales::kColumns, Scales::kStrided}) {
    for (const DType dtype : {DType::kF32, DType::kE8M0, DType::kE4M3, DType::kF16, DType::kI64}) {
      for (const std::int64_t num_scales : {0, 1, 5, 56, 448}) {
        ScatterCase test;
        test.dtype = DType::kE4M3;
        test.scales = scales;
        test.scale_dtype = dtype;
        test.num_scales = num_scales;
        test.more_rows = 9;
        expect_cpu_bytes(test);
      }
    }
  }
}

TEST(ScatterCudaTest, PackedScales) {
  REQUIRE_GPU();
  for (const Scales scales : {Scales::kPacked, Scales::kPackedColumns}) {
    for (const DType dtype : {DType::kE8M0, DType::kU8}) {
      for (const std::int64_t num_scales : {1, 4, 7, 56, 224}) {
        ScatterCase test;
        test.dtype = DType::kE4M3;
        test.scales = scales;
        test.scale_dtype = dtype;
        test.num_scales = num_scales;
        test.alignment = 128;
        expect_cpu_bytes(test);
      }
    }
  }
}

// Several chunks per warp, warps per block, tiles of experts, and counts per chunk.
TEST(ScatterCudaTest, ManyChoicesAndManyExperts) {
  REQUIRE_GPU();
  struct Size {
    std::int64_t num_tokens, num_topk, num_local;
  };
  for (const Size size :
       {Size{4096, 8, 256}, Size{70001, 4, 256}, Size{3001, 7, 1}, Size{9001, 6, 33},
        Size{2003, 5, 3000}, Size{997, 3, 65535}, Size{100003, 1, 65535}, Size{5, 1000, 7}}) {
    ScatterCase test;
    test.num_tokens = size.num_tokens;
    test.num_topk = size.num_topk;
    test.num_local = size.num_local;
    test.hidden = 8;
    test.alignment = 16;
    test.scales = Scales::kColumns;
    test.num_scales = 1;
    expect_cpu_bytes(test);
  }
}

TEST(ScatterCudaTest, ThePlanAloneIsThatOfTheScatter) {
  REQUIRE_GPU();
  const ScatterCase test{.num_tokens = 301, .num_topk = 5, .num_local = 17};
  const ScatterTensors tensors(test);
  ep_scatter(tensors.x.host, {}, tensors.ids.host, {.alignment = 8}, tensors.outputs(kOnHost));
  ScatterOutputs outputs = tensors.outputs(kOnDevice);
  outputs.x = {};
  const GuardedWorkspace workspace(ep_scatter_workspace_bytes(301, 5, 17));
  plan_permute(tensors.ids.device, {.alignment = 8}, outputs, kGpuStream, workspace.span());
  cuda::check_cuda(cudaDeviceSynchronize(), "plan_permute");
  for (const TensorPair* pair : {&tensors.m_indices, &tensors.inv_perm, &tensors.first_row,
                                 &tensors.counts, &tensors.needed}) {
    EXPECT_TRUE(pair->is_equal());
  }
  EXPECT_TRUE(workspace.has_guards());
}

TEST(ScatterCudaTest, NoLocalExpertsNeedNoRows) {
  REQUIRE_GPU();
  TensorPair ids(DType::kI32, 3, 2);
  ids.fill<std::int32_t>([](auto, auto) { return -1; });
  TensorPair inv_perm(DType::kI32, 3, 2);
  TensorPair m_indices = TensorPair::flat(DType::kI32, 2);
  TensorPair needed = TensorPair::flat(DType::kI64, 1);
  const TensorPair first_row = TensorPair::flat(DType::kI64, 0);
  const GuardedWorkspace workspace(ep_scatter_workspace_bytes(3, 2, 0));
  plan_permute(ids.device, {},
               {{}, {}, m_indices.device, inv_perm.device, first_row.device, {}, needed.device},
               kGpuStream, workspace.span());
  cuda::check_cuda(cudaDeviceSynchronize(), "plan_permute");
  std::fill_n(inv_perm.host.as<std::int32_t>(), 6, -1);
  std::fill_n(m_indices.host.as<std::int32_t>(), 2, -1);
  *needed.host.as<std::int64_t>() = 0;
  EXPECT_TRUE(inv_perm.is_equal());
  EXPECT_TRUE(m_indices.is_equal());
  EXPECT_TRUE(needed.is_equal());
}

// Values that the CPU refuses are counted and written nowhere: ids beyond the last expert, and
// known counts that contradict the ids.
TEST(ScatterCudaTest, RefusedValuesAreCountedAndGoNowhere) {
  REQUIRE_GPU();
  const ScatterCase test{.num_tokens = 40, .num_topk = 3, .num_local = 8};
  ScatterTensors tensors(test);
  TensorPair bad_ids(DType::kI32, 40, 3);
  std::int32_t num_bad = 0;
  bad_ids.fill<std::int32_t>([&](std::int64_t t, std::int64_t k) {
    std::int32_t& good = tensors.ids.host.as<std::int32_t>()[t * 3 + k];
    if ((t + k) % 7 != 0) return good;
    good = -1;
    ++num_bad;
    return static_cast<std::int32_t>(8 + t * 1000000);
  });
  tensors.ids.upload();
  ep_scatter(tensors.x.host, {}, tensors.ids.host, {.alignment = 8}, tensors.outputs(kOnHost));
  TensorPair known = TensorPair::flat(DType::kI32, 8);
  std::copy_n(tensors.counts.host.as<std::int32_t>(), 8, known.host.as<std::int32_t>());
  ++known.host.as<std::int32_t>()[2];
  known.upload();
  const GuardedWorkspace workspace(ep_scatter_workspace_bytes(40, 3, 8));
  const ErrorWord errors;
  ep_scatter(tensors.x.device, {}, bad_ids.device,
             {.expert_num_tokens = known.device, .alignment = 8}, tensors.outputs(kOnDevice),
             kGpuStream, workspace.span(), errors.view());
  cuda::check_cuda(cudaDeviceSynchronize(), "ep_scatter");
  tensors.expect_equal();
  EXPECT_EQ(errors.value(), num_bad + 1);

  // With a map shorter than the ids require, ids beyond its end.
  const TensorPair map = make_map(4);
  TensorPair counts = TensorPair::flat(DType::kI32, 2);
  const ErrorWord map_errors;
  TensorPair five = TensorPair::flat(DType::kI64, 5);
  const std::int64_t ids[] = {0, 4, -1, 2, std::int64_t{1} << 40};
  std::copy_n(ids, 5, five.host.as<std::int64_t>());
  five.upload();
  count_expert_num_tokens(five.device, counts.device, map.device, kGpuStream, map_errors.view());
  cuda::check_cuda(cudaDeviceSynchronize(), "count_expert_num_tokens");
  std::fill_n(counts.host.as<std::int32_t>(), 2, 1);
  EXPECT_TRUE(counts.is_equal());
  EXPECT_EQ(map_errors.value(), 2);
}

}  // namespace
}  // namespace switchyard::test
