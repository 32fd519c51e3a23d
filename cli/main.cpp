// SPDX-License-Identifier: Apache-2.0
//
// The switchyard command. Exit codes: 0 success; 1 result outside its bound, failed case of check,
// wrong element in bench or nothing measured; 2 usage error or malformed file; 3 environment; 4
// timeout or lost peer.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "switchyard/error.h"
#include "switchyard/version.h"

#include "bench.h"
#include "check.h"
#include "core/text.h"
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

std::string nearest_of(const std::string& wanted, const std::vector<std::string>& names) {
  return switchyard::nearest_names(wanted,
                                   std::vector<std::string_view>(names.begin(), names.end()));
}

int usage_error(const std::string& text) {
  std::fprintf(stderr, "switchyard: invalid_argument: %s\n",
               switchyard::Error(Errc::kInvalidArgument, text).what());
  return 2;
}

// CLI11 alone would only say that a subcommand is required.
int no_verb_error(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = names_of_verbs(app);
  const std::string all = CLI::detail::join(names, ", ");
  if (word.empty())
    return usage_error("no verb is given; there are " + all + "; see switchyard help");
  if (word.front() == '-') {
    return usage_error("option " + switchyard::quote(word) +
                       " stands before a verb, which only --help and --version may; write "
                       "switchyard VERB OPTIONS, there are " +
                       all);
  }
  return usage_error("no verb " + switchyard::quote(word) + nearest_of(word, names) +
                     "; there are " + all);
}

// The first option that the verb does not have; empty when something else is wrong.
std::string unknown_option(const CLI::App& verb) {
  for (const std::string& word : verb.remaining()) {
    if (word.starts_with("-")) return word.substr(0, word.find('='));
  }
  return {};
}

// Replaces CLI11's messages and exit codes; requests for help or the version are not errors.
int parse_error(const CLI::App& app, const std::string& verb, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  const CLI::App& asked = *app.get_subcommand(verb);
  const std::string option = unknown_option(asked);
  const std::string see = "; see switchyard help " + verb;
  if (option.empty()) return usage_error(verb + ": " + error.what() + see);
  std::vector<std::string> names;
  for (const CLI::Option* known : asked.get_options()) names.push_back(known->get_name());
  return usage_error(verb + ": no option " + switchyard::quote(option) + nearest_of(option, names) +
                     see);
}

// switchyard help [VERB]
int help(const CLI::App& app, const std::string& verb) {
  const std::vector<std::string> verbs = names_of_verbs(app);
  const bool is_verb = std::find(verbs.begin(), verbs.end(), verb) != verbs.end();
  if (!verb.empty() && !is_verb) return no_verb_error(app, verb);
  std::fputs((verb.empty() ? app.help() : app.get_subcommand(verb)->help("switchyard")).c_str(),
             stdout);
  return 0;
}

int fail_with(const std::exception& error) {
  const auto* own = dynamic_cast<const switchyard::Error*>(&error);
  if (own == nullptr) {
    std::fprintf(stderr, "switchyard: internal: %s; please report it with: %s\n", error.what(),
                 switchyard::build_summary());
    return 3;
  }
  std::fprintf(stderr, "switchyard: %s: %s\n", name_of(own->code()), own->what());
  return exit_code_of(own->code());
}

int run_verb(int argc, char** argv) {
  CLI::App app{"Expert-parallel dispatch and combine for Mixture-of-Experts layers", "switchyard"};
  app.get_formatter()->label("SUBCOMMAND", "VERB");
  app.set_version_flag("-V,--version", switchyard::build_summary());
  app.require_subcommand(1);
  app.footer(
      "switchyard help VERB shows the options of a verb\n"
      "exit codes: 0 fine, 1 result outside its bound, or a case of check that disagrees, or bench "
      "with a wrong element or nothing measured, 2 usage or malformed file, 3 environment, 4 "
      "timeout or lost peer");
  switchyard::cli::RunOptions run_options;
  const CLI::App* run_verb = switchyard::cli::add_run(app, run_options);
  switchyard::cli::CheckOptions check_options;
  const CLI::App* check_verb = switchyard::cli::add_check(app, check_options);
  switchyard::cli::BenchOptions bench_options;
  const CLI::App* bench_verb = switchyard::cli::add_bench(app, bench_options);
  switchyard::cli::QuantizeOptions quantize_options;
  const CLI::App* quantize_verb = switchyard::cli::add_quantize(app, quantize_options);
  switchyard::cli::DoctorOptions doctor_options;
  const CLI::App* doctor_verb = switchyard::cli::add_doctor(app, doctor_options);
  const std::string word = argc > 1 ? argv[1] : "";
  const std::string second = argc > 2 ? argv[2] : "";
  if (word == "help") return help(app, second);
  if (word == "-h" || word == "--help") return help(app, second.starts_with("-") ? "" : second);
  if (word == "-V" || word == "--version") return std::puts(switchyard::build_summary()), 0;
  const std::vector<std::string> verbs = names_of_verbs(app);
  const bool is_verb = std::find(verbs.begin(), verbs.end(), word) != verbs.end();
  if (!is_verb) return no_verb_error(app, word);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return parse_error(app, word, error);
  }
  if (check_verb->parsed()) return switchyard::cli::check(check_options, argv);
  if (bench_verb->parsed()) return switchyard::cli::bench(*bench_verb, bench_options, argv);
  if (doctor_verb->parsed()) return switchyard::cli::doctor(doctor_options);
  if (quantize_verb->parsed()) return switchyard::cli::quantize(*quantize_verb, quantize_options);
  return switchyard::cli::run(*run_verb, run_options, argv);
}

// Output that did not arrive is an error: the next program would take it for whole.
int flush_output(int exit_code) {
  std::cout.flush();
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written) return exit_code;
  std::fprintf(stderr, "switchyard: system: stdout: the output could not be written\n");
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return flush_output(run_verb(argc, argv));
  } catch (const std::exception& error) {
    return fail_with(error);
  }
}
