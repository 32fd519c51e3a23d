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
  const auto refused = [&](const json& floors, const char* phrase) {
    json wrong = document;
    wrong["floors"] = floors;
    const std::string other = written(folder, wrong);
    expect_error(Errc::kMalformedFile, phrase, [&] { (void)find_machine(other); });
  };
  const auto with = [&](const char* name, const json& value) {
    json wrong = floor;
    wrong[name] = value;
    return json::array({wrong});
  };
  refused(with("start_us", 0), "floors[0].start_us is 0, must be a number above 0");
  refused(with("start_us", nullptr), "floors[0].start_us is null, must be a number above 0");
  refused(with("saved_us", -1), "floors[0].saved_us is -1, must be a number of at least 0");
  refused(with("saved_us", 5), "saved_us is 5, must be less than start_us, which is 4.5");
  refused(with("constants", json::array()), "floors[0].constants.copy is null, must be a number");
  json rates = floor["wire"];
  rates["tried"][0]["gb_per_second"] = -300;
  refused(with("wire", rates), "must be sizes and rates above 0, ascending by size");
  refused(json::array(), "floors is [], must have one floor or more");
  for (const char* device : {"", "tpu"}) {
    json wrong = document;
    wrong["device"] = device;
    const std::string other = written(folder, wrong);
    expect_error(Errc::kMalformedFile, "must be cuda or cpu", [&] { (void)find_machine(other); });
  }
  json unknown = document;
  unknown["machine"]["gpu"] = "NVIDIA A100-SXM4-80GB";
  const std::string a100 = written(folder, unknown);
  expect_error(Errc::kNotSupported, "machine.gpu is \"NVIDIA A100-SXM4-80GB\"",
               [&] { (void)find_machine(a100); });
  document["floors"][0].erase("wire");
  const std::string older = written(folder, document);
  expect_error(Errc::kMalformedFile, "no rates of the wire by CTAs",
               [&] { (void)find_machine(older); });
}

std::string shown(const Machine& machine, const std::string& name) {
  for (const Constant& one : machine.constants) {
    if (one.name == name) return one.value;
  }
  return {};
}

TEST(MachineTest, ABenchFileOfCpusReplacesTheRatesOfCopies) {
  const TempFolder folder;
  const auto file_of = [&](const json& rates) {
    json document{{"device", "cpu"}};
    json floor;
    floor["rate"] = rates;
    document["floors"] = json::array({floor});
    return written(folder, document);
  };
  const json small{{"bytes", 4096}, {"gb_per_second", 90}};
  const json large{{"bytes", 65536}, {"gb_per_second", 30}};
  const Machine machine = find_machine(file_of(json::array({small, large})));
  ASSERT_EQ(machine.pull.copy.size(), 2u);
  EXPECT_EQ(machine.pull.copy[1].gb_per_second, 30);
  EXPECT_EQ(shown(machine, "copy"), "90 at 4096, 30 at 6.554e+04");
  const std::string falling = file_of(json::array({large, small}));
  expect_error(Errc::kMalformedFile, "ascending by size", [&] { (void)find_machine(falling); });
  const json zero{{"bytes", 4096}, {"gb_per_second", 0}};
  const std::string stopped = file_of(json::array({zero, large}));
  expect_error(Errc::kMalformedFile, "rates above 0", [&] { (void)find_machine(stopped); });
}

TEST(MachineTest, GivenRatesAreComputedWithAndReported) {
  Machine machine = find_machine("h200");
  const RateAt slowest = machine.push.wire.front();
  const double fastest = machine.push.wire.back().gb_per_second;
  set_wire(machine, 2 * fastest, "--nvlink");
  set_network(machine, 100, "--nic");
  set_tflops(machine, 600, "--tflops");
  EXPECT_DOUBLE_EQ(machine.push.wire.front().gb_per_second, 2 * slowest.gb_per_second);
  EXPECT_EQ(machine.network.gb_per_second, 100);
  EXPECT_EQ(shown(machine, "network_gb_per_second"), "100");
  EXPECT_EQ(shown(machine, "tflops"), "600");
  EXPECT_EQ(shown(machine, "wire").rfind("362.2 at 4, ", 0), 0u) << shown(machine, "wire");
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
  refused("wire", json::array(), "constants.wire is [], must be pairs of a size and a rate");
  refused("wire", {{8, 100}, {4, 100}}, "constants.wire has [4,100], must be sizes and rates");
  refused("wire", {{8, 0}, {16, 100}}, "constants.wire has [8,0], must be sizes and rates");
  refused("wire", {{8, "fast"}, {16, 1}}, "constants.wire has [8,\"fast\"], must be sizes");
  refused("overlap", 0.5, "constants.overlap is 0.5, must be at least 1");
  refused("saved_us", 4, "saved_us is 4, must be less than start_us, which is 3.0294");
  for (const json& sms : {json(0), json(0.5), json(-3), json(1e300), json("132")}) {
    refused("num_sms", sms, "must be a whole number from 1 to 4096");
  }
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
