// SPDX-License-Identifier: Apache-2.0
//
// Rows grouped by expert and the weighted sum back: counts, starts, tile owners, inverse indices,
// rows, scales and sums, for every share of the experts that a rank can have.

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "switchyard/permute.h"

#include "conformance/arena.h"
#include "conformance/check_case.h"
#include "conformance/exchange_values.h"
#include "conformance/pairwise.h"
#include "conformance/random_batch.h"
#include "conformance/scheme_list.h"
#include "core/random.h"
#include "reference/permute.h"

namespace switchyard::conformance {
namespace {

using reference::AlignedRows;
using reference::Table;

enum class Ids : std::uint8_t { kRandom, kSomeNone, kDuplicates, kAllNone, kOneExpert };
constexpr std::array<const char*, 5> kIdNames{"random", "some_none", "duplicates", "all_none",
                                              "one_expert"};

struct PermuteCase {
  std::int64_t num_tokens = 0;
  std::int64_t hidden = 0;
  std::int32_t num_experts = 0;
  std::int64_t num_topk = 0;
  std::int32_t num_shares = 1;  ///< expert parallelism: this rank has the last share, or the first
  bool has_first_share = false;
  std::int64_t alignment = 1;
  Ids ids = Ids::kRandom;
  DType dtype = DType::kBF16;
  ScaleLayout layout = ScaleLayout::kRowMajor;
  DType results = DType::kBF16;  ///< of what comes back
  DType sums = DType::kBF16;
};

Table<std::int64_t> make_ids(const PermuteCase& test, std::uint64_t seed) {
  Table<std::int64_t> ids(test.num_tokens, test.num_topk, -1);
  for (std::size_t i = 0; i < ids.data.size(); ++i) {
    const std::uint64_t bits = random_bits(seed, i);
    const auto num = static_cast<std::uint64_t>(test.num_experts);
    const auto t = static_cast<std::uint64_t>(i) / static_cast<std::uint64_t>(test.num_topk);
    switch (test.ids) {
      case Ids::kRandom:  // distinct: steps from a random first expert
        ids.data[i] = static_cast<std::int64_t>((random_bits(seed + 1, t) + i) % num);
        break;
      case Ids::kSomeNone:
        if ((bits >> 40) % 4 == 0) break;
        [[fallthrough]];
      case Ids::kDuplicates: ids.data[i] = static_cast<std::int64_t>(bits % num); break;
      case Ids::kAllNone: break;
      case Ids::kOneExpert: ids.data[i] = test.num_experts - 1; break;
    }
  }
  return ids;
}

void check_plan(const PermutePlan& plan, const AlignedRows& want) {
  for (std::size_t e = 0; e < want.counts.size(); ++e) {
    expect(plan.expert_num_tokens[e] == want.counts[e], "{} rows of expert {}, expected {}",
           plan.expert_num_tokens[e], e, want.counts[e]);
    expect(plan.first_row[e] == want.first_row[e], "expert {} starts at row {}, expected {}", e,
           plan.first_row[e], want.first_row[e]);
  }
  expect(plan.num_rows() == static_cast<std::int64_t>(want.rows.size()), "{} rows, expected {}",
         plan.num_rows(), want.rows.size());
  for (std::size_t n = 0; n < want.rows.size(); ++n) {
    const std::int32_t owner = want.rows[n].token < 0 ? -1 : want.rows[n].expert;
    expect(plan.m_indices.as<std::int32_t>()[n] == owner, "m_indices[{}] is {}, expected {}", n,
           plan.m_indices.as<std::int32_t>()[n], owner);
  }
  for (std::size_t i = 0; i < want.inv_perm.data.size(); ++i) {
    expect(plan.inv_perm.as<std::int32_t>()[i] == want.inv_perm.data[i],
           "inv_perm, entry {}, is {}, expected {}", i, plan.inv_perm.as<std::int32_t>()[i],
           want.inv_perm.data[i]);
  }
}

void check_rows(const Permuted& got, const AlignedRows& want, const Bytes& rows,
                const Table<float>& scales) {
  const auto row_bytes = static_cast<std::size_t>(got.x.shape(1) * bits_of(got.x.dtype()) / 8);
  for (std::size_t n = 0; n < want.rows.size(); ++n) {
    const auto row = static_cast<std::int64_t>(n);
    const std::int64_t token = want.rows[n].token;
    if (token >= 0) {
      const std::size_t from = static_cast<std::size_t>(token) * row_bytes;
      expect_same_bytes(fmt::format("row {}", n),
                        {got.x.as<std::byte>() + n * row_bytes, row_bytes},
                        std::span(rows).subspan(from, row_bytes), 1, row_bytes);
    }
    for (std::int64_t s = 0; s < scales.cols; ++s) {
      const float found =
          got.scales.as<float>()[row * got.scales.stride(0) + s * got.scales.stride(1)];
      const float wanted = token < 0 ? 0.0f : scales(token, s);
      expect(found == wanted, "scale {} of row {} is {}, expected {}", s, n, found, wanted);
    }
  }
}

// On a GPU into buffers for any routing, which are cut to what the ids need.
Permuted permuted(Arena& arena, const TensorView& x, const TensorView& scales,
                  const TensorView& topk_ids, std::int32_t num_local_experts,
                  const PermuteOptions& options, ScaleLayout layout) {
  if (arena.device().is_cpu()) {
    return permute(x, scales, topk_ids, num_local_experts, options, {.scale_layout = layout});
  }
  const std::int64_t num_tokens = topk_ids.shape(0);
  const std::int64_t num_topk = topk_ids.shape(1);
  const std::int64_t max_rows =
      compute_aligned_m(num_tokens, num_topk, num_local_experts, options.alignment);
  Permuted result;
  result.x_memory = poisoned(x.dtype(), max_rows, x.shape(1));
  result.x = result.x_memory;
  OwnedScales owned = make_scales(scales.dtype(), layout, max_rows, scales.shape(1));
  result.scales = owned.view;
  result.scales_memory = std::move(owned.memory);
  const Tensor m_indices(DType::kI32, {max_rows});
  PermutePlan& plan = result.plan;
  plan.inv_perm = Tensor(DType::kI32, {num_tokens, num_topk});
  plan.first_row.resize(static_cast<std::size_t>(num_local_experts));
  plan.expert_num_tokens.resize(static_cast<std::size_t>(num_local_experts));
  std::int64_t num_rows = -1;
  ScatterOutputs outputs;
  outputs.x = arena.out(result.x);
  outputs.scales = arena.out(result.scales);
  outputs.m_indices = arena.out(m_indices);
  outputs.inv_perm = arena.out(plan.inv_perm);
  outputs.first_row = arena.out(TensorView::of(plan.first_row.data(), {num_local_experts}));
  outputs.expert_num_tokens =
      arena.out(TensorView::of(plan.expert_num_tokens.data(), {num_local_experts}));
  outputs.num_rows = arena.out(TensorView::of(&num_rows, {1}));
  PermuteOptions there = options;
  there.expert_map = arena.in(options.expert_map);
  ep_scatter(arena.in(x), arena.in(scales), arena.in(topk_ids), there, outputs, arena.stream(),
             arena.scratch(ep_scatter_workspace_bytes(num_tokens, num_topk, num_local_experts)),
             arena.errors());
  arena.finish();
  expect(num_rows >= 0 && num_rows <= max_rows, "{} rows of {}", num_rows, max_rows);
  plan.m_indices = Tensor(DType::kI32, {num_rows});
  std::copy_n(m_indices.as<std::int32_t>(), num_rows, plan.m_indices.as<std::int32_t>());
  for (std::int64_t row = num_rows; row < max_rows; ++row) {
    const std::int32_t index = m_indices.as<std::int32_t>()[row];
    expect(index == -1, "m_indices[{}] is {} behind the last row", row, index);
  }
  return result;
}

// Counts, their sum by whole tiles, and local ids.
void check_counts(Arena& arena, const PermuteCase& test, const Table<std::int64_t>& ids,
                  const TensorView& expert_map, const AlignedRows& want) {
  const TensorView id_view = TensorView::of(ids.data.data(), {ids.rows, ids.cols});
  const auto num_local = static_cast<std::int64_t>(want.counts.size());
  const Tensor counts(DType::kI32, {num_local});
  count_expert_num_tokens(arena.in(id_view), arena.out(counts), arena.in(expert_map),
                          arena.stream(), arena.errors());
  arena.finish();
  for (std::int64_t e = 0; e < num_local; ++e) {
    const auto wanted = want.counts[static_cast<std::size_t>(e)];
    expect(counts.as<std::int32_t>()[e] == wanted, "count of expert {} is {}, expected {}", e,
           counts.as<std::int32_t>()[e], wanted);
  }
  std::int64_t sum = -1;
  expert_num_tokens_round_up_and_sum(arena.in(counts), test.alignment,
                                     arena.out(TensorView::of(&sum, {1})), arena.stream(),
                                     arena.errors());
  arena.finish();
  expect(sum == static_cast<std::int64_t>(want.rows.size()), "counts in tiles are {}, expected {}",
         sum, want.rows.size());
  if (!expert_map.has_value()) return;
  Table<std::int64_t> local(ids.rows, ids.cols, -7);
  apply_expert_map(arena.in(id_view), arena.in(expert_map),
                   arena.out(TensorView::of(local.data.data(), {ids.rows, ids.cols})),
                   arena.stream(), arena.errors());
  arena.finish();
  for (std::size_t i = 0; i < ids.data.size(); ++i) {
    const std::int64_t id = ids.data[i];
    const std::int64_t wanted = id < 0 ? id : expert_map.as<std::int32_t>()[id];
    expect(local.data[i] == wanted, "local id {} is {}, expected {}", i, local.data[i], wanted);
  }
}

Agreement check(Arena& arena, const PermuteCase& test, std::uint64_t seed) {
  const Table<std::int64_t> ids = make_ids(test, seed);
  const std::int32_t num_local = test.num_experts / test.num_shares;
  std::vector<std::int32_t> map(static_cast<std::size_t>(test.num_experts), -1);
  const std::int32_t first = test.has_first_share ? 0 : test.num_experts - num_local;
  for (std::int32_t e = 0; e < num_local; ++e) map[static_cast<std::size_t>(first + e)] = e;
  const bool has_map = test.num_shares > 1;
  const AlignedRows want = reference::permute(ids, has_map ? std::optional(map) : std::nullopt,
                                              num_local, test.alignment);
  const Table<float> tokens = random_table(test.num_tokens, test.hidden, seed + 2);
  const Table<float> scales = random_table(test.num_tokens, (test.hidden + 127) / 128, seed + 3);
  const TensorView id_view = TensorView::of(ids.data.data(), {ids.rows, ids.cols});
  const bool is_float = test.dtype == DType::kBF16 || test.dtype == DType::kF32;
  Bytes rows = encode(is_float ? test.dtype : DType::kBF16, tokens);
  if (!is_float) {  // any bytes will do
    rows.resize(rows.size() * static_cast<std::size_t>(bits_of(test.dtype)) / 16);
  }
  PermuteOptions options{.alignment = test.alignment};
  if (has_map) options.expert_map = TensorView::of(map.data(), {test.num_experts});
  const Permuted got =
      permuted(arena, TensorView(rows.data(), test.dtype, {test.num_tokens, test.hidden}),
               TensorView::of(scales.data.data(), {scales.rows, scales.cols}), id_view, num_local,
               options, test.layout);
  check_plan(got.plan, want);
  check_rows(got, want, rows, scales);

  check_counts(arena, test, ids, options.expert_map, want);
  const auto num_rows = static_cast<std::int64_t>(want.rows.size());
  const Table<float> results = rounded(test.results, random_table(num_rows, test.hidden, seed + 4));
  const Table<float> weights = random_table(ids.rows, ids.cols, seed + 5);
  const Bytes result_bytes = encode(test.results, results);
  const TensorView outputs(result_bytes.data(), test.results, {num_rows, test.hidden});
  const TensorView weight_view = TensorView::of(weights.data.data(), {ids.rows, ids.cols});
  const Table<float> want_sum = reference::unpermute_and_reduce(want, results, weights, test.sums);
  const Tensor sum = poisoned(test.sums, test.num_tokens, test.hidden);
  unpermute_and_reduce(arena.in(outputs), arena.in(got.plan.inv_perm), arena.in(weight_view),
                       arena.out(sum), arena.stream(), arena.errors());
  arena.finish();
  expect_same_bits("sum", sum, want_sum);
  const Tensor gathered = poisoned(test.sums, test.num_tokens, test.hidden);
  ep_gather(arena.in(outputs), arena.in(id_view), arena.in(weight_view),
            arena.in(got.plan.inv_perm), arena.in(options.expert_map), arena.out(gathered),
            arena.stream(), arena.errors());
  arena.finish();
  expect_same_bits("gathered sum", gathered, want_sum);
  return {};
}

void add(Cases& cases, const std::string& device, const PermuteCase& test, bool is_quick) {
  const char* ids = kIdNames[static_cast<std::size_t>(test.ids)];
  CheckCase result;
  result.group = "permute";
  result.name = fmt::format("permute/{}{}/T{}xH{}/E{}/K{}/EP{}{}/align{}/{}/{}/{}_{}",
                            name_part(device), ids, test.num_tokens, test.hidden, test.num_experts,
                            test.num_topk, test.num_shares, test.has_first_share ? "_first" : "",
                            test.alignment, switchyard::name_of(test.dtype), name_of(test.layout),
                            switchyard::name_of(test.results), switchyard::name_of(test.sums));
  result.row = ids;
  result.column = fmt::format("{}EP{}", column_part(device), test.num_shares);
  result.device = device;
  result.is_quick = is_quick;
  result.body = [test, device](const Group&, std::uint64_t seed) {
    Arena arena(device_of(device), kCaseBytes);
    return check(arena, test, seed);
  };
  cases.push_back(std::move(result));
}

constexpr std::array<std::int64_t, 6> kTokens{0, 1, 2, 33, 127, 301};
constexpr std::array<std::int64_t, 6> kHidden{1, 17, 128, 200, 1001, 2048};
constexpr std::array<std::int32_t, 4> kExperts{16, 32, 64, 256};
constexpr std::array<std::int64_t, 4> kTopk{1, 2, 6, 8};
constexpr std::array<std::int32_t, 5> kShares{1, 2, 4, 8, 16};
constexpr std::array<std::int64_t, 4> kAlignments{1, 7, 8, 128};
constexpr std::array kDTypes{DType::kBF16, DType::kE4M3, DType::kF32, DType::kI8, DType::kE2M1};
constexpr std::array kLayouts{ScaleLayout::kRowMajor, ScaleLayout::kColumnMajor,
                              ScaleLayout::kColumnMajorAligned};
constexpr std::array kFloats{DType::kBF16, DType::kF16, DType::kF32};

}  // namespace

void add_permute_cases(Cases& cases) {
  enum Factor : std::size_t { kT, kH, kE, kK, kEP, kTile, kIds, kType, kLayout, kFirst, kIn, kOut };
  const Levels num_levels{
      kTokens.size(),     kHidden.size(),  kExperts.size(), kTopk.size(),    kShares.size(),
      kAlignments.size(), kIdNames.size(), kDTypes.size(),  kLayouts.size(), 2,
      kFloats.size(),     kFloats.size()};
  const MakePossible make_possible = [](Levels& l) {
    if (kDTypes[l[kType]] == DType::kE2M1 && kHidden[l[kH]] % 2 != 0) l[kType] = 0;
    if (kShares[l[kEP]] == 1) l[kFirst] = 0;
  };
  for (const char* device : kDevices) {
    for (const Levels& l : cover_pairs(num_levels, make_possible)) {
      add(cases, device,
          {kTokens[l[kT]], kHidden[l[kH]], kExperts[l[kE]], kTopk[l[kK]], kShares[l[kEP]],
           l[kFirst] == 1, kAlignments[l[kTile]], static_cast<Ids>(l[kIds]), kDTypes[l[kType]],
           kLayouts[l[kLayout]], kFloats[l[kIn]], kFloats[l[kOut]]},
          true);
    }
    PermuteCase large{700, 7168, 64, 8};
    large.alignment = 128;
    large.ids = Ids::kSomeNone;
    add(cases, device, large, false);
  }
}

}  // namespace switchyard::conformance
