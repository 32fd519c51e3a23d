// SPDX-License-Identifier: Apache-2.0
//
// `bench` between GPUs of several hosts: right results, bytes that are counted, times of messages.
// Ranks are processes, which may share a GPU.

#include <cstdio>
#include <functional>

#include <nlohmann/json.hpp>

#include "bench_run.h"
#include "on_hosts.h"

namespace switchyard {
namespace {

using namespace test;
using nlohmann::json;

constexpr double kHidden = 2048;  // of qwen3-30b

cli::BenchOptions options_of_graphs() {
  cli::BenchOptions options;
  options.device = "cuda";
  options.workload = "qwen3-30b";
  options.tokens = "1,40";
  options.runs = 5;  // ranks that share a GPU take milliseconds for a call
  options.graph = true;
  return options;
}

// What each rank does; rank 0 returns the rows, the others null.
json rows_of(const Group& group, const cli::BenchOptions& options) {
  const cli::BenchReport report = cli::run_bench(
      group, options, [](const std::string& text) { std::fputs(text.c_str(), stdout); });
  if (group.rank() != 0) return nullptr;
  EXPECT_TRUE(report.is_ok());
  const json all = json::parse(cli::to_json(report));
  EXPECT_EQ(all["settings"]["hosts"], report.num_hosts);
  for (const json& row : all["rows"]) {
    EXPECT_EQ(row["wrong"], 0);
    EXPECT_GT(row["p50_us"], 0);
    EXPECT_GT(row["host_us"], 0);
    EXPECT_EQ(row["floor_us"], std::max(row["host_us"], row["inside_us"]));
    EXPECT_EQ(row["method"].get<std::string>().starts_with("graph"), options.graph);
    EXPECT_GT(row["host_bytes_per_token"], 0);
    EXPECT_NEAR(row["host_bytes_per_token"].get<double>(),
                row["host_dispatch"]["bytes_per_token"].get<double>() +
                    row["host_combine"]["bytes_per_token"].get<double>(),
                1);
  }
  return all["rows"];
}

double per_token(const json& row, const char* call) { return row[call]["bytes_per_token"]; }

class BenchHostsCudaTest : public HostsTest {};

// Messages have room for all tokens: each crosses once to every other host, whatever the routing
// is, as codes; at least one row of bf16 comes back.
TEST_F(BenchHostsCudaTest, PairsAreRightInGraphsAndAlone) {
  for (const Hosts& hosts : {kTwo, kTwoTimesTwo, kThreeAndOne, kThree}) {
    SCOPED_TRACE(text_of(hosts));
    const double num_others = hosts == kThree ? 2 : 1;
    run_on_hosts(hosts, [&](const Group& group) {
      for (const bool is_graph : {true, false}) {
        cli::BenchOptions options = options_of_graphs();
        options.graph = is_graph;
        const json rows = rows_of(group, options);
        if (group.rank() != 0) continue;
        for (const json& row : rows) {
          EXPECT_GE(per_token(row, "host_dispatch"), num_others * kHidden);
          EXPECT_GE(per_token(row, "host_combine"), num_others * 2 * kHidden);
        }
        EXPECT_LE(per_token(rows[1], "host_dispatch"), num_others * 1.2 * kHidden);
      }
    });
  }
}

TEST_F(BenchHostsCudaTest, OperationsAloneCountTheirBytes) {
  run_on_hosts(kTwo, [](const Group& group) {
    for (const char* op : {"dispatch", "combine"}) {
      cli::BenchOptions options = options_of_graphs();
      options.op = op;
      options.layout = "batched";
      const json rows = rows_of(group, options);
      if (group.rank() != 0) continue;
      const bool is_dispatch = options.op == "dispatch";
      EXPECT_EQ(rows[0]["host_dispatch"]["bytes"] > 0, is_dispatch);
      EXPECT_EQ(rows[0]["host_combine"]["bytes"] > 0, !is_dispatch);
    }
  });
}

// With two ranks on each host, per_rank has room for a row of either.
TEST_F(BenchHostsCudaTest, PerHostReturnsHalfAsMuch) {
  run_on_hosts(kTwoTimesTwo, [](const Group& group) {
    std::vector<double> bytes;
    for (const char* reduce : {"per_rank", "per_host"}) {
      cli::BenchOptions options = options_of_graphs();
      options.reduce = reduce;
      options.layers = 2;
      const json rows = rows_of(group, options);
      if (group.rank() == 0) bytes.push_back(per_token(rows[1], "host_combine"));
    }
    if (group.rank() != 0) return;
    EXPECT_GE(bytes[0], 2 * 2 * kHidden);
    EXPECT_LE(bytes[1], 1.1 * 2 * kHidden);
  });
}

// The experts of a token are all on one host, so about half of the tokens cross; graphs have
// messages of fixed size.
TEST_F(BenchHostsCudaTest, ExactMessagesCarryWhatCrosses) {
  run_on_hosts(kTwo, [](const Group& group) {
    for (const bool is_graph : {false, true}) {
      cli::BenchOptions options = options_of_graphs();
      options.graph = is_graph;
      options.exact_messages = true;
      options.routing = "limited:8:1";
      const json rows = rows_of(group, options);
      if (group.rank() != 0) continue;
      EXPECT_EQ(per_token(rows[1], "host_combine") < 0.7 * 2 * kHidden, !is_graph);
    }
  });
}

TEST_F(BenchHostsCudaTest, CapacityIsTheSizeOfMessages) {
  run_on_hosts(kTwo, [](const Group& group) {
    cli::BenchOptions options = options_of_graphs();
    options.tokens = "64";
    options.host_capacity = 56;
    options.routing = "limited:8:1";
    const json rows = rows_of(group, options);
    if (group.rank() != 0) return;
    EXPECT_NEAR(per_token(rows[0], "host_combine"), 0.875 * 2 * kHidden, 0.1 * kHidden);
  });
}

TEST_F(BenchHostsCudaTest, LayersCountEveryMicroBatch) {
  run_on_hosts(kTwo, [](const Group& group) {
    cli::BenchOptions options = options_of_graphs();
    options.op = "layer";
    options.tokens = "8";
    options.micro_batches = 2;
    const json rows = rows_of(group, options);
    if (group.rank() != 0) return;
    EXPECT_GE(per_token(rows[0], "host_combine"), 2 * kHidden);
    EXPECT_LE(per_token(rows[0], "host_combine"), 1.1 * 2 * kHidden);
  });
}

}  // namespace
}  // namespace switchyard
