// SPDX-License-Identifier: Apache-2.0
//
// Writes the files of `run --dump`.

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "io/safetensors.h"
#include "run_layer.h"

namespace switchyard::cli {

void add_rows(const LayerSetup& setup, std::int64_t num_rows,
              std::span<const std::int32_t> expert_rows, RankResult& result) {
  result.num_rows += num_rows;
  result.expert_rows.resize(static_cast<std::size_t>(setup.config.num_experts()));
  const auto first = static_cast<std::size_t>(setup.first_expert());
  for (std::size_t e = 0; e < expert_rows.size(); ++e) {
    result.expert_rows[first + e] += expert_rows[e];
  }
}

// Rows of experts, [L, C, H], one after another.
static TensorView stacked(const TensorView& rows) {
  if (rows.num_dims() != 3) return rows;
  return TensorView(rows.data(), rows.dtype(), {rows.shape(0) * rows.shape(1), rows.shape(2)});
}

// Dumps valid rows only: by (expert, source rank, token, k), or by (source rank, token) in
// token-major layouts, where the expert is -1.
void dump_rows(const LayerSetup& setup, const PrepareArguments& arguments,
               const ServedRows& served) {
  const std::vector<RowOrigin>& origins = served.origins;
  const ExpertRows& experts = served.experts;
  const auto num_rows = static_cast<std::int64_t>(origins.size());
  const TensorView rows = stacked(experts.rows);
  const TensorView expert_output = stacked(served.expert_output);
  const QuantScheme& scheme = experts.scheme;
  const std::int64_t num_row_scales = num_scales(scheme, setup.config.hidden);
  const bool has_row_scales = scheme.group != ScaleGroup::kTensor && num_row_scales > 0;
  // Scales are row-major, whether or not experts have blocks of their own.
  const TensorView scales = has_row_scales
                                ? TensorView(experts.scales.data(), experts.scales.dtype(),
                                             {rows.shape(0), num_row_scales})
                                : experts.scales;
  const Tensor recv_x(rows.dtype(), {num_rows, rows.shape(1)});
  const Tensor row_scales(has_row_scales ? scales.dtype() : DType::kF32,
                          {num_rows, has_row_scales ? scales.shape(1) : 1});
  const Tensor returned(expert_output.dtype(), {num_rows, rows.shape(1)});
  const Tensor sources(DType::kI32, {num_rows, 4});
  const auto copy_row = [](const TensorView& from, std::int64_t row, const Tensor& to,
                           std::int64_t to_row) {
    const std::int64_t bytes = from.shape(1) * bits_of(from.dtype()) / 8;
    std::copy_n(from.as<std::byte>() + row * bytes, bytes, to.as<std::byte>() + to_row * bytes);
  };
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const RowOrigin& origin = origins[static_cast<std::size_t>(i)];
    copy_row(rows, origin.row, recv_x, i);
    copy_row(expert_output, origin.row, returned, i);
    if (has_row_scales) copy_row(scales, origin.row, row_scales, i);
    if (scales.has_value() && !has_row_scales) row_scales.as<float>()[i] = *scales.as<float>();
    std::int32_t* source = sources.as<std::int32_t>() + i * 4;
    source[0] = origin.expert < 0 ? -1 : setup.first_expert() + origin.expert;
    source[1] = origin.rank;
    source[2] = origin.token;
    source[3] = origin.k;
  }
  std::vector<NamedTensor> tensors{{"recv_x", recv_x},
                                   {"expert_num_tokens", experts.num_rows},
                                   {"row_source", sources},
                                   {"topk_ids", arguments.topk_ids},
                                   {"topk_weights", arguments.topk_weights},
                                   {"output", returned}};
  if (scales.has_value()) tensors.push_back({"scales", row_scales});
  const TensorView& tensor_scale = experts.tensor_scale;
  if (tensor_scale.has_value()) tensors.push_back({"tensor_scale", tensor_scale});
  Tensor recv_ids;
  if (served.topk_ids.has_value()) {
    recv_ids = Tensor(served.topk_ids.dtype(), {num_rows, served.topk_ids.shape(1)});
    for (std::int64_t i = 0; i < num_rows; ++i) {
      copy_row(served.topk_ids, origins[static_cast<std::size_t>(i)].row, recv_ids, i);
    }
    tensors.push_back({"recv_topk_ids", recv_ids});
  }
  const auto path = std::filesystem::path(setup.options.dump) /
                    fmt::format("rank{}.safetensors", setup.group.rank());
  write_safetensors(path.string(), tensors,
                    {{"row_source", "expert, source rank, source token, k"},
                     {"scheme", setup.options.scheme},
                     {"first_expert", std::to_string(setup.first_expert())}});
}

}  // namespace switchyard::cli
