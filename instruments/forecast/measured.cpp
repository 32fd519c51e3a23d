// SPDX-License-Identifier: Apache-2.0

#include "forecast/measured.h"

#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "forecast/exchange_time.h"
#include "forecast/layer_costs.h"
#include "forecast/simulation.h"
#include "io/file.h"
#include "io/json.h"

namespace switchyard::forecast {
namespace {

using measure::Operation;
using nlohmann::json;

constexpr std::size_t kMaxMeasuredBytes = std::size_t{16} << 20;
constexpr std::int32_t kMax = 1 << 30;
constexpr std::uint64_t kMaxSeed = (std::uint64_t{1} << 63) - 1;
constexpr std::int64_t kNumIterations = 3;  // whose median is taken
constexpr int kWeightBits = 16;             // of the experts of `bench`

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
  shape.num_micro_batches = settings.integer_or("micro_batches", 1, 1, 64);
  shape.experts = settings.text_or("experts", "exact");
  shape.seed = settings.unsigned_or("seed", 1, kMaxSeed);
  const auto operation = enum_from_name<measure::Operation>(settings.text_or("op", ""));
  const auto layout = layout_from_name(settings.text_or("layout", ""));
  const auto scheme = scheme_from_name(settings.text_or("scheme", ""));
  const auto reduce = reduce_from_name(settings.text_or("reduce", ""));
  if (!operation) settings.refuse("op", "dispatch, combine, pair or layer");
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

// Rows that are only counted between hosts have not travelled: ranks of several hosts count bytes.
int hosts_of(const JsonObject& object, const std::string& path) {
  bool are_several = false;
  for (const json& one : object.value("rows")) {
    are_several |= JsonObject(one, path, "plan").has("host_bytes_per_token");
  }
  if (!are_several) return 1;
  return JsonObject(object.value("settings"), path, "plan").integer("hosts", 2, kMax);
}

void require_known_rows(const JsonObject& object, const std::string& path) {
  const JsonObject settings(object.value("settings"), path, "plan");
  const std::string returned = settings.text_or("returned", "none");
  require(returned == "none" && !settings.boolean_or("codes", false), Errc::kNotSupported,
          "plan: {}: rows that return as {} and tokens given as codes are not predicted, must be "
          "of a run without --returned and --codes",
          path, returned);
  const std::string scales = settings.text_or("scales", "row_major");
  require(scales == "row_major", Errc::kNotSupported,
          "plan: {}: rows whose scales lie {} are not predicted, must be of a run without --scales",
          path, scales);
  const bool is_exact = settings.boolean_or("exact_messages", false);
  const std::int32_t capacity = settings.integer_or("host_capacity", 0, 0, kMax);
  require(!is_exact && capacity == 0, Errc::kNotSupported,
          "plan: {}: messages between hosts of other sizes than those of all tokens are not "
          "predicted, must be of a run without --exact-messages and --host-capacity",
          path);
  const std::int32_t num_shared = settings.integer_or("shared_experts", 0, 0, kMax);
  require(num_shared == 0, Errc::kNotSupported,
          "plan: {}: layers with {} shared experts are not predicted, must be of a run without "
          "--shared-experts",
          path, num_shared);
}

// Of the backends of CPUs, `messages` is not predicted: engine mpi has it where no ranks share a
// host, and where all do.
void require_predictable(const JsonObject& object, const std::string& path, int num_ranks,
                         int num_hosts) {
  const bool has_windows = object.text_or("engine", "") != "mpi";
  require(has_windows || (num_hosts > 1 && num_hosts < num_ranks), Errc::kNotSupported,
          "plan: {}: {} ranks of engine mpi on {} host{} exchange messages alone, whose times are "
          "not predicted; must be on 2 hosts or more with several ranks each, or of another engine",
          path, num_ranks, num_hosts, num_hosts == 1 ? "" : "s");
  require(num_ranks % num_hosts == 0, Errc::kNotSupported,
          "plan: {}: {} ranks on {} hosts, must be as many ranks on each", path, num_ranks,
          num_hosts);
}

double time_of(const HostsShape& shape, const ExchangeTime& time) {
  switch (shape.operation) {
    case Operation::kDispatch: return time.dispatch.total_us;
    case Operation::kCombine: return time.combine.total_us;
    default: return time.total_us();
  }
}

// Of one iteration.
double predicted_us(const Machine& machine, const HostsShape& shape, const ExpertCosts& experts,
                    const TimeOptions& options, std::int64_t iteration) {
  const Simulation whole = simulate(shape, {}, iteration);
  if (shape.operation == Operation::kLayer) {
    return LayerCosts(machine, shape, {}, experts, whole, iteration, options)
        .layer_us(shape.layout, shape.reduce);
  }
  const ExchangeCosts costs(machine, shape, whole.num_physical, options);
  return time_of(shape, costs.slowest(whole.loads));
}

}  // namespace

MeasuredFile read_measured(const std::string& path) {
  const json document = parse_json(read_text_file(path, kMaxMeasuredBytes), path);
  MeasuredFile file;
  file.path = path;
  const JsonObject object(document, path, "plan");
  const std::string device = object.text_or("device", "");
  const bool has_rows = object.has("settings") && object.has("rows") &&
                        object.value("rows").is_array() && (device == "cuda" || device == "cpu");
  require(has_rows, Errc::kMalformedFile,
          "plan: {}: no device, settings and rows, must be a file of `bench --json`", path);
  file.is_gpu = device == "cuda";
  HostsShape common = common_shape(document, path);
  if (file.is_gpu && object.has("machine")) {
    file.gpu = JsonObject(object.value("machine"), path, "plan").text_or("gpu", "");
  }
  file.is_layer = common.operation == Operation::kLayer;
  file.num_hosts = hosts_of(object, path);
  common.num_hosts = file.num_hosts;
  require_known_rows(object, path);
  if (!file.is_gpu) require_predictable(object, path, common.num_ranks, file.num_hosts);
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

void predict(MeasuredFile& file, const Machine& machine, const ExpertCosts& experts,
             bool keeps_roles) {
  require(machine.is_gpu == file.is_gpu, Errc::kInvalidArgument,
          "plan: {} was measured on {}, but constants {} are of {}", file.path,
          file.is_gpu ? "GPUs" : "CPUs", machine.name, machine.is_gpu ? "GPUs" : "CPUs");
  file.constants = machine.name;
  ExpertCosts of_bench = experts;
  of_bench.weight_bits = kWeightBits;
  const TimeOptions options{keeps_roles};
  for (MeasuredRow& row : file.rows) {
    std::vector<double> us;
    for (std::int64_t iteration = 0; iteration < kNumIterations; ++iteration) {
      us.push_back(predicted_us(machine, row.shape, of_bench, options, iteration));
    }
    std::nth_element(us.begin(), us.begin() + kNumIterations / 2, us.end());
    row.predicted_us = us[kNumIterations / 2];
    HostsShape of_batch = row.shape;
    of_batch.num_tokens = tokens_of_batch(row.shape.num_tokens, row.shape.num_micro_batches);
    const ExchangeCosts costs(machine, of_batch, of_batch.workload.num_experts, options);
    row.dispatch_path = costs.dispatch_path();
    row.combine_path = costs.combine_path();
  }
}

}  // namespace switchyard::forecast
