// SPDX-License-Identifier: Apache-2.0
//
// Scale layouts on CPUs against the golden vectors: copies between layouts, packed exponents,
// batches, and the input of a layer.

#include "switchyard/quantize_input.h"

#include "support/for_each_target.h"
#include "support/golden_layouts.h"

namespace switchyard {
namespace {

using namespace test;

// Every layout into every other.
void expect_copies(const Golden& golden, const std::string& path, DType dtype,
                   std::int64_t num_rows, std::int64_t num_scales) {
  for (const NamedLayout& from : kLayouts) {
    if (!golden.has(path + from.name)) continue;
    const TensorView memory = golden(path + from.name);
    const TensorView rows = view_scales(memory.data(), dtype, from.layout, num_rows, num_scales);
    for (const NamedLayout& to : kLayouts) {
      if (!golden.has(path + to.name)) continue;
      const OwnedScales scales = make_scales(dtype, to.layout, num_rows, num_scales);
      relayout_scales(rows, scales.view);
      expect_bytes(path + from.name + " to " + to.name, scales.memory, golden(path + to.name));
    }
  }
}

void expect_packed(const Golden& golden, const std::string& path, std::int64_t num_rows,
                   std::int64_t num_scales) {
  const TensorView words = golden(path + "words");
  const TensorView bytes(golden(path + "u8/row").data(), DType::kE8M0, {num_rows, num_scales});
  const Tensor packed(DType::kI32, {num_rows, words.shape(1)});
  for (const TensorView& scales : {bytes, golden(path + "powers")}) {
    pack_ue8m0(scales, packed);
    expect_bytes(path + "words", packed, words);
  }
  const Tensor unpacked(DType::kE8M0, {num_rows, num_scales});
  unpack_ue8m0(words, unpacked);
  expect_bytes(path + "bytes", unpacked, golden(path + "u8/row"));
}

void expect_copies_and_words(const Golden& golden) {
  constexpr std::int64_t kShapes[][2] = {{1, 1}, {37, 3}, {130, 7}};
  for (const auto& [num_rows, num_scales] : kShapes) {
    const std::string path =
        "copy/" + std::to_string(num_rows) + "x" + std::to_string(num_scales) + "/";
    expect_copies(golden, path + "u8/", DType::kU8, num_rows, num_scales);
    expect_copies(golden, path + "f32/", DType::kF32, num_rows, num_scales);
    expect_packed(golden, path, num_rows, num_scales);
    const TensorView rows(golden(path + "u8/row").data(), DType::kU8, {num_rows, num_scales});
    const Tensor tiles = swizzle_scales(rows);
    expect_bytes(path, tiles, golden(path + "u8/swizzled"));
    expect_bytes(path, unswizzle_scales(tiles, num_rows, num_scales), rows);
  }
  expect_bytes("batch", swizzle_scales(golden("copy/batch/u8/row")),
               golden("copy/batch/u8/swizzled"));
}

void expect_input_of_a_layer(const Golden& golden) {
  const TensorView x = golden("input/x");
  const TensorView global(golden("batched/global_scales").as<float>() + 2, DType::kF32, {1});
  QuantizeInputConfig config;
  config.quant_dtype = "nvfp4";
  const QuantizedInput nvfp4 = quantize_input(x, global, config);
  expect_bytes("nvfp4", nvfp4.values, golden("input/nvfp4/q"));
  expect_bytes("nvfp4 scales", nvfp4.scales_memory, golden("input/nvfp4/swizzled"));
  config.quant_dtype = "mxfp8";
  config.mx_alignment = 128;
  const QuantizedInput mxfp8 = quantize_input(x, TensorView{}, config);
  expect_bytes("mxfp8", mxfp8.values, golden("input/mxfp8/q"));
  expect_bytes("mxfp8 scales", mxfp8.scales_memory, golden("input/mxfp8/swizzled"));
  config = {};
  config.quant_dtype = "fp8_e4m3";
  const QuantizedInput groups = quantize_input(x, golden("input/fp8_groups/scales"), config);
  expect_bytes("static groups", groups.values, golden("input/fp8_groups/q"));
  config.quant_dtype = "fp8";
  config.ocp_mx_scheme = "w_mxfp4_a_fp8";
  const QuantizedInput fp8 = quantize_input(x, TensorView{}, config);
  expect_bytes("simulated fp8", fp8.values, golden("input/fp8/y"));
  config.quant_dtype = "mxfp4";
  config.ocp_mx_scheme = "";
  config.quantization_emulation = true;
  const QuantizedInput mxfp4 = quantize_input(x, TensorView{}, config);
  expect_bytes("simulated mxfp4", mxfp4.values, golden("input/mxfp4/y"));
  const QuantizedInput words =
      quantize_input(x, schemes::kFp8Ue8m0, ScaleLayout::kColumnMajorAligned);
  expect_bytes("fp8_ue8m0", words.values_memory, golden("input/fp8_ue8m0/q"));
  expect_bytes("fp8_ue8m0 scales", words.scales_memory, golden("input/fp8_ue8m0/column_aligned"));
}

TEST(LayoutsGoldenTest, EveryProcessorGivesTheBytesOfTheOriginals) {
  const Golden golden("layouts");
  expect_copies_and_words(golden);
  expect_input_of_a_layer(golden);
  test::for_each_target([&] { test::expect_golden_batched_quantize(golden, Stream::host()); });
  golden.expect_all_taken();
}

}  // namespace
}  // namespace switchyard
