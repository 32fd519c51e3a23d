// SPDX-License-Identifier: Apache-2.0

#include "run_report.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include <nlohmann/json.hpp>

#include "switchyard/version.h"

#include "core/fail.h"
#include "gather_records.h"
#include "group_hosts.h"
#include "io/safetensors.h"
#include "measure/gather.h"
#include "quant/scalar.h"

namespace switchyard::cli {
namespace {

// What a rank leaves in its window for rank 0; arrays follow, see RecordLayout.
struct RankRecord {
  std::int64_t num_rows;
  std::int64_t host_crossings;
  std::int64_t dispatch_bytes;
  std::int64_t combine_bytes;
  std::int64_t window_bytes;
  std::int64_t workspace_bytes;
  std::array<std::int64_t, kNumStages> stage_ns;
  std::int64_t num_received;
  std::array<char, 64> gpu;  ///< name, truncated and zero-padded
  bool is_shared_gpu;
};

struct RecordLayout {
  std::size_t experts = 0;   ///< offset of [E] i64
  std::size_t received = 0;  ///< offset of the ReceivedRows
  std::size_t ids = 0;       ///< offset of [T, K] i32
  std::size_t weights = 0;   ///< offset of [T, K] f32
  std::size_t output = 0;    ///< offset of [T, H]
  std::size_t bytes = 0;
};

// `max_received` is the largest number of received rows of any rank.
RecordLayout record_layout(const RankResult& result, std::size_t max_received) {
  std::int64_t most = 0;
  for (std::size_t r = 1; r < result.first_token.size(); ++r) {
    most = std::max(most, result.first_token[r] - result.first_token[r - 1]);
  }
  RecordLayout layout;
  layout.experts = sizeof(RankRecord);
  layout.received = layout.experts + result.expert_rows.size() * sizeof(std::int64_t);
  layout.ids = layout.received + max_received * sizeof(ReceivedRow);
  const auto choices = static_cast<std::size_t>(most * result.config.num_topk());
  layout.weights = layout.ids + choices * sizeof(std::int32_t);
  layout.output = layout.weights + choices * sizeof(float);
  const std::int64_t row_bytes = result.config.hidden * bits_of(result.output.dtype()) / 8;
  layout.bytes = layout.output + static_cast<std::size_t>(most * row_bytes);
  return layout;
}

void leave_record(std::byte* to, const RecordLayout& layout, const RankResult& result) {
  RankRecord record{result.num_rows,
                    result.host_crossings,
                    result.dispatch_bytes,
                    result.combine_bytes,
                    result.window_bytes,
                    result.workspace_bytes,
                    result.stage_ns,
                    static_cast<std::int64_t>(result.received.size()),
                    {},
                    result.is_shared_gpu};
  result.gpu.copy(record.gpu.data(), record.gpu.size() - 1);
  std::memcpy(to, &record, sizeof(record));
  std::ranges::copy(std::as_bytes(std::span(result.expert_rows)), to + layout.experts);
  std::ranges::copy(std::as_bytes(std::span(result.received)), to + layout.received);
  const auto leave = [&](std::size_t at, const Tensor& tensor) {
    if (tensor.view().num_bytes() > 0) {
      std::memcpy(to + at, tensor.data(), tensor.view().num_bytes());
    }
  };
  leave(layout.ids, result.topk_ids);
  leave(layout.weights, result.topk_weights);
  leave(layout.output, result.output);
}

RankTrace read_trace(const std::byte* from, const RecordLayout& layout, std::int64_t num_tokens,
                     std::int64_t num_topk) {
  RankRecord record{};
  std::memcpy(&record, from, sizeof(record));
  RankTrace trace;
  trace.rows.resize(static_cast<std::size_t>(record.num_received));
  const std::span rows = std::as_writable_bytes(std::span(trace.rows));
  std::copy_n(from + layout.received, rows.size(), rows.begin());
  trace.topk_ids = Tensor(DType::kI32, {num_tokens, num_topk});
  trace.topk_weights = Tensor(DType::kF32, {num_tokens, num_topk});
  const std::size_t bytes = trace.topk_ids.view().num_bytes();
  if (bytes == 0) return trace;
  std::memcpy(trace.topk_ids.data(), from + layout.ids, bytes);
  std::memcpy(trace.topk_weights.data(), from + layout.weights, bytes);
  return trace;
}

Spread spread_of(std::vector<std::int64_t> ns) {
  std::sort(ns.begin(), ns.end());
  const auto us = [](std::int64_t value) { return static_cast<double>(value) * 1e-3; };
  const std::size_t half = ns.size() / 2;
  const double median = ns.size() % 2 == 1 ? us(ns[half]) : (us(ns[half - 1]) + us(ns[half])) / 2;
  return {us(ns.front()), median, us(ns.back())};
}

// A file that names no layer is taken for the first one's.
std::string why_not_of(const RunReference& reference, const RunReport& report) {
  const std::string layer = std::to_string(report.layer);
  if (!reference.layer.empty()) {
    return reference.layer == layer ? "" : fmt::format("is of layer {}", reference.layer);
  }
  if (report.options.layer < 0) return {};
  const int first = first_moe_layer(Checkpoint(report.options.model), report.config);
  return report.layer == first
             ? ""
             : fmt::format(
                   "names no layer and is taken for the first one's, {}; name it in the "
                   "metadata: \"layer\": \"{}\"",
                   first, layer);
}

void compare_with_reference(RunReport& report, const RunReference& given) {
  const Tensor& reference = given.output;
  if (!reference.view().has_value() || reference.view().num_elements() == 0) return;
  report.reference_source = given.source;
  report.other_layer = why_not_of(given, report);
  if (!report.other_layer.empty()) return;
  double error = 0;
  double norm = 0;
  double max_abs = 0;
  for (std::int64_t i = 0; i < reference.view().num_elements(); ++i) {
    const double want = reference.as<float>()[i];
    const double off = scalar::load(report.output.data(), report.output.dtype(), i) - want;
    error += off * off;
    norm += want * want;
    max_abs = std::isnan(off) ? off : std::max(max_abs, std::abs(off));
  }
  report.rel_l2 = error == 0 ? 0 : std::sqrt(error / norm);
  report.max_abs = max_abs;
}

void read_record(RunReport& report, const std::byte* from, const RecordLayout& layout,
                 std::int64_t first_token, std::int64_t num_tokens,
                 std::array<std::vector<std::int64_t>, kNumStages>& stage_ns) {
  RankRecord record{};
  std::memcpy(&record, from, sizeof(record));
  report.tokens_per_rank.push_back(num_tokens);
  report.rows_per_rank.push_back(record.num_rows);
  report.host_crossings += record.host_crossings;
  report.window_bytes = std::max(report.window_bytes, record.window_bytes);
  report.workspace_bytes = std::max(report.workspace_bytes, record.workspace_bytes);
  for (std::size_t s = 0; s < kNumStages; ++s) stage_ns[s].push_back(record.stage_ns[s]);
  if (report.is_on_gpus()) report.gpus.emplace_back(record.gpu.data());
  report.is_shared_gpu = report.is_shared_gpu || record.is_shared_gpu;
  report.stages[1].wire_bytes += record.dispatch_bytes;
  report.stages[4].wire_bytes += record.combine_bytes;
  for (std::size_t e = 0; e < report.rows_per_expert.size(); ++e) {
    std::int64_t rows = 0;
    std::memcpy(&rows, from + layout.experts + e * sizeof(rows), sizeof(rows));
    report.rows_per_expert[e] += rows;
  }
  const std::int64_t row_bytes = report.config.hidden * bits_of(report.output.dtype()) / 8;
  std::memcpy(report.output.as<std::byte>() + first_token * row_bytes, from + layout.output,
              static_cast<std::size_t>(num_tokens * row_bytes));
}

}  // namespace

double rel_l2_bound(const std::string& scheme) {
  struct Bound {
    const char* scheme;
    double rel_l2;
  };
  constexpr std::array<Bound, 15> kBounds{{{"none", 5e-3},
                                           {"fp8_block", 3.3e-2},
                                           {"fp8_block_deepep", 3.3e-2},
                                           {"fp8_ue8m0", 3.8e-2},
                                           {"fp8_ue8m0_deepep", 3.8e-2},
                                           {"fp8_token", 3.3e-2},
                                           {"fp8_tensor", 3.8e-2},
                                           {"int8_token", 1.9e-2},
                                           {"int8_tensor", 4.9e-2},
                                           {"int8_block", 5.4e-2},
                                           {"nvfp4", 1.3e-1},
                                           {"mxfp4", 1.9e-1},
                                           {"mxfp6_e3m2", 7.5e-2},
                                           {"mxfp6_e2m3", 4.9e-2},
                                           {"mxfp8", 3.8e-2}}};
  const auto* found = std::find_if(kBounds.begin(), kBounds.end(),
                                   [&](const Bound& bound) { return scheme == bound.scheme; });
  require(found != kBounds.end(), Errc::kInternal, "rel_l2_bound: no bound for scheme {}", scheme);
  return found->rel_l2;
}

std::int64_t RunReport::wire_bytes() const {
  std::int64_t bytes = 0;
  for (const StageReport& stage : stages) bytes += stage.wire_bytes;
  return bytes;
}

double RunReport::bound() const {
  constexpr double kF32Bound = 1e-5;
  return output.dtype() == DType::kF32 ? kF32Bound : rel_l2_bound(options.scheme);
}

bool RunReport::is_ok() const { return oracle.is_ok() && (!is_judged() || *rel_l2 <= bound()); }

RunReport gather_report(const Group& group, const RunOptions& options, const RankResult& result) {
  const double received =
      measure::max_over_ranks(group, {static_cast<double>(result.received.size())}).front();
  const RecordLayout layout = record_layout(result, static_cast<std::size_t>(received));
  RunReport report;
  RunTrace trace{options, result, {}, {}, {}};
  if (group.rank() == 0) {
    report.options = options;
    report.config = result.config;
    report.layer = result.layer;
    report.engine = group.engine_name();
    report.heap = result.heap;
    report.wire_scheme = name_of(result.run_config.wire_scheme());
    report.reduce = name_of(result.run_config.reduce());
    report.tensor_scale = result.run_config.prepare.static_scale;
    report.input_source = result.input_source;
    report.has_routing = result.has_routing;
    report.num_ranks = group.size();
    report.num_tokens = result.first_token.back();
    report.output =
        Tensor(result.output.dtype(), {report.num_tokens, std::int64_t{result.config.hidden}});
    report.rounds_input = rounds_input(options, result.config);
    report.rows_per_expert.assign(result.expert_rows.size(), 0);
    for (const char* name : kStageNames) report.stages.push_back({name, {}, 0});
  }
  std::array<std::vector<std::int64_t>, kNumStages> stage_ns;
  gather_records(
      group, layout.bytes, [&](std::byte* record) { leave_record(record, layout, result); },
      [&](int rank, const std::byte* record) {
        const auto r = static_cast<std::size_t>(rank);
        read_record(report, record, layout, result.first_token[r],
                    result.first_token[r + 1] - result.first_token[r], stage_ns);
        trace.ranks.push_back(read_trace(record, layout,
                                         result.first_token[r + 1] - result.first_token[r],
                                         result.config.num_topk()));
      });
  if (group.rank() == 0) {
    const HostsOfRanks hosts = hosts_of(group, "run", options.hosts);
    report.num_hosts = count_hosts(hosts);
    for (std::size_t s = 0; s < kNumStages; ++s) report.stages[s].us = spread_of(stage_ns[s]);
    if (group.size() > 1 && options.prepare != "local") {
      report.balance = balance_of(report.rows_per_expert, group.size(), count_even_hosts(hosts),
                                  result.config.router.num_groups);
    }
    const RunReference reference = load_run_reference(options, result.config);
    report.num_bad_weights = reference.num_bad_weights;
    compare_with_reference(report, reference);
    const HostsOfRanks own = hosts_of(group, "run", has_several_hosts(group) ? options.hosts : 1);
    trace.hosts.assign(own.begin(), own.end());
    trace.output = report.output;
    report.oracle = compare_with_oracle(trace);
  }
  return report;
}

static nlohmann::ordered_json to_json(const OracleReport& oracle) {
  const auto text = [](const std::string& value) {
    return value.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(value);
  };
  return {{"rows", oracle.num_rows},
          {"compared_rows", oracle.compared_rows},
          {"compared_tokens", oracle.compared_tokens},
          {"rel_l2", oracle.rel_l2},
          {"bound", oracle.bound},
          {"left_out", text(oracle.left_out)},
          {"difference", text(oracle.difference)}};
}

std::string to_json(const RunReport& report) {
  const auto number = [](const std::optional<double>& value) {
    return value && std::isfinite(*value) ? nlohmann::ordered_json(*value)
                                          : nlohmann::ordered_json();
  };
  nlohmann::ordered_json json;
  json["ok"] = report.is_ok();
  json["version"] = version();
  json["device"] = report.options.device;
  if (report.is_on_gpus()) {
    json["gpus"] = report.gpus;
    json["heap"] = report.heap;
    json["shared_gpu"] = report.is_shared_gpu;
  }
  json["engine"] = report.engine;
  json["ranks"] = report.num_ranks;
  json["tokens"] = report.num_tokens;
  json["hidden"] = report.config.hidden;
  json["experts"] = report.config.num_experts();
  json["topk"] = report.config.num_topk();
  json["layer"] = report.layer;
  json["micro_batches"] = report.options.micro_batches;
  json["prepare"] = report.options.prepare;
  json["scheme"] = report.options.scheme;
  json["wire_scheme"] = report.wire_scheme;
  json["tensor_scale"] = number(report.tensor_scale);
  json["reduce"] = report.reduce;
  json["experts_impl"] = report.options.experts;
  const auto bytes = [&](std::int64_t count) {
    return report.is_on_gpus() ? nlohmann::ordered_json() : nlohmann::ordered_json(count);
  };
  json["wire_bytes"] = bytes(report.wire_bytes());
  json["rel_l2"] = number(report.rel_l2);
  json["bound"] = number(report.is_judged() ? std::optional(report.bound()) : std::nullopt);
  json["max_abs"] = number(report.max_abs);
  json["bad_weights"] = report.num_bad_weights;
  json["check"] = to_json(report.oracle);
  json["window_bytes"] = report.window_bytes;
  json["workspace_bytes"] = report.workspace_bytes;
  json["stages"] = nlohmann::ordered_json::array();
  for (const StageReport& stage : report.stages) {
    json["stages"].push_back(
        {{"name", stage.name},
         {"us", {{"min", stage.us.min}, {"median", stage.us.median}, {"max", stage.us.max}}},
         {"wire_bytes", bytes(stage.wire_bytes)}});
  }
  json["balance"] = report.balance ? to_json(*report.balance) : nlohmann::ordered_json();
  json["hosts"] = report.num_hosts;
  json["host_crossings"] = report.host_crossings;
  json["rows_per_rank"] = report.rows_per_rank;
  json["rows_per_expert"] = report.rows_per_expert;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void write_output(const std::string& path, const RunReport& report) {
  const NamedTensor tensor{"output", report.output};
  write_safetensors(path, {&tensor, 1});
}

}  // namespace switchyard::cli
