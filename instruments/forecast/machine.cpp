// SPDX-License-Identifier: Apache-2.0

#include "forecast/machine.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/fail.h"
#include "forecast/machine_files.h"
#include "io/file.h"
#include "io/json.h"

namespace switchyard::forecast {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = std::size_t{16} << 20;
constexpr int kMaxSms = 4096;

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

std::string text_of(const std::vector<RateAt>& rates) {
  std::string text;
  for (const RateAt& rate : rates) {
    text +=
        fmt::format("{}{:.4g} at {:.4g}", text.empty() ? "" : ", ", rate.gb_per_second, rate.at);
  }
  return text;
}

/// For a message; a short array as it is.
std::string shown(const json& value) {
  constexpr std::size_t kMaxBytes = 60;
  const std::string text = value.is_array() ? value.dump() : "";
  return text.empty() || text.size() > kMaxBytes ? describe_json(value) : text;
}

/// Appends a rate that `where` has as `from`. Errors: kMalformedFile.
void add_rate(std::vector<RateAt>& rates, const RateAt& rate, const std::string& where,
              const json& from) {
  require(rate.at > 0 && rate.gb_per_second > 0 && (rates.empty() || rate.at > rates.back().at),
          Errc::kMalformedFile,
          "plan: {} has {}, must be sizes and rates above 0, ascending by size", where,
          shown(from));
  rates.push_back(rate);
}

/// Errors: kMalformedFile.
double number_of(const json& value, const std::string& where, bool may_be_zero) {
  const double number = value.is_number() ? value.get<double>() : -1;
  require(number > 0 || (may_be_zero && number == 0), Errc::kMalformedFile,
          "plan: {} is {}, must be a number {} 0", where, describe_json(value),
          may_be_zero ? "of at least" : "above");
  return number;
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
      machine_.push.num_sms = count_of_sms();
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
    const double number =
        number_of(from["value"], fmt::format("{}: constants.{}", file_, name), may_be_zero);
    note(name, from, fmt::format("{:.4g}", number));
    return number;
  }

  int count_of_sms() {
    const json& from = constant("num_sms");
    const json& value = from["value"];
    const bool is_count = value.is_number_integer() && value >= 1 && value <= kMaxSms;
    require(is_count, Errc::kMalformedFile,
            "plan: {}: constants.num_sms is {}, must be a whole number from 1 to {}", file_,
            describe_json(value), kMaxSms);
    note("num_sms", from, value.dump());
    return value.get<int>();
  }

  std::vector<RateAt> rates(const char* name) {
    const json& from = constant(name);
    const json& value = from["value"];
    const std::string where = fmt::format("{}: constants.{}", file_, name);
    require(value.is_array() && !value.empty(), Errc::kMalformedFile,
            "plan: {} is {}, must be pairs of a size and a rate", where, shown(value));
    std::vector<RateAt> result;
    for (const json& one : value) {
      const bool is_pair =
          one.is_array() && one.size() == 2 && one[0].is_number() && one[1].is_number();
      const RateAt rate = is_pair ? RateAt{one[0].get<double>(), one[1].get<double>()} : RateAt{};
      add_rate(result, rate, where, one);
    }
    note(name, from, text_of(result));
    return result;
  }

  const json& constants_;
  const std::string& file_;
  Machine& machine_;
};

bool is_of_gpus(const json& document, const std::string& file) {
  const std::string device = document.value("device", "");
  require(device == "cuda" || device == "cpu", Errc::kMalformedFile,
          "plan: {}: device is \"{}\", must be cuda or cpu", file, device);
  return device == "cuda";
}

/// What constants must be to each other. Errors: kMalformedFile.
void check_together(const Machine& machine, const std::string& file) {
  const PushCosts& push = machine.push;
  require(!machine.is_gpu || push.saved_us < push.start_us, Errc::kMalformedFile,
          "plan: {}: saved_us is {}, must be less than start_us, which is {}", file, push.saved_us,
          push.start_us);
  const double overlap = machine.is_gpu ? push.overlap : machine.pull.overlap;
  require(overlap >= 1, Errc::kMalformedFile,
          "plan: {}: constants.overlap is {}, must be at least 1, at which nothing overlaps", file,
          overlap);
}

Machine read_machine(const json& document, const std::string& file) {
  Machine machine;
  machine.name = document.value("name", file);
  machine.title = document.value("title", machine.name);
  machine.is_gpu = is_of_gpus(document, file);
  Reader(document["constants"], file, machine).read();
  check_together(machine, file);
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

Constant& find_constant(Machine& machine, std::string_view name) {
  const auto found = std::ranges::find(machine.constants, name, &Constant::name);
  require(found != machine.constants.end(), Errc::kInternal,
          "plan: {} has no constant {}, must have it", machine.name, name);
  return *found;
}

void report(Machine& machine, std::string_view name, std::string value, const std::string& source) {
  Constant& constant = find_constant(machine, name);
  constant.value = std::move(value);
  constant.source = source;
}

void report(Machine& machine, std::string_view name, double value, const std::string& source) {
  report(machine, name, fmt::format("{:.4g}", value), source);
}

/// Null when there is none.
json constant_of(const json& floor, const char* name) {
  for (const json& one : floor.value("constants", json::array())) {
    if (one.value("name", "") == name) return one.value("value", json());
  }
  return {};
}

// The start of older files is of other measurements, so a file without the rates of the wire is
// not taken.
void take_gpu_floor(Machine& machine, const json& floor, const std::string& file) {
  const bool has_wire = floor.contains("wire") && floor["wire"].is_object() &&
                        floor["wire"].contains("tried") && floor["wire"]["tried"].is_array();
  require(has_wire, Errc::kMalformedFile,
          "plan: {}: its floor has no rates of the wire by CTAs, must be of a newer bench with 2 "
          "ranks or more",
          file);
  const std::string source = file + ": floors[0]";
  std::vector<RateAt> wire;
  for (const json& one : floor["wire"]["tried"]) {
    if (one.value("by", "") != "16-byte stores") continue;
    add_rate(wire, {one.value("ctas", 0.0), one.value("gb_per_second", 0.0)},
             source + ".wire.tried", one);
  }
  require(!wire.empty(), Errc::kMalformedFile,
          "plan: {}: wire.tried has no 16-byte stores, must have their rates", file);
  PushCosts& push = machine.push;
  push.wire = wire;
  push.start_us = number_of(floor.value("start_us", json()), source + ".start_us", false);
  push.saved_us = number_of(floor.value("saved_us", json()), source + ".saved_us", true);
  push.copy_gb_per_second =
      number_of(constant_of(floor, "copy"), source + ".constants.copy", false);
  check_together(machine, file);
  report(machine, "start_us", push.start_us, source);
  report(machine, "saved_us", push.saved_us, source);
  report(machine, "copy_gb_per_second", push.copy_gb_per_second, source);
  report(machine, "wire", text_of(wire), source + ".wire");
}

void take_cpu_floor(Machine& machine, const json& floor, const std::string& file) {
  std::vector<RateAt> copy;
  for (const json& one : floor.value("rate", json::array())) {
    add_rate(copy, {one.value("bytes", 0.0), one.value("gb_per_second", 0.0)},
             file + ": floors[0].rate", one);
  }
  require(!copy.empty(), Errc::kMalformedFile,
          "plan: {}: floors[0] has no rate, must have those of copies", file);
  machine.pull.copy = copy;
  report(machine, "copy", text_of(copy), file + ": floors[0].rate");
}

// Its constants stand for what the floor does not measure.
std::string kind_of(const json& document, const std::string& file) {
  if (!is_of_gpus(document, file)) return "cpu";
  const json named = document.value("machine", json::object());
  return kind_of_gpu(named.is_object() ? named.value("gpu", "") : "", file);
}

Machine from_bench(const json& document, const std::string& file) {
  const json& floors = document["floors"];
  require(floors.is_array() && !floors.empty() && floors[0].is_object(), Errc::kMalformedFile,
          "plan: {}: floors is {}, must have one floor or more", file, shown(floors));
  Machine machine = embedded(*find_embedded(kind_of(document, file)));
  if (machine.is_gpu) {
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

std::string kind_of_gpu(const std::string& gpu, const std::string& file) {
  if (gpu.find("H100") != std::string::npos) return "h100";
  require(gpu.find("H200") != std::string::npos, Errc::kNotSupported,
          "plan: {}: machine.gpu is \"{}\", must name an H100 or H200, whose constants are known; "
          "give --constants with a file of constants, see docs/plan.md",
          file, gpu);
  return "h200";
}

double weight_gb_per_second(const Machine& machine) {
  if (machine.is_gpu) return machine.push.copy_gb_per_second;
  return 2 * machine.pull.copy.back().gb_per_second;  // a copy reads and writes
}

void set_wire(Machine& machine, double gb_per_second, const std::string& source) {
  require(machine.is_gpu, Errc::kInvalidArgument,
          "plan: {} with constants of CPUs, must be constants of GPUs", source);
  double most = 0;
  for (const RateAt& rate : machine.push.wire) most = std::max(most, rate.gb_per_second);
  for (RateAt& rate : machine.push.wire) rate.gb_per_second *= gb_per_second / most;
  report(machine, "wire", text_of(machine.push.wire),
         fmt::format("{}; fewer CTAs in proportion to {}", source,
                     find_constant(machine, "wire").source));
}

void set_network(Machine& machine, double gb_per_second, const std::string& source) {
  machine.network.gb_per_second = gb_per_second;
  report(machine, "network_gb_per_second", gb_per_second, source);
}

void set_tflops(Machine& machine, double tflops, const std::string& source) {
  machine.tflops = tflops;
  report(machine, "tflops", tflops, source);
}

}  // namespace switchyard::forecast
