// SPDX-License-Identifier: Apache-2.0
//
// Counts, mapped ids and rounded sums on a GPU; the permute family in a graph; arguments refused
// before a GPU is used. Only the last part runs without a GPU.

#include <gtest/gtest.h>

#include "switchyard/permute.h"
#include "switchyard/weight_and_reduce.h"

#include "cuda_graph.h"
#include "support/errors.h"
#include "tensor_pair.h"

namespace switchyard::test {
namespace {

TEST(ExpertCountsCudaTest, CountsEqualTheCpus) {
  REQUIRE_GPU();
  for (const std::int64_t num_tokens : {0, 1, 97, 4096}) {
    for (const std::int64_t num_local : {0, 1, 61, 256, 9000}) {
      for (const bool has_map : {false, true}) {
        for (const bool is_strided : {false, true}) {
          SCOPED_TRACE(::testing::Message() << num_tokens << " " << num_local << " " << has_map);
          const TensorPair ids = make_ids(is_strided ? DType::kI64 : DType::kI32, num_tokens, 8,
                                          2 * num_local + 1, Routing::kRandom, is_strided);
          const TensorPair map = has_map ? make_map(2 * num_local + 1) : TensorPair();
          const TensorPair counts = TensorPair::flat(DType::kI32, num_local);
          count_expert_num_tokens(ids.host, counts.host, map.host);
          const ErrorWord errors;
          count_expert_num_tokens(ids.device, counts.device, map.device, kGpuStream, errors.view());
          cuda::check_cuda(cudaDeviceSynchronize(), "count_expert_num_tokens");
          EXPECT_TRUE(counts.is_equal());
          EXPECT_EQ(errors.value(), 0);
        }
      }
    }
  }
}

TEST(ExpertCountsCudaTest, MappedIdsEqualTheCpus) {
  REQUIRE_GPU();
  const TensorPair map = make_map(31);
  for (const DType dtype : {DType::kI32, DType::kI64}) {
    for (const std::int64_t num_tokens : {0, 1, 613}) {
      const TensorPair ids = make_ids(dtype, num_tokens, 7, 31, Routing::kRandom, true);
      const TensorPair local(dtype, num_tokens, 7, {19, 2, 3});
      apply_expert_map(ids.host, map.host, local.host);
      apply_expert_map(ids.device, map.device, local.device, kGpuStream);
      cuda::check_cuda(cudaDeviceSynchronize(), "apply_expert_map");
      EXPECT_TRUE(local.is_equal());
    }
  }
}

TEST(ExpertCountsCudaTest, RoundedSumsEqualTheCpus) {
  REQUIRE_GPU();
  for (const std::int64_t num_local : {0, 1, 61, 1000, 65535}) {
    for (const std::int64_t alignment : {1, 7, 128}) {
      TensorPair counts = TensorPair::flat(DType::kI32, num_local);
      for (std::int64_t e = 0; e < num_local; ++e) {
        counts.host.as<std::int32_t>()[e] =
            static_cast<std::int32_t>(random_bits(3, static_cast<std::uint64_t>(e)) % 1000);
      }
      counts.upload();
      const TensorPair sum = TensorPair::flat(DType::kI64, 1);
      *sum.host.as<std::int64_t>() = expert_num_tokens_round_up_and_sum(counts.host, alignment);
      expert_num_tokens_round_up_and_sum(counts.device, alignment, sum.device, kGpuStream);
      cuda::check_cuda(cudaDeviceSynchronize(), "expert_num_tokens_round_up_and_sum");
      EXPECT_TRUE(sum.is_equal());
    }
  }
}

// A graph of count, scatter and gather replayed with other ids: no replay sees values of another.
TEST(PermuteGraphTest, ReplaysWithOtherIds) {
  REQUIRE_GPU();
  constexpr std::int64_t kTokens = 61, kTopk = 5, kLocal = 9, kHidden = 136, kAlignment = 16;
  const std::int64_t num_rows = compute_aligned_m(kTokens, kTopk, kLocal, kAlignment);
  TensorPair ids(DType::kI32, kTokens, kTopk);
  TensorPair x(DType::kBF16, kTokens, kHidden);
  x.fill<std::uint16_t>([](auto t, auto h) { return 0x3F00 + (t * 31 + h) % 256; });
  TensorPair weights(DType::kF32, kTokens, kTopk);
  weights.fill<float>(
      [](auto t, auto k) { return static_cast<float>(t + 1) * 0.25f + static_cast<float>(k); });
  TensorPair rows(DType::kBF16, num_rows, kHidden);
  rows.fill_bytes([](std::size_t) { return 0; });
  TensorPair m_indices = TensorPair::flat(DType::kI32, num_rows);
  TensorPair inv_perm(DType::kI32, kTokens, kTopk);
  TensorPair first_row = TensorPair::flat(DType::kI64, kLocal);
  TensorPair counts = TensorPair::flat(DType::kI32, kLocal);
  TensorPair output(DType::kBF16, kTokens, kHidden);
  const GuardedWorkspace workspace(ep_scatter_workspace_bytes(kTokens, kTopk, kLocal));
  const PermuteOptions options{.alignment = kAlignment};

  const cuda::OwnedStream own_stream;
  const Stream stream = Stream::cuda(own_stream.get(), kGpu.index);
  const CudaGraph graph(stream.get(), [&] {
    count_expert_num_tokens(ids.device, counts.device, {}, stream);
    ep_scatter(x.device, {}, ids.device, options,
               {rows.device, {}, m_indices.device, inv_perm.device, first_row.device}, stream,
               workspace.span());
    ep_gather(rows.device, ids.device, weights.device, inv_perm.device, {}, output.device, stream);
  });
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    ids.fill<std::int32_t>([&](auto t, auto k) {
      const std::uint64_t bits = random_bits(seed, static_cast<std::uint64_t>(t * kTopk + k));
      return static_cast<std::int64_t>(bits % (kLocal + 1)) - 1;
    });
    graph.replay(stream.get());
    cuda::check_cuda(cudaStreamSynchronize(stream.get()), "cudaGraphLaunch");
    count_expert_num_tokens(ids.host, counts.host);
    ep_scatter(x.host, {}, ids.host, options,
               {rows.host, {}, m_indices.host, inv_perm.host, first_row.host});
    ep_gather(rows.host, ids.host, weights.host, inv_perm.host, {}, output.host);
    for (const TensorPair* pair : {&rows, &m_indices, &inv_perm, &first_row, &counts, &output}) {
      EXPECT_TRUE(pair->is_equal()) << seed;
    }
  }
}

// Host memory under the name of a GPU: shapes are refused before a GPU is used.
class NotOnGpu {
 public:
  NotOnGpu(DType dtype, std::initializer_list<std::int64_t> shape)
      : memory_(dtype, shape), view_(memory_.data(), dtype, shape, kGpu) {}
  operator const TensorView&() const { return view_; }
  std::byte* data() const { return memory_.as<std::byte>(); }

 private:
  Tensor memory_;
  TensorView view_;
};

struct Refused {
  NotOnGpu ids{DType::kI32, {4, 2}};
  NotOnGpu x{DType::kBF16, {4, 8}};
  NotOnGpu rows{DType::kBF16, {64, 8}};
  NotOnGpu m_indices{DType::kI32, {64}};
  NotOnGpu inv_perm{DType::kI32, {4, 2}};
  NotOnGpu first_row{DType::kI64, {3}};
  NotOnGpu workspace{DType::kU8, {65536}};
  PermuteOptions options{.alignment = 4};

  std::span<std::byte> memory(std::size_t bytes) const { return {workspace.data(), bytes}; }
  ScatterOutputs outputs() const { return {rows, {}, m_indices, inv_perm, first_row}; }
  void scatter(const ScatterOutputs& outputs, std::span<std::byte> given) const {
    ep_scatter(x, {}, ids, options, outputs, kGpuStream, given);
  }
};

TEST(PermuteCudaErrorsTest, BuffersAndWorkspacesThatAreTooSmall) {
  const Refused refused;
  const std::size_t bytes = ep_scatter_workspace_bytes(4, 2, 3);
  expect_error(Errc::kWorkspaceTooSmall, "ep_scatter: workspace has 7 bytes, needs",
               [&] { refused.scatter(refused.outputs(), refused.memory(7)); });
  expect_invalid("must be a multiple of 16 bytes",
                 [&] { refused.scatter(refused.outputs(), refused.memory(bytes + 8).subspan(8)); });
  ScatterOutputs small = refused.outputs();
  small.x = TensorView(refused.rows.data(), DType::kBF16, {19, 8}, kGpu);
  small.m_indices = TensorView(refused.m_indices.data(), DType::kI32, {19}, kGpu);
  expect_error(Errc::kWorkspaceTooSmall, "the buffer has 19 rows, any routing needs 20",
               [&] { refused.scatter(small, refused.memory(bytes)); });
  small.x = refused.rows;
  expect_invalid("m_indices is i32 [19]", [&] { refused.scatter(small, refused.memory(bytes)); });
}

TEST(PermuteCudaErrorsTest, SizesBeyondAGrid) {
  expect_invalid("1025 choices per token, must be at most 1024",
                 [] { (void)ep_scatter_workspace_bytes(1, 1025, 1); });
  expect_invalid("2147483648 choices, must be at most 2^31 - 1",
                 [] { (void)ep_scatter_workspace_bytes(std::int64_t{1} << 30, 2, 1); });
  expect_invalid("overflows 64 bits",
                 [] { (void)ep_scatter_workspace_bytes(std::int64_t{1} << 62, 1024, 1); });
  expect_invalid("none may be negative", [] { (void)ep_scatter_workspace_bytes(-1, 2, 1); });
  expect_invalid("num_local_experts is 65536",
                 [] { (void)ep_scatter_workspace_bytes(1, 2, 65536); });
  Refused refused;
  refused.options.alignment = std::int64_t{1} << 31;
  expect_invalid("rows are named by 32-bit indices",
                 [&] { refused.scatter(refused.outputs(), refused.memory(65536)); });
  refused.options.alignment = 0;
  expect_invalid("alignment is 0, must be at least 1",
                 [&] { refused.scatter(refused.outputs(), refused.memory(65536)); });
}

TEST(PermuteCudaErrorsTest, TensorsOfTheWrongKind) {
  const Refused refused;
  const Stream stream = kGpuStream;
  expect_invalid("num_errors is i64 [3] on cuda:0, must be i32", [&] {
    ep_scatter(refused.x, {}, refused.ids, refused.options, refused.outputs(), stream,
               refused.memory(65536), refused.first_row);
  });
  expect_invalid("outputs have x or scales", [&] {
    plan_permute(refused.ids, refused.options, refused.outputs(), stream, refused.memory(65536));
  });
  expect_invalid("inv_perm is bf16 [4, 8]", [&] {
    ep_gather(refused.rows, refused.ids, {}, refused.x, {}, refused.x, stream);
  });
  expect_invalid("sum is i64 [3]", [&] {
    expert_num_tokens_round_up_and_sum(refused.m_indices, 4, refused.first_row, stream);
  });
  expect_invalid("expert_map is absent",
                 [&] { apply_expert_map(refused.ids, {}, refused.ids, stream); });
  expect_invalid("the policy is delegate", [&] { (void)weight_and_reduce({}, {}, {}, stream); });
  WeightAndReduceArguments arguments;
  arguments.expert_output = TensorView(refused.rows.data(), DType::kBF16, {2, 4, 8}, kGpu);
  arguments.topk_ids = refused.ids;
  arguments.apply_router_weight_on_input = true;
  expect_error(Errc::kWorkspaceTooSmall, "weight_and_reduce: workspace has 0 bytes", [&] {
    (void)weight_and_reduce(WeightAndReduce::naive_batched(0), arguments, refused.x, stream);
  });
}

}  // namespace
}  // namespace switchyard::test
