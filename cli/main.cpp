// SPDX-License-Identifier: Apache-2.0
//
// The switchyard command. Exit codes: 0 success; 1 result outside its bound, failed case of check
// or wrong element in bench; 2 usage error or malformed file; 3 environment; 4 timeout or lost
// peer.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "switchyard/error.h"
#include "switchyard/version.h"

#include "bench.h"
#include "check.h"
#include "doctor.h"
#include "quantize.h"
#include "run.h"

namespace {

using switchyard::Errc;

int exit_code_of(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
    case Errc::kWorkspaceTooSmall:
    case Errc::kCapacityExceeded:
    case Errc::kMalformedFile:
    case Errc::kNotSupported: return 2;
    case Errc::kNotAvailable:
    case Errc::kOutOfMemory:
    case Errc::kSystem:
    case Errc::kInternal: return 3;
    case Errc::kTimeout:
    case Errc::kPeerLost:
    case Errc::kAborted: return 4;
  }
  return 3;
}

std::vector<std::string> names_of_verbs(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

// CLI11 alone would only say that a subcommand is required.
int no_verb_error(const CLI::App& app, const std::string& word) {
  const std::string names = CLI::detail::join(names_of_verbs(app), ", ");
  if (word.empty()) {
    std::fprintf(stderr, "switchyard: no verb is given; there are %s\n\n%s", names.c_str(),
                 app.help().c_str());
  } else {
    std::fprintf(stderr, "switchyard: no verb \"%s\"; there are %s\n", word.c_str(), names.c_str());
  }
  return 2;
}

// Replaces CLI11's messages and exit codes; requests for help or the version are not errors.
int usage_error(const CLI::App& app, const std::string& verb, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  if (verb.empty()) return no_verb_error(app, verb);
  std::fprintf(stderr, "switchyard: invalid_argument: %s: %s; see switchyard %s --help\n",
               verb.c_str(), error.what(), verb.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Expert-parallel dispatch and combine for Mixture-of-Experts layers", "switchyard"};
  app.get_formatter()->label("SUBCOMMAND", "VERB");
  app.set_version_flag("--version", switchyard::build_summary());
  app.require_subcommand(1);
  app.footer(
      "exit codes: 0 fine, 1 result outside its bound, or a case of check that disagrees, or a "
      "wrong element of bench, "
      "2 usage or malformed file, 3 environment, 4 timeout or lost peer");
  switchyard::cli::RunOptions run_options;
  switchyard::cli::add_run(app, run_options);
  switchyard::cli::CheckOptions check_options;
  const CLI::App* check_verb = switchyard::cli::add_check(app, check_options);
  switchyard::cli::BenchOptions bench_options;
  const CLI::App* bench_verb = switchyard::cli::add_bench(app, bench_options);
  switchyard::cli::QuantizeOptions quantize_options;
  const CLI::App* quantize_verb = switchyard::cli::add_quantize(app, quantize_options);
  switchyard::cli::DoctorOptions doctor_options;
  const CLI::App* doctor_verb = switchyard::cli::add_doctor(app, doctor_options);
  const std::string word = argc > 1 && argv[1][0] != '-' ? argv[1] : "";
  const std::vector<std::string> verbs = names_of_verbs(app);
  const bool is_verb = std::find(verbs.begin(), verbs.end(), word) != verbs.end();
  if (argc < 2 || (argv[1][0] != '-' && !is_verb)) return no_verb_error(app, word);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return usage_error(app, word, error);
  }
  try {
    if (check_verb->parsed()) return switchyard::cli::check(check_options, argv);
    if (bench_verb->parsed()) return switchyard::cli::bench(bench_options, argv);
    if (doctor_verb->parsed()) return switchyard::cli::doctor(doctor_options);
    if (quantize_verb->parsed()) return switchyard::cli::quantize(*quantize_verb, quantize_options);
    return switchyard::cli::run(run_options, argv);
  } catch (const switchyard::Error& error) {
    std::fprintf(stderr, "switchyard: %s: %s\n", name_of(error.code()), error.what());
    return exit_code_of(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "switchyard: internal: %s; please report it with: %s\n", error.what(),
                 switchyard::build_summary());
    return 3;
  }
}
