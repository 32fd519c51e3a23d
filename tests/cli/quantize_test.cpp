// SPDX-License-Identifier: Apache-2.0
//
// `switchyard quantize`: known answers, round trips of every scheme and layout, refused input.

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "switchyard/scale_layout.h"

#include "conformance/random_batch.h"
#include "io/safetensors.h"
#include "quant/scalar.h"
#include "quantize_file.h"
#include "reference/reference.h"
#include "support/command.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace switchyard::test {
namespace {

using cli::QuantizeOptions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kSchemes[] = {"fp8_block",  "fp8_block_deepep",
                                    "fp8_ue8m0",  "fp8_ue8m0_deepep",
                                    "fp8_token",  "fp8_tensor",
                                    "int8_token", "int8_tensor",
                                    "int8_block", "nvfp4",
                                    "mxfp4",      "mxfp6_e3m2",
                                    "mxfp6_e2m3", "mxfp8"};

class QuantizeFileTest : public ::testing::Test {
 protected:
  std::string path(const char* name) const { return folder_.path() + "/" + name; }

  void write(const char* name, std::span<const NamedTensor> tensors) const {
    write_safetensors(path(name), tensors, {{"author", "nobody"}});
  }
  QuantizeOptions options(const char* scheme) const {
    QuantizeOptions options;
    options.scheme = scheme;
    options.input = path("in");
    options.output = path("out");
    return options;
  }
  std::shared_ptr<const SafetensorsFile> quantized(const QuantizeOptions& options) const {
    cli::quantize_file(options);
    return SafetensorsFile::open(options.output);
  }
  std::string refusal(const QuantizeOptions& options) const {
    return error_of([&] { cli::quantize_file(options); }).what();
  }

  TempFolder folder_;
};

std::vector<int> bytes_of(const TensorView& tensor) {
  const auto* data = tensor.as<std::uint8_t>();
  return {data, data + tensor.num_bytes()};
}

// The rows have maxima 448 and 896, so their fp8 scales are 448 / 448 = 1 and 896 / 448 = 2.
TEST_F(QuantizeFileTest, KnownAnswersOfFp8AndNvfp4) {
  const std::vector<float> x{448, -448, 224, 0, 896, 0, 2, -896};
  const std::vector<std::int32_t> ids{1, 2, 3};
  write("in", std::vector<NamedTensor>{{"w", TensorView::of(x.data(), {2, 4})},
                                       {"ids", TensorView::of(ids.data(), {3})}});
  const auto fp8 = quantized(options("fp8_token"));
  EXPECT_THAT(fp8->names(), ElementsAre("ids", "w", "w.scale"));
  EXPECT_THAT(bytes_of(fp8->tensor("w")), ElementsAre(0x7E, 0xFE, 0x76, 0, 0x7E, 0, 0x38, 0xFE));
  EXPECT_EQ(fp8->tensor("w").dtype(), DType::kE4M3);
  EXPECT_EQ(fp8->tensor("w.scale").as<float>()[0], 1.0f);
  EXPECT_EQ(fp8->tensor("w.scale").as<float>()[1], 2.0f);
  EXPECT_EQ(fp8->metadata().at("switchyard.scheme"), "fp8_token");
  EXPECT_EQ(fp8->metadata().at("author"), "nobody");

  // Global scale 448 * 6 / 896 = 3; block scales 3 * 448 / 6 = 224 and 3 * 896 / 6 = 448.
  const auto fp4 = quantized(options("nvfp4"));
  EXPECT_EQ(fp4->tensor("w.global_scale").as<float>()[0], 3.0f);
  EXPECT_EQ(fp4->tensor("w.scale").dtype(), DType::kE4M3);
  EXPECT_THAT(bytes_of(fp4->tensor("w.scale")), ElementsAre(0x76, 0x7E));
  EXPECT_EQ(fp4->tensor("w").dtype(), DType::kU8);
  // The codes of 6 -6 3 0 and 6 0 0 -6, two per byte, the first in the low nibble.
  EXPECT_THAT(bytes_of(fp4->tensor("w")), ElementsAre(0xF7, 0x05, 0x07, 0xF0));
}

// The round trip through files equals the oracle's, in every layout that the scheme supports.
TEST_F(QuantizeFileTest, EverySchemeAndLayoutComesBack) {
  const reference::Table<float> values = conformance::random_table(70, 130, 5);
  Tensor x(DType::kBF16, {70, 130});
  for (std::int64_t i = 0; i < x.view().num_elements(); ++i) {
    scalar::store(x.data(), DType::kBF16, i, values.data[static_cast<std::size_t>(i)]);
  }
  write("in", std::vector<NamedTensor>{{"w", x}});
  int num_done = 0;
  for (const char* name : kSchemes) {
    for (const char* layout : {"row_major", "column_major", "column_major_aligned", "swizzled"}) {
      for (const bool packs : {false, true}) {
        QuantizeOptions there = options(name);
        there.scale_layout = layout;
        there.pack_ue8m0 = packs;
        if (std::string_view(name) == "nvfp4") there.global_scale = 500.0f;
        try {
          cli::quantize_file(there);
        } catch (const Error& error) {
          EXPECT_THAT(
              std::string(error.what()),
              ::testing::AnyOf(HasSubstr("--pack-ue8m0 requires"), HasSubstr("--scale-layout is")));
          continue;
        }
        QuantizeOptions back;
        back.input = there.output;
        back.output = path("back");
        back.dtype = "f32";
        EXPECT_EQ(cli::dequantize_file(back).scheme, name);
        const auto file = SafetensorsFile::open(back.output);
        EXPECT_THAT(file->names(), ElementsAre("w"));
        const QuantScheme scheme = *scheme_from_name(name);
        reference::Table<float> want =
            reference::dequantize(scheme, reference::quantize(scheme, values, there.global_scale));
        const DType kept = scheme.is_simulated() ? DType::kBF16 : DType::kF32;
        for (float& v : want.data) v = reference::round_to(kept, v);
        const TensorView got = file->tensor("w");
        ASSERT_EQ(got.num_elements(), 70 * 130);
        ASSERT_EQ(std::memcmp(got.data(), want.data.data(), got.num_bytes()), 0)
            << name << " " << layout << " " << packs;
        ++num_done;
      }
    }
  }
  // 14 schemes row-major, 10 in two column-major layouts, 3 swizzled, 2 packed in 3 layouts.
  EXPECT_EQ(num_done, 14 + 2 * 10 + 3 + 2 * 3);
}

TEST_F(QuantizeFileTest, NamesChooseAndTheRestIsCopied) {
  const std::vector<float> x{1, 2, 3, 4};
  const TensorView matrix = TensorView::of(x.data(), {2, 2});
  write("in", std::vector<NamedTensor>{{"a.gate.weight", matrix},
                                       {"a.up.weight", matrix},
                                       {"norm", TensorView::of(x.data(), {4})}});
  QuantizeOptions some = options("int8_token");
  some.names = "*.up.*";
  const cli::QuantizeSummary summary = cli::quantize_file(some);
  EXPECT_EQ(summary.num_converted, 1);
  EXPECT_EQ(summary.num_copied, 2);
  const auto file = SafetensorsFile::open(some.output);
  EXPECT_EQ(file->tensor("a.gate.weight").dtype(), DType::kF32);
  EXPECT_EQ(file->tensor("a.up.weight").dtype(), DType::kI8);
  EXPECT_EQ(file->tensor("norm").as<float>()[3], 4.0f);
  some.names = "nothing";
  EXPECT_THAT(refusal(some),
              HasSubstr("no matrix of bf16, f16 or f32 with elements that --names \"nothing\""));
}

// As `run` does: infinity and NaN are left aside, and tiny maxima get the largest finite scale.
TEST_F(QuantizeFileTest, Nvfp4HasAGlobalScaleForEveryMatrix) {
  const float tiny = 1e-38f;
  const std::vector<float> x{INFINITY, NAN, 6, -3, tiny, -tiny, 0, 0, 0, 0, 0, 0};
  write("in", std::vector<NamedTensor>{{"a", TensorView::of(x.data(), {1, 4})},
                                       {"b", TensorView::of(x.data() + 4, {1, 4})},
                                       {"c", TensorView::of(x.data() + 8, {1, 4})}});
  const auto file = quantized(options("nvfp4"));
  EXPECT_EQ(*file->tensor("a.global_scale").as<float>(), 448.0f);
  EXPECT_EQ(*file->tensor("b.global_scale").as<float>(), std::numeric_limits<float>::max());
  EXPECT_EQ(*file->tensor("c.global_scale").as<float>(), 1.0f);
}

std::string number_text(float value) {
  if (std::isnan(value)) return "NaN";
  return fmt::format("{:g}", value);
}

// The table "What comes back" of docs/schemes.md.
TEST_F(QuantizeFileTest, SpecialValuesComeBackAsTheTableSays) {
  std::ifstream page(SWITCHYARD_SOURCE_DIR "/docs/schemes.md");
  int num_schemes = 0;
  bool is_table = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "| Scheme | +inf | -inf | NaN | -0 | zeros |") is_table = true;
    if (!is_table) continue;
    if (line.empty()) break;
    for (const std::string name : kSchemes) {
      if (line.find("`" + name + "`") == line.npos) continue;
      ++num_schemes;
      std::string cells;
      for (const float special : {INFINITY, -INFINITY, NAN, -0.0f}) {
        std::vector<float> x(128, 1.5f);
        x[0] = special;
        write("in", std::vector<NamedTensor>{{"w", TensorView::of(x.data(), {1, 128})}});
        cli::quantize_file(options(name.c_str()));
        QuantizeOptions back;
        back.input = path("out");
        back.output = path("back");
        cli::dequantize_file(back);
        const auto file = SafetensorsFile::open(path("back"));
        const auto* y = file->tensor("w").as<float>();
        cells += "| " + number_text(y[0]) + " / " + number_text(y[1]) + " ";
      }
      EXPECT_THAT(line, HasSubstr(cells)) << name;
    }
  }
  EXPECT_EQ(num_schemes, 14);
}

TEST_F(QuantizeFileTest, RefusesWhatDoesNotFit) {
  const std::vector<float> x{1, 2, 3, INFINITY, 5, 6};
  write("in", std::vector<NamedTensor>{{"w", TensorView::of(x.data(), {2, 3})},
                                       {"w.scale", TensorView::of(x.data(), {1})}});
  EXPECT_THAT(refusal(options("fp9")), HasSubstr("--scheme is \"fp9\""));
  EXPECT_THAT(refusal(options("mxfp4")), HasSubstr("w has rows of 3 elements, must be even"));
  EXPECT_THAT(refusal(options("fp8_token")),
              HasSubstr("two tensors of the output are named \"w.scale\""));
  QuantizeOptions scale = options("fp8_token");
  scale.static_scale = 1.0f;
  EXPECT_THAT(refusal(scale), HasSubstr("--static-scale is for schemes with one scale per tensor"));
  for (const float wrong : {NAN, INFINITY, 0.0f, -1.0f}) {
    scale = options("fp8_tensor");
    scale.static_scale = wrong;
    EXPECT_THAT(refusal(scale), HasSubstr("quantize: --static-scale is "));
    EXPECT_THAT(refusal(scale), HasSubstr(", must be a number above 0"));
    scale = options("nvfp4");
    scale.global_scale = wrong;
    EXPECT_THAT(refusal(scale), HasSubstr("quantize: --global-scale is "));
  }
  write("in", std::vector<NamedTensor>{{"w", TensorView::of(x.data(), {1, 6})}});
  cli::quantize_file(options("fp8_token"));
  QuantizeOptions again = options("fp8_token");
  again.input = path("out");
  EXPECT_THAT(refusal(again), HasSubstr("is quantized already"));
}

// A file whose metadata contradicts its tensors.
TEST_F(QuantizeFileTest, HostileMetadataIsAMalformedFile) {
  const std::vector<std::uint8_t> x(6);
  const std::map<std::string, std::string> good{{"switchyard.scheme", "mxfp4"},
                                                {"switchyard.scale_layout", "row_major"},
                                                {"switchyard.pack_ue8m0", "false"},
                                                {"switchyard.quantized", R"({"w":"bf16"})"}};
  const auto expect_malformed = [&](const char* key, const char* value, const char* words) {
    auto metadata = good;
    metadata[key] = value;
    write_safetensors(path("bad"),
                      std::vector<NamedTensor>{{"w", TensorView::of(x.data(), {2, 3})},
                                               {"w.scale", TensorView::of(x.data(), {5})}},
                      metadata);
    QuantizeOptions back;
    back.input = path("bad");
    back.output = path("never");
    expect_error(Errc::kMalformedFile, words, [&] { cli::dequantize_file(back); });
  };
  expect_malformed("switchyard.scheme", "mxfp5", "metadata has scheme \"mxfp5\"");
  expect_malformed("switchyard.scale_layout", "diagonal", "\"diagonal\"");
  expect_malformed("switchyard.quantized", "[", "is not a JSON object");
  expect_malformed("switchyard.quantized", R"({"w":"i8"})", "says that w was i8");
  expect_malformed("switchyard.quantized", R"({"v":"bf16"})", "v");
  expect_malformed("switchyard.scheme", "fp8_token", "must be a matrix quantized to fp8_token");
  expect_malformed("author", "x", "w.scale is u8 [5], must be e8m0 [2, 1]");
  EXPECT_FALSE(std::filesystem::exists(path("never")));
}

TEST_F(QuantizeFileTest, OptionsThatDoNotGoTogetherAreNamed) {
  const std::vector<float> x{1, 2, 3, 4};
  write("in", std::vector<NamedTensor>{{"w", TensorView::of(x.data(), {2, 2})}});
  const auto error_with = [&](std::vector<std::string> extra) {
    std::vector<std::string> arguments{SWITCHYARD_CLI, "quantize", "--in",
                                       path("in"),     "--out",    path("never")};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    const CommandResult result = run_command(arguments);
    EXPECT_EQ(result.exit_code, 2);
    return result.error + result.output;
  };
  EXPECT_THAT(error_with({}), HasSubstr("quantize: give --scheme or --dequantize"));
  EXPECT_THAT(error_with({"--scheme", "fp9"}), HasSubstr("mxfp6_e3m2"));
  const CommandResult nowhere = run_command({SWITCHYARD_CLI, "quantize", "--scheme", "mxfp8",
                                             "--in", path("in"), "--out", "/no/such/file"});
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.error, HasSubstr("--out is /no/such/file, but there is no folder /no/such"));
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--names", "*"},
                                                {"--scale-layout", "row_major"},
                                                {"--pack-ue8m0"},
                                                {"--static-scale", "1"},
                                                {"--global-scale", "1"}}) {
    std::vector<std::string> arguments{"--dequantize"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    EXPECT_THAT(error_with(arguments),
                HasSubstr("quantize: " + wrong[0] + " goes with --scheme, not with --dequantize"));
  }
}

TEST_F(QuantizeFileTest, TheCommandSaysWhatItDid) {
  const std::vector<float> x{1, 2, 3, 4};
  write("in", std::vector<NamedTensor>{{"w", TensorView::of(x.data(), {2, 2})}});
  const CommandResult there = run_command(
      {SWITCHYARD_CLI, "quantize", "--scheme", "mxfp8", "--in", path("in"), "--out", path("out")});
  EXPECT_EQ(there.exit_code, 0) << there.error;
  EXPECT_THAT(there.output,
              HasSubstr("1 matrix quantized to mxfp8, 0 tensors copied, 16 -> 6 bytes"));
  const CommandResult back = run_command(
      {SWITCHYARD_CLI, "quantize", "--dequantize", "--in", path("out"), "--out", path("back")});
  EXPECT_EQ(back.exit_code, 0) << back.error;
  EXPECT_EQ(SafetensorsFile::open(path("back"))->tensor("w").dtype(), DType::kF32);
  const CommandResult wrong = run_command(
      {SWITCHYARD_CLI, "quantize", "--dequantize", "--in", path("in"), "--out", path("x")});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.error, HasSubstr("must be a file that switchyard quantize wrote"));
}

}  // namespace
}  // namespace switchyard::test
