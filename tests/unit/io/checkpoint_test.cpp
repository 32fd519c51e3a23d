// SPDX-License-Identifier: Apache-2.0

#include "io/checkpoint.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>

#include "support/errors.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::ElementsAre;

void write_one(const std::string& path, const std::string& name, float value) {
  const NamedTensor named[] = {{name, TensorView::of(&value, {1})}};
  write_safetensors(path, named);
}

float value_of(const Checkpoint& checkpoint, const char* name) {
  return checkpoint.tensor(name).as<float>()[0];
}

TEST(CheckpointTest, OpensAFolderWithOneFile) {
  const TempFolder folder;
  write_one(folder.file("weights.safetensors"), "x", 1);
  EXPECT_EQ(value_of(Checkpoint(folder.path()), "x"), 1.0f);
  // model.safetensors takes precedence over everything else.
  write_one(folder.file("model.safetensors"), "x", 2);
  folder.write("model.safetensors.index.json", "nonsense");
  EXPECT_EQ(value_of(Checkpoint(folder.path()), "x"), 2.0f);
  EXPECT_EQ(value_of(Checkpoint(folder.file("weights.safetensors")), "x"), 1.0f);
}

TEST(CheckpointTest, ShardsAreOpenedWhenTheyAreNeeded) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.file("sub"));
  write_one(folder.file("a.safetensors"), "x", 1);
  write_one(folder.file("sub/b.safetensors"), "y", 2);
  folder.write("broken.safetensors", "not a safetensors file");
  folder.write("model.safetensors.index.json",
               R"({"metadata": {"total_size": 8}, "weight_map": {"x": "a.safetensors",
 "y": "sub/b.safetensors", "z": "broken.safetensors", "w": "gone.safetensors", "v": "a.safetensors"}})");
  const Checkpoint checkpoint(folder.path());
  EXPECT_THAT(checkpoint.names(), ElementsAre("v", "w", "x", "y", "z"));
  EXPECT_TRUE(checkpoint.contains("z"));
  EXPECT_FALSE(checkpoint.find("unknown").has_value());
  EXPECT_EQ(value_of(checkpoint, "x"), 1.0f);
  EXPECT_EQ(value_of(checkpoint, "y"), 2.0f);
  EXPECT_EQ(checkpoint.file_of("y"), folder.file("sub/b.safetensors"));
  expect_error(Errc::kMalformedFile, "broken.safetensors", [&] { (void)checkpoint.find("z"); });
  expect_error(Errc::kMalformedFile, "gone.safetensors, which does not exist",
               [&] { (void)checkpoint.find("w"); });
  expect_error(Errc::kMalformedFile, "which lacks it", [&] { (void)checkpoint.find("v"); });
  expect_error(Errc::kMalformedFile,
               "has no tensor \"yy\"; nearest:", [&] { (void)checkpoint.tensor("yy"); });
}

TEST(CheckpointTest, FoldersWithoutACheckpoint) {
  const TempFolder folder;
  expect_invalid("0 other *.safetensors files, must be one",
                 [&] { Checkpoint checkpoint(folder.path()); });
  write_one(folder.file("a.safetensors"), "x", 1);
  write_one(folder.file("b.safetensors"), "x", 1);
  expect_invalid("2 other *.safetensors files, must be one",
                 [&] { Checkpoint checkpoint(folder.path()); });
  expect_invalid("none", [&] { Checkpoint checkpoint(folder.file("none")); });
}

// The input of `switchyard run`, which may lie beside a model, is none.
TEST(CheckpointTest, FilesOfOtherFormatsAreNamed) {
  const TempFolder folder;
  folder.write("optimizer.bin", "x");
  folder.write("pytorch_model.bin", "x");
  write_one(folder.file("activations.safetensors"), "hidden_states", 1);
  expect_invalid("holds pytorch_model.bin, but only *.safetensors files are read",
                 [&] { Checkpoint checkpoint(folder.path()); });
  write_one(folder.file("other.safetensors"), "w", 1);
  EXPECT_TRUE(Checkpoint(folder.path()).contains("w"));
  const TempFolder partial;
  partial.write("pytorch_model.bin.index.json", "{}");
  expect_invalid("holds pytorch_model.bin.index.json, but", [&] { Checkpoint(partial.path()); });
  partial.write("optimizer.bin", "x");
  partial.write("pytorch_model-00002-of-00002.bin", "x");
  expect_invalid("holds pytorch_model-00002-of-00002.bin, but",
                 [&] { Checkpoint(partial.path()); });
}

TEST(CheckpointTest, IndexCannotLeaveTheFolder) {
  for (const char* shard : {"../x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors",
                            "./x.safetensors", "..", "", "x.bin", "a\\\\b.safetensors",
                            "x\\u0000.safetensors", "a/./x.safetensors", "x.safetensors/"}) {
    SCOPED_TRACE(shard);
    const std::string text = std::string(R"({"weight_map": {"w": ")") + shard + R"("}})";
    expect_error(Errc::kMalformedFile, "inside the folder",
                 [&] { parse_checkpoint_index(text, "index.json"); });
  }
}

TEST(CheckpointTest, MalformedIndex) {
  const struct {
    const char* text;
    const char* phrase;
  } cases[] = {{"", "index.json"},
               {"{}", "index.json has no key weight_map"},
               {R"({"weight_map": null})", "weight_map is null, must be a value"},
               {R"({"weight_map": []})", "weight_map is an array, must be an object"},
               {R"({"weight_map": {"w": 1}})", "tensor \"w\" maps to 1, must map to a file name"},
               {R"({"weight_map": {"w": {"x": 1}}})", "maps to an object"},
               {R"({"weight_map": {"w": "a.safetensors", "w": "b.safetensors"}})", "\"w\" twice"},
               {R"({"weight_map": {"w": "a.safetensors"}} trailing)", "index.json"}};
  for (const auto& c : cases) {
    expect_error(Errc::kMalformedFile, c.phrase,
                 [&] { parse_checkpoint_index(c.text, "index.json"); });
  }
  EXPECT_TRUE(parse_checkpoint_index(R"({"weight_map": {}})", "index.json").files.empty());
}

}  // namespace
}  // namespace switchyard
