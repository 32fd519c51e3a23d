// SPDX-License-Identifier: Apache-2.0
//
// command.h: the verbs with their options, and what a command line asks of them.
#pragma once

#include <CLI/CLI.hpp>

#include "bench.h"
#include "check.h"
#include "doctor.h"
#include "plan.h"
#include "quantize.h"
#include "run.h"

namespace switchyard::cli {

class Command {
 public:
  Command();

  /// False: nothing remains to be done, help or the version is printed.
  /// Errors: kInvalidArgument (usage).
  bool parse(int argc, const char* const* argv);

  /// Does what the parsed verb is for. Errors: those of the verb.
  int run(char** argv);

 private:
  CLI::App app_;
  RunOptions run_options_;
  CheckOptions check_options_;
  BenchOptions bench_options_;
  PlanOptions plan_options_;
  QuantizeOptions quantize_options_;
  DoctorOptions doctor_options_;
  const CLI::App* run_;
  const CLI::App* check_;
  const CLI::App* bench_;
  const CLI::App* plan_;
  const CLI::App* quantize_;
  const CLI::App* doctor_;
};

}  // namespace switchyard::cli
