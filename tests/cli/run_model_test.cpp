// SPDX-License-Identifier: Apache-2.0
//
// `switchyard run` with models of every family, and with folders that are incomplete or wrong.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "cli/run_layer.h"
#include "cli/synthetic_input.h"
#include "io/safetensors.h"

namespace switchyard::test {
namespace {

using ::testing::HasSubstr;

// Every family and weight format: the router runs, and the result is compared with a computation in
// double that shares no code with the library.
TEST(RunModelTest, EveryModelFamilyRuns) {
  for (int family = 0; family <= static_cast<int>(SyntheticFamily::kTinyMoe); ++family) {
    for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
      SyntheticOptions options;
      options.family = static_cast<SyntheticFamily>(family);
      options.dtype = dtype;
      options.num_shards = family % 2 + 1;
      const bool has_fp8 = options.family == SyntheticFamily::kDeepSeekV3;
      if (dtype == DType::kE4M3 && !has_fp8) continue;
      const TempFolder folder;
      write_input(folder.file("activations.safetensors"),
                  write_synthetic_checkpoint(folder.path(), options));
      for (const char* ranks : {"1", "3"}) {
        const nlohmann::json json = run_json({"--ranks", ranks}, folder.path());
        EXPECT_EQ(json["ok"], true) << name_of(options.family) << " " << json["rel_l2"];
        EXPECT_FALSE(json["rel_l2"].is_null());
      }
    }
  }
}

TEST(RunModelTest, AWrongModelIsSaidOnce) {
  const TempFolder folder;
  std::filesystem::copy(SWITCHYARD_DATA_DIR "/tiny-moe", folder.path());
  std::filesystem::permissions(folder.file("config.json"), std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  const std::string config = read_file(folder.file("config.json"));
  const auto refuses = [&](const std::string& text, const std::string& words) {
    std::ofstream(folder.file("config.json")) << text << std::flush;
    const CommandResult result = run({"--ranks", "3"}, folder.path());
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
    EXPECT_THAT(result.error, HasSubstr(words));
  };
  const auto with_hidden = [&](const std::string& hidden) {
    const std::string name = "\"hidden_size\": ";
    std::string text = config;
    const std::size_t at = text.find(name) + name.size();
    return text.replace(at, text.find_first_not_of("0123456789", at) - at, hidden);
  };
  refuses(with_hidden("2147483648"), "hidden_size is 2147483648, must be a whole number");
  refuses(with_hidden("512"), "hidden_states is bf16 [1024, 256], must be bf16 or f32 [1024, 512]");
  refuses("{", "config.json: parse error at line 1");
}

// A file that quantize wrote is not a checkpoint.
TEST(RunModelTest, AQuantizedFileIsRefused) {
  const TempFolder folder;
  const std::string tiny = SWITCHYARD_DATA_DIR "/tiny-moe";
  std::filesystem::copy(tiny + "/config.json", folder.path());
  const CommandResult made =
      run_command({SWITCHYARD_CLI, "quantize", "--scheme", "fp8_block", "--in",
                   tiny + "/model.safetensors", "--out", folder.file("model.safetensors")});
  ASSERT_EQ(made.exit_code, 0) << made.error;
  const CommandResult result = run({"--ranks", "2"}, folder.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("was written by switchyard quantize; dequantize it first"));
}

TEST(RunModelTest, MalformedFilesAreExitCodeTwo) {
  const TempFolder folder;
  std::filesystem::copy(SWITCHYARD_DATA_DIR "/tiny-moe", folder.path(),
                        std::filesystem::copy_options::recursive);
  const auto model = folder.file("model.safetensors");
  std::filesystem::permissions(model, std::filesystem::perms::owner_write,
                               std::filesystem::perm_options::add);
  std::filesystem::resize_file(model, 100'000);
  for (const char* engine : {"local", "shm"}) {
    const CommandResult result = run({"--ranks", "2", "--engine", engine}, folder.path());
    EXPECT_EQ(result.exit_code, 2) << result.error;
    EXPECT_THAT(result.error, HasSubstr("malformed_file"));
    EXPECT_THAT(result.error, HasSubstr("model.safetensors"));
  }
}

// tiny-moe as the second of three shards.
void write_shards(const TempFolder& folder) {
  const std::string tiny = SWITCHYARD_DATA_DIR "/tiny-moe";
  for (const char* name : {"config.json", "activations.safetensors"}) {
    std::filesystem::copy(tiny + "/" + name, folder.path());
  }
  std::filesystem::copy(tiny + "/model.safetensors",
                        folder.file("model-00002-of-00003.safetensors"));
  std::string map = R"("lm_head.weight": "model-00003-of-00003.safetensors",
 "model.embed_tokens.weight": "model-00001-of-00003.safetensors")";
  for (const std::string& name : SafetensorsFile::open(tiny + "/model.safetensors")->names()) {
    map += fmt::format(",\n \"{}\": \"model-00002-of-00003.safetensors\"", name);
  }
  folder.write("model.safetensors.index.json", "{\"metadata\": {}, \"weight_map\": {" + map + "}}");
}

// Missing, not downloaded, empty, cut short, of an unknown dtype.
TEST(RunModelTest, ShardsThatTheLayerDoesNotNeedDoNotMatter) {
  const TempFolder folder;
  write_shards(folder);
  const std::string header = R"({"x": {"dtype": "F5", "shape": [1], "data_offsets": [0, 1]}})";
  const std::string unknown =
      std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + "x";
  for (const std::string& text :
       {std::string("absent"), std::string("version https://git-lfs.github.com/spec/v1\n"),
        std::string(), unknown.substr(0, 20), unknown}) {
    for (const char* name :
         {"model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"}) {
      if (text != "absent") folder.write(name, text);
    }
    const nlohmann::json json = run_json({"--ranks", "2", "--engine", "local"}, folder.path());
    EXPECT_EQ(json["ok"], true) << text;
    EXPECT_FALSE(json["rel_l2"].is_null());
  }
  std::filesystem::remove(folder.file("model-00002-of-00003.safetensors"));
  const CommandResult result = run({"--ranks", "2"}, folder.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("model-00002-of-00003.safetensors, which does not exist"));
}

TEST(RunModelTest, WhatIsNoFolderOfAModelIsNamed) {
  const TempFolder folder;
  const std::string tiny = SWITCHYARD_DATA_DIR "/tiny-moe";
  const auto refuses = [&](const std::string& model, const std::string& words) {
    const CommandResult result = run({"--ranks", "2"}, model);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
    EXPECT_THAT(result.error, HasSubstr(words));
  };
  refuses(
      "Qwen/Qwen3-30B-A3B",
      "run: --model is Qwen/Qwen3-30B-A3B, no such folder; a model of the Hugging Face hub must "
      "be downloaded first: hf download Qwen/Qwen3-30B-A3B --local-dir DIR");
  refuses(tiny + "/model.safetensors",
          "run: --model is the file " + tiny + "/model.safetensors, must be");
  std::filesystem::copy(tiny + "/config.json", folder.path());
  std::filesystem::copy(tiny + "/activations.safetensors", folder.path());
  folder.write("pytorch_model.bin", "x");
  refuses(folder.path(), "holds pytorch_model.bin, but only *.safetensors files are read");
}

}  // namespace
}  // namespace switchyard::test
