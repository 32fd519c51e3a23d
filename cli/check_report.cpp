// SPDX-License-Identifier: Apache-2.0

#include "check_report.h"

#include <algorithm>
#include <map>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "switchyard/version.h"

#include "help.h"

namespace switchyard::cli {
namespace {

using conformance::CheckCase;

constexpr std::size_t kMaxWidth = 100;
constexpr std::size_t kGap = 2;

// The cases that share one cell of a table.
struct Cell {
  int num_cases = 0;
  int num_failed = 0;
  int num_skipped = 0;
  bool is_exact = true;
  double max_error = 0;
  double bound = 0;
  std::int64_t ns = 0;

  void add(const CheckResult& result) {
    if (result.is_skipped()) {
      ++num_skipped;
      return;
    }
    ++num_cases;
    num_failed += result.has_passed() ? 0 : 1;
    ns += result.ns;
    if (!result.has_passed() || result.agreement.is_exact) return;
    is_exact = false;
    // Keep the case that came closest to its bound.
    const bool is_nearer =
        bound == 0 || result.agreement.max_error * bound > max_error * result.agreement.bound;
    if (!is_nearer) return;
    max_error = result.agreement.max_error;
    bound = result.agreement.bound;
  }
};

std::string time_text(std::int64_t ns) {
  const double seconds = static_cast<double>(ns) * 1e-9;
  return seconds < 0.0995 ? fmt::format("{:.0f} ms", seconds * 1e3)
                          : fmt::format("{:.1f} s", seconds);
}

std::string cell_text(const Cell& cell) {
  const std::string skipped =
      cell.num_skipped == 0 ? "" : fmt::format("{} skipped", cell.num_skipped);
  if (cell.num_cases == 0) return skipped.empty() ? "-" : skipped;
  const std::string more = skipped.empty() ? "" : ", " + skipped;
  if (cell.num_failed > 0) {
    return fmt::format("{} of {} FAILED{}", cell.num_failed, cell.num_cases, more);
  }
  if (cell.is_exact) {
    return fmt::format("{} bit-equal, {}{}", cell.num_cases, time_text(cell.ns), more);
  }
  return fmt::format("{} err {:.2g}/{:.2g}, {}{}", cell.num_cases, cell.max_error, cell.bound,
                     time_text(cell.ns), more);
}

// Orders numbers within names by value: EP2 before EP16.
bool precedes(const std::string& a, const std::string& b) {
  const auto padded = [](const std::string& text) {
    constexpr std::size_t kDigits = 8;
    std::string result;
    for (std::size_t i = 0; i < text.size();) {
      const std::size_t end = std::min(text.find_first_not_of("0123456789", i), text.size());
      if (end == i) {
        result += text[i++];
        continue;
      }
      result.append(kDigits - std::min(kDigits, end - i), '0').append(text, i, end - i);
      i = end;
    }
    return result;
  };
  return padded(a) < padded(b);
}

std::vector<std::string> in_order(const CheckReport& report, const std::string& group,
                                  std::string CheckCase::*member) {
  std::vector<std::string> names;
  for (const CheckCase& test : report.cases) {
    if (test.group != group) continue;
    if (std::ranges::find(names, test.*member) == names.end()) names.push_back(test.*member);
  }
  std::ranges::sort(names, precedes);
  return names;
}

std::string table(const CheckReport& report, const std::string& group) {
  const std::vector<std::string> rows = in_order(report, group, &CheckCase::row);
  const std::vector<std::string> columns = in_order(report, group, &CheckCase::column);
  std::vector<std::vector<Cell>> cells(rows.size(), std::vector<Cell>(columns.size()));
  for (std::size_t i = 0; i < report.cases.size(); ++i) {
    const CheckCase& test = report.cases[i];
    if (test.group != group) continue;
    const auto row = std::ranges::find(rows, test.row) - rows.begin();
    const auto column = std::ranges::find(columns, test.column) - columns.begin();
    cells[static_cast<std::size_t>(row)][static_cast<std::size_t>(column)].add(report.results[i]);
  }
  std::size_t first = group.size();
  for (const std::string& name : rows) first = std::max(first, name.size());
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    widths.push_back(columns[c].size());
    for (const auto& row : cells) widths[c] = std::max(widths[c], cell_text(row[c]).size());
  }
  // As many columns beside each other as fit.
  std::string text;
  for (std::size_t begin = 0; begin < columns.size();) {
    std::size_t end = begin;
    for (std::size_t width = first; end < columns.size(); ++end) {
      width += kGap + widths[end];
      if (width > kMaxWidth && end > begin) break;
    }
    const auto line = [&](const std::string& name, auto cell) {
      std::string words = fmt::format("{:<{}}", name, first);
      for (std::size_t c = begin; c < end; ++c) {
        words += fmt::format("{:{}}{:<{}}", "", kGap, cell(c), widths[c]);
      }
      return words.substr(0, words.find_last_not_of(' ') + 1) + "\n";
    };
    text += line(group, [&](std::size_t c) { return columns[c]; });
    for (std::size_t r = 0; r < rows.size(); ++r) {
      text += line(rows[r], [&](std::size_t c) { return cell_text(cells[r][c]); });
    }
    text += "\n";
    begin = end;
  }
  return text;
}

std::string command_of(const CheckReport& report, const CheckCase& test) {
  const std::string device = test.device == "cpu" ? "" : " --device " + test.device;
  return fmt::format("switchyard check{} --filter '{}' --seed {}", device, test.name,
                     report.options.seed);
}

std::string failures(const CheckReport& report) {
  constexpr int kMaxNamed = 10;
  std::string text;
  int count = 0;
  for (std::size_t i = 0; i < report.cases.size(); ++i) {
    if (!report.results[i].has_failed() || ++count > kMaxNamed) continue;
    const std::string& why = report.results[i].failure;
    text += fmt::format("FAILED {}\n       {}\n", report.cases[i].name,
                        why.empty() ? "it was not run to its end" : why);
  }
  if (count > kMaxNamed) text += fmt::format("and {} more\n", count - kMaxNamed);
  return text.empty() ? text : text + "\n";
}

// Lists the counts as "   12  text", largest first.
std::string counted(const std::string& title, const std::map<std::string, int>& counts) {
  if (counts.empty()) return "";
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::ranges::stable_sort(sorted, std::ranges::greater{}, &std::pair<std::string, int>::second);
  std::string text = title + "\n";
  for (const auto& [what, count] : sorted)
    text += fmt::format("{:>6}  {}\n", count, wrapped(what, 8, kMaxWidth));
  return text + "\n";
}

// Lists what was not tested, and why.
std::string gaps(const CheckReport& report) {
  std::map<std::string, int> skipped;
  std::map<std::string, int> left_out;
  for (const CheckResult& result : report.results) {
    if (result.is_skipped()) ++skipped[result.agreement.skipped];
    for (const std::string& part : result.agreement.left_out) {
      if (result.has_passed()) ++left_out[part];
    }
  }
  return counted("skipped", skipped) + counted("left out of cases that agree", left_out);
}

std::string gpu_line(const CheckReport& report) {
  if (report.gpus.empty()) return "";
  std::map<std::string, int> heaps;
  int num_shared = 0;
  for (const CheckResult& result : report.results) {
    if (!result.agreement.heap.empty()) ++heaps[result.agreement.heap];
    num_shared += result.agreement.is_shared_gpu ? 1 : 0;
  }
  std::string text = fmt::format("GPUs: {} {}", report.gpus.size(), report.gpus.front());
  const char* before = "; heaps ";
  for (const auto& [heap, count] : heaps) {
    text += fmt::format("{}{} ({} cases)", before, heap, count);
    before = ", ";
  }
  return text + fmt::format("; ranks shared a GPU in {} cases\n", num_shared);
}

std::string verdict(const CheckReport& report) {
  int num_exact = 0;
  int num_close = 0;
  int num_skipped = 0;
  double nearest = 0;
  const CheckCase* first_failed = nullptr;
  for (std::size_t i = 0; i < report.cases.size(); ++i) {
    const CheckResult& result = report.results[i];
    if (result.is_skipped()) {
      ++num_skipped;
    } else if (!result.has_passed()) {
      if (first_failed == nullptr) first_failed = &report.cases[i];
    } else if (result.agreement.is_exact) {
      ++num_exact;
    } else {
      ++num_close;
      nearest = std::max(nearest, result.agreement.max_error / result.agreement.bound);
    }
  }
  const auto total = report.cases.size() - static_cast<std::size_t>(num_skipped);
  const auto num_passed = static_cast<std::size_t>(num_exact + num_close);
  if (first_failed != nullptr) {
    return fmt::format("{} of {} cases FAILED in {:.1f} s; the first again: {}\n",
                       total - num_passed, total, report.seconds,
                       command_of(report, *first_failed));
  }
  if (total == 0) return fmt::format("all {} cases were skipped: nothing is proven\n", num_skipped);
  std::string text =
      fmt::format("all {} cases agree with the oracle: {} bit-equal", total, num_exact);
  if (num_close > 0) {
    text +=
        fmt::format(", {} within their bounds ({:.0f} % of one at most)", num_close, nearest * 100);
  }
  if (num_skipped > 0) text += fmt::format("; {} more skipped", num_skipped);
  return text + fmt::format("; {:.1f} s, seed {}\n", report.seconds, report.options.seed);
}

}  // namespace

bool CheckReport::is_ok() const {
  return std::ranges::none_of(results, &CheckResult::has_failed) &&
         std::ranges::any_of(results, &CheckResult::has_passed);
}

std::string to_text(const CheckReport& report) {
  std::string text = fmt::format(
      "switchyard {} on {} cores, every case against a slow oracle in this program\n"
      "cells: cases, how they agree, time; err e/b: |got - want| / (1 + |want|) reached e, may "
      "reach "
      "b\n\n",
      version(), std::thread::hardware_concurrency());
  if (!report.gpus.empty()) text += wrapped(gpu_line(report), 0, kMaxWidth) + "\n";
  std::vector<std::string> groups;
  for (const CheckCase& test : report.cases) {
    if (std::ranges::find(groups, test.group) == groups.end()) groups.push_back(test.group);
  }
  for (const std::string& group : groups) text += table(report, group);
  return text + gaps(report) + failures(report) + wrapped(verdict(report), 0, kMaxWidth);
}

std::string to_json(const CheckReport& report) {
  nlohmann::ordered_json json;
  json["version"] = version();
  json["device"] = report.options.device;
  if (!report.gpus.empty()) json["gpus"] = report.gpus;
  json["engine"] = report.options.engine;
  json["filter"] = report.options.filter;
  json["quick"] = report.options.quick;
  json["seed"] = report.options.seed;
  json["seconds"] = report.seconds;
  json["ok"] = report.is_ok();
  json["skipped"] = std::ranges::count_if(report.results, &CheckResult::is_skipped);
  json["cases"] = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < report.cases.size(); ++i) {
    const CheckResult& result = report.results[i];
    nlohmann::ordered_json one;
    one["name"] = report.cases[i].name;
    if (result.is_skipped()) {
      one["skipped"] = result.agreement.skipped;
      json["cases"].push_back(std::move(one));
      continue;
    }
    one["passed"] = result.has_passed();
    one["bit_equal"] = result.has_passed() && result.agreement.is_exact;
    one["max_error"] = result.agreement.max_error;
    one["bound"] = result.agreement.bound;
    one["seconds"] = static_cast<double>(result.ns) * 1e-9;
    if (!result.agreement.left_out.empty()) one["left_out"] = result.agreement.left_out;
    if (!result.agreement.heap.empty()) {
      one["heap"] = result.agreement.heap;
      one["shared_gpu"] = result.agreement.is_shared_gpu;
    }
    if (!result.failure.empty()) one["failure"] = result.failure;
    if (result.has_failed()) one["command"] = command_of(report, report.cases[i]);
    json["cases"].push_back(std::move(one));
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string list_text(const std::vector<CheckCase>& cases) {
  std::string text;
  for (const CheckCase& test : cases) text += test.name + "\n";
  return text;
}

}  // namespace switchyard::cli
