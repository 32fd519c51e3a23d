// SPDX-License-Identifier: Apache-2.0
//
// The kernel when something is missing or fails: no rows, experts that throw, wrong arguments.

#include <algorithm>

#include <gmock/gmock.h>

#include "switchyard/modular_kernel.h"

#include "prepare_finalize_case.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

PrepareFinalizeConfig small_config() {
  PrepareFinalizeConfig config;
  config.num_experts = 2;
  config.num_topk = 1;
  config.hidden = 4;
  config.max_tokens_per_rank = 2;
  return config;
}

// Counts its calls and throws while `fails` is set.
class FailingExperts final : public Experts {
 public:
  explicit FailingExperts(bool& fails, int* num_calls = nullptr)
      : fails_(fails), num_calls_(num_calls) {}
  std::string_view name() const override { return "failing"; }
  bool is_batch_invariant() const override { return true; }
  std::size_t workspace_bytes(const TensorView&) const override { return 128; }
  void apply(const ExpertRows&, const TensorView&, std::span<std::byte> workspace,
             Stream) override {
    if (num_calls_ != nullptr) ++*num_calls_;
    last_workspace = workspace.data();
    if (fails_) throw Error(Errc::kOutOfMemory, "no memory for rows");
  }

  const std::byte* last_workspace = nullptr;

 private:
  bool& fails_;
  int* num_calls_;
};

struct Call {
  Tensor hidden{DType::kBF16, {1, 4}};
  Tensor ids{DType::kI32, {1, 1}};
  Tensor weights{DType::kF32, {1, 1}};
  Tensor output{DType::kBF16, {1, 4}};

  explicit Call(std::int32_t id) {
    ids.as<std::int32_t>()[0] = id;
    std::fill_n(hidden.as<std::uint16_t>(), 4, 0x3F80);
    weights.as<float>()[0] = 1.0f;
  }
  PrepareArguments arguments() const { return {hidden, ids, weights}; }
};

// The failing rank throws its own error; the other learns of it at once.
TEST(ModularKernelFaultsTest, ExpertsThatFailEndThePeersWait) {
  for (const PrepareKind kind : kAllClasses) {
    if (kind == PrepareKind::kLocal) continue;
    const Error error = error_of([&] {
      run_ranks(2, [&](const Group& group) {
        bool fails = group.rank() == 1;
        ModularKernel kernel(make_prepare_finalize(kind, group, small_config()),
                             std::make_unique<FailingExperts>(fails));
        const Call call(1);  // its expert is on rank 1
        if (group.rank() == 0) {
          const Error seen = error_of([&] { kernel.apply(call.arguments(), call.output); });
          EXPECT_THAT(seen.what(), HasSubstr("no memory for rows"));
          return;
        }
        kernel.apply(call.arguments(), call.output);
      });
    });
    EXPECT_EQ(error.code(), Errc::kOutOfMemory) << name_of(kind);
  }
}

TEST(ModularKernelFaultsTest, AloneTheKernelWorksOnAfterItsExpertsFailed) {
  for (const PrepareKind kind : kAllClasses) {
    run_ranks(1, [&](const Group& group) {
      bool fails = true;
      ModularKernel kernel(make_prepare_finalize(kind, group, small_config()),
                           std::make_unique<FailingExperts>(fails));
      const Call call(1);
      for (int repeat = 0; repeat < 3; ++repeat) {
        expect_error(Errc::kOutOfMemory, "no memory for rows",
                     [&] { kernel.apply(call.arguments(), call.output); });
      }
      fails = false;
      kernel.apply(call.arguments(), call.output);
    });
  }
}

// Results are already under way, so the call ends on every rank and the next one is in step.
TEST(ModularKernelFaultsTest, ASharedExpertThatFailsLeavesTheGroupAsItWas) {
  for (const PrepareKind kind : kAllClasses) {
    run_ranks(2, [&](const Group& group) {
      bool works = false;
      bool fails = group.rank() == 1;
      ModularKernel kernel(make_prepare_finalize(kind, group, small_config()),
                           std::make_unique<FailingExperts>(works),
                           {std::make_unique<FailingExperts>(fails), {}});
      const Call call(1);
      if (group.rank() == 1) {
        expect_error(Errc::kOutOfMemory, "no memory for rows",
                     [&] { kernel.apply(call.arguments(), call.output); });
        fails = false;
      } else {
        kernel.apply(call.arguments(), call.output);
      }
      kernel.apply(call.arguments(), call.output);
    });
  }
}

TEST(ModularKernelFaultsTest, ExpertsAreNotCalledWithoutRows) {
  for (const PrepareKind kind : kAllClasses) {
    run_ranks(2, [&](const Group& group) {
      bool fails = false;
      int num_calls = 0;
      ModularKernel kernel(make_prepare_finalize(kind, group, small_config()),
                           std::make_unique<FailingExperts>(fails, &num_calls));
      const Call none(-1);
      std::fill_n(none.output.as<std::uint16_t>(), 4, 0x3F80);
      kernel.apply(none.arguments(), none.output);
      EXPECT_EQ(num_calls, 0) << name_of(kind);
      EXPECT_EQ(none.output.as<std::uint16_t>()[3], 0);
      const Call first(0);
      kernel.apply(first.arguments(), first.output);
      EXPECT_EQ(num_calls, kind == PrepareKind::kLocal || group.rank() == 0 ? 1 : 0);
    });
  }
}

TEST(ModularKernelFaultsTest, MicroBatchesHaveWorkspacesOfTheirOwn) {
  PrepareFinalizeConfig config = small_config();
  config.num_micro_batches = 2;
  bool fails = false;
  auto experts = std::make_unique<FailingExperts>(fails);
  const FailingExperts& seen = *experts;
  ModularKernel kernel(make_local(config), std::move(experts));
  PrepareFinalizeConfig single = small_config();
  const ModularKernel one(make_local(single), std::make_unique<FailingExperts>(fails));
  EXPECT_EQ(kernel.workspace_bytes(), 2 * one.workspace_bytes());
  const Call call(0);
  PrepareArguments arguments = call.arguments();
  kernel.apply(arguments, call.output);
  const std::byte* const first = seen.last_workspace;
  arguments.micro_batch = 1;
  kernel.apply(arguments, call.output);
  EXPECT_NE(seen.last_workspace, first);
  arguments.micro_batch = 2;
  expect_invalid("micro_batch is 2", [&] { kernel.apply(arguments, call.output); });
}

TEST(ModularKernelFaultsTest, ArgumentsAreChecked) {
  bool fails = false;
  const auto experts = [&] { return std::make_unique<FailingExperts>(fails); };
  const auto make = [&](SharedExpert shared) {
    return ModularKernel(make_local(small_config()), experts(), std::move(shared));
  };
  const Tensor gate(DType::kF32, {3});
  expect_invalid("shared gate is f32 [3]", [&] { make({nullptr, gate}); });
  expect_invalid("must both be given", [&] { ModularKernel(nullptr, experts()); });
  ModularKernel kernel = make({experts(), {}});
  const Call call(0);
  const Tensor wrong(DType::kI32, {1, 4});
  expect_invalid("output is i32 [1, 4], must be bf16, f16 or f32 [1, 4]",
                 [&] { kernel.apply(call.arguments(), wrong); });
  PrepareArguments arguments = call.arguments();
  arguments.apply_router_weight_on_input = arguments.weighs_in_place = true;
  expect_invalid("weighs_in_place is set", [&] { kernel.apply(arguments, call.output); });
  arguments.hidden = {};
  EXPECT_EQ(error_of([&] { kernel.apply(arguments, call.output); }).code(), Errc::kInvalidArgument);
  kernel.apply(call.arguments(), call.output);
}

TEST(ModularKernelFaultsTest, AllPartsAreOfOneDevice) {
  class FarExperts final : public Experts {
   public:
    std::string_view name() const override { return "far"; }
    Device device() const override { return Device::cuda(1); }
    bool is_batch_invariant() const override { return true; }
    std::size_t workspace_bytes(const TensorView&) const override { return 0; }
    void apply(const ExpertRows&, const TensorView&, std::span<std::byte>, Stream) override {}
  };
  bool fails = false;
  expect_invalid("experts are on cuda:1, must be on cpu", [&] {
    ModularKernel(make_local(small_config()), std::make_unique<FarExperts>());
  });
  expect_invalid("shared experts are on cuda:1, must be on cpu", [&] {
    ModularKernel(make_local(small_config()), std::make_unique<FailingExperts>(fails),
                  {std::make_unique<FarExperts>(), {}});
  });
  const ModularKernel kernel(make_local(small_config()), std::make_unique<FailingExperts>(fails));
  EXPECT_EQ(kernel.device(), Device::cpu());
  EXPECT_FALSE(kernel.is_capturable());
  kernel.check();
}

// Before anything is sent or taken; functions that say nothing fit any number.
TEST(ModularKernelFaultsTest, ExpertsMustBeAsManyAsTheLayersOnThisRank) {
  class Counted final : public Experts {
   public:
    explicit Counted(std::int32_t count) : count_(count) {}
    std::string_view name() const override { return "counted"; }
    std::optional<std::int32_t> num_local_experts() const override { return count_; }
    bool is_batch_invariant() const override { return true; }
    std::size_t workspace_bytes(const TensorView&) const override { return 0; }
    void apply(const ExpertRows&, const TensorView&, std::span<std::byte>, Stream) override {}

   private:
    std::int32_t count_;
  };
  run_ranks(2, [](const Group& group) {
    for (const PrepareKind kind : kAllClasses) {
      const std::int32_t wanted = kind == PrepareKind::kLocal ? 2 : 1;
      const auto make = [&](std::int32_t experts, std::int32_t shared) {
        ModularKernel(make_prepare_finalize(kind, group, small_config()),
                      std::make_shared<Counted>(experts), {std::make_shared<Counted>(shared), {}});
      };
      make(wanted, 1);
      expect_invalid("experts have the weights of 3 experts, must have those of " +
                         std::to_string(wanted) + ", as prepare_finalize has on this rank",
                     [&] { make(3, 1); });
      expect_invalid("shared experts have the weights of 2 experts, must have those of 1",
                     [&] { make(wanted, 2); });
    }
  });
  std::vector<float> weights(3 * 4 * 4, 0.0f);
  ExpertWeights three;
  three.gate = three.up = three.down = TensorView::of(weights.data(), {3, 4, 4});
  for (const char* name : {"exact", "onednn"}) {
    try {
      std::shared_ptr<Experts> experts = make_experts(name, three);
      EXPECT_EQ(experts->num_local_experts(), 3);
      expect_invalid("experts have the weights of 3 experts",
                     [&] { ModularKernel(make_local(small_config()), std::move(experts)); });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kNotAvailable) << name;  // no oneDNN in this build
    }
  }
}

// Refused before anything is sent: the other rank, too, goes on.
TEST(ModularKernelFaultsTest, AnOutputThatCombineRefusesIsRefusedAtOnce) {
  run_ranks(2, [](const Group& group) {
    bool fails = false;
    ModularKernel kernel(make_low_latency(group, small_config()),
                         std::make_unique<FailingExperts>(fails));
    const Call call(0);
    if (group.rank() == 0) {
      const TensorView overlapping(call.output.data(), DType::kBF16, {1, 4}, {2, 1});
      const TensorView nowhere(nullptr, DType::kBF16, {1, 4});
      for (const TensorView& output : {overlapping, nowhere}) {
        const Error error = error_of([&] {
          kernel.apply({call.hidden, call.ids, call.weights}, output);
        });
        EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
      }
    }
    kernel.apply({call.hidden, call.ids, call.weights}, call.output);
  });
}

TEST(ModularKernelFaultsTest, NullArgumentsAreRefusedAlsoWhereTheyAreReadFirst) {
  PrepareFinalizeConfig config = small_config();
  config.global_to_physical = {1, 0};
  const auto local = make_local(config);
  const Call call(0);
  const TensorView no_rows(nullptr, DType::kBF16, {1, 4});
  const TensorView no_ids(nullptr, DType::kI32, {1, 1});
  expect_invalid("hidden", [&] { local->prepare({no_rows, call.ids, call.weights, true}); });
  expect_invalid("topk_ids", [&] { local->prepare({call.hidden, no_ids, call.weights}); });
}

// Users' experts may throw anything.
TEST(ModularKernelFaultsTest, ExpertsMayThrowAnything) {
  class Throwing final : public Experts {
   public:
    std::string_view name() const override { return "throwing"; }
    bool is_batch_invariant() const override { return true; }
    std::size_t workspace_bytes(const TensorView&) const override { return 0; }
    void apply(const ExpertRows&, const TensorView&, std::span<std::byte>, Stream) override {
      throw 7;
    }
  };
  ModularKernel kernel(make_local(small_config()), std::make_unique<Throwing>());
  const Call call(0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(kernel.apply({call.hidden, call.ids, call.weights}, call.output), int);
  }
}

}  // namespace
}  // namespace switchyard
