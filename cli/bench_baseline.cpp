// SPDX-License-Identifier: Apache-2.0

#include "bench_baseline.h"

#include <cctype>
#include <cmath>
#include <string_view>

#include <nlohmann/json.hpp>

#include "core/fail.h"
#include "io/file.h"
#include "io/json.h"

namespace switchyard::cli {
namespace {

constexpr std::int32_t kMaxCount = 1 << 30;
constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;

BaselineRow parse_row(const nlohmann::json& json, const std::string& file) {
  const JsonObject object(json, file, "bench");
  BaselineRow row;
  row.name = object.text_or("name", "");
  row.mode = object.text_or("mode", "");
  const auto operation = enum_from_name<measure::Operation>(object.text_or("op", "pair"));
  if (!operation) object.refuse("op", "dispatch, combine, pair or layer");
  if (row.name.empty()) object.refuse("name", "a text");
  row.operation = *operation;
  row.num_tokens = object.integer("tokens", 1, kMaxCount);
  row.us = object.number_or("us", 0);
  if (!std::isfinite(row.us) || row.us <= 0) object.refuse("us", "microseconds above 0");
  return row;
}

}  // namespace

Baseline parse_baseline(const std::string& text, const std::string& file) {
  const nlohmann::json json = parse_json(text, file);
  const JsonObject object(json, file, "bench");
  Baseline baseline;
  baseline.machine = object.text_or("machine", "");
  baseline.source = object.text_or("source", "");
  if (baseline.machine.empty()) object.refuse("machine", "a text");
  if (baseline.source.empty()) object.refuse("source", "a text");
  baseline.hidden = object.integer("hidden", 1, kMaxCount);
  baseline.num_experts = object.integer("experts", 1, kMaxCount);
  baseline.num_topk = object.integer("topk", 1, kMaxCount);
  baseline.num_ranks = object.integer("ranks", 1, kMaxCount);
  if (!object.has("rows") || !object.value("rows").is_array()) {
    object.refuse("rows", "an array of objects");
  }
  for (const nlohmann::json& row : object.value("rows")) {
    baseline.rows.push_back(parse_row(row, file));
  }
  return baseline;
}

Baseline read_baseline(const std::string& path) {
  return parse_baseline(read_text_file(path, kMaxFileBytes), path);
}

std::string to_json(const Baseline& baseline) {
  nlohmann::ordered_json json;
  json["machine"] = baseline.machine;
  json["source"] = baseline.source;
  json["hidden"] = baseline.hidden;
  json["experts"] = baseline.num_experts;
  json["topk"] = baseline.num_topk;
  json["ranks"] = baseline.num_ranks;
  json["rows"] = nlohmann::ordered_json::array();
  for (const BaselineRow& row : baseline.rows) {
    json["rows"].push_back({{"name", row.name},
                            {"mode", row.mode},
                            {"op", name_of(row.operation)},
                            {"tokens", row.num_tokens},
                            {"us", row.us}});
  }
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

bool is_comparable(const Baseline& baseline, const measure::BenchShape& shape) {
  const measure::Workload& workload = shape.workload;
  return baseline.hidden == workload.hidden && baseline.num_experts == workload.num_experts &&
         baseline.num_topk == workload.num_topk && baseline.num_ranks == shape.num_ranks;
}

int sms_of(const BaselineRow& row) {
  constexpr std::string_view kUnit = " SM";
  constexpr std::size_t kMaxDigits = 6;
  const std::string text = row.name + ", " + row.mode + ".";
  for (std::size_t unit = text.find(kUnit); unit != text.npos; unit = text.find(kUnit, unit + 1)) {
    std::size_t after = unit + kUnit.size();
    if (text[after] == 's') ++after;
    if (std::isalpha(static_cast<unsigned char>(text[after])) != 0) continue;
    std::size_t first = unit;
    while (first > 0 && std::isdigit(static_cast<unsigned char>(text[first - 1])) != 0) --first;
    if (first < unit && unit - first <= kMaxDigits) return std::stoi(text.substr(first));
  }
  return 0;
}

bool is_match(const BaselineRow& row, const measure::BenchShape& shape) {
  if (row.operation != shape.operation || row.num_tokens != shape.num_tokens) return false;
  const int num_sms = sms_of(row);
  return shape.num_sms == 0 || (num_sms > 0 && num_sms <= shape.num_sms);
}

std::optional<BaselineRow> best_of(const Baseline& baseline, const measure::BenchShape& shape) {
  std::optional<BaselineRow> best;
  if (!is_comparable(baseline, shape)) return best;
  for (const BaselineRow& row : baseline.rows) {
    if (!is_match(row, shape)) continue;
    if (!best || row.us < best->us) best = row;
  }
  if (best) best->us *= shape.num_layers;
  return best;
}

}  // namespace switchyard::cli
