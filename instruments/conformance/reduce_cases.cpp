// SPDX-License-Identifier: Apache-2.0
//
// Weights and sums of expert rows that come back un-reduced, bit for bit: rows of choices, which
// are weighted in place, and rows of experts.

#include <array>

#include <fmt/format.h>

#include "switchyard/weight_and_reduce.h"

#include "conformance/arena.h"
#include "conformance/check_case.h"
#include "conformance/exchange_values.h"
#include "conformance/pairwise.h"
#include "conformance/random_batch.h"
#include "reference/batched.h"

namespace switchyard::conformance {
namespace {

using reference::RankInput;
using reference::Table;

enum class Rows : std::uint8_t { kChoices, kSomeChoices, kMappedChoices, kExperts };
constexpr std::array<const char*, 4> kRowNames{"choices", "some_choices", "mapped_choices",
                                               "experts"};
constexpr std::int32_t kNumExperts = 16;
constexpr std::int32_t kNumLocal = 4;

struct ReduceCase {
  Rows rows = Rows::kChoices;
  DType dtype = DType::kBF16;
  std::int64_t num_tokens = 0;
  std::int64_t num_topk = 1;
  std::int64_t hidden = 1;
  bool weighs_input = false;  ///< weights are in the rows already
  bool has_wide_ids = false;

  bool skips() const { return rows == Rows::kSomeChoices || rows == Rows::kMappedChoices; }
};

// Every second expert lives elsewhere.
std::vector<std::int32_t> every_second() {
  std::vector<std::int32_t> map;
  for (std::int32_t e = 0; e < kNumExperts; ++e) map.push_back(e % 2 == 0 ? e / 2 : -1);
  return map;
}

// Arguments of one call; what they view is here.
class ReduceRun {
 public:
  ReduceRun(const ReduceCase& test, std::uint64_t seed) : test_(test), map_(every_second()) {
    BatchShape shape{kNumExperts, static_cast<std::int32_t>(test.num_topk), 0, 0.2};
    shape.has_duplicates = seed % 2 == 0;
    input_ = random_tokens(shape, test.num_tokens, seed);
    wide_ids_.assign(input_.topk_ids.data.begin(), input_.topk_ids.data.end());
    rank_ = static_cast<std::int32_t>(seed / 1000 % (kNumExperts / kNumLocal));
    const bool is_by_expert = test.rows == Rows::kExperts;
    const std::int64_t num_rows =
        is_by_expert ? kNumLocal * test.num_tokens : test.num_tokens * test.num_topk;
    values_ = rounded(test.dtype, random_table(num_rows, test.hidden, seed + 9, 3.0f));
    bytes_ = encode(test.dtype, values_);
  }

  // Rows of choices are weighted where they lie.
  void reduce(Arena& arena, const TensorView& output) {
    const WeightAndReduceArguments given = arguments();
    WeightAndReduceArguments there = given;
    there.expert_output = arena.out(given.expert_output);
    there.topk_weights = arena.in(given.topk_weights);
    there.topk_ids = arena.in(given.topk_ids);
    there.expert_map = arena.in(given.expert_map);
    const std::size_t workspace = weight_and_reduce_workspace_bytes(
        policy(), given.topk_ids.shape(0), given.topk_ids.shape(1), given.expert_output.shape(0));
    weight_and_reduce(policy(), there, arena.out(output), arena.stream(), arena.scratch(workspace),
                      arena.errors());
    arena.finish();
  }

  Agreement check(Arena& arena) {
    const Tensor output = poisoned(test_.dtype, test_.num_tokens, test_.hidden);
    reduce(arena, output);
    if (test_.rows == Rows::kExperts) {
      expect_same_bits("sum", output,
                       reference::finalize_batched(input_, kNumLocal, rank_, values_, test_.dtype,
                                                   test_.weighs_input));
      return {};
    }
    const Table<float> want = weighted_choices();
    expect_same_bits("rows", TensorView(bytes_.data(), test_.dtype, {want.rows, want.cols}), want);
    expect_same_bits("sum", output, sum_of(want));
    return {};
  }

 private:
  WeightAndReduce policy() const {
    return test_.rows == Rows::kExperts ? WeightAndReduce::naive_batched(rank_)
                                        : WeightAndReduce::contiguous(test_.skips());
  }

  WeightAndReduceArguments arguments() const {
    const bool is_by_expert = test_.rows == Rows::kExperts;
    const std::int64_t first = is_by_expert ? std::int64_t{kNumLocal} : test_.num_tokens;
    const std::int64_t second = is_by_expert ? test_.num_tokens : test_.num_topk;
    WeightAndReduceArguments arguments;
    arguments.expert_output = TensorView(bytes_.data(), test_.dtype, {first, second, test_.hidden});
    arguments.topk_weights =
        TensorView::of(input_.topk_weights.data.data(), {test_.num_tokens, test_.num_topk});
    arguments.topk_ids =
        test_.has_wide_ids
            ? TensorView::of(wide_ids_.data(), {test_.num_tokens, test_.num_topk})
            : TensorView::of(input_.topk_ids.data.data(), {test_.num_tokens, test_.num_topk});
    if (test_.rows == Rows::kMappedChoices) {
      arguments.expert_map = TensorView::of(map_.data(), {kNumExperts});
    }
    arguments.apply_router_weight_on_input = test_.weighs_input;
    return arguments;
  }

  bool counts(std::int64_t t, std::int64_t k) const {
    const std::int32_t id = input_.topk_ids(t, k);
    if (!test_.skips()) return true;
    if (id < 0) return false;
    return test_.rows == Rows::kSomeChoices || map_[static_cast<std::size_t>(id)] >= 0;
  }

  Table<float> weighted_choices() const {
    Table<float> rows = values_;
    for (std::int64_t t = 0; t < test_.num_tokens; ++t) {
      for (std::int64_t k = 0; k < test_.num_topk; ++k) {
        if (test_.weighs_input || !counts(t, k)) continue;
        for (float& x : rows.row(t * test_.num_topk + k)) {
          x = reference::round_to(test_.dtype, x * input_.topk_weights(t, k));
        }
      }
    }
    return rows;
  }

  Table<float> sum_of(const Table<float>& rows) const {
    Table<float> sum(test_.num_tokens, test_.hidden);
    for (std::int64_t t = 0; t < test_.num_tokens; ++t) {
      for (std::int64_t h = 0; h < test_.hidden; ++h) {
        for (std::int64_t k = 0; k < test_.num_topk; ++k) {
          if (counts(t, k)) sum(t, h) += rows(t * test_.num_topk + k, h);
        }
        sum(t, h) = reference::round_to(test_.dtype, sum(t, h));
      }
    }
    return sum;
  }

  const ReduceCase& test_;
  std::vector<std::int32_t> map_;
  RankInput input_;
  std::vector<std::int64_t> wide_ids_;
  std::int32_t rank_ = 0;
  Table<float> values_;
  Bytes bytes_;  ///< expert_output
};

void add(Cases& cases, const std::string& device, const ReduceCase& test) {
  const char* rows = kRowNames[static_cast<std::size_t>(test.rows)];
  CheckCase result;
  result.group = "reduce";
  result.name =
      fmt::format("reduce/{}{}/{}/T{}xK{}xH{}/i{}{}", name_part(device), rows,
                  switchyard::name_of(test.dtype), test.num_tokens, test.num_topk, test.hidden,
                  test.has_wide_ids ? 64 : 32, test.weighs_input ? "/weighted" : "");
  result.row = rows;
  result.column = column_part(device) + switchyard::name_of(test.dtype);
  result.device = device;
  result.body = [test, device](const Group&, std::uint64_t seed) {
    Arena arena(device_of(device), kCaseBytes);
    return ReduceRun(test, seed * 1000).check(arena);
  };
  cases.push_back(std::move(result));
}

constexpr std::array kDTypes{DType::kBF16, DType::kF16, DType::kF32};
constexpr std::array<std::int64_t, 5> kTokens{0, 1, 2, 37, 130};
constexpr std::array<std::int64_t, 4> kTopk{1, 2, 6, 8};
constexpr std::array<std::int64_t, 5> kHidden{1, 17, 128, 300, 1024};

}  // namespace

void add_reduce_cases(Cases& cases) {
  const Levels num_levels{
      kRowNames.size(), kDTypes.size(), kTokens.size(), kTopk.size(), kHidden.size(), 2, 2};
  for (const char* device : kDevices) {
    for (const Levels& l : cover_pairs(num_levels)) {
      add(cases, device,
          {static_cast<Rows>(l[0]), kDTypes[l[1]], kTokens[l[2]], kTopk[l[3]], kHidden[l[4]],
           l[5] == 1, l[6] == 1});
    }
  }
}

}  // namespace switchyard::conformance
