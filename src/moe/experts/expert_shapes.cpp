// SPDX-License-Identifier: Apache-2.0

#include "switchyard/expert_shapes.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/fail.h"

namespace switchyard {
namespace {

void check_not_negative(const char* name, std::int64_t value) {
  require(value >= 0, Errc::kInvalidArgument, "expert_workspace_shapes: {} is {}, want at least 0",
          name, value);
}

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count = checked_mul(count, size);
  return count;
}

// The expert that owns rows `begin` to `end` and how many of them; -1 when all are padding.
struct Tile {
  std::int32_t expert = -1;
  std::int32_t num_rows = 0;
};

Tile read_tile(const TensorView& m_indices, std::int64_t begin, std::int64_t end,
               std::int32_t num_experts) {
  constexpr const char* kFunction = "expert_ranges_from_m_indices";
  Tile tile;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::int32_t expert = m_indices.as<const std::int32_t>()[row * m_indices.stride(0)];
    if (expert < 0) continue;
    require(expert < num_experts, Errc::kInvalidArgument,
            "{}: m_indices[{}] is {}, want below {} experts", kFunction, row, expert, num_experts);
    require(tile.num_rows == 0 || tile.expert == expert, Errc::kInvalidArgument,
            "{}: m_indices[{}] is {}, but the tile from row {} belongs to expert {}", kFunction,
            row, expert, begin, tile.expert);
    require(row == begin + tile.num_rows, Errc::kInvalidArgument,
            "{}: m_indices[{}] is {} after padding, want the padding of a tile at its end",
            kFunction, row, expert);
    tile.expert = expert;
    ++tile.num_rows;
  }
  return tile;
}

}  // namespace

ExpertRanges expert_ranges_from_counts(std::span<const std::int32_t> counts,
                                       std::int64_t capacity) {
  ExpertRanges ranges;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    require(counts[e] >= 0 && counts[e] <= capacity, Errc::kInvalidArgument,
            "expert_ranges_from_counts: expert {} has {} rows, want from 0 to the capacity, {}", e,
            counts[e], capacity);
    ranges.first_row.push_back(checked_mul(static_cast<std::int64_t>(e), capacity));
    ranges.num_rows.push_back(counts[e]);
  }
  return ranges;
}

ExpertRanges expert_ranges_from_m_indices(const TensorView& m_indices, std::int32_t num_experts,
                                          std::int64_t tile_rows) {
  constexpr const char* kFunction = "expert_ranges_from_m_indices";
  require(m_indices.has_value() && m_indices.num_dims() == 1 && m_indices.dtype() == DType::kI32,
          Errc::kInvalidArgument, "{}: m_indices is {}, want i32 [M]", kFunction,
          m_indices.describe());
  require(num_experts >= 0 && tile_rows > 0, Errc::kInvalidArgument,
          "{}: {} experts and tiles of {} rows, want at least 0 and 1", kFunction, num_experts,
          tile_rows);
  const std::int64_t total = m_indices.shape(0);
  ExpertRanges ranges;
  ranges.first_row.resize(static_cast<std::size_t>(num_experts));
  ranges.num_rows.resize(static_cast<std::size_t>(num_experts));
  for (std::int64_t begin = 0; begin < total;) {
    const std::int64_t end = begin + std::min(tile_rows, total - begin);
    const Tile tile = read_tile(m_indices, begin, end, num_experts);
    if (tile.num_rows > 0) {
      std::int64_t& first = ranges.first_row[static_cast<std::size_t>(tile.expert)];
      std::int32_t& count = ranges.num_rows[static_cast<std::size_t>(tile.expert)];
      if (count == 0) first = begin;
      require(begin == first + count, Errc::kInvalidArgument,
              "{}: expert {} has rows {} to {} and goes on at row {}, want them in one piece",
              kFunction, tile.expert, first, first + count - 1, begin);
      count += tile.num_rows;
    }
    begin = end;
  }
  return ranges;
}

MoeProblemSize moe_problem_size(const TensorView& a1, const TensorView& w1, const TensorView& w2,
                                const TensorView& topk_ids) {
  require(w1.num_dims() == 3 && w2.num_dims() == 3 && w1.shape(0) == w2.shape(0),
          Errc::kInvalidArgument,
          "moe_problem_size: w1 is {} and w2 is {}, want 3 dimensions and equal experts",
          w1.describe(), w2.describe());
  require(topk_ids.num_dims() == 2, Errc::kInvalidArgument,
          "moe_problem_size: topk_ids is {}, want [T, K]", topk_ids.describe());
  const bool is_batched = a1.num_dims() == 3;
  require(is_batched ? a1.shape(0) == w1.shape(0)
                     : a1.num_dims() == 2 && a1.shape(0) == topk_ids.shape(0),
          Errc::kInvalidArgument,
          "moe_problem_size: a1 is {}, want [{}, H] as topk_ids has, or [{}, M, H] as w1 has",
          a1.describe(), topk_ids.shape(0), w1.shape(0));
  const MoeProblemSize size{w1.shape(0), a1.shape(is_batched ? 1 : 0), w1.shape(1),
                            a1.shape(is_batched ? 2 : 1), topk_ids.shape(1)};
  require(w1.shape(2) == size.hidden && w2.shape(1) == size.hidden, Errc::kInvalidArgument,
          "moe_problem_size: w1 is {} and w2 is {}, want hidden {} as a1 has", w1.describe(),
          w2.describe(), size.hidden);
  require(w2.shape(2) == size.outputs || w2.shape(2) * 2 == size.outputs, Errc::kInvalidArgument,
          "moe_problem_size: w2 is {}, want {} inputs, or half of them", w2.describe(),
          size.outputs);
  return size;
}

std::int64_t ExpertWorkspaceShapes::shared_elements() const {
  return std::max(elements_of(workspace13), elements_of(output));
}

ExpertWorkspaceShapes expert_workspace_shapes(ExpertWorkspaceKind kind,
                                              const ExpertWorkspaceSizes& sizes) {
  check_not_negative("num_experts", sizes.num_experts);
  check_not_negative("hidden", sizes.hidden);
  check_not_negative("outputs", sizes.outputs);
  check_not_negative("max_tokens", sizes.max_tokens);
  check_not_negative("num_dispatchers", sizes.num_dispatchers);
  check_not_negative("num_rows", sizes.num_rows);
  check_not_negative("num_permuted_rows", sizes.num_permuted_rows);
  require(!sizes.is_gated || sizes.outputs % 2 == 0, Errc::kInvalidArgument,
          "expert_workspace_shapes: outputs is {}, want an even number: gate and up",
          sizes.outputs);
  const std::int64_t activated = sizes.is_gated ? sizes.outputs / 2 : sizes.outputs;
  const std::int64_t widest = std::max(sizes.hidden, sizes.outputs);
  const std::int64_t num_experts = sizes.num_experts;
  const std::int64_t capacity = checked_mul(sizes.max_tokens, sizes.num_dispatchers);
  const std::vector<std::int64_t> batched_output{num_experts, capacity, sizes.hidden};
  ExpertWorkspaceShapes shapes;
  switch (kind) {
    case ExpertWorkspaceKind::kBatched:
      shapes = {
          {num_experts, capacity, widest}, {num_experts, capacity, activated}, batched_output};
      break;
    case ExpertWorkspaceKind::kNaiveBatched:
      shapes = {batched_output, {capacity, sizes.outputs}, batched_output};
      break;
    case ExpertWorkspaceKind::kContiguous:
      shapes = {{sizes.num_permuted_rows, std::max(activated, sizes.hidden)},
                {sizes.num_permuted_rows, widest},
                {sizes.num_rows, sizes.hidden}};
      break;
    default:
      fail(Errc::kInvalidArgument, "expert_workspace_shapes: kind is {}, want from 0 to 2",
           static_cast<int>(kind));
  }
  (void)shapes.shared_elements();  // refuses shapes that overflow
  (void)elements_of(shapes.workspace2);
  return shapes;
}

}  // namespace switchyard
