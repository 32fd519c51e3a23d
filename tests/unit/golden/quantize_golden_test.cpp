// SPDX-License-Identifier: Apache-2.0
//
// quantize on CPUs, for every Highway target, and the oracle against the golden vectors.

#include "quant/scalar.h"
#include "reference/reference.h"
#include "support/for_each_target.h"
#include "support/golden_quantize.h"

namespace switchyard {
namespace {

using test::Golden;
using test::GoldenScheme;

TEST(QuantizeGoldenTest, EveryProcessorGivesTheBytesOfTheOriginals) {
  const Golden golden("quantize");
  test::for_each_target([&] { test::expect_golden_quantize(golden, Stream::host()); });
  golden.expect_all_taken();
}

reference::Table<float> values_of(const TensorView& x) {
  reference::Table<float> values(x.shape(0), x.shape(1));
  for (std::int64_t i = 0; i < x.num_elements(); ++i) {
    values.data[static_cast<std::size_t>(i)] = scalar::load(x.data(), x.dtype(), i);
  }
  return values;
}

void expect_equal(const std::vector<std::uint8_t>& got, const TensorView& want) {
  test::expect_bytes("oracle", TensorView::of(got.data(), {static_cast<std::int64_t>(got.size())}),
                     want);
}

// Values that a simulated scheme returns, in the dtype of the input.
std::vector<std::uint8_t> stored(const reference::Table<float>& values, DType dtype) {
  const auto bytes = static_cast<std::size_t>(bits_of(dtype) / 8);
  std::vector<std::uint8_t> result(values.data.size() * bytes);
  for (std::size_t i = 0; i < values.data.size(); ++i) {
    scalar::store(result.data(), dtype, static_cast<std::int64_t>(i),
                  reference::round_to(dtype, values.data[i]));
  }
  return result;
}

TEST(QuantizeGoldenTest, OracleGivesTheBytesOfTheOriginals) {
  const Golden golden("quantize");
  test::for_each_golden_rows([&](const GoldenScheme& test, const std::string& path) {
    // The oracle has no upper bounds and no scales given per row.
    if (test.scale_ub || (test.is_static && test.scheme.group == ScaleGroup::kToken)) return;
    const TensorView x = golden(path + "x");
    const TensorView given = test::golden_static_scale(golden, test, x.shape(0));
    const reference::QuantizedRows got =
        reference::quantize(test.scheme, values_of(x),
                            given.has_value() ? std::optional(*given.as<float>()) : std::nullopt);
    const std::string name = path + test.name;
    if (test.scheme.is_simulated()) {
      expect_equal(stored(reference::dequantize(test.scheme, got), x.dtype()), golden(name + "/q"));
      return;
    }
    expect_equal(reference::stored_elements(test.scheme, got).data, golden(name + "/q"));
    if (!golden.has(name + "/scales")) return;
    expect_equal(reference::stored_scales(test.scheme, got).data, golden(name + "/scales"));
    if (!golden.has(name + "/y")) return;
    expect_equal(stored(reference::dequantize(test.scheme, got), x.dtype()), golden(name + "/y"));
  });
}

}  // namespace
}  // namespace switchyard
