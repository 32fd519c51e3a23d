// SPDX-License-Identifier: Apache-2.0

#include "forecast/machine.h"

#include <nlohmann/json.hpp>

#include "forecast/machine_files.h"
#include "support/errors.h"
#include "support/temp_folder.h"

namespace switchyard::forecast {
namespace {

using nlohmann::json;
using test::expect_error;
using test::TempFolder;

json h200() {
  for (const EmbeddedFile& file : machine_files()) {
    if (file.name == "h200") return json::parse(file.text);
  }
  return {};
}

std::string written(const TempFolder& folder, const json& document) {
  folder.write("machine.json", document.dump());
  return folder.file("machine.json");
}

TEST(MachineTest, EveryConstantOfTheProgramHasASource) {
  EXPECT_EQ(machine_names(), "h200, h100, cpu");
  for (const char* name : {"h200", "h100", "cpu"}) {
    const Machine machine = find_machine(name);
    EXPECT_EQ(machine.name, name);
    EXPECT_EQ(machine.is_gpu, machine.name != "cpu");
    EXPECT_GT(machine.constants.size(), 8u);
    for (const Constant& one : machine.constants) {
      EXPECT_GT(one.source.size(), 10u) << name << ": " << one.name;
    }
  }
}

TEST(MachineTest, AFileOfConstantsIsReadAsItIs) {
  const TempFolder folder;
  json document = h200();
  document["constants"]["send_chunk_us"]["value"] = 7.5;
  document["constants"]["wire"]["value"] = {{8, 100}, {16, 200}};
  const Machine machine = find_machine(written(folder, document));
  EXPECT_EQ(machine.push.send_chunk_us, 7.5);
  ASSERT_EQ(machine.push.wire.size(), 2u);
  EXPECT_EQ(machine.push.wire[1].gb_per_second, 200);
}

TEST(MachineTest, ABenchFileReplacesWhatItMeasured) {
  const TempFolder folder;
  json document{{"device", "cuda"}, {"machine", {{"gpu", "8x NVIDIA H200"}}}};
  json floor{{"start_us", 4.5}, {"saved_us", 0.5}};
  // Braces around one json mean an array to g++ and a copy to clang.
  floor["constants"] = json::array({{{"name", "copy"}, {"value", 1234}}});
  floor["wire"]["tried"] = {{{"by", "16-byte stores"}, {"ctas", 8}, {"gb_per_second", 300}},
                            {{"by", "16-byte loads"}, {"ctas", 8}, {"gb_per_second", 200}}};
  document["floors"] = json::array({floor});
  const std::string file = written(folder, document);
  const Machine machine = find_machine(file);
  EXPECT_EQ(machine.push.start_us, 4.5);
  EXPECT_EQ(machine.push.copy_gb_per_second, 1234);
  ASSERT_EQ(machine.push.wire.size(), 1u);
  EXPECT_EQ(machine.push.send_chunk_us, find_machine("h200").push.send_chunk_us);
  for (const Constant& one : machine.constants) {
    if (one.name == "wire") {
      EXPECT_EQ(one.source, file + ": floors[0].wire");
    }
  }
  document["floors"][0].erase("wire");
  const std::string older = written(folder, document);
  expect_error(Errc::kMalformedFile, "no rates of the wire by CTAs",
               [&] { (void)find_machine(older); });
}

TEST(MachineTest, WrongFilesAreRefusedWithTheirValue) {
  const TempFolder folder;
  const auto refused = [&](const char* name, const json& value, const char* phrase) {
    json document = h200();
    document["constants"][name]["value"] = value;
    const std::string file = written(folder, document);
    expect_error(Errc::kMalformedFile, phrase, [&] { (void)find_machine(file); });
  };
  refused("copy_gb_per_second", 0, "constants.copy_gb_per_second is 0, must be a number above 0");
  refused("start_us", -1, "constants.start_us is -1");
  refused("overlap", "two", "constants.overlap is \"two\"");
  refused("wire", json::array(), "must be pairs of numbers above 0, ascending");
  refused("wire", {{8, 100}, {4, 100}}, "must be pairs of numbers above 0, ascending");
  json document = h200();
  document["constants"].erase("wire");
  const std::string file = written(folder, document);
  expect_error(Errc::kMalformedFile, "constants has no wire", [&] { (void)find_machine(file); });
  const std::string other = written(folder, {{"a", 1}});
  expect_error(Errc::kMalformedFile, "no constants and no floors",
               [&] { (void)find_machine(other); });
  expect_error(Errc::kInvalidArgument, "constants are \"h2000\"",
               [] { (void)find_machine("h2000"); });
}

}  // namespace
}  // namespace switchyard::forecast
