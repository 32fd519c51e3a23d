// SPDX-License-Identifier: Apache-2.0
//
// machine.h: the measured constants of a kind of machine, each with its source.
#pragma once

#include <string>
#include <vector>

#include "plan/cost.h"

namespace switchyard::forecast {

/// For the report.
struct Constant {
  std::string name;  ///< for example "wire"
  std::string value;
  std::string unit;
  std::string source;  ///< a result file and its field, or who published it
};

struct Machine {
  std::string name;  ///< "h200", "h100", "cpu"; the path of a file
  std::string title;
  bool is_gpu = true;
  PushCosts push;  ///< GPUs
  PullCosts pull;  ///< CPUs
  NetworkCosts network;
  double tflops = 0;  ///< that experts reach
  std::vector<Constant> constants;
};

/// "h200, h100, cpu": those whose constants are part of the program.
std::string machine_names();

/// `name_or_path` is one of them, a file of the same form (docs/plan.md), or what `bench --json`
/// wrote: its floor then replaces the constants that it measures, in those of the kind of machine
/// that it names. Errors: kInvalidArgument, kMalformedFile, kNotSupported (a GPU of which the other
/// constants are not known), kSystem.
Machine find_machine(const std::string& name_or_path);

/// Which of machine_names() has the constants of the GPU that `bench --json` calls `gpu`; `file` is
/// where it does. Errors: kNotSupported.
std::string kind_of_gpu(const std::string& gpu, const std::string& file);

/// At which experts read their weights: as copies read and write.
double weight_gb_per_second(const Machine& machine);

/// Replace a constant in what is computed and in what is reported; `source` says who gave it. Rates
/// of fewer CTAs keep their proportion to the fastest. Errors: kInvalidArgument (no GPUs).
void set_wire(Machine& machine, double gb_per_second, const std::string& source);
void set_network(Machine& machine, double gb_per_second, const std::string& source);
void set_tflops(Machine& machine, double tflops, const std::string& source);

}  // namespace switchyard::forecast
