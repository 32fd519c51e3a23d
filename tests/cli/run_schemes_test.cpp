// SPDX-License-Identifier: Apache-2.0
//
// `switchyard run` with every class and scheme: accuracy, report, scales, files.

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>

#include "cli/run_layer.h"
#include "io/safetensors.h"
#include "quant/bf16.h"

namespace switchyard::test {
namespace {

using ::testing::HasSubstr;

constexpr std::array kClasses{"low_latency", "elastic_decode", "elastic_prefill",
                              "all_gather",  "all_to_all",     "all_to_all_one_sided",
                              "local"};
constexpr std::array kSchemes{
    "none",      "fp8_block",  "fp8_block_deepep", "fp8_ue8m0",   "fp8_ue8m0_deepep",
    "fp8_token", "fp8_tensor", "int8_token",       "int8_tensor", "int8_block",
    "nvfp4",     "mxfp4",      "mxfp6_e3m2",       "mxfp6_e2m3",  "mxfp8"};

bool is_tensor_scheme(const std::string& scheme) {
  return scheme == "fp8_tensor" || scheme == "int8_tensor";
}

TEST(RunSchemesTest, EveryClassAndSchemeIsThatOfTheReferenceImplementation) {
  for (const std::string prepare : kClasses) {
    for (const std::string scheme : kSchemes) {
      const nlohmann::json json = run_json({"--ranks", "3", "--engine", "local", "--tokens", "100",
                                            "--prepare", prepare, "--scheme", scheme});
      SCOPED_TRACE(prepare + " " + scheme);
      EXPECT_EQ(json["ok"], true) << json["check"];
      EXPECT_EQ(json["check"]["compared_rows"], json["check"]["rows"]);
      EXPECT_GE(json["check"]["compared_tokens"], 50);
      EXPECT_EQ(json["check"]["rel_l2"], 0);
      EXPECT_GT(json["rel_l2"], 1e-3);
      EXPECT_LT(json["rel_l2"], 0.2);
      EXPECT_EQ(json["prepare"], prepare);
      EXPECT_EQ(json["scheme"], scheme);
      EXPECT_EQ(json["wire_scheme"], is_tensor_scheme(scheme) ? "none" : scheme);
      const bool is_exact = prepare == "low_latency" || prepare == "local";
      EXPECT_EQ(json["reduce"], is_exact ? "per_expert" : "per_rank");
      EXPECT_EQ(json["wire_bytes"].get<std::int64_t>() == 0, prepare == "local");
    }
  }
}

TEST(RunSchemesTest, OneDnnStaysWithinTheBound) {
  if (!SWITCHYARD_HAS_ONEDNN) GTEST_SKIP() << "built without oneDNN";
  for (const std::string scheme : kSchemes) {
    const nlohmann::json json =
        run_json({"--ranks", "4", "--engine", "local", "--scheme", scheme, "--experts", "onednn"});
    EXPECT_EQ(json["ok"], true) << scheme << " " << json["check"];
  }
}

// This global scale is so large that every block saturates: far from the unquantized reference, and
// yet what was asked for.
TEST(RunSchemesTest, ABadScaleIsNotWrongData) {
  const nlohmann::json json = run_json({"--scheme", "nvfp4", "--global-scale", "1e6"});
  EXPECT_EQ(json["ok"], true);
  EXPECT_GT(json["rel_l2"], 0.5);
}

TEST(RunSchemesTest, TheGlobalScaleIsThatOfTheWholeInput) {
  const auto file = SafetensorsFile::open(SWITCHYARD_DATA_DIR "/tiny-moe/activations.safetensors");
  const TensorView hidden = file->tensor("hidden_states");
  ASSERT_EQ(hidden.dtype(), DType::kBF16);
  float amax = 0;
  for (std::int64_t i = 0; i < hidden.num_elements(); ++i) {
    amax = std::max(amax, std::abs(f32_from_bf16(hidden.as<std::uint16_t>()[i])));
  }
  for (const char* ranks : {"1", "4"}) {
    const nlohmann::json json = run_json({"--ranks", ranks, "--scheme", "nvfp4"});
    EXPECT_FLOAT_EQ(json["tensor_scale"].get<float>(), 2688.0f / amax);
  }
  const nlohmann::json json = run_json({"--scheme", "fp8_tensor", "--static-scale", "auto"});
  EXPECT_FLOAT_EQ(json["tensor_scale"].get<float>(), amax / 448.0f);
  EXPECT_TRUE(run_json({"--scheme", "fp8_tensor"})["tensor_scale"].is_null());
  EXPECT_EQ(run_json({"--scheme", "nvfp4", "--global-scale", "512"})["tensor_scale"], 512.0);
}

// With a given scale the senders quantize the rows, and the result does not depend on the ranks.
TEST(RunSchemesTest, AGivenScaleTravelsAndGivesTheSameBitsForEveryRankCount) {
  for (const std::string scheme : {"fp8_tensor", "int8_tensor"}) {
    for (const nlohmann::json& json :
         expect_same_output({"--engine", "local", "--scheme", scheme, "--static-scale", "auto"},
                            {{"--ranks", "1"}, {"--ranks", "3"}, {"--ranks", "8"}})) {
      EXPECT_EQ(json["wire_scheme"], scheme);
    }
  }
}

// Micro-batches and local experts see other rows per expert, so the scale between the GEMMs must be
// given as well.
TEST(RunSchemesTest, BothScalesGivenGiveTheSameBitsInMicroBatchesAndLocally) {
  for (const std::string scheme : {"fp8_tensor", "int8_tensor"}) {
    expect_same_output({"--engine", "local", "--scheme", scheme, "--static-scale", "auto",
                        "--intermediate-scale", "0.2"},
                       {{"--ranks", "1"},
                        {"--ranks", "3", "--prepare", "local"},
                        {"--ranks", "3", "--micro-batches", "2"}});
  }
}

TEST(RunSchemesTest, TheScaleBetweenTheGemmsCounts) {
  const auto error_with = [](const std::string& scheme, const std::string& scale) {
    return run_json({"--scheme", scheme, "--intermediate-scale", scale})["rel_l2"].get<double>();
  };
  const double without = run_json({"--scheme", "nvfp4"})["rel_l2"];
  EXPECT_EQ(error_with("nvfp4", "4"), without);
  EXPECT_NE(error_with("nvfp4", "64"), without);
  EXPECT_NE(error_with("fp8_tensor", "0.25"), error_with("fp8_tensor", "0.2"));
}

TEST(RunSchemesTest, PerExpertGivesTheSameBitsForEveryRankCountAndScheme) {
  for (const std::string scheme : kSchemes) {
    if (is_tensor_scheme(scheme)) continue;
    expect_same_output(
        {"--engine", "local", "--tokens", "100", "--scheme", scheme, "--reduce", "per_expert"},
        {{"--ranks", "1"},
         {"--ranks", "3", "--prepare", "elastic_prefill"},
         {"--ranks", "2", "--prepare", "local"}});
  }
}

TEST(RunSchemesTest, AlignmentChangesNoBits) {
  expect_same_output({"--ranks", "3", "--engine", "local", "--prepare", "elastic_prefill",
                      "--scheme", "fp8_ue8m0"},
                     {{"--alignment", "1"}, {"--alignment", "7"}, {"--alignment", "128"}});
}

// Every class and kind of scale can be dumped; the number of rows per rank equals the report's.
TEST(RunSchemesTest, EveryClassAndSchemeCanBeDumped) {
  const TempFolder folder;
  const std::string dump = folder.file("dump");
  for (const std::string prepare : kClasses) {
    for (const std::string scheme : {"none", "fp8_ue8m0", "int8_tensor", "nvfp4", "mxfp6_e3m2"}) {
      const nlohmann::json json =
          run_json({"--ranks", "2", "--engine", "local", "--tokens", "10", "--prepare", prepare,
                    "--scheme", scheme, "--dump", dump});
      SCOPED_TRACE(prepare + " " + scheme);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        const auto file =
            SafetensorsFile::open(dump + "/rank" + std::to_string(rank) + ".safetensors");
        EXPECT_EQ(file->tensor("recv_x").shape(0), json["rows_per_rank"][rank]);
        EXPECT_EQ(file->tensor("recv_x").shape(1), 256);
        EXPECT_EQ(file->find("tensor_scale").has_value(), scheme == "nvfp4");
        EXPECT_EQ(file->find("scales").has_value(), scheme != "none" && scheme != "mxfp6_e3m2");
        EXPECT_EQ(file->find("recv_topk_ids").has_value(), prepare != "low_latency");
      }
    }
  }
}

}  // namespace
}  // namespace switchyard::test
