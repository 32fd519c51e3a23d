// SPDX-License-Identifier: Apache-2.0
//
// What `bench` reads and writes, tested without running it: baselines, text, JSON, page and charts.

#include "bench_report.h"

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "bench_baseline.h"
#include "bench_html.h"
#include "chart.h"
#include "support/errors.h"

namespace switchyard::test {
namespace {

using cli::Baseline;
using cli::BenchReport;
using cli::BenchRow;
using measure::Operation;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kPeers = SWITCHYARD_SOURCE_DIR "/bench/peers/2026-11-h200-8.json";

measure::BenchShape shape_of(Operation operation, std::int64_t num_tokens) {
  measure::BenchShape shape;
  shape.workload = measure::find_workload("deepseek-v3");
  shape.num_ranks = 8;
  shape.num_tokens = num_tokens;
  shape.operation = operation;
  return shape;
}

BenchReport report_of(std::int64_t num_wrong, bool has_budgets) {
  BenchReport report;
  report.num_ranks = 8;
  report.engine = "shm";
  report.workload = measure::find_workload("deepseek-v3");
  report.machine = {{"gpu", "8x <H200>"}, {"driver", "580"}};
  report.baseline = cli::read_baseline(kPeers);
  if (has_budgets) report.options.sms = "8,64";
  for (const int sms : has_budgets ? std::vector<int>{8, 64} : std::vector<int>{0}) {
    measure::FloorModel floor;
    floor.bytes = measure::FloorBytes::kWire;
    floor.start_us = 3.5;
    floor.rate = {{1e6, 346}};
    floor.saved_us = 0.3;
    floor.wire = {{"16-byte stores", 8, 340}, {"16-byte stores", 64, 344}, {"bulk copies", 8, 346}};
    floor.constants = {{"launch", 0.5, "us"}};
    report.floors.push_back({sms, floor});
    for (const std::int64_t tokens : {1, 128}) {
      BenchRow row;
      row.shape = shape_of(Operation::kPair, tokens);
      row.shape.num_sms = sms;
      row.p50_us = tokens == 1 ? 9 : 54;
      row.p99_us = row.p50_us + 2;
      row.wire_bytes = tokens * 100'000;
      row.floor_us = tokens == 1 ? 7.3 : 44.4;
      row.method = "graph";
      row.num_wrong = num_wrong;
      row.baseline = cli::best_of(*report.baseline, row.shape);
      report.rows.push_back(row);
    }
  }
  return report;
}

TEST(BenchBaselineTest, PeersFileIsReadAndTheFastestRowIsTaken) {
  const Baseline peers = cli::read_baseline(kPeers);
  EXPECT_THAT(peers.machine, HasSubstr("H200"));
  EXPECT_GT(peers.rows.size(), 40u);
  const auto best = cli::best_of(peers, shape_of(Operation::kPair, 128));
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(best->name, "DeepEP V2, 64 SMs");
  EXPECT_EQ(best->us, 87.3);
  measure::BenchShape layers = shape_of(Operation::kPair, 1);
  layers.num_layers = 61;
  EXPECT_DOUBLE_EQ(cli::best_of(peers, layers)->us, 61 * 31.9);
  EXPECT_FALSE(cli::best_of(peers, shape_of(Operation::kPair, 2)).has_value());
  measure::BenchShape other = shape_of(Operation::kPair, 128);
  other.num_ranks = 4;
  EXPECT_FALSE(cli::is_comparable(peers, other));
  EXPECT_FALSE(cli::best_of(peers, other).has_value());
}

TEST(BenchBaselineTest, PeersOfFourGpusMatchTheOperationTokensAndSms) {
  const Baseline peers =
      cli::read_baseline(SWITCHYARD_SOURCE_DIR "/bench/peers/2026-11-h200x4.json");
  const auto best = [&](Operation operation, std::int64_t num_tokens, int num_sms) {
    measure::BenchShape shape = shape_of(operation, num_tokens);
    shape.num_ranks = 4;
    shape.num_sms = num_sms;
    const auto row = cli::best_of(peers, shape);
    return row ? std::pair(row->name, row->us) : std::pair(std::string(), 0.0);
  };
  EXPECT_EQ(best(Operation::kPair, 128, 0), std::pair(std::string("FlashInfer one-sided"), 35.17));
  EXPECT_EQ(best(Operation::kDispatch, 4096, 0).second, 257.38);
  EXPECT_EQ(best(Operation::kCombine, 128, 24).second, 58.06);
  EXPECT_EQ(best(Operation::kCombine, 128, 8).second, 0);
  EXPECT_EQ(best(Operation::kPair, 2, 0).second, 0);
  for (const std::int64_t tokens : {1, 8, 32, 64, 128, 512, 4096, 8192}) {
    EXPECT_GT(best(Operation::kPair, tokens, 0).second, 0) << tokens;
  }
}

TEST(BenchBaselineTest, SmsAreThoseThatTheModeNames) {
  const auto sms = [](const char* mode) {
    return cli::sms_of({"a", mode, Operation::kPair, 1, 1});
  };
  EXPECT_EQ(sms("CUDA graph, 64 SMs"), 64);
  EXPECT_EQ(sms("24 SMs, layout new"), 24);
  EXPECT_EQ(sms("1 SM"), 1);
  EXPECT_EQ(sms("CUDA graph"), 0);
  EXPECT_EQ(cli::sms_of({"DeepEP V2, 64 SMs", "kernel", Operation::kPair, 1, 1}), 64);
  EXPECT_EQ(sms("sm_90, SMs unknown"), 0);
}

TEST(BenchBaselineTest, WrittenIsReadAgain) {
  const Baseline peers = cli::read_baseline(kPeers);
  const Baseline again = cli::parse_baseline(cli::to_json(peers), "again");
  EXPECT_EQ(again.source, peers.source);
  ASSERT_EQ(again.rows.size(), peers.rows.size());
  EXPECT_EQ(again.rows.back().us, peers.rows.back().us);
  EXPECT_EQ(again.rows.back().operation, peers.rows.back().operation);
}

TEST(BenchBaselineTest, MalformedFilesAreNamedWithKeyAndValue) {
  const auto parse = [](const std::string& rows, const std::string& head = R"("machine": "m",)") {
    return [=] {
      cli::parse_baseline("{" + head + R"("source": "s", "hidden": 8, "experts": 4, "topk": 2,
                          "ranks": 2, "rows": )" +
                              rows + "}",
                          "peer.json");
    };
  };
  EXPECT_NO_THROW(parse("[]")());
  const std::string row = R"([{"name": "a", "op": "pair", "tokens": 1, "us": )";
  expect_error(Errc::kMalformedFile, "us is 0", parse(row + "0}]"));
  expect_error(Errc::kMalformedFile, "us is \"x\"", parse(row + "\"x\"}]"));
  expect_error(Errc::kMalformedFile, "op is \"sum\"",
               parse(R"([{"name": "a", "op": "sum", "tokens": 1, "us": 1}])"));
  expect_error(Errc::kMalformedFile, "tokens is 0",
               parse(R"([{"name": "a", "op": "pair", "tokens": 0, "us": 1}])"));
  expect_error(Errc::kMalformedFile, "rows is 3", parse("3"));
  expect_error(Errc::kMalformedFile, "machine", parse("[]", ""));
  expect_error(Errc::kMalformedFile, "peer.json", parse("["));
}

TEST(BenchReportTest, WrongElementsAreSaidEverywhere) {
  const BenchReport right = report_of(0, false);
  EXPECT_TRUE(right.is_ok());
  EXPECT_EQ(cli::footer_text(right), "");
  EXPECT_THAT(cli::to_html(right), Not(HasSubstr("class=\"bad\"")));
  const BenchReport wrong = report_of(5, false);
  EXPECT_FALSE(wrong.is_ok());
  EXPECT_THAT(cli::footer_text(wrong), HasSubstr("WRONG"));
  EXPECT_THAT(cli::to_html(wrong), HasSubstr("<td class=\"bad\">5</td>"));
  EXPECT_EQ(nlohmann::json::parse(cli::to_json(wrong))["ok"], false);
}

TEST(BenchReportTest, RowsHaveTimesSharesAndBaseline) {
  const BenchReport report = report_of(0, false);
  EXPECT_THAT(cli::header_text(report), HasSubstr("switchyard 0.1.0 on 8x <H200>\ndriver   580\n"));
  EXPECT_EQ(cli::row_text(report, report.rows[1]),
            "     128        54.0        56.0     237.04        44.4      82 %      0  graph  "
            "         87.3   1.62x  DeepEP V2, 64 SMs\n");
}

TEST(BenchReportTest, BudgetsGetColumnsAndAChart) {
  const BenchReport report = report_of(0, true);
  EXPECT_THAT(
      cli::header_text(report),
      HasSubstr("floor    8 SMs: wire 346 GB/s by bulk copies of 8 CTAs (16-byte stores 344 of "
                "64), launch 0.5 us\n"));
  EXPECT_THAT(cli::row_text(report, report.rows[0]), ::testing::StartsWith("   8       1"));
  EXPECT_THAT(cli::to_html(report), HasSubstr("Time against SMs"));
  EXPECT_THAT(cli::to_html(report_of(0, false)), Not(HasSubstr("Time against SMs")));
  EXPECT_EQ(nlohmann::json::parse(cli::to_json(report))["floors"][1]["sms"], 64);
}

TEST(BenchReportTest, FloorNamesTheFastestWayOverTheWire) {
  const BenchReport report = report_of(0, false);
  const nlohmann::json floor = nlohmann::json::parse(cli::to_json(report))["floors"][0];
  EXPECT_EQ(floor["wire"]["by"], "bulk copies");
  EXPECT_EQ(floor["wire"]["ctas"], 8);
  EXPECT_EQ(floor["wire"]["gb_per_second"], 346);
  EXPECT_EQ(floor["wire"]["tried"].size(), 3u);
  EXPECT_EQ(floor["saved_us"], 0.3);
  const std::string page = cli::to_html(report);
  EXPECT_THAT(page, HasSubstr("wire 346 GB/s by bulk copies of 8 CTAs"));
  EXPECT_THAT(page, HasSubstr("<h2>The wire</h2>"));
  EXPECT_THAT(page, HasSubstr("16-byte stores of 64 CTAs: 344 GB/s"));
  BenchReport cpu = report;
  cpu.floors[0].model.wire.clear();
  EXPECT_TRUE(nlohmann::json::parse(cli::to_json(cpu))["floors"][0]["wire"].is_null());
  EXPECT_THAT(cli::to_html(cpu), Not(HasSubstr("<h2>The wire</h2>")));
}

TEST(BenchReportTest, MissingProgrammaticLaunchesAreSaidEverywhere) {
  BenchReport report = report_of(0, false);
  for (const bool pdl : {false, true}) {
    report.options.device = "cuda";
    report.options.pdl = pdl;
    const auto has = [&](const std::string& text) {
      return text.find("no programmatic launches") != std::string::npos;
    };
    EXPECT_EQ(has(cli::header_text(report)), !pdl);
    EXPECT_EQ(has(cli::to_html(report)), !pdl);
    EXPECT_EQ(nlohmann::json::parse(cli::to_json(report))["settings"]["pdl"], pdl);
  }
}

TEST(BenchReportTest, CallsApartAreColumnsWhereAskedFor) {
  BenchReport report = report_of(0, false);
  EXPECT_THAT(cli::header_text(report), Not(HasSubstr("apart us")));
  report.options.cold_code = true;
  report.options.skew = true;
  report.options.seed = 5;
  for (BenchRow& row : report.rows) {
    row.apart_us = row.p50_us + 1;
    row.cold_us = row.p50_us + 4;
    row.skewed_us = row.p50_us + 2;
  }
  EXPECT_THAT(cli::header_text(report), HasSubstr("ranks late by a random 0 to 50 us (seed 5)"));
  EXPECT_THAT(cli::header_text(report), HasSubstr("method   apart us   cold us  skewed us"));
  EXPECT_THAT(cli::row_text(report, report.rows[1]),
              HasSubstr("graph        55.0      58.0       56.0"));
  const nlohmann::json json = nlohmann::json::parse(cli::to_json(report));
  EXPECT_EQ(json["settings"]["cold_code"], true);
  EXPECT_EQ(json["settings"]["skew"], true);
  EXPECT_EQ(json["rows"][1]["apart_us"], 55);
  EXPECT_EQ(json["rows"][1]["cold_us"], 58);
  EXPECT_EQ(json["rows"][1]["skewed_us"], 56);
  const std::string page = cli::to_html(report);
  EXPECT_THAT(page, HasSubstr("<th>cold code</th><th>skewed</th>"));
  EXPECT_THAT(page, HasSubstr("ranks late by a random 0 to 50 us"));
}

TEST(BenchReportTest, GpusOfSeveralHostsHaveBytesByCallAndMessagesAlone) {
  BenchReport report = report_of(0, false);
  report.baseline.reset();
  report.num_hosts = 2;
  report.has_several_hosts = true;
  report.options.host_capacity = 64;
  for (BenchRow& row : report.rows) {
    row.baseline.reset();
    row.host_crossings = 0.5;
    row.host_bytes = 21504;
  }
  EXPECT_THAT(cli::header_text(report), Not(HasSubstr("hosts us")));  // CPUs
  EXPECT_FALSE(nlohmann::json::parse(cli::to_json(report))["rows"][1].contains("host_us"));
  report.options.device = "cuda";
  for (BenchRow& row : report.rows) {
    row.inside_us = 12.5;
    row.host_us = row.floor_us = 44.4;
    row.host_dispatch = {7168.5, 940'000};
    row.host_combine = {14336, 1'900'000};
  }
  const std::string header = cli::header_text(report);
  EXPECT_THAT(header, HasSubstr("floor    inside a host: wire 346 GB/s by"));
  EXPECT_THAT(header, HasSubstr("messages of 64 tokens"));
  EXPECT_THAT(header, HasSubstr("  bytes/token dispatch bytes combine bytes   hosts us\n"));
  EXPECT_THAT(cli::row_text(report, report.rows[1]),
              HasSubstr("0.50        21504         940000       1900000       44.4\n"));
  const nlohmann::json json = nlohmann::json::parse(cli::to_json(report));
  EXPECT_EQ(json["settings"]["hosts"], 2);
  EXPECT_EQ(json["settings"]["host_capacity"], 64);
  EXPECT_EQ(json["settings"]["exact_messages"], false);
  const nlohmann::json& row = json["rows"][1];
  EXPECT_EQ(row["host_bytes_per_token"], 21504);
  EXPECT_EQ(row["host_dispatch"]["bytes_per_token"], 7168.5);
  EXPECT_EQ(row["host_dispatch"]["bytes"], 940'000);
  EXPECT_EQ(row["host_combine"]["bytes"], 1'900'000);
  EXPECT_EQ(row["host_us"], 44.4);
  EXPECT_EQ(row["inside_us"], 12.5);
  EXPECT_EQ(row["floor_us"], 44.4);
  const std::string page = cli::to_html(report);
  EXPECT_THAT(page, HasSubstr("<th>combine bytes to hosts</th><th>hosts</th>"));
  EXPECT_THAT(page, HasSubstr("<td>940000</td><td>1900000</td><td>44.4 us</td>"));
}

TEST(BenchReportTest, StagesAreATableAndAPicture) {
  BenchReport report = report_of(0, false);
  EXPECT_EQ(cli::stages_text(report.rows[0]), "");
  EXPECT_THAT(cli::to_html(report), Not(HasSubstr("<h2>Stages")));
  report.rows[0].stages = {{"dispatch", "send", "first store", 0.5, 0.75, 2, 40},
                           {"combine", "-", "gap", 0.2, 0.3, 0.4, 20}};
  EXPECT_THAT(cli::stages_text(report.rows[0]),
              HasSubstr("  dispatch  send      first store              0.50     0.75     2.00"));
  const nlohmann::json json = nlohmann::json::parse(cli::to_json(report));
  EXPECT_EQ(json["rows"][0]["stages"][1]["stage"], "gap");
  EXPECT_EQ(json["rows"][0]["stages"][0]["median_us"], 0.75);
  EXPECT_FALSE(json["rows"][1].contains("stages"));
  const std::string page = cli::to_html(report);
  EXPECT_THAT(page, HasSubstr("<h2>Stages, 1 tokens</h2>"));
  EXPECT_THAT(page, HasSubstr("dispatch, send: first store: 0.75, 0.50 to 2.00"));
}

TEST(BenchReportTest, PageEscapesWhatItShows) {
  const std::string page = cli::to_html(report_of(0, false));
  EXPECT_THAT(page, HasSubstr("8x &lt;H200&gt;"));
  EXPECT_THAT(page, Not(HasSubstr("<H200>")));
}

TEST(ChartTest, RangesOfNoLengthAreStillAChart) {
  EXPECT_EQ(cli::range_chart({}, {}), "");
  const std::string svg = cli::range_chart({"t", "x", ""}, {{"one", "--ours", 0, 0, 0}});
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

// Charts of one point or none must not divide by zero.
TEST(ChartTest, FewPointsAreStillAChart) {
  EXPECT_EQ(cli::line_chart({}, {}), "");
  EXPECT_EQ(cli::percent_chart({}, {}, {}), "");
  const cli::ChartSeries one{"one", "--ours", false, true, {{8, 3, "a"}}};
  for (const std::string& svg :
       {cli::line_chart({"t", "x", "y"}, {one}), cli::percent_chart({"t", "x", "y"}, one, {})}) {
    EXPECT_THAT(svg, HasSubstr("</svg>"));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
}

}  // namespace
}  // namespace switchyard::test
