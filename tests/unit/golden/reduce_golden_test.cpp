// SPDX-License-Identifier: Apache-2.0
//
// Weights, sums and permutations on CPUs, for every Highway target, and the oracle against the
// golden vectors.

#include "quant/scalar.h"
#include "reference/batched.h"
#include "reference/permute.h"
#include "support/for_each_target.h"
#include "support/golden_reduce.h"

namespace switchyard {
namespace {

using reference::Table;
using namespace test;

TEST(ReduceGoldenTest, EveryProcessorGivesTheBytesOfTheOriginals) {
  const Golden golden("reduce");
  test::for_each_target([&] { test::expect_golden_reduce(golden, Stream::host()); });
  golden.expect_all_taken();
}

Table<float> floats(const TensorView& x, std::int64_t rows, std::int64_t cols) {
  Table<float> values(rows, cols);
  for (std::int64_t i = 0; i < x.num_elements(); ++i) {
    values.data[static_cast<std::size_t>(i)] = scalar::load(x.data(), x.dtype(), i);
  }
  return values;
}

void expect_rounded(const Table<float>& got, const TensorView& want) {
  const Tensor stored(want.dtype(), {got.rows, got.cols});
  for (std::size_t i = 0; i < got.data.size(); ++i) {
    scalar::store(stored.data(), want.dtype(), static_cast<std::int64_t>(i), got.data[i]);
  }
  test::expect_bytes("oracle", stored, want);
}

TEST(ReduceGoldenTest, OracleWeighsTheInputLikeTheOriginals) {
  const Golden golden("reduce");
  const auto* weights = golden("weigh/weights").as<float>();
  for (const NamedDType& kind : kFloatDTypes) {
    const std::string path = std::string("weigh/") + kind.name;
    const TensorView x = golden(path + "/x");
    Table<float> rows = floats(x, x.shape(0), x.shape(1));
    for (std::int64_t t = 0; t < rows.rows; ++t) {
      for (float& value : rows.row(t)) {
        value = reference::weigh_input(kind.dtype, value, weights[t]);
      }
    }
    expect_rounded(rows, golden(path + "/out"));
  }
}

TEST(ReduceGoldenTest, OracleSumsBatchedRowsLikeTheOriginals) {
  const Golden golden("reduce");
  const TensorView ids = golden("batched/ids");
  reference::RankInput input;
  input.tokens = Table<float>(ids.shape(0), 1);
  input.topk_ids =
      Table<std::int32_t>(ids.shape(0), ids.shape(1),
                          {ids.as<std::int32_t>(), ids.as<std::int32_t>() + ids.num_elements()});
  input.topk_weights = floats(golden("batched/weights"), ids.shape(0), ids.shape(1));
  for (const NamedDType& kind : kFloatDTypes) {
    const std::string path = std::string("batched/") + kind.name;
    const TensorView rows = golden(path + "/rows");
    const Table<float> outputs = floats(rows, rows.shape(0) * rows.shape(1), rows.shape(2));
    for (const bool is_weighted : {true, false}) {
      expect_rounded(reference::finalize_batched(input, 3, 1, outputs, kind.dtype, !is_weighted),
                     golden(path + (is_weighted ? "/weighted/out" : "/plain/out")));
    }
  }
}

TEST(ReduceGoldenTest, OraclePermutesLikeTheOriginals) {
  const Golden golden("reduce");
  const TensorView ids = golden("permute/ids");
  const TensorView map = golden("permute/map");
  const Table<std::int64_t> table(
      ids.shape(0), ids.shape(1),
      {ids.as<std::int64_t>(), ids.as<std::int64_t>() + ids.num_elements()});
  const std::vector<std::int32_t> expert_map(map.as<std::int32_t>(),
                                             map.as<std::int32_t>() + map.num_elements());
  const Table<float> weights = floats(golden("permute/weights"), ids.shape(0), ids.shape(1));
  for (const std::int64_t alignment : {1, 8, 128}) {
    const std::string path = "permute/" + std::to_string(alignment) + "/";
    const reference::AlignedRows got = reference::permute(table, expert_map, 4, alignment);
    test::expect_bytes("inv_perm",
                       TensorView::of(got.inv_perm.data.data(), {ids.shape(0), ids.shape(1)}),
                       golden(path + "inv_perm"));
    test::expect_bytes("first_row", TensorView::of(got.first_row.data(), {4}),
                       golden(path + "first_row"));
    const auto* m_indices = golden(path + "m_indices").as<std::int32_t>();
    for (std::size_t m = 0; m < got.rows.size(); ++m) {
      EXPECT_EQ(got.rows[m].token < 0 ? -1 : got.rows[m].expert, m_indices[m]) << "row " << m;
    }
    if (alignment == 128) continue;
    for (const NamedDType& kind : kFloatDTypes) {
      const TensorView rows = golden(path + kind.name + "/rows");
      const Table<float> values = floats(rows, rows.shape(0), rows.shape(1));
      for (const NamedDType& to : kFloatDTypes) {
        expect_rounded(reference::unpermute_and_reduce(got, values, weights, to.dtype),
                       golden(path + kind.name + "/" + to.name));
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
