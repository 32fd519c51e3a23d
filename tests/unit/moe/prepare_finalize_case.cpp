// SPDX-License-Identifier: Apache-2.0

#include "prepare_finalize_case.h"

#include <cstring>

#include <gtest/gtest.h>

#include "switchyard/modular_kernel.h"

#include "core/format.h"
#include "moe/experts/expert_input.h"
#include "prepare_finalize_oracle.h"
#include "quant/bf16.h"
#include "quant/scalar.h"
#include "quant/scheme.h"
#include "support/random_batch.h"
#include "support/ranks.h"

namespace switchyard::test {
namespace {

using reference::Table;

class ScalingExperts final : public Experts {
 public:
  explicit ScalingExperts(std::int32_t first) : first_(first) {}
  std::string_view name() const override { return "scaling"; }
  bool is_batch_invariant() const override { return true; }
  std::size_t workspace_bytes(std::int64_t) const override { return 0; }
  void apply(const ExpertRows& input, const TensorView& output, std::span<std::byte>) override {
    const auto num_experts = static_cast<std::int64_t>(input.num_rows.size());
    const std::int64_t width = input.rows.shape(1);
    check_input(num_experts, width, input);
    const InputReader reader(input);
    std::vector<float> row(static_cast<std::size_t>(width));
    std::vector<std::byte> scales(row.size() * sizeof(float));
    for (std::int64_t e = 0; e < num_experts; ++e) {
      const auto i = static_cast<std::size_t>(e);
      for (std::int64_t n = 0; n < input.num_rows[i]; ++n) {
        const std::int64_t at = input.first_row[i] + n;
        reader.read(e, at, 1, row.data(), scales.data());
        for (std::int64_t h = 0; h < width; ++h) {
          output.as<std::uint16_t>()[at * width + h] =
              bf16_from_f32(row[static_cast<std::size_t>(h)] * factor_of(first_ + e));
        }
      }
    }
  }

 private:
  std::int64_t first_;
};

// Returns scale s of row n in any layout.
const std::byte* scale_at(const ExpertRows& experts, std::int64_t n, std::int64_t s) {
  const TensorView& scales = experts.scales;
  const std::int64_t bytes = bits_of(scales.dtype()) / 8;
  std::int64_t at = 0;
  if (experts.scale_layout == ScaleLayout::kSwizzled) {
    const bool is_batch = scales.num_dims() == 6;
    const int first = is_batch ? 1 : 0;
    const std::int64_t rows =
        is_batch ? experts.rows.shape(0) / scales.shape(0) : experts.rows.shape(0);
    const std::int64_t tiles = scales.shape(first + 1);
    const std::int64_t m = n % rows;
    at = (n / rows) * scales.shape(first) * tiles * 512 + (m / 128 * tiles + s / 4) * 512 +
         m % 32 * 16 + m % 128 / 32 * 4 + s % 4;
  } else if (scales.num_dims() == 3) {
    const std::int64_t rows = scales.shape(1);
    at = n / rows * scales.stride(0) + n % rows * scales.stride(1) + s * scales.stride(2);
  } else {
    at = n * scales.stride(0) + s * scales.stride(1);
  }
  return scales.as<std::byte>() + at * bytes;
}

void expect_row(const ExpertRows& experts, std::int64_t n, const ExpectedRows& want,
                std::size_t i) {
  const auto row = static_cast<std::int64_t>(i);
  const std::size_t bytes = static_cast<std::size_t>(want.elements.cols);
  const auto* got = experts.rows.as<std::uint8_t>() + static_cast<std::size_t>(n) * bytes;
  ASSERT_EQ(std::vector<std::uint8_t>(got, got + bytes),
            std::vector<std::uint8_t>(want.elements.row(row).begin(), want.elements.row(row).end()))
      << "row " << n;
  if (want.scales.cols == 0) return;
  const std::int64_t scale_bytes = bits_of(experts.scales.dtype()) / 8;
  for (std::int64_t s = 0; s < want.scales.cols / scale_bytes; ++s) {
    ASSERT_EQ(std::memcmp(scale_at(experts, n, s), &want.scales(row, s * scale_bytes),
                          static_cast<std::size_t>(scale_bytes)),
              0)
        << "row " << n << " scale " << s;
  }
}

void expect_prepared(const ClassCase& test, const Prepared& got, const ExpectedRows& want) {
  const ExpertRows& experts = got.experts;
  ASSERT_EQ(experts.scheme, test.defers ? schemes::kNone : test.scheme);
  ASSERT_EQ(got.num_rows, static_cast<std::int64_t>(want.positions.size()));
  ASSERT_EQ(experts.rows.shape(0), want.num_rows);
  ASSERT_EQ(std::vector<std::int32_t>(experts.num_rows.begin(), experts.num_rows.end()),
            want.counts);
  for (std::size_t i = 0; i < want.positions.size(); ++i) {
    expect_row(experts, want.positions[i].index, want, i);
  }
  if (want.tensor_scale.has_value()) {
    const TensorView& scale =
        test.scheme.needs_tensor_scale() ? experts.tensor_scale : experts.scales;
    ASSERT_EQ(scale.num_elements(), 1);
    EXPECT_EQ(*scale.as<float>(), *want.tensor_scale);
  }
  ASSERT_EQ(got.topk_ids.has_value(), want.topk_ids.cols > 0);
  if (want.topk_ids.cols == 0) return;
  ASSERT_EQ(got.topk_ids.dtype(), want.ids_dtype);
  ASSERT_EQ(got.topk_ids.num_elements(), static_cast<std::int64_t>(want.topk_ids.data.size()));
  for (std::size_t i = 0; i < want.topk_ids.data.size(); ++i) {
    const std::int64_t id = want.ids_dtype == DType::kI64 ? got.topk_ids.as<std::int64_t>()[i]
                                                          : got.topk_ids.as<std::int32_t>()[i];
    ASSERT_EQ(id, want.topk_ids.data[i]) << "id " << i;
    ASSERT_EQ(got.topk_weights.as<float>()[i], want.topk_weights.data[i]) << "weight " << i;
  }
}

void expect_metadata(const ClassCase& test, const Prepared& got, const ExpectedRows& want) {
  std::vector<std::int32_t> counts = want.counts;
  for (std::int32_t& count : counts) {
    while (test.kind == PrepareKind::kElasticPrefill && count % test.expert_alignment != 0) ++count;
  }
  const bool has_metadata =
      test.kind == PrepareKind::kLowLatency || test.kind == PrepareKind::kElasticPrefill;
  ASSERT_EQ(got.metadata.has_value(), has_metadata);
  if (!has_metadata) return;
  EXPECT_EQ(got.metadata->expert_num_tokens, counts);
}

Bits run_rank(const Group& group, const ClassCase& test, const reference::Batch& earlier,
              const reference::Batch& batch, const ClassOracle& oracle) {
  const auto r = static_cast<std::size_t>(group.rank());
  const std::int32_t first =
      test.is_local() ? 0 : reference::first_expert(test.num_experts, group.size(), group.rank());
  ModularKernel kernel(make_prepare_finalize(test.kind, group, test.config()),
                       make_scaling_experts(first));
  const CallInput before(earlier.ranks[r], test.input);
  kernel.apply(before.arguments(), Tensor(DType::kBF16, {before.hidden.shape(0), test.hidden}));

  const CallInput input(batch.ranks[r], test.input);
  PrepareArguments arguments = input.arguments();
  arguments.max_tokens = test.max_tokens;
  arguments.defer_input_quant = test.defers;
  const ExpectedRows want = oracle.received(group.rank());
  bool was_inspected = false;
  kernel.set_inspector([&](const Prepared& prepared, const TensorView&) {
    was_inspected = true;
    expect_prepared(test, prepared, want);
    expect_metadata(test, prepared, want);
  });
  const Tensor output(DType::kBF16, {input.hidden.shape(0), test.hidden});
  kernel.apply(arguments, output);
  EXPECT_TRUE(was_inspected);
  return {output.as<std::uint16_t>(), output.as<std::uint16_t>() + output.view().num_elements()};
}

Bits bf16_bits(const Table<float>& table) {
  Bits bits;
  for (const float x : table.data) bits.push_back(bf16_from_f32(x));
  return bits;
}

}  // namespace

PrepareFinalizeConfig ClassCase::config() const {
  PrepareFinalizeConfig config;
  config.num_experts = num_experts;
  config.num_topk = num_topk;
  config.hidden = hidden;
  config.max_tokens_per_rank = max_tokens_per_rank;
  config.scheme = scheme;
  config.wire_scheme = wire_scheme;
  config.static_scale = static_scale;
  config.scale_layout = scale_layout;
  config.reduce = reduce;
  config.expert_alignment = expert_alignment;
  config.global_to_physical = global_to_physical;
  return config;
}

std::string ClassCase::describe() const {
  return fmt::format("{}, P {}, {}, wire {}, scale layout {}", name_of(kind), num_ranks(),
                     name_of(scheme), wire_scheme ? name_of(*wire_scheme) : "as it is",
                     static_cast<int>(scale_layout));
}

CallInput::CallInput(const reference::RankInput& input, DType dtype)
    : hidden(dtype, {input.tokens.rows, input.tokens.cols}),
      ids(DType::kI64, {input.topk_ids.rows, input.topk_ids.cols}),
      weights(DType::kF32, {input.topk_ids.rows, input.topk_ids.cols}) {
  for (std::size_t i = 0; i < input.tokens.data.size(); ++i) {
    scalar::store(hidden.data(), dtype, static_cast<std::int64_t>(i), input.tokens.data[i]);
  }
  for (std::size_t i = 0; i < input.topk_ids.data.size(); ++i) {
    ids.as<std::int64_t>()[i] = input.topk_ids.data[i];
    weights.as<float>()[i] = input.topk_weights.data[i];
  }
}

reference::Batch random_batch_of(const ClassCase& test) {
  reference::Batch batch{test.num_experts, {}};
  const BatchShape shape{test.num_experts, test.num_topk, test.hidden, test.none_share};
  for (std::size_t r = 0; r < test.num_tokens.size(); ++r) {
    batch.ranks.push_back(random_tokens(shape, test.num_tokens[r], test.seed * 100 + 7 * r));
    for (float& x : batch.ranks.back().tokens.data) {
      if (test.input != DType::kBF16) x = reference::round_to(test.input, x / 3.0f);
    }
  }
  return batch;
}

std::unique_ptr<Experts> make_scaling_experts(std::int32_t first_expert) {
  return std::make_unique<ScalingExperts>(first_expert);
}

std::vector<Bits> check_class(const ClassCase& test) {
  SCOPED_TRACE(test.describe());
  const reference::Batch batch = random_batch_of(test);
  ClassCase large = test;
  large.none_share = 0.0;
  large.num_tokens.assign(test.num_tokens.size(), test.max_tokens_per_rank);
  reference::Batch earlier = random_batch_of(large);
  for (reference::RankInput& input : earlier.ranks) {
    for (float& x : input.tokens.data) x *= 1024.0f;
  }
  const ClassOracle oracle(test, batch);
  std::vector<Bits> outputs(test.num_tokens.size());
  run_ranks(test.num_ranks(), [&](const Group& group) {
    SCOPED_TRACE(fmt::format("{}, rank {}", test.describe(), group.rank()));
    const auto r = static_cast<std::size_t>(group.rank());
    outputs[r] = run_rank(group, test, earlier, batch, oracle);
    EXPECT_EQ(outputs[r], bf16_bits(oracle.output(group.rank())));
  });
  return outputs;
}

}  // namespace switchyard::test
