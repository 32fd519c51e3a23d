// SPDX-License-Identifier: Apache-2.0

#include "forecast/machine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "core/fail.h"
#include "forecast/machine_files.h"
#include "io/file.h"
#include "io/json.h"

namespace switchyard::forecast {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;

/// A constant that is one number.
struct Number {
  const char* name;
  double PushCosts::*push = nullptr;
  double PullCosts::*pull = nullptr;
  double NetworkCosts::*network = nullptr;
  bool may_be_zero = false;
};

const std::vector<Number>& numbers() {
  static const std::vector<Number> kNumbers{
      {.name = "start_us", .push = &PushCosts::start_us},
      {.name = "saved_us", .push = &PushCosts::saved_us, .may_be_zero = true},
      {.name = "copy_gb_per_second", .push = &PushCosts::copy_gb_per_second},
      {.name = "overlap", .push = &PushCosts::overlap, .pull = &PullCosts::overlap},
      {.name = "dispatch_start_us",
       .push = &PushCosts::dispatch_start_us,
       .pull = &PullCosts::dispatch_start_us},
      {.name = "shared_start_us", .push = &PushCosts::shared_start_us, .may_be_zero = true},
      {.name = "dispatch_memory", .push = &PushCosts::dispatch_memory},
      {.name = "instruction_us", .push = &PushCosts::instruction_us},
      {.name = "send_chunk_us", .push = &PushCosts::send_chunk_us},
      {.name = "receive_chunk_us", .push = &PushCosts::receive_chunk_us},
      {.name = "combine_start_us",
       .push = &PushCosts::combine_start_us,
       .pull = &PullCosts::combine_start_us},
      {.name = "stream_start_us", .push = &PushCosts::stream_start_us, .may_be_zero = true},
      {.name = "combine_memory", .push = &PushCosts::combine_memory},
      {.name = "stream_item_us", .push = &PushCosts::stream_item_us, .may_be_zero = true},
      {.name = "stream_chunk_us", .push = &PushCosts::stream_chunk_us, .may_be_zero = true},
      {.name = "stream_row_us", .push = &PushCosts::stream_row_us, .may_be_zero = true},
      {.name = "return_chunk_us", .push = &PushCosts::return_chunk_us, .may_be_zero = true},
      {.name = "return_row_us", .push = &PushCosts::return_row_us, .may_be_zero = true},
      {.name = "sum_chunk_us", .push = &PushCosts::sum_chunk_us, .may_be_zero = true},
      {.name = "sum_row_us", .push = &PushCosts::sum_row_us, .may_be_zero = true},
      {.name = "reuse", .pull = &PullCosts::reuse},
      {.name = "dispatch_copy", .pull = &PullCosts::dispatch_copy},
      {.name = "combine_copy", .pull = &PullCosts::combine_copy},
      {.name = "quantize_gb_per_second", .pull = &PullCosts::quantize_gb_per_second},
      {.name = "dispatch_row_us", .pull = &PullCosts::dispatch_row_us, .may_be_zero = true},
      {.name = "combine_row_us", .pull = &PullCosts::combine_row_us, .may_be_zero = true},
      {.name = "network_gb_per_second", .network = &NetworkCosts::gb_per_second},
      {.name = "network_start_us", .network = &NetworkCosts::start_us, .may_be_zero = true}};
  return kNumbers;
}

/// Reads and checks one file.
class Reader {
 public:
  Reader(const json& constants, const std::string& file, Machine& machine)
      : constants_(constants), file_(file), machine_(machine) {}

  void read() {
    for (const Number& number : numbers()) {
      double* const target = target_of(number);
      if (target != nullptr) *target = positive(number.name, number.may_be_zero);
    }
    machine_.tflops = positive("tflops", false);
    if (machine_.is_gpu) {
      machine_.push.num_sms = static_cast<int>(positive("num_sms", false));
      machine_.push.wire = rates("wire");
    } else {
      machine_.pull.copy = rates("copy");
    }
  }

 private:
  double* target_of(const Number& number) {
    if (number.network != nullptr) return &(machine_.network.*number.network);
    if (machine_.is_gpu) {
      return number.push == nullptr ? nullptr : &(machine_.push.*number.push);
    }
    return number.pull == nullptr ? nullptr : &(machine_.pull.*number.pull);
  }

  const json& constant(const char* name) {
    const bool is_there = constants_.is_object() && constants_.contains(name) &&
                          constants_[name].is_object() && constants_[name].contains("value") &&
                          constants_[name].contains("source") &&
                          constants_[name]["source"].is_string();
    require(is_there, Errc::kMalformedFile,
            "plan: {}: constants has no {} with value and source, must have it", file_, name);
    return constants_[name];
  }

  void note(const char* name, const json& from, std::string value) {
    machine_.constants.push_back(
        {name, std::move(value), from.value("unit", ""), from["source"].get<std::string>()});
  }

  double positive(const char* name, bool may_be_zero) {
    const json& from = constant(name);
    const json& value = from["value"];
    const double number = value.is_number() ? value.get<double>() : -1;
    require(std::isfinite(number) && (number > 0 || (may_be_zero && number == 0)),
            Errc::kMalformedFile, "plan: {}: constants.{} is {}, must be a number {} 0", file_,
            name, describe_json(value), may_be_zero ? "of at least" : "above");
    note(name, from, fmt::format("{:.4g}", number));
    return number;
  }

  std::vector<RateAt> rates(const char* name) {
    const json& from = constant(name);
    std::vector<RateAt> result;
    std::string text;
    for (const json& one : from["value"]) {
      const bool is_pair = one.is_array() && one.size() == 2 && one[0].is_number() &&
                           one[1].is_number() && one[0].get<double>() > 0 &&
                           one[1].get<double>() > 0;
      require(is_pair && (result.empty() || one[0].get<double>() > result.back().at),
              Errc::kMalformedFile,
              "plan: {}: constants.{} has {}, must be pairs of numbers above 0, ascending", file_,
              name, describe_json(one));
      result.push_back({one[0].get<double>(), one[1].get<double>()});
      text += fmt::format("{}{:.4g} at {:.4g}", text.empty() ? "" : ", ",
                          result.back().gb_per_second, result.back().at);
    }
    require(!result.empty(), Errc::kMalformedFile,
            "plan: {}: constants.{} is {}, must be pairs of numbers above 0, ascending", file_,
            name, describe_json(from["value"]));
    note(name, from, text);
    return result;
  }

  const json& constants_;
  const std::string& file_;
  Machine& machine_;
};

Machine read_machine(const json& document, const std::string& file) {
  Machine machine;
  const std::string device = document.value("device", "");
  require(device == "cuda" || device == "cpu", Errc::kMalformedFile,
          "plan: {}: device is \"{}\", must be cuda or cpu", file, device);
  machine.name = document.value("name", file);
  machine.title = document.value("title", machine.name);
  machine.is_gpu = device == "cuda";
  Reader(document["constants"], file, machine).read();
  return machine;
}

const EmbeddedFile* find_embedded(const std::string& name) {
  for (const EmbeddedFile& one : machine_files()) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

Machine embedded(const EmbeddedFile& file) {
  return read_machine(json::parse(file.text), std::string(file.name));
}

void set(Machine& machine, const std::string& name, double value, const std::string& source) {
  for (Constant& one : machine.constants) {
    if (one.name != name) continue;
    one.value = fmt::format("{:.4g}", value);
    one.source = source;
  }
}

double constant_of(const json& floor, const char* name) {
  for (const json& one : floor.value("constants", json::array())) {
    if (one.value("name", "") == name) return one.value("value", 0.0);
  }
  return 0;
}

// The start of older files is of other measurements, so a file without the rates of the wire is
// not taken.
void take_gpu_floor(Machine& machine, const json& floor, const std::string& file) {
  const double copy = constant_of(floor, "copy");
  const bool has_wire = floor.contains("wire") && floor["wire"].is_object() &&
                        floor["wire"].contains("tried") && floor["wire"]["tried"].is_array();
  require(has_wire && copy > 0, Errc::kMalformedFile,
          "plan: {}: its floor has no rates of the wire by CTAs, must be of a newer bench with 2 "
          "ranks or more",
          file);
  std::vector<RateAt> wire;
  std::string text;
  for (const json& one : floor["wire"]["tried"]) {
    if (one.value("by", "") != "16-byte stores") continue;
    const RateAt rate{one.value("ctas", 0.0), one.value("gb_per_second", 0.0)};
    require(rate.at > 0 && rate.gb_per_second > 0 && (wire.empty() || rate.at > wire.back().at),
            Errc::kMalformedFile, "plan: {}: wire.tried has {}, must be rates above 0 by CTAs",
            file, describe_json(one));
    wire.push_back(rate);
    text +=
        fmt::format("{}{:.4g} at {:.4g}", text.empty() ? "" : ", ", rate.gb_per_second, rate.at);
  }
  require(!wire.empty(), Errc::kMalformedFile,
          "plan: {}: wire.tried has no 16-byte stores, must have their rates", file);
  const std::string source = file + ": floors[0]";
  machine.push.wire = wire;
  machine.push.start_us = floor.value("start_us", 0.0);
  machine.push.saved_us = floor.value("saved_us", 0.0);
  machine.push.copy_gb_per_second = copy;
  set(machine, "start_us", machine.push.start_us, source);
  set(machine, "saved_us", machine.push.saved_us, source);
  set(machine, "copy_gb_per_second", copy, source);
  for (Constant& one : machine.constants) {
    if (one.name == "wire") one = {"wire", text, one.unit, source + ".wire"};
  }
}

void take_cpu_floor(Machine& machine, const json& floor, const std::string& file) {
  std::vector<RateAt> copy;
  for (const json& one : floor.value("rate", json::array())) {
    copy.push_back({one.value("bytes", 0.0), one.value("gb_per_second", 0.0)});
    require(copy.back().at > 0 && copy.back().gb_per_second > 0, Errc::kMalformedFile,
            "plan: {}: floors[0].rate has {}, must be above 0", file, describe_json(one));
  }
  require(!copy.empty(), Errc::kMalformedFile,
          "plan: {}: floors[0] has no rate, must have those of copies", file);
  machine.pull.copy = copy;
  for (Constant& one : machine.constants) {
    if (one.name == "copy") one.source = file + ": floors[0].rate";
  }
}

Machine from_bench(const json& document, const std::string& file) {
  const json& floors = document["floors"];
  require(floors.is_array() && !floors.empty() && floors[0].is_object(), Errc::kMalformedFile,
          "plan: {}: floors is {}, must have one floor or more", file, describe_json(floors));
  const bool is_gpu = document.value("device", "") == "cuda";
  std::string kind = "cpu";
  if (is_gpu) {
    const json named = document.value("machine", json::object());
    const std::string gpu = named.is_object() ? named.value("gpu", "") : "";
    kind = gpu.find("H100") != std::string::npos ? "h100" : "h200";
  }
  Machine machine = embedded(*find_embedded(kind));
  if (is_gpu) {
    take_gpu_floor(machine, floors[0], file);
  } else {
    take_cpu_floor(machine, floors[0], file);
  }
  machine.name = file;
  machine.title = fmt::format("{}, floor of {}", machine.title, file);
  return machine;
}

}  // namespace

std::string machine_names() {
  std::string names;
  for (const EmbeddedFile& one : machine_files()) {
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  }
  return names;
}

Machine find_machine(const std::string& name_or_path) {
  const EmbeddedFile* const known = find_embedded(name_or_path);
  if (known != nullptr) return embedded(*known);
  std::error_code ignored;
  require(std::filesystem::exists(name_or_path, ignored), Errc::kInvalidArgument,
          "plan: constants are \"{}\", must be a file of `bench --json` or one of {}", name_or_path,
          machine_names());
  const json document = parse_json(read_text_file(name_or_path, kMaxFileBytes), name_or_path);
  require(document.is_object() && (document.contains("constants") || document.contains("floors")),
          Errc::kMalformedFile,
          "plan: {}: no constants and no floors, must be a file of constants or of `bench --json`",
          name_or_path);
  try {
    return document.contains("constants") ? read_machine(document, name_or_path)
                                          : from_bench(document, name_or_path);
  } catch (const json::exception& error) {
    fail(Errc::kMalformedFile, "plan: {}: {}", name_or_path, describe_error(error));
  }
}

}  // namespace switchyard::forecast
