// SPDX-License-Identifier: Apache-2.0
//
// Files, options, places and environments that are wrong: one sentence, the right exit code, soon.

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "io/safetensors.h"
#include "run_layer.h"
#include "support/safetensors_image.h"
#include "support/temp_folder.h"

namespace switchyard::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kModel = SWITCHYARD_DATA_DIR "/tiny-moe";

CommandResult command(Arguments arguments) {
  arguments.insert(arguments.begin(), SWITCHYARD_CLI);
  return run_command(arguments);
}

void expect_one_line(const CommandResult& result, int exit_code, const std::string& words) {
  EXPECT_EQ(result.exit_code, exit_code) << result.error;
  EXPECT_EQ(std::ranges::count(result.error, '\n'), 1) << result.error;
  EXPECT_THAT(result.error, AllOf(StartsWith("switchyard: "), HasSubstr(words)));
}

std::string write_image(const TempFolder& folder, const std::string& name,
                        const std::string& header, std::size_t data_bytes) {
  const std::vector<std::byte> bytes = safetensors_image(header, data_bytes);
  return folder.write(name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

TEST(HostileTest, UnknownWordsNameTheNearest) {
  expect_one_line(command({"run", "--rank", "2"}), 2,
                  "run: no option \"--rank\"; nearest: \"--ranks\"");
  expect_one_line(command({"check", "--jsn=x"}), 2,
                  "check: no option \"--jsn\"; nearest: \"--json\"");
  expect_one_line(command({"quantise"}), 2, "no verb \"quantise\"; nearest: \"quantize\"");
  expect_one_line(command({"--ranks", "2", "run"}), 2, "option \"--ranks\" stands before a verb");
  expect_one_line(command({}), 2, "no verb is given; there are run, check");
  expect_one_line(command({"help", "simulate"}), 2, "no verb \"simulate\"");
}

TEST(HostileTest, HelpAndVersionHaveShortNames) {
  EXPECT_EQ(command({"help", "run"}).output, command({"run", "--help"}).output);
  EXPECT_EQ(command({"help"}).output, command({"--help"}).output);
  EXPECT_EQ(command({"-V"}).output, command({"--version"}).output);
  EXPECT_EQ(command({"-V"}).exit_code, 0);
  const CommandResult with_more = command({"--help", "run", "--ranks", "x"});
  EXPECT_EQ(with_more.exit_code, 0) << with_more.error;
  EXPECT_EQ(with_more.output, command({"help", "run"}).output);
  EXPECT_EQ(command({"-V", "run", "--ranks", "x"}).output, command({"-V"}).output);
}

TEST(HostileTest, NumbersThatDoNotFitAreRefused) {
  expect_one_line(command({"run", "--model", kModel, "--seed", "99999999999999999999"}), 2,
                  "--seed");
  expect_one_line(command({"run", "--model", kModel, "--layer", "-1"}), 2, "--layer");
  const std::string huge = std::to_string(std::numeric_limits<std::int64_t>::max());
  expect_one_line(
      command({"run", "--model", kModel, "--ranks", "4", "--split", huge + "," + huge + ",2,8"}), 2,
      "overflows 64 bits");
}

TEST(HostileTest, MatricesWithoutElementsAreCopied) {
  const TempFolder folder;
  for (const char* scheme : {"fp8_block", "nvfp4", "fp8_tensor", "mxfp6_e3m2", "fp8_token"}) {
    const std::string input =
        write_image(folder, "in",
                    R"({"tall":{"dtype":"BF16","shape":[1099511627776,0],"data_offsets":[0,0]},)"
                    R"("wide":{"dtype":"BF16","shape":[0,32],"data_offsets":[0,0]},)"
                    R"("flags":{"dtype":"BOOL","shape":[2],"data_offsets":[64,66]},)"
                    R"("w":{"dtype":"BF16","shape":[1,32],"data_offsets":[0,64]}})",
                    66);
    const CommandResult result =
        command({"quantize", "--in", input, "--out", folder.file("out"), "--scheme", scheme});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    EXPECT_THAT(result.output, HasSubstr("1 matrix quantized")) << scheme;
    EXPECT_THAT(result.output, HasSubstr("3 tensors copied")) << scheme;
    const CommandResult back = command(
        {"quantize", "--dequantize", "--in", folder.file("out"), "--out", folder.file("back")});
    EXPECT_EQ(back.exit_code, 0) << back.error;
    const auto file = SafetensorsFile::open(folder.file("back"));
    EXPECT_EQ(file->find_entry("tall")->shape[0], std::int64_t{1} << 40);
    EXPECT_EQ(file->find_entry("flags")->dtype_name, "BOOL");
  }
}

// A file may claim that a matrix without elements was quantized.
TEST(HostileTest, ClaimedMatricesWithoutElementsComeBackAtOnce) {
  const TempFolder folder;
  const std::string input = write_image(
      folder, "in",
      R"({"__metadata__":{"switchyard.scheme":"fp8_block","switchyard.scale_layout":"row_major",)"
      R"("switchyard.pack_ue8m0":"false","switchyard.quantized":"{\"w\":\"bf16\"}"},)"
      R"("w":{"dtype":"F8_E4M3","shape":[1099511627776,0],"data_offsets":[0,0]},)"
      R"("w.scale":{"dtype":"F32","shape":[1099511627776,0],"data_offsets":[0,0]}})",
      0);
  const CommandResult result =
      command({"quantize", "--dequantize", "--in", input, "--out", folder.file("out")});
  EXPECT_EQ(result.exit_code, 0) << result.error;
}

TEST(HostileTest, PathsThatLeadNowhereAreUsageErrors) {
  const TempFolder folder;
  const std::string none = folder.file("none");
  for (const Arguments& arguments :
       {Arguments{"run", "--model", none}, Arguments{"run", "--model", kModel, "--input", none},
        Arguments{"run", "--model", kModel, "--output", folder.path()},
        Arguments{"run", "--model", kModel, "--output", none + "/x"},
        Arguments{"run", "--model", kModel, "--output", ""},
        Arguments{"run", "--model", kModel, "--dump", ""},
        Arguments{"run", "--model", kModel, "--input", ""}, Arguments{"plan", "--html", ""},
        Arguments{"bench", "--baseline", ""},
        Arguments{"run", "--model", kModel, "--json", folder.path()},
        Arguments{"quantize", "--in", none, "--out", folder.file("x"), "--scheme", "mxfp8"},
        Arguments{"quantize", "--in", none, "--out", "", "--scheme", "mxfp8"},
        Arguments{"bench", "--baseline", none}, Arguments{"bench", "--routing", "trace:" + none},
        Arguments{"bench", "--json", folder.path()}, Arguments{"bench", "--html", folder.path()},
        Arguments{"check", "--json", none + "/x"}, Arguments{"doctor", "--json", none + "/x"}}) {
    expect_one_line(command(arguments), 2, "invalid_argument");
  }
}

TEST(HostileTest, OutputThatCannotBeWrittenIsAnError) {
  for (const std::string arguments :
       {"doctor", "doctor --json", "help run", "check --list",
        "run --ranks 2 --json --model " SWITCHYARD_DATA_DIR "/tiny-moe"}) {
    const CommandResult result =
        run_command({"sh", "-c", SWITCHYARD_CLI " " + arguments + " > /dev/full"});
    EXPECT_EQ(result.exit_code, 3) << arguments;
    EXPECT_THAT(result.error, HasSubstr("system: stdout: the output could not be written"));
    const char* last_line = "\nswitchyard: run: rank 0 of 2: exited with code 3\n";
    if (arguments.starts_with("run")) {
      EXPECT_THAT(result.error, EndsWith(last_line));
    }
  }
}

// What is closed must not become a file or a socket of the command, into which others print.
TEST(HostileTest, ClosedStandardDescriptorsAreNoFilesOfOurs) {
  const TempFolder folder;
  for (const std::string verb :
       {"bench --ranks 2 --tokens 1 --runs 30 --timeout 5000 --workload ",
        "run --ranks 2 --tokens 8 --timeout 5000 --model ", "run --tokens 8 --model "}) {
    const std::string command = SWITCHYARD_CLI " " + verb + kModel;
    const CommandResult no_output = run_command({"sh", "-c", command + " >&-"});
    EXPECT_EQ(no_output.exit_code, 3) << no_output.error;
    EXPECT_THAT(no_output.error, HasSubstr("system: stdout: the output could not be written"));
    const std::string file = folder.file("out");
    const CommandResult only_output =
        run_command({"sh", "-c", command + " --json " + file + " <&- >&- 2>&-"});
    EXPECT_TRUE(nlohmann::json::accept(read_file(file))) << verb;
  }
}

TEST(HostileTest, ReaderThatEndsEarlyIsNoLostRank) {
  const CommandResult result =
      run_command({"bash", "-c",
                   SWITCHYARD_CLI " run --ranks 2 --model " SWITCHYARD_DATA_DIR
                                  "/tiny-moe | true; exit ${PIPESTATUS[0]}"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.error, HasSubstr("system: stdout: the output could not be written"));
  EXPECT_THAT(result.error, ::testing::Not(HasSubstr("lost")));
}

TEST(HostileTest, IgnoredSigchldLosesNoExitCode) {
  for (const char* ranks : {"1", "2"}) {
    const CommandResult result =
        run_command({"env", "--ignore-signal=CHLD", SWITCHYARD_CLI, "run", "--model", kModel,
                     "--tokens", "8", "--ranks", ranks});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    EXPECT_EQ(result.error, "");
  }
}

TEST(HostileTest, PathsThatAreNotUtf8AreReplacedInJsonAndPages) {
  const TempFolder folder;
  const std::string model = folder.file("w\xff");
  std::filesystem::copy(kModel, model);
  const CommandResult json = command({"plan", "--workload", model, "--hosts", "1", "--json"});
  EXPECT_EQ(json.exit_code, 0) << json.error;
  EXPECT_TRUE(nlohmann::json::accept(json.output));
  EXPECT_TRUE(nlohmann::json::accept(command({"run", "--model", model, "--json"}).output));
  const std::string page = folder.file("page.html");
  for (const Arguments& verb :
       {Arguments{"plan", "--hosts", "1"}, Arguments{"bench", "--tokens", "1", "--runs", "30"}}) {
    Arguments arguments = verb;
    arguments.insert(arguments.end(), {"--workload", model, "--html", page});
    const CommandResult result = command(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    EXPECT_THAT(read_file(page), HasSubstr("w\xEF\xBF\xBD")) << verb[0];
    EXPECT_THAT(read_file(page), ::testing::Not(HasSubstr("w\xff"))) << verb[0];
  }
}

TEST(HostileTest, WithoutProcRanksStillRun) {
  const auto without = [](const std::string& arguments) {
    return run_command({"unshare", "-r", "-m", "sh", "-c",
                        "mount -t tmpfs none /proc && exec " SWITCHYARD_CLI " " + arguments});
  };
  if (without("--version").exit_code != 0) GTEST_SKIP() << "no namespaces for this user";
  const TempFolder folder;
  const CommandResult result = without("run --tokens 8 --ranks 2 --model " + std::string(kModel) +
                                       " --json " + folder.file("json"));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_TRUE(nlohmann::json::accept(read_file(folder.file("json"))));
  const CommandResult checked = without("check --filter 'exchange/*/P2/compact/*'");
  EXPECT_EQ(checked.exit_code, 0) << checked.error;
  EXPECT_THAT(checked.output, HasSubstr("/proc is not mounted"));
}

TEST(HostileTest, OutputThroughALinkLeavesLinkAndDevice) {
  const TempFolder folder;
  std::filesystem::create_symlink("/dev/null", folder.file("null"));
  EXPECT_EQ(run({"--tokens", "8", "--output", folder.file("null")}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("null")));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

// The shell's >> must stay an append to the user's file, > a file that both writers share.
TEST(HostileTest, OutputToDevStdoutKeepsTheRedirectedFile) {
  const TempFolder folder;
  const std::string log = folder.write("log", "first line\n");
  const std::string doctor = SWITCHYARD_CLI " doctor --json /dev/stdout ";
  EXPECT_EQ(run_command({"sh", "-c", doctor + ">> " + log}).exit_code, 0);
  EXPECT_THAT(read_file(log), AllOf(StartsWith("first line\n"), HasSubstr("\n{")));
  EXPECT_EQ(
      run_command({"sh", "-c", "(echo before; " + doctor + "; echo after) > " + log}).exit_code, 0);
  EXPECT_THAT(read_file(log), AllOf(StartsWith("before\n"), HasSubstr("\n{"), EndsWith("after\n")));
}

TEST(HostileTest, JsonGoesToStdoutOrAFileInEveryVerb) {
  const TempFolder folder;
  for (const Arguments& verb :
       {Arguments{"run", "--model", kModel, "--tokens", "8"}, Arguments{"doctor"},
        Arguments{"check", "--filter", "placement/linear/E5_P1"}}) {
    for (const Arguments& json : {Arguments{"--json"}, Arguments{"--json", "-"}}) {
      Arguments arguments = verb;
      arguments.insert(arguments.end(), json.begin(), json.end());
      EXPECT_TRUE(nlohmann::json::accept(command(arguments).output)) << verb[0];
    }
    Arguments arguments = verb;
    arguments.insert(arguments.end(), {"--json", folder.file("out.json")});
    const CommandResult result = command(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    EXPECT_FALSE(nlohmann::json::accept(result.output)) << verb[0];
    EXPECT_TRUE(nlohmann::json::accept(read_file(folder.file("out.json")))) << verb[0];
  }
}

TEST(HostileTest, MoreTokensThanMemoryAreRefusedAtOnce) {
  const std::int64_t start = now_ns();
  const TempFolder folder;
  std::filesystem::copy(kModel, folder.path());
  std::filesystem::remove(folder.file("activations.safetensors"));
  for (const char* ranks : {"1", "2"}) {
    expect_one_line(run({"--tokens", "1073741824", "--ranks", ranks}, folder.path()), 3,
                    "out_of_memory: run: ");
  }
  EXPECT_LT(static_cast<double>(now_ns() - start) * 1e-9, 10.0 * SWITCHYARD_SLOWDOWN);
}

// Writes the model's first tokens with these ids and weights.
class InputTest : public ::testing::Test {
 protected:
  std::string input(DType ids_dtype, std::int32_t id, float weight, bool has_ids = true) const {
    const auto real = SafetensorsFile::open(std::string(kModel) + "/activations.safetensors");
    const TensorView all = real->tensor("hidden_states");
    const TensorView hidden(all.data(), all.dtype(), {4, all.shape(1)});
    const std::vector<std::int32_t> ids(16, id);
    const std::vector<float> weights(16, weight);
    std::vector<NamedTensor> tensors{{"hidden_states", hidden},
                                     {"topk_weights", TensorView::of(weights.data(), {4, 4})}};
    if (has_ids) tensors.push_back({"topk_ids", TensorView(ids.data(), ids_dtype, {4, 4})});
    write_safetensors(folder_.file("input"), tensors);
    return folder_.file("input");
  }

  TempFolder folder_;
};

TEST_F(InputTest, WrongInputIsSaidOnceByTheLauncher) {
  const auto expect = [](const std::string& path, const std::string& words) {
    expect_one_line(run({"--ranks", "3", "--input", path}), 2, words);
  };
  expect(input(DType::kI32, 32, 1), "topk_ids[0, 0] of ");
  expect(input(DType::kI32, -2, 1), "is -2, must be an expert from 0 to 31, or -1 for none");
  expect(input(DType::kF32, 1, 1), "topk_ids is f32 [4, 4], must be i32 [4, 4]");
  expect(input(DType::kI32, 1, 1, false), "topk_weights is there, but topk_ids is not");
  expect(input(DType::kI32, 1, 1), "name expert 1 twice for token 0, --prepare low_latency has");
  EXPECT_EQ(
      run({"--prepare", "elastic_prefill", "--ranks", "3", "--input", input(DType::kI32, 1, 1)})
          .exit_code,
      0);
}

TEST_F(InputTest, WeightsThatAreNoNumbersAreCounted) {
  const nlohmann::json json = run_json({"--input", input(DType::kI32, -1, NAN)});
  EXPECT_EQ(json["bad_weights"], 16);
  const CommandResult text = run({"--input", input(DType::kI32, -1, INFINITY)});
  EXPECT_THAT(text.output, HasSubstr("note: 16 topk_weights of the input are NaN or infinite"));
}

TEST(HostileTest, EnvironmentsThatCannotWorkAreRefusedAtOnce) {
  const auto with = [](const Arguments& variables) {
    Arguments arguments{"env"};
    arguments.insert(arguments.end(), variables.begin(), variables.end());
    arguments.insert(arguments.end(), {SWITCHYARD_CLI, "run", "--model", kModel});
    return run_command(arguments);
  };
  expect_one_line(with({"RANK=0", "WORLD_SIZE=1000000"}), 2,
                  "1000000 ranks, must name from 1 to 4096");
  expect_one_line(with({"WORLD_SIZE=2"}), 2, "WORLD_SIZE is 2, but RANK is not set");
  expect_one_line(
      with({"RANK=0", "WORLD_SIZE=2", "SWITCHYARD_STORE=tcp://127.0.0.1:0", "SWITCHYARD_SECRET=x"}),
      2, "must be a port from 1 to 65535");
}

}  // namespace
}  // namespace switchyard::test
