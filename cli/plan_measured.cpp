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

std::string time_text(double us) {
  return us < 100 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us);
}

std::string path_text(const MeasuredRow& row) {
  using measure::Operation;
  if (row.shape.operation == Operation::kDispatch) return row.dispatch_path;
  if (row.shape.operation == Operation::kCombine) return row.combine_path;
  if (std::string(row.dispatch_path) == row.combine_path) return row.dispatch_path;
  return fmt::format("{}, {}", row.dispatch_path, row.combine_path);
}

}  // namespace

std::vector<MeasuredFile> predict_measured(const PlanOptions& options) {
  std::vector<MeasuredFile> files;
  for (const std::string& path : options.measured) {
    MeasuredFile file = forecast::read_measured(path);
    const std::string constants =
        !options.constants.empty() ? options.constants : (file.is_gpu ? "h200" : "cpu");
    predict(file, forecast::find_machine(constants), options.fixed_roles);
    files.push_back(std::move(file));
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
          "| {} | {} | {} | {}{} | {} | {} | {:.2f} | {} |\n", row.shape.num_ranks,
          row.shape.num_sms == 0 ? (file.is_gpu ? "all" : "") : std::to_string(row.shape.num_sms),
          row.shape.num_tokens, name_of(row.shape.operation),
          row.shape.reduce == Reduce::kPerRank ? ""
                                               : fmt::format(", {}", name_of(row.shape.reduce)),
          time_text(row.measured_us), time_text(row.predicted_us), row.ratio(), path_text(row));
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
    for (const MeasuredRow& row : file.rows) {
      json.push_back({{"file", file.path},
                      {"date", row.date},
                      {"ranks", row.shape.num_ranks},
                      {"sms", row.shape.num_sms},
                      {"tokens", row.shape.num_tokens},
                      {"op", name_of(row.shape.operation)},
                      {"layout", name_of(row.shape.layout)},
                      {"reduce", name_of(row.shape.reduce)},
                      {"measured_us", row.measured_us},
                      {"predicted_us", row.predicted_us},
                      {"ratio", row.ratio()},
                      {"dispatch_path", row.dispatch_path},
                      {"combine_path", row.combine_path}});
    }
  }
  return nlohmann::ordered_json{{"measured", json}}.dump(1) + "\n";
}

}  // namespace switchyard::cli
