// SPDX-License-Identifier: Apache-2.0

#include "plan_measured.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/fail.h"

namespace switchyard::cli {
namespace {

using forecast::MeasuredFile;
using forecast::MeasuredRow;

constexpr double kAllowed = 0.15;

std::string measured_time(double us) {
  return us < 100 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us);
}

std::string path_text(const MeasuredRow& row) {
  using measure::Operation;
  if (row.shape.operation == Operation::kDispatch) return row.dispatch_path;
  if (row.shape.operation == Operation::kCombine) return row.combine_path;
  if (std::string(row.dispatch_path) == row.combine_path) return row.dispatch_path;
  return fmt::format("{}, {}", row.dispatch_path, row.combine_path);
}

// Beside operations alone, hosts, micro-batches and experts say what was measured.
std::string what_text(const MeasuredRow& row) {
  const forecast::HostsShape& shape = row.shape;
  std::string text = name_of(shape.operation);
  if (shape.operation == measure::Operation::kLayer) text += fmt::format(", {}", shape.experts);
  if (shape.num_micro_batches > 1) {
    text += fmt::format(", {} micro-batches", shape.num_micro_batches);
  }
  if (shape.reduce != Reduce::kPerRank) text += fmt::format(", {}", name_of(shape.reduce));
  if (shape.num_hosts > 1) text += fmt::format(", {} hosts", shape.num_hosts);
  return text;
}

std::string default_machine(const PlanOptions& options, const MeasuredFile& file) {
  if (!options.constants.empty()) return options.constants;
  return file.is_gpu ? forecast::kind_of_gpu(file.gpu, file.path) : "cpu";
}

nlohmann::ordered_json row_json(const MeasuredFile& file, const MeasuredRow& row) {
  const forecast::HostsShape& shape = row.shape;
  nlohmann::ordered_json json{{"file", file.path},
                              {"constants", file.constants},
                              {"date", row.date},
                              {"ranks", shape.num_ranks},
                              {"hosts", shape.num_hosts},
                              {"sms", shape.num_sms},
                              {"tokens", shape.num_tokens},
                              {"op", name_of(shape.operation)},
                              {"layout", name_of(shape.layout)},
                              {"reduce", name_of(shape.reduce)}};
  if (file.is_layer) {
    json["experts"] = shape.experts;
    json["micro_batches"] = shape.num_micro_batches;
  }
  json["measured_us"] = row.measured_us;
  json["predicted_us"] = row.predicted_us;
  json["ratio"] = row.ratio();
  json["dispatch_path"] = row.dispatch_path;
  json["combine_path"] = row.combine_path;
  return json;
}

/// A rate that no file's prediction uses is a slip. Errors: kInvalidArgument.
void check_rates(const PlanOptions& options, const std::vector<MeasuredFile>& files) {
  const auto check = [&](const char* option, bool is_given, bool (*uses)(const MeasuredFile&),
                         const char* user) {
    require(!is_given || std::ranges::any_of(files, uses), Errc::kInvalidArgument,
            "plan: {} beside --measured without a file of {}, must be left out", option, user);
  };
  const auto is_layer = [](const MeasuredFile& file) { return file.is_layer; };
  check(
      "--nic", options.nic.has_value(), [](const MeasuredFile& file) { return file.num_hosts > 1; },
      "ranks on several hosts");
  check("--tflops", options.tflops.has_value(), is_layer, "--op layer");
  check("--memory-bandwidth", options.memory_bandwidth.has_value(), is_layer, "--op layer");
}

}  // namespace

std::vector<MeasuredFile> predict_measured(const PlanOptions& options) {
  std::vector<MeasuredFile> files;
  for (const std::string& path : options.measured) files.push_back(forecast::read_measured(path));
  check_rates(options, files);
  for (MeasuredFile& file : files) {
    const forecast::Machine machine = plan_machine(options, default_machine(options, file));
    predict(file, machine, plan_experts(options, machine), options.fixed_roles);
  }
  return files;
}

std::string measured_text(const std::vector<MeasuredFile>& files) {
  std::string text =
      "| ranks | SMs | tokens | what | measured us | predicted us | ratio | path |\n"
      "|---:|---:|---:|---|---:|---:|---:|---|\n";
  std::int64_t num_rows = 0;
  std::int64_t num_far = 0;
  double worst = 1;
  for (const MeasuredFile& file : files) {
    for (const MeasuredRow& row : file.rows) {
      text += fmt::format(
          "| {} | {} | {} | {} | {} | {} | {:.2f} | {} |\n", row.shape.num_ranks,
          row.shape.num_sms == 0 ? (file.is_gpu ? "all" : "") : std::to_string(row.shape.num_sms),
          row.shape.num_tokens, what_text(row), measured_time(row.measured_us),
          measured_time(row.predicted_us), row.ratio(), path_text(row));
      ++num_rows;
      num_far += std::abs(row.ratio() - 1) > kAllowed ? 1 : 0;
      if (std::abs(std::log(row.ratio())) > std::abs(std::log(worst))) worst = row.ratio();
    }
  }
  return text + fmt::format("\n{} of {} rows are within {:.0f} %; the farthest ratio is {:.2f}\n",
                            num_rows - num_far, num_rows, kAllowed * 100, worst);
}

std::string measured_json(const std::vector<MeasuredFile>& files) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const MeasuredFile& file : files) {
    for (const MeasuredRow& row : file.rows) json.push_back(row_json(file, row));
  }
  return nlohmann::ordered_json{{"measured", json}}.dump(1, ' ', false,
                                                         nlohmann::json::error_handler_t::replace) +
         "\n";
}

}  // namespace switchyard::cli
