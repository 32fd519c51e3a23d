// SPDX-License-Identifier: Apache-2.0

#include "io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "core/random.h"
#include "support/errors.h"
#include "support/observe.h"
#include "support/safetensors_image.h"
#include "support/synthetic_checkpoint.h"
#include "support/temp_folder.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::Pair;

constexpr DType kAllDTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kE4M3,
                                DType::kE5M2, DType::kE2M1, DType::kE2M3, DType::kE3M2,
                                DType::kE8M0, DType::kI8,   DType::kU8,   DType::kU16,
                                DType::kI32,  DType::kI64};

std::string little_endian(std::uint64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// The bytes that the reference writer produces, from its own tests (safetensors/src/tensor.rs).
TEST(SafetensorsTest, WritesTheBytesOfTheReferenceWriter) {
  const TempFolder folder;
  const std::string path = folder.file("a.safetensors");
  const float values[] = {0, 1, 2, 3, 4, 5};
  const std::string data(reinterpret_cast<const char*>(values), sizeof values);

  const NamedTensor exact[] = {{"attn.0", TensorView::of(values, {1, 2, 3})}};
  write_safetensors(path, exact);
  EXPECT_EQ(read_file(path),
            little_endian(64) +
                R"({"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}})" + data);

  const NamedTensor padded[] = {{"attn0", TensorView::of(values, {1, 1, 2, 3})}};
  write_safetensors(path, padded);
  EXPECT_EQ(read_file(path),
            little_endian(72) +
                R"({"attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}}       )" +
                data);

  write_safetensors(path, {});
  EXPECT_EQ(read_file(path), little_endian(8) + "{}      ");
  write_safetensors(path, {}, {{"framework", "pt"}});
  EXPECT_EQ(read_file(path), little_endian(40) + R"({"__metadata__":{"framework":"pt"}}     )");
}

TEST(SafetensorsTest, ReadsTinyMoe) {
  const auto file = SafetensorsFile::open(SWITCHYARD_DATA_DIR "/tiny-moe/activations.safetensors");
  EXPECT_THAT(file->names(), ElementsAre("hidden_states", "routed_output", "shared_output",
                                         "topk_ids", "topk_weights"));
  EXPECT_EQ(file->metadata().at("num_experts"), "32");
  EXPECT_EQ(file->tensor("hidden_states").describe(), "bf16 [1024, 256]");
  EXPECT_EQ(file->tensor("topk_ids").describe(), "i32 [1024, 4]");
  const TensorView weights = file->tensor("topk_weights");
  for (int t = 0; t < 1024; ++t) {
    double sum = 0;
    for (int k = 0; k < 4; ++k) sum += double{weights.as<float>()[t * 4 + k]};
    EXPECT_NEAR(sum, 1.0, 1e-6);  // renormalized
  }
}

TEST(SafetensorsTest, EveryDTypeSurvivesARoundTrip) {
  const TempFolder folder;
  std::vector<Tensor> tensors;
  std::vector<NamedTensor> named;
  for (const DType dtype : kAllDTypes) {
    for (const std::int64_t columns : {0, 1, 7, 129}) {
      Tensor tensor(dtype, {8, columns});
      for (std::size_t i = 0; i < tensor.view().num_bytes(); ++i) {
        tensor.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(random_bits(named.size(), i));
      }
      tensors.push_back(std::move(tensor));
      named.push_back(
          {std::string(name_of(dtype)) + std::to_string(columns), tensors.back().view()});
    }
  }
  const std::int32_t scalar = -7;
  named.push_back({"a \"scalar\"\n\xc3\xa9", TensorView::of(&scalar, {})});
  write_safetensors(folder.file("x.safetensors"), named, {{"k", "v"}, {"empty", ""}});

  const auto file = SafetensorsFile::open(folder.file("x.safetensors"));
  EXPECT_EQ(file->entries().size(), named.size());
  EXPECT_THAT(file->metadata(), ElementsAre(Pair("empty", ""), Pair("k", "v")));
  for (const NamedTensor& want : named) {
    const TensorView got = file->tensor(want.name);
    ASSERT_EQ(got.describe(), want.tensor.describe());
    EXPECT_EQ(std::memcmp(got.data(), want.tensor.data(), want.tensor.num_bytes()), 0) << want.name;
    const int bytes = std::max(1, bits_of(got.dtype()) / 8);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(got.data()) % static_cast<std::uintptr_t>(bytes),
              0u);
  }
}

TEST(SafetensorsTest, UnalignedTensorsAreCopied) {
  // Old writers did not pad headers: three of these four lengths leave the floats unaligned.
  const std::string header =
      R"({"abc":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"d":{"dtype":"U8","shape":[1],"data_offsets":[12,13]}})";
  for (std::size_t padding = 0; padding < 4; ++padding) {
    const auto bytes = safetensors_image(header + std::string(padding, ' '), 13);
    const auto file = SafetensorsFile::from_bytes(bytes, "f");
    const std::uint8_t want[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        const TensorView view = file->tensor("abc");
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data()) % alignof(float), 0u);
        EXPECT_EQ(std::memcmp(view.data(), want, sizeof want), 0);
        EXPECT_EQ(file->tensor("abc").data(), view.data());  // copied only once
      });
    }
  }
}

TEST(SafetensorsTest, ViewsOutliveOtherHandles) {
  const TempFolder folder;
  const float value = 2.5f;
  const NamedTensor named[] = {{"x", TensorView::of(&value, {1})}};
  write_safetensors(folder.file("x.safetensors"), named);
  auto first = SafetensorsFile::open(folder.file("x.safetensors"));
  const auto second = first;
  first.reset();
  write_safetensors(folder.file("x.safetensors"), {});  // replaces the file but not the mapping
  EXPECT_EQ(second->tensor("x").as<float>()[0], 2.5f);
}

TEST(SafetensorsTest, MissingTensorNamesTheNearest) {
  const auto file = SafetensorsFile::open(SWITCHYARD_DATA_DIR "/tiny-moe/model.safetensors");
  EXPECT_FALSE(file->find("model.layers.2.mlp.gate").has_value());
  expect_error(Errc::kMalformedFile, "nearest: \"model.layers.2.mlp.gate.weight\"",
               [&] { (void)file->tensor("model.layers.2.mlp.gates.weight"); });
  expect_error(Errc::kMalformedFile, "tiny-moe/model.safetensors has no tensor \"zzz\"",
               [&] { (void)file->tensor("zzz"); });
}

TEST(SafetensorsTest, ForeignDTypesAreSkippedOver) {
  const auto bytes = safetensors_image(
      R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[2],"data_offsets":[8,10]},)"
      R"("c":{"dtype":"U8","shape":[1,1,1,1,1,1,1],"data_offsets":[10,11]},"__metadata__":null})",
      11);
  const auto file = SafetensorsFile::from_bytes(bytes, "f");
  EXPECT_EQ(file->tensor("b").as<std::uint8_t>()[1], 9);
  expect_error(Errc::kNotSupported, "dtype F64", [&] { (void)file->find("a"); });
  expect_error(Errc::kNotSupported, "7 dimensions, must have at most 6",
               [&] { (void)file->find("c"); });
}

TEST(SafetensorsTest, ForeignDTypesAreCopied) {
  const auto bytes = safetensors_image(
      R"({"a":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"BOOL","shape":[2],"data_offsets":[8,10]},)"
      R"("c":{"dtype":"U8","shape":[1,1,1,1,1,1,1],"data_offsets":[10,11]}})",
      11);
  const auto file = SafetensorsFile::from_bytes(bytes, "f");
  std::vector<StoredTensor> stored;
  for (const SafetensorsEntry& entry : file->entries()) stored.push_back(file->stored(entry));
  const TempFolder folder;
  const float values[] = {1, 2};
  const NamedTensor named[] = {{"d", TensorView::of(values, {2})}};
  write_safetensors(folder.file("x"), named, {}, stored);
  const auto copy = SafetensorsFile::open(folder.file("x"));
  EXPECT_EQ(copy->tensor("d").as<float>()[1], 2.0f);
  for (const StoredTensor& wanted : stored) {
    const StoredTensor got = copy->stored(*copy->find_entry(wanted.name));
    EXPECT_EQ(got.dtype_name, wanted.dtype_name);
    EXPECT_EQ(got.shape, wanted.shape);
    EXPECT_TRUE(std::ranges::equal(got.bytes, wanted.bytes));
  }
  stored.push_back({"d", "U8", {0}, {}});
  expect_invalid("\"d\" is given twice",
                 [&] { write_safetensors(folder.file("y"), named, {}, stored); });
}

TEST(SafetensorsTest, WriterRefusesWhatReadersWould) {
  const TempFolder folder;
  const std::string path = folder.file("x.safetensors");
  const float values[6] = {};
  const TensorView good = TensorView::of(values, {2, 3});
  const auto write = [&](const std::string& name, const TensorView& tensor) {
    const NamedTensor named[] = {{"first", good}, {name, tensor}};
    write_safetensors(path, named);
  };
  expect_invalid("\"first\" is given twice", [&] { write("first", good); });
  expect_invalid("reserves", [&] { write("__metadata__", good); });
  expect_invalid("not UTF-8", [&] { write("\xff", good); });
  expect_invalid("is absent", [&] { write("x", TensorView()); });
  expect_invalid("contiguous", [&] {
    write("x", TensorView(values, DType::kF32, {3, 2}, {1, 3}));
  });
  expect_invalid("whole bytes", [&] { write("x", TensorView(values, DType::kE2M1, {3})); });
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));

  const NamedTensor named[] = {{"x", good}};
  expect_invalid("there is no folder",
                 [&] { write_safetensors(folder.file("none/x.safetensors"), named); });
  std::filesystem::create_directory(folder.file("taken"));
  expect_invalid("which is a folder", [&] { write_safetensors(folder.file("taken"), named); });
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SafetensorsTest, ElementsOfTheTestSupportAreRight) {
  const std::uint8_t e4m3[] = {0x7E, 0xFE, 0x38, 0x01, 0xB8};
  const std::uint16_t f16[] = {0x3C00, 0xC000, 0x0001, 0x7BFF};
  const std::uint16_t bf16 = 0xC0A0;
  const double want_e4m3[] = {448, -448, 1, 0x1p-9, -1};
  const double want_f16[] = {1, -2, 0x1p-24, 65504};
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(test::element_of(TensorView(e4m3, DType::kE4M3, {5}), i), want_e4m3[i]);
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(test::element_of(TensorView(f16, DType::kF16, {4}), i), want_f16[i]);
  }
  EXPECT_EQ(test::element_of(TensorView(&bf16, DType::kBF16, {1}), 0), -5.0);
}

}  // namespace
}  // namespace switchyard
