// SPDX-License-Identifier: Apache-2.0
//
// The order in which ModularKernel sends, receives and computes, recorded by stand-ins that move no
// data. "receive 0@1" is the receive half of micro-batch 0, run by micro-batch 1.

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/micro_batches.h"
#include "switchyard/modular_kernel.h"

#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Events = std::vector<std::string>;
constexpr std::int64_t kHidden = 4;

void record(Events& events, const std::string& what, int micro_batch) {
  events.push_back(what + " " + std::to_string(micro_batch) + "@" +
                   std::to_string(dbo_current_micro_batch()));
}

// One expert, one row. Without hooks the receiver does both halves.
class RecordingPrepare final : public PrepareFinalize {
 public:
  RecordingPrepare(const Group& group, Events& events, int num_micro_batches, bool has_hooks,
                   std::optional<std::int64_t> max_tokens = 2)
      : group_(group),
        events_(events),
        num_micro_batches_(num_micro_batches),
        has_hooks_(has_hooks),
        max_tokens_(max_tokens),
        row_(DType::kBF16, {1, kHidden}),
        first_row_(DType::kI64, {1}),
        num_rows_(DType::kI32, {1}),
        expert_map_(DType::kI32, {2}) {
    *num_rows_.as<std::int32_t>() = 1;
  }

  std::string_view name() const override { return "recording"; }
  PrepareKind kind() const override { return PrepareKind::kLowLatency; }
  Device device() const override { return Device::cpu(); }
  ActivationFormat activation_format() const override { return ActivationFormat::kBatched; }
  std::optional<DType> topk_indices_dtype() const override { return std::nullopt; }
  std::optional<std::int64_t> max_num_tokens_per_rank() const override { return max_tokens_; }
  const Group& group() const override { return group_; }
  int num_dispatchers() const override { return 1; }
  bool output_is_reduced() const override { return true; }
  bool supports_async() const override { return has_hooks_; }
  std::int64_t hidden() const override { return kHidden; }
  std::int32_t num_topk() const override { return 1; }
  int num_micro_batches() const override { return num_micro_batches_; }
  std::int64_t max_buffer_rows() const override { return 1; }
  std::int32_t num_local_experts() const override { return 1; }
  const TensorView& expert_map() const override { return expert_map_.view(); }
  QuantScheme row_scheme(bool) const override { return schemes::kNone; }
  ScaleLayout row_scale_layout(bool) const override { return ScaleLayout::kRowMajor; }
  const char* heap() const override { return "host"; }
  bool is_shared_gpu() const override { return false; }
  ExchangeMemory memory() const override { return {}; }
  void post_init_setup(const Experts&) override {}
  void abandon(int micro_batch, const std::string&) override {
    record(events_, "abandon", micro_batch);
  }
  std::vector<RowOrigin> row_origins(int) const override { return {}; }
  WireBytes wire_bytes(int) const override { return {}; }

  void check() const override {}
  void close(bool) override {}

  Pending<Prepared> prepare_async(const PrepareArguments& arguments, Stream, Stream) override {
    record(events_, "send", arguments.micro_batch);
    Pending<Prepared> pending;
    pending.hook = hook("receive", arguments.micro_batch);
    pending.receiver = [this] {
      Prepared prepared;
      prepared.experts = {row_, {}, schemes::kNone, first_row_, num_rows_};
      return prepared;
    };
    return pending;
  }
  Prepared prepare(const PrepareArguments& arguments, Stream stream) override {
    const Pending<Prepared> pending = prepare_async(arguments, stream, stream);
    if (pending.hook) pending.hook();
    return pending.receiver();
  }
  Pending<void> finalize_async(const FinalizeArguments& arguments, Stream, Stream) override {
    record(events_, "return", arguments.micro_batch);
    return {hook("collect", arguments.micro_batch), [] {}};
  }
  void finalize(const FinalizeArguments& arguments, Stream stream) override {
    const Pending<void> pending = finalize_async(arguments, stream, stream);
    if (pending.hook) pending.hook();
    pending.receiver();
  }

 private:
  std::function<void()> hook(const char* what, int micro_batch) {
    if (!has_hooks_) return {};
    return [this, what, micro_batch] { record(events_, what, micro_batch); };
  }

  Group group_;
  Events& events_;
  int num_micro_batches_;
  bool has_hooks_;
  std::optional<std::int64_t> max_tokens_;
  Tensor row_;
  Tensor first_row_;
  Tensor num_rows_;
  Tensor expert_map_;
};

class RecordingExperts final : public Experts {
 public:
  RecordingExperts(Events& events, const char* what, int sleep_ms = 0)
      : events_(events), what_(what), sleep_ms_(sleep_ms) {}
  std::string_view name() const override { return "recording"; }
  bool is_batch_invariant() const override { return true; }
  std::size_t workspace_bytes(const TensorView&) const override { return 0; }
  void apply(const ExpertRows&, const TensorView&, std::span<std::byte>, Stream) override {
    record(events_, what_, dbo_current_micro_batch());
    std::this_thread::sleep_for(std::chrono::milliseconds(sleep_ms_));
  }

 private:
  Events& events_;
  const char* what_;
  int sleep_ms_;
};

struct Setup {
  int num_micro_batches = 2;
  int num_layers = 1;
  bool has_hooks = true;
  SharedExpertsOrder order = SharedExpertsOrder::kMkInternalOverlapped;
};

ModularKernel make_kernel(const Group& group, Events& events, const Setup& setup,
                          int sleep_ms = 0) {
  return ModularKernel(
      std::make_unique<RecordingPrepare>(group, events, setup.num_micro_batches, setup.has_hooks),
      std::make_unique<RecordingExperts>(events, "experts", sleep_ms),
      SharedExpert{std::make_unique<RecordingExperts>(events, "shared"), {}, setup.order});
}

Events events_of(const Setup& setup) {
  Events events;
  run_ranks(1, [&](const Group& group) {
    ModularKernel kernel = make_kernel(group, events, setup);
    const Tensor hidden(DType::kBF16, {1, kHidden});
    const Tensor ids(DType::kI32, {1, 1});
    const Tensor weights(DType::kF32, {1, 1});
    run_micro_batches(group, setup.num_micro_batches, [&](int m) {
      const Tensor output(DType::kBF16, {1, kHidden});
      for (int layer = 0; layer < setup.num_layers; ++layer) {
        kernel.apply({hidden, ids, weights, false, m}, output);
      }
    });
  });
  return events;
}

TEST(OverlapOrderTest, OfOneBatchIsUnchanged) {
  EXPECT_THAT(events_of({1}), ElementsAre("send 0@0", "receive 0@0", "experts 0@0", "return 0@0",
                                          "shared 0@0", "collect 0@0"));
}

TEST(OverlapOrderTest, TheNextReceivesJustBeforeItSends) {
  EXPECT_THAT(events_of({2}),
              ElementsAre("send 0@0",                                  //
                          "receive 0@1", "send 1@1",                   //
                          "experts 0@0", "receive 1@0", "return 0@0",  //
                          "shared 0@0",                                //
                          "experts 1@1", "collect 0@1", "return 1@1",  //
                          "shared 1@1",                                //
                          "collect 1@0"));
}

TEST(OverlapOrderTest, OfThree) {
  EXPECT_THAT(events_of({3}),
              ElementsAre("send 0@0", "receive 0@1", "send 1@1", "receive 1@2", "send 2@2",  //
                          "experts 0@0", "receive 2@0", "return 0@0", "shared 0@0",          //
                          "experts 1@1", "collect 0@1", "return 1@1", "shared 1@1",          //
                          "experts 2@2", "collect 1@2", "return 2@2", "shared 2@2",          //
                          "collect 2@0"));
}

// The first micro-batch collects for the last one before it sends its next layer.
TEST(OverlapOrderTest, OfTwoLayers) {
  EXPECT_THAT(events_of({2, 2}),
              ElementsAre("send 0@0", "receive 0@1", "send 1@1",                     //
                          "experts 0@0", "receive 1@0", "return 0@0", "shared 0@0",  //
                          "experts 1@1", "collect 0@1", "return 1@1", "shared 1@1",  //
                          "collect 1@0", "send 0@0", "receive 0@1", "send 1@1",      //
                          "experts 0@0", "receive 1@0", "return 0@0", "shared 0@0",  //
                          "experts 1@1", "collect 0@1", "return 1@1", "shared 1@1",  //
                          "collect 1@0"));
}

TEST(OverlapOrderTest, WithoutHooksNothingIsHandedOver) {
  EXPECT_THAT(events_of({2, 1, false}),
              ElementsAre("send 0@0", "experts 0@0", "return 0@0", "shared 0@0",  //
                          "send 1@1", "experts 1@1", "return 1@1", "shared 1@1"));
}

TEST(OverlapOrderTest, SharedExpertsMayComeFirst) {
  EXPECT_THAT(events_of({1, 1, true, SharedExpertsOrder::kNoOverlap}),
              ElementsAre("shared 0@0", "send 0@0", "receive 0@0", "experts 0@0", "return 0@0",
                          "collect 0@0"));
}

// The other micro-batch yields without sending, so this one receives for itself, once.
TEST(OverlapOrderTest, AHookThatNobodyRanIsRunByItsOwner) {
  Events events;
  run_ranks(1, [&](const Group& group) {
    ModularKernel kernel = make_kernel(group, events, {});
    const Tensor row(DType::kBF16, {1, kHidden});
    const Tensor ids(DType::kI32, {1, 1});
    const Tensor weights(DType::kF32, {1, 1});
    run_micro_batches(group, 2, [&](int m) {
      if (m == 0) return kernel.apply({row, ids, weights, false, 0}, row);
      dbo_yield();
      dbo_yield();
    });
  });
  EXPECT_THAT(events, ElementsAre("send 0@0", "receive 0@0", "experts 0@0", "return 0@0",
                                  "shared 0@0", "collect 0@0"));
}

TEST(OverlapOrderTest, TimesAreOfOneMicroBatch) {
  Events events;
  constexpr int kSleepMs = 150;
  constexpr std::int64_t kSleepNs = kSleepMs * 1'000'000;
  run_ranks(1, [&](const Group& group) {
    ModularKernel kernel = make_kernel(group, events, {}, kSleepMs);
    const Tensor row(DType::kBF16, {2, kHidden});
    const Tensor ids(DType::kI32, {2, 1});
    const Tensor weights(DType::kF32, {2, 1});
    apply_overlapped(kernel, {row, ids, weights}, row);
    for (const int m : {0, 1}) {
      const StageTimes& times = kernel.times(m);
      EXPECT_GE(times.experts_ns, kSleepNs);
      EXPECT_LT(times.dispatch_ns + times.place_ns + times.combine_ns, kSleepNs);
    }
    EXPECT_THAT(error_of([&] { kernel.times(2); }).what(),
                HasSubstr("micro_batch is 2, must be from 0 to 1"));
  });
}

TEST(OverlapOrderTest, ASharedExpertHasAnOrder) {
  run_ranks(1, [](const Group& group) {
    Events events;
    expect_invalid("order none", [&] {
      make_kernel(group, events, {1, 1, true, SharedExpertsOrder::kNone});
    });
    EXPECT_EQ(make_kernel(group, events, {}).shared_experts_order(),
              SharedExpertsOrder::kMkInternalOverlapped);
  });
}

TEST(OverlapOrderTest, ASharedExpertNeedsABoundOfTokens) {
  run_ranks(1, [](const Group& group) {
    Events events;
    expect_invalid("recording has no max_num_tokens_per_rank", [&] {
      ModularKernel(std::make_unique<RecordingPrepare>(group, events, 1, true, std::nullopt),
                    std::make_unique<RecordingExperts>(events, "experts"),
                    SharedExpert{std::make_unique<RecordingExperts>(events, "shared"), {}});
    });
  });
}

}  // namespace
}  // namespace switchyard
