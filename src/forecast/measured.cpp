// SPDX-License-Identifier: Apache-2.0

#include "forecast/measured.h"

#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "forecast/exchange_time.h"
#include "forecast/simulation.h"
#include "io/file.h"
#include "io/json.h"

namespace switchyard::forecast {
namespace {

using measure::Operation;
using nlohmann::json;

constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;
constexpr std::int32_t kMax = 1 << 30;
constexpr std::int64_t kNumIterations = 3;  // whose median is taken

HostsShape common_shape(const json& document, const std::string& path) {
  const JsonObject object(document, path, "plan");
  const JsonObject workload(object.value("workload"), path, "plan");
  const JsonObject settings(object.value("settings"), path, "plan");
  HostsShape shape;
  shape.workload.name = workload.text_or("name", "");
  shape.workload.hidden = workload.integer("hidden", 1, kMax);
  shape.workload.num_experts = workload.integer("experts", 1, 65535);
  shape.workload.num_topk = workload.integer("topk", 1, 64);
  shape.workload.intermediate = workload.integer_or("intermediate", 0, 0, kMax);
  shape.num_ranks = object.integer("ranks", 1, 4096);
  shape.max_tokens = settings.integer_or("max_tokens", 0, 0, kMax);
  shape.num_layers = settings.integer_or("layers", 1, 1, kMax);
  shape.is_programmatic = settings.boolean_or("pdl", false);
  shape.seed = static_cast<std::uint64_t>(settings.integer_or("seed", 1, 0, kMax));
  const auto operation = measure::operation_from_name(settings.text_or("op", ""));
  const auto layout = layout_from_name(settings.text_or("layout", ""));
  const auto scheme = scheme_from_name(settings.text_or("scheme", ""));
  const auto reduce = reduce_from_name(settings.text_or("reduce", ""));
  if (!operation || *operation == Operation::kLayer) {
    settings.refuse("op", "dispatch, combine or pair");
  }
  if (!layout) settings.refuse("layout", "a layout");
  if (!scheme) settings.refuse("scheme", "a scheme");
  if (!reduce) settings.refuse("reduce", "a contract");
  shape.operation = *operation;
  shape.layout = *layout;
  shape.scheme = *scheme;
  shape.reduce = *reduce;
  shape.routing = measure::RoutingPattern::parse(
      settings.text_or("routing", "uniform"), shape.workload.num_experts, shape.workload.num_topk);
  return shape;
}

double time_of(const HostsShape& shape, const ExchangeTime& time) {
  switch (shape.operation) {
    case Operation::kDispatch: return time.dispatch.total_us;
    case Operation::kCombine: return time.combine.total_us;
    default: return time.total_us();
  }
}

}  // namespace

MeasuredFile read_measured(const std::string& path) {
  const json document = parse_json(read_text_file(path, kMaxFileBytes), path);
  MeasuredFile file;
  file.path = path;
  const JsonObject object(document, path, "plan");
  const std::string device = object.text_or("device", "");
  const bool has_rows = object.has("settings") && object.has("rows") &&
                        object.value("rows").is_array() && (device == "cuda" || device == "cpu");
  require(has_rows, Errc::kMalformedFile,
          "plan: {}: no device, settings and rows, must be a file of `bench --json`", path);
  file.is_gpu = device == "cuda";
  const HostsShape common = common_shape(document, path);
  for (const json& one : object.value("rows")) {
    const JsonObject from(one, path, "plan");
    if (!from.has("p50_us")) continue;  // left out
    MeasuredRow row;
    row.shape = common;
    row.date = object.text_or("date", "");
    row.shape.num_tokens = from.integer("tokens", 1, kMax);
    row.shape.num_sms = from.integer_or("sms", 0, 0, 4096);
    row.measured_us = from.number_or("p50_us", 0) / common.num_layers;
    if (!std::isfinite(row.measured_us) || row.measured_us <= 0) {
      from.refuse("p50_us", "microseconds above 0");
    }
    file.rows.push_back(row);
  }
  return file;
}

void predict(MeasuredFile& file, const Machine& machine, bool keeps_roles) {
  require(machine.is_gpu == file.is_gpu, Errc::kInvalidArgument,
          "plan: {} was measured on {}, but constants {} are of {}", file.path,
          file.is_gpu ? "GPUs" : "CPUs", machine.name, machine.is_gpu ? "GPUs" : "CPUs");
  for (MeasuredRow& row : file.rows) {
    const ExchangeCosts costs(machine, row.shape, row.shape.workload.num_experts, {keeps_roles});
    std::vector<double> us;
    for (std::int64_t iteration = 0; iteration < kNumIterations; ++iteration) {
      us.push_back(time_of(row.shape, costs.slowest(simulate(row.shape, {}, iteration).loads)));
    }
    std::nth_element(us.begin(), us.begin() + kNumIterations / 2, us.end());
    row.predicted_us = us[kNumIterations / 2];
    row.dispatch_path = costs.dispatch_path();
    row.combine_path = costs.combine_path();
  }
}

}  // namespace switchyard::forecast
