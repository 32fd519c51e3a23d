// SPDX-License-Identifier: Apache-2.0
//
// What `switchyard run` says of its own result: right runs are right whatever the model and the
// scheme, one wrong bit is exit code 1, and a reference of another layer is no reference. Built for
// CPUs, and again for GPUs.

#include <filesystem>
#include <regex>

#include <gmock/gmock.h>

#include "cli/run_layer.h"
#include "cli/synthetic_input.h"
#include "command.h"
#include "device/cuda_module.h"
#include "io/safetensors.h"
#include "quant/scheme.h"
#include "run_rows.h"

namespace switchyard::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kDevice = SWITCHYARD_TEST_DEVICE;

#define SKIP_WITHOUT_DEVICE() \
  if (std::string(kDevice) == "cuda" && !why_no_cuda().empty()) GTEST_SKIP() << why_no_cuda()

// In this process, so that what ranks received can be changed on the way to the comparison.
CommandResult run_here(const Arguments& extra) {
  Arguments arguments{"switchyard", "run",   "--model",  SWITCHYARD_DATA_DIR "/tiny-moe",
                      "--engine",   "local", "--ranks",  "2",
                      "--tokens",   "20",    "--device", kDevice};
  arguments.insert(arguments.end(), extra.begin(), extra.end());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  cli::Command command;
  CommandResult result;
  if (!command.parse(static_cast<int>(arguments.size()), argv.data())) return result;
  ::testing::internal::CaptureStdout();
  result.exit_code = command.run(argv.data());
  result.output = ::testing::internal::GetCapturedStdout();
  return result;
}

void flip(const TensorView& tensor, std::int64_t byte, int bit = 0) {
  tensor.as<std::byte>()[byte] ^= std::byte{1} << bit;
}

using Tamper = std::function<void(cli::ServedRows&)>;

void expect_wrong(const Arguments& arguments, const Tamper& tamper, const char* words) {
  cli::tamper_with_rows = tamper;
  const CommandResult result = run_here(arguments);
  cli::tamper_with_rows = {};
  EXPECT_EQ(result.exit_code, 1) << words << result.output;
  EXPECT_THAT(result.output, HasSubstr(words));
  EXPECT_THAT(result.output, HasSubstr(": WRONG"));
}

class RunOracleTest : public testing::TestWithParam<std::string> {};

TEST_P(RunOracleTest, OneWrongBitIsExitCodeOne) {
  SKIP_WITHOUT_DEVICE();
  const QuantScheme scheme = *scheme_from_name(GetParam());
  const std::vector<std::string> classes = {"low_latency", "elastic_prefill", "all_to_all"};
  for (std::size_t i = 0; i < (GetParam() == "fp8_block" ? classes.size() : 1); ++i) {
    const std::string& prepare = classes[i];
    SCOPED_TRACE(prepare);
    const Arguments arguments{"--scheme", GetParam(), "--prepare", prepare};
    EXPECT_EQ(run_here(arguments).exit_code, 0);
    const auto row_bytes_of = [&](std::int64_t row) {
      return row * static_cast<std::int64_t>(row_bytes(scheme, 256));
    };
    expect_wrong(
        arguments,
        [&](cli::ServedRows& served) {
          flip(served.experts.rows, row_bytes_of(served.origins[2].row) + 77);
        },
        "elements of row");
    expect_wrong(
        arguments,
        [&](cli::ServedRows& served) { std::swap(served.origins[1].row, served.origins[2].row); },
        "must be row");
    if (scheme.is_quantized() && !scheme.is_simulated()) {
      expect_wrong(
          arguments,
          [&](cli::ServedRows& served) {
            const auto bytes = has_row_scales(scheme)
                                   ? static_cast<std::int64_t>(scale_row_bytes(scheme, 256)) *
                                         served.origins[2].row
                                   : 0;
            flip(served.experts.scales, bytes);
          },
          "scales of row");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunOracleTest,
                         testing::Values("none", "fp8_block", "fp8_block_deepep", "fp8_ue8m0",
                                         "fp8_ue8m0_deepep", "fp8_token", "fp8_tensor",
                                         "int8_token", "int8_tensor", "int8_block", "nvfp4",
                                         "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8"));

TEST(RunOracleTest, AWrongResultOfAnExpertIsExitCodeOne) {
  if (std::string(kDevice) == "cuda") GTEST_SKIP() << "results return from the memory of the GPU";
  for (const char* scheme : {"none", "nvfp4"}) {
    expect_wrong(
        {"--scheme", scheme},
        [](cli::ServedRows& served) {
          flip(served.expert_output, served.origins[2].row * 512 + 101, 5);
        },
        "of the result of token");
  }
}

// A bound says nothing about infinity.
TEST(RunOracleTest, AnInfiniteResultWithinABoundIsExitCodeOne) {
  if (std::string(kDevice) == "cuda") GTEST_SKIP() << "oneDNN runs on CPUs";
  if (!SWITCHYARD_HAS_ONEDNN) GTEST_SKIP() << "built without oneDNN";
  expect_wrong(
      {"--experts", "onednn"},
      [](cli::ServedRows& served) {
        served.expert_output.as<std::uint16_t>()[served.origins[2].row * 256 + 50] = 0x7F80;
      },
      "is inf, must be ");
}

// The bounds of tiny-moe say nothing about other models.
TEST(RunAccuracyTest, RightRunsOfEveryFamilyAndSchemeAreRight) {
  SKIP_WITHOUT_DEVICE();
  for (int family = 0; family <= static_cast<int>(SyntheticFamily::kTinyMoe); ++family) {
    const TempFolder folder;
    SyntheticOptions options;
    options.family = static_cast<SyntheticFamily>(family);
    write_input(folder.file("activations.safetensors"),
                write_synthetic_checkpoint(folder.path(), options));
    for (const QuantScheme& scheme : named_schemes()) {
      // CUDA takes seconds to start for each run.
      if (std::string(kDevice) == "cuda" && options.family != SyntheticFamily::kTinyMoe &&
          scheme != schemes::kFp8Block) {
        continue;
      }
      const nlohmann::json json = run_json(
          {"--ranks", "2", "--engine", "local", "--scheme", name_of(scheme), "--device", kDevice},
          folder.path());
      SCOPED_TRACE(std::string(name_of(options.family)) + " " + name_of(scheme));
      EXPECT_EQ(json["ok"], true) << json["check"];
      EXPECT_EQ(json["check"]["compared_rows"], json["check"]["rows"]);
      EXPECT_EQ(json["check"]["compared_tokens"], 16);
      EXPECT_EQ(json["bound"].is_null(), scheme.is_quantized());
      EXPECT_GT(json["rel_l2"], 0);
    }
  }
}

// tiny-moe with its layer under a second number.
std::string make_two_layers(const TempFolder& folder) {
  const std::string tiny = SWITCHYARD_DATA_DIR "/tiny-moe";
  const auto model = SafetensorsFile::open(tiny + "/model.safetensors");
  std::vector<NamedTensor> tensors;
  for (const std::string& name : model->names()) {
    tensors.push_back({name, model->tensor(name)});
    const std::string second = std::regex_replace(name, std::regex("layers\\.2\\."), "layers.3.");
    if (second != name) tensors.push_back({second, model->tensor(name)});
  }
  write_safetensors(folder.file("model.safetensors"), tensors);
  std::filesystem::copy(tiny + "/config.json", folder.path());
  return folder.path();
}

// Writes the activations of tiny-moe with this metadata and another reference.
void write_activations(const std::string& path, const std::map<std::string, std::string>& metadata,
                       float factor) {
  const auto file = SafetensorsFile::open(SWITCHYARD_DATA_DIR "/tiny-moe/activations.safetensors");
  const TensorView routed = file->tensor("routed_output");
  const Tensor scaled(DType::kF32, {routed.shape(0), routed.shape(1)});
  for (std::int64_t i = 0; i < routed.num_elements(); ++i) {
    scaled.as<float>()[i] = factor * routed.as<float>()[i];
  }
  const std::vector<NamedTensor> tensors{{"hidden_states", file->tensor("hidden_states")},
                                         {"routed_output", scaled},
                                         {"shared_output", file->tensor("shared_output")}};
  write_safetensors(path, tensors, metadata);
}

TEST(RunAccuracyTest, AReferenceOfAnotherLayerIsNamed) {
  const TempFolder folder;
  const std::string model = make_two_layers(folder);
  const auto line = [&](const Arguments& arguments, int exit_code) {
    const CommandResult result = run(arguments, model);
    EXPECT_EQ(result.exit_code, exit_code) << result.output << result.error;
    return result.output.substr(result.output.find("accuracy:"));
  };
  const std::string input = folder.file("activations.safetensors");
  write_activations(input, {{"layer", "2"}}, 1);
  EXPECT_THAT(line({"--layer", "2"}, 0), HasSubstr(": ok"));
  EXPECT_THAT(line({"--layer", "3"}, 0),
              HasSubstr("not compared, layer 3 ran, but the reference output of " + input +
                        " is of layer 2\n"));
  write_activations(input, {}, 1);
  EXPECT_THAT(line({}, 0), HasSubstr(": ok"));
  EXPECT_THAT(line({"--layer", "2"}, 0), HasSubstr(": ok"));
  EXPECT_THAT(line({"--layer", "3"}, 0),
              HasSubstr("names no layer and is taken for the first one's, 2; name it in the "
                        "metadata: \"layer\": \"3\""));
  write_activations(input, {{"layer", "3"}}, 1.1f);
  EXPECT_THAT(line({"--layer", "3"}, 1), HasSubstr("WRONG"));
  EXPECT_THAT(line({"--layer", "3", "--scheme", "fp8_block"}, 0),
              HasSubstr("for information: ref is not quantized"));
}

}  // namespace
}  // namespace switchyard::test
