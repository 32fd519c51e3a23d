// SPDX-License-Identifier: Apache-2.0

#include "prepare_finalize_case.h"

#include "conformance/random_batch.h"
#include "moe/experts/expert_checks.h"
#include "moe/experts/expert_input.h"
#include "quant/bf16.h"
#include "support/elements.h"

namespace switchyard::test {
namespace {

class ScalingExperts final : public Experts {
 public:
  explicit ScalingExperts(std::int32_t first) : first_(first) {}
  std::string_view name() const override { return "scaling"; }
  bool is_batch_invariant() const override { return true; }
  std::size_t workspace_bytes(const TensorView&) const override { return 0; }
  void apply(const ExpertRows& given, const TensorView& output, std::span<std::byte>,
             Stream) override {
    ExpertRows input = given;
    input.rows = flat_rows("rows", given.rows);
    const std::int64_t num_experts = input.num_rows.shape(0);
    const std::int64_t width = input.rows.shape(1);
    check_input(num_experts, width, input);
    const InputReader reader(input);
    std::vector<float> row(static_cast<std::size_t>(width));
    std::vector<std::byte> scales(row.size() * sizeof(float));
    for (std::int64_t e = 0; e < num_experts; ++e) {
      for (std::int64_t n = 0; n < input.num_rows.as<std::int32_t>()[e]; ++n) {
        const std::int64_t at = input.first_row.as<std::int64_t>()[e] + n;
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

std::int64_t id_at(const TensorView& ids, std::int64_t i) {
  return ids.dtype() == DType::kI64 ? ids.as<std::int64_t>()[i] : ids.as<std::int32_t>()[i];
}

// Writes row `from`, times the expert's factor, times `weight`, as row `to` of a bf16 tensor.
void write_row(const TensorView& rows, std::int64_t from, std::int64_t expert, float weight,
               const Tensor& output, std::int64_t to) {
  const std::int64_t width = rows.shape(rows.num_dims() - 1);
  for (std::int64_t h = 0; h < width; ++h) {
    const float x = f32_from_bf16(rows.as<std::uint16_t>()[from * width + h]) * factor_of(expert);
    output.as<std::uint16_t>()[to * width + h] =
        bf16_from_f32(f32_from_bf16(bf16_from_f32(x)) * weight);
  }
}

Tensor nan_rows(std::initializer_list<std::int64_t> shape) {
  Tensor rows(DType::kBF16, shape);
  std::fill_n(rows.as<std::uint16_t>(), rows.view().num_elements(), 0x7FC0);
  return rows;
}

}  // namespace

PrepareFinalizeConfig ClassCase::config() const {
  PrepareFinalizeConfig config;
  config.num_experts = num_experts;
  config.num_topk = num_topk;
  config.hidden = hidden;
  config.max_tokens_per_rank = max_tokens_per_rank;
  config.scheme = scheme;
  config.reduce = reduce;
  return config;
}

CallInput::CallInput(const reference::RankInput& input)
    : hidden(DType::kBF16, {input.tokens.rows, input.tokens.cols}),
      ids(DType::kI64, {input.topk_ids.rows, input.topk_ids.cols}),
      weights(DType::kF32, {input.topk_ids.rows, input.topk_ids.cols}) {
  std::transform(input.tokens.data.begin(), input.tokens.data.end(), hidden.as<std::uint16_t>(),
                 bf16_from_f32);
  std::copy(input.topk_ids.data.begin(), input.topk_ids.data.end(), ids.as<std::int64_t>());
  std::copy(input.topk_weights.data.begin(), input.topk_weights.data.end(), weights.as<float>());
}

reference::Batch random_batch_of(const ClassCase& test) {
  reference::Batch batch{test.num_experts, {}};
  const conformance::BatchShape shape{test.num_experts, test.num_topk, test.hidden,
                                      test.none_share};
  for (std::size_t r = 0; r < test.num_tokens.size(); ++r) {
    batch.ranks.push_back(
        conformance::random_tokens(shape, test.num_tokens[r], test.seed * 100 + 7 * r));
  }
  return batch;
}

ModularKernel make_scaling_layer(const Group& group, const ClassCase& test) {
  const std::int32_t first =
      test.is_local() ? 0 : reference::first_expert(test.num_experts, group.size(), group.rank());
  return {make_prepare_finalize(test.kind, group, test.config()),
          std::make_unique<ScalingExperts>(first)};
}

bool is_grouped(PrepareKind kind) {
  return kind == PrepareKind::kLowLatency || kind == PrepareKind::kElasticPrefill;
}

Tensor choice_rows(const PrepareFinalize& object, const Prepared& prepared) {
  const TensorView& rows = prepared.experts.rows;
  const std::int64_t num_topk = object.num_topk();
  Tensor output = nan_rows({rows.shape(0), num_topk, rows.shape(1)});
  for (std::int64_t i = 0; i < rows.shape(0) * num_topk; ++i) {
    const std::int64_t id = id_at(prepared.topk_ids, i);
    if (id < 0 || object.expert_map().as<std::int32_t>()[id] < 0) continue;
    write_row(rows, i / num_topk, id, 1.0f, output, i);
  }
  return output;
}

Tensor grouped_rows(const PrepareFinalize& object, const Prepared& prepared, std::int32_t first,
                    bool is_weighted) {
  const ExpertRows& experts = prepared.experts;
  Tensor output = zeros_like(experts.rows);
  std::fill_n(output.as<std::uint16_t>(), output.view().num_elements(), 0x7FC0);
  for (const RowOrigin& origin : object.row_origins()) {
    write_row(experts.rows, origin.row, first + origin.expert, is_weighted ? origin.weight : 1.0f,
              output, origin.row);
  }
  return output;
}

}  // namespace switchyard::test
