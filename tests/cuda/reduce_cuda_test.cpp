// SPDX-License-Identifier: Apache-2.0
//
// Sums and policies have the CPU's bits on a GPU. Values are random bit patterns, which include
// infinity, NaN of any payload, subnormals and both zeros. Needs a GPU; skips without one.

#include <gtest/gtest.h>

#include "switchyard/permute.h"
#include "switchyard/weight_and_reduce.h"

#include "tensor_pair.h"

namespace switchyard::test {
namespace {

constexpr DType kFloats[] = {DType::kBF16, DType::kF16, DType::kF32};

// Values around 1 of random sign; one in 13 has an arbitrary bit pattern.
void fill_floats(TensorPair& pair, std::uint64_t seed) {
  const DType dtype = pair.host.dtype();
  const auto width = static_cast<std::size_t>(bits_of(dtype) / 8);
  const std::uint8_t one_low = dtype == DType::kF16 ? 0x3B : 0x3F;
  pair.fill_bytes([&](std::size_t i) -> std::uint64_t {
    const std::uint64_t bits = random_bits(seed, i / width) >> 9;
    const std::uint64_t byte = bits >> (8 * (i % width)) & 0xFF;
    if (random_bits(seed + 1, i / width) % 13 == 0 || i % width != width - 1) return byte;
    return (byte & 0x80) | one_low;
  });
}

struct GatherCase {
  std::int64_t num_tokens = 37;
  std::int64_t num_topk = 4;
  std::int64_t hidden = 128;
  DType row_dtype = DType::kBF16;
  DType out_dtype = DType::kBF16;
  bool has_weights = true;
  bool is_strided = false;
  bool has_map = false;
  Routing routing = Routing::kRandom;
};

std::ostream& operator<<(std::ostream& out, const GatherCase& test) {
  return out << "T " << test.num_tokens << " K " << test.num_topk << " H " << test.hidden << " "
             << name_of(test.row_dtype) << " to " << name_of(test.out_dtype) << " weights "
             << test.has_weights << " strided " << test.is_strided << " map " << test.has_map
             << " routing " << static_cast<int>(test.routing);
}

void expect_cpu_bits(const GatherCase& test) {
  SCOPED_TRACE(test);
  const std::int64_t num_rows = test.num_tokens * test.num_topk + 3;
  const std::int64_t gap = test.is_strided ? 3 : 0;
  const TensorPair ids =
      make_ids(DType::kI32, test.num_tokens, test.num_topk, 16, test.routing, test.is_strided);
  TensorPair rows(test.row_dtype, num_rows, test.hidden, {test.hidden + gap, 1, gap});
  fill_floats(rows, 21);
  TensorPair inv_perm(DType::kI32, test.num_tokens, test.num_topk, {test.num_topk + gap, 1, gap});
  // Dropped choices may hold anything, because they are never read.
  const TensorPair map = test.has_map ? make_map(16) : TensorPair();
  inv_perm.fill<std::int32_t>([&](std::int64_t t, std::int64_t k) -> std::int64_t {
    const std::int32_t id =
        ids.host.as<std::int32_t>()[t * ids.host.stride(0) + k * ids.host.stride(1)];
    const bool is_dropped = id < 0 || (test.has_map && map.host.as<std::int32_t>()[id] < 0);
    return is_dropped ? 1 << 30 : (t * 7919 + k * 31) % num_rows;
  });
  TensorPair weights;
  if (test.has_weights) {
    weights = TensorPair(
        DType::kF32, test.num_tokens, test.num_topk,
        test.is_strided ? Placement{1, test.num_tokens + 1, 2} : Placement{test.num_topk, 1, 0});
    fill_floats(weights, 23);
  }
  TensorPair output(test.out_dtype, test.num_tokens, test.hidden, {test.hidden + gap, 1, gap});
  ep_gather(rows.host, ids.host, weights.host, inv_perm.host, map.host, output.host);
  const cuda::OwnedStream own_stream;
  const Stream stream = Stream::cuda(own_stream.get(), kGpu.index);
  const ErrorWord errors;
  ep_gather(rows.device, ids.device, weights.device, inv_perm.device, map.device, output.device,
            stream, errors.view());
  cuda::check_cuda(cudaStreamSynchronize(stream.get()), "ep_gather");
  EXPECT_TRUE(output.is_equal());
  EXPECT_TRUE(rows.is_equal());
  EXPECT_EQ(errors.value(), 0);
}

TEST(GatherCudaTest, EveryDTypeAndRowLength) {
  REQUIRE_GPU();
  for (const DType row_dtype : kFloats) {
    for (const DType out_dtype : kFloats) {
      for (const std::int64_t hidden : {0, 1, 7, 8, 128, 1001, 7168}) {
        for (const bool is_strided : {false, true}) {
          GatherCase test;
          test.row_dtype = row_dtype;
          test.out_dtype = out_dtype;
          test.hidden = hidden;
          test.is_strided = is_strided;
          expect_cpu_bits(test);
        }
      }
    }
  }
}

TEST(GatherCudaTest, EverySizeAndRouting) {
  REQUIRE_GPU();
  for (const std::int64_t num_tokens : {0, 1, 2, 127, 1031}) {
    for (const std::int64_t num_topk : {1, 2, 3, 5, 8, 9, 16, 70}) {
      for (const Routing routing : {Routing::kRandom, Routing::kNone, Routing::kOneExpert}) {
        GatherCase test;
        test.num_tokens = num_tokens;
        test.num_topk = num_topk;
        test.routing = routing;
        test.has_weights = num_topk % 3 != 0;
        test.has_map = num_topk % 2 == 0;
        expect_cpu_bits(test);
      }
    }
  }
}

TEST(GatherCudaTest, RowsOutsideAreCountedAndLeftOut) {
  REQUIRE_GPU();
  TensorPair rows(DType::kF32, 2, 4);
  rows.fill<float>([](std::int64_t r, std::int64_t c) { return static_cast<float>(r * 10 + c); });
  TensorPair bad(DType::kI32, 2, 2);
  const std::int32_t entries[] = {0, 2, 1, 1 << 30};
  bad.fill<std::int32_t>([&](std::int64_t t, std::int64_t k) { return entries[t * 2 + k]; });
  TensorPair output(DType::kF32, 2, 4);
  const ErrorWord errors;
  unpermute_and_reduce(rows.device, bad.device, {}, output.device, kGpuStream, errors.view());
  cuda::check_cuda(cudaDeviceSynchronize(), "unpermute_and_reduce");
  std::copy_n(rows.host.as<float>(), 8, output.host.as<float>());
  EXPECT_TRUE(output.is_equal());
  EXPECT_EQ(errors.value(), 2);
}

struct PolicyCase {
  WeightAndReduce policy;
  std::int64_t num_tokens = 29;
  std::int64_t num_topk = 4;
  std::int64_t hidden = 128;
  DType dtype = DType::kBF16;
  bool is_weighed_already = false;
};

void expect_policy_bits(const PolicyCase& test) {
  SCOPED_TRACE(::testing::Message()
               << name_of(test.policy.kind) << " T " << test.num_tokens << " K " << test.num_topk
               << " H " << test.hidden << " " << name_of(test.dtype) << " weighed "
               << test.is_weighed_already << " skips " << test.policy.skips_padding);
  constexpr std::int64_t kLocal = 5;
  const bool is_batched = test.policy.kind == WeightAndReduceKind::kNaiveBatched;
  const std::int64_t capacity = test.num_tokens;
  const TensorPair ids =
      make_ids(DType::kI64, test.num_tokens, test.num_topk, 3 * kLocal, Routing::kRandom, false);
  const TensorPair map = make_map(3 * kLocal);
  TensorPair rows(test.dtype, is_batched ? kLocal * capacity : test.num_tokens * test.num_topk,
                  test.hidden);
  fill_floats(rows, 31);
  TensorPair weights(DType::kF32, test.num_tokens, test.num_topk);
  fill_floats(weights, 33);
  TensorPair output(test.dtype, test.num_tokens, test.hidden);
  const auto arguments = [&](const auto& pick) {
    WeightAndReduceArguments given;
    const TensorView flat = pick(rows);
    given.expert_output = flat;
    if (is_batched) {
      given.expert_output =
          TensorView(flat.data(), test.dtype, {kLocal, capacity, test.hidden}, flat.device());
    }
    given.topk_weights = pick(weights);
    given.topk_ids = pick(ids);
    if (test.policy.skips_padding) given.expert_map = pick(map);
    given.apply_router_weight_on_input = test.is_weighed_already;
    return given;
  };
  (void)weight_and_reduce(test.policy, arguments([](const TensorPair& pair) { return pair.host; }),
                          output.host);
  const GuardedWorkspace workspace(
      weight_and_reduce_workspace_bytes(test.policy, test.num_tokens, test.num_topk, kLocal));
  const ErrorWord errors;
  (void)weight_and_reduce(test.policy,
                          arguments([](const TensorPair& pair) { return pair.device; }),
                          output.device, kGpuStream, workspace.span(), errors.view());
  cuda::check_cuda(cudaDeviceSynchronize(), "weight_and_reduce");
  EXPECT_TRUE(output.is_equal());
  EXPECT_TRUE(rows.is_equal());
  EXPECT_TRUE(workspace.has_guards());
  EXPECT_EQ(errors.value(), 0);
}

// Beyond the sizes of instruments/conformance.
TEST(WeightAndReduceCudaTest, EveryPolicyOfLongRowsAndManyChoices) {
  REQUIRE_GPU();
  for (const WeightAndReduce& policy :
       {WeightAndReduce::contiguous(), WeightAndReduce::contiguous(true),
        WeightAndReduce::naive_batched(0), WeightAndReduce::naive_batched(1),
        WeightAndReduce::naive_batched(7)}) {
    for (const DType dtype : kFloats) {
      for (const bool is_weighed_already : {false, true}) {
        for (const std::int64_t hidden : {7, 7168}) {
          expect_policy_bits({policy, 29, 4, hidden, dtype, is_weighed_already});
        }
        for (const std::int64_t num_topk : {9, 40}) {
          expect_policy_bits({policy, 331, num_topk, 24, dtype, is_weighed_already});
        }
      }
    }
  }
}

TEST(WeightAndReduceCudaTest, RowsBeyondTheCapacityAreCountedAndLeftOut) {
  REQUIRE_GPU();
  TensorPair ids(DType::kI32, 3, 1);
  ids.fill<std::int32_t>([](auto, auto) { return 0; });
  TensorPair rows(DType::kF32, 2, 4);
  rows.fill<float>([](std::int64_t r, std::int64_t c) { return static_cast<float>(r * 10 + c); });
  TensorPair output(DType::kF32, 3, 4);
  const WeightAndReduce policy = WeightAndReduce::naive_batched(0);
  const GuardedWorkspace workspace(weight_and_reduce_workspace_bytes(policy, 3, 1, 1));
  const ErrorWord errors;
  WeightAndReduceArguments arguments;
  arguments.expert_output = TensorView(rows.device.data(), DType::kF32, {1, 2, 4}, kGpu);
  arguments.topk_ids = ids.device;
  arguments.apply_router_weight_on_input = true;
  (void)weight_and_reduce(policy, arguments, output.device, kGpuStream, workspace.span(),
                          errors.view());
  cuda::check_cuda(cudaDeviceSynchronize(), "weight_and_reduce");
  std::fill_n(output.host.as<float>(), 12, 0.0f);
  std::copy_n(rows.host.as<float>(), 8, output.host.as<float>());
  EXPECT_TRUE(output.is_equal());
  EXPECT_EQ(errors.value(), 1);
}

TEST(WeightAndReduceCudaTest, NoOpReturnsTheRowsOrCopiesThem) {
  REQUIRE_GPU();
  for (const std::int64_t hidden : {1, 7, 128, 7168}) {
    TensorPair rows(DType::kBF16, 13, hidden, {hidden + 5, 1, 1});
    rows.randomize(3);
    TensorPair output(DType::kBF16, 13, hidden, {hidden + 2, 1, 0});
    WeightAndReduceArguments arguments;
    arguments.expert_output = rows.host;
    const WeightAndReduce policy = WeightAndReduce::no_op();
    (void)weight_and_reduce(policy, arguments, output.host);
    arguments.expert_output = rows.device;
    EXPECT_EQ(weight_and_reduce(policy, arguments, {}, kGpuStream).data(), rows.device.data());
    EXPECT_EQ(weight_and_reduce(policy, arguments, output.device, kGpuStream).data(),
              output.device.data());
    cuda::check_cuda(cudaDeviceSynchronize(), "weight_and_reduce");
    EXPECT_TRUE(output.is_equal());
  }
}

}  // namespace
}  // namespace switchyard::test
