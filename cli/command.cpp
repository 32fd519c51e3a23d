// SPDX-License-Identifier: Apache-2.0

#include "command.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/error.h"
#include "switchyard/version.h"

#include "core/text.h"
#include "help.h"

namespace switchyard::cli {
namespace {

std::vector<std::string> names_of_verbs(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

std::string nearest_of(const std::string& wanted, const std::vector<std::string>& names) {
  return nearest_names(wanted, std::vector<std::string_view>(names.begin(), names.end()));
}

std::string version_line() { return std::string("switchyard ") + build_summary(); }

[[noreturn]] void usage_error(const std::string& text) {
  throw Error(Errc::kInvalidArgument, text);
}

// CLI11 alone would only say that a subcommand is required.
[[noreturn]] void no_verb_error(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = names_of_verbs(app);
  const std::string all = CLI::detail::join(names, ", ");
  if (word.empty()) usage_error("no verb is given; there are " + all + "; see switchyard help");
  if (word.front() == '-') {
    usage_error("option " + quote(word) +
                " stands before a verb, which only --help and --version may; write "
                "switchyard VERB OPTIONS, there are " +
                all);
  }
  usage_error("no verb " + quote(word) + nearest_of(word, names) + "; there are " + all);
}

// The first option that the verb does not have; empty when something else is wrong.
std::string unknown_option(const CLI::App& verb) {
  for (const std::string& word : verb.remaining()) {
    if (word.starts_with("-")) return word.substr(0, word.find('='));
  }
  return {};
}

// What a word alone was probably meant for.
std::string option_for_words(const std::string& verb) {
  if (verb == "run") return "--model";
  if (verb == "bench" || verb == "plan") return "--workload";
  if (verb == "quantize") return "--in";
  return verb == "check" ? "--filter" : "";
}

// Words that belong to no option.
void refuse_words(const CLI::App& verb, const std::string& name) {
  for (const std::string& word : verb.remaining()) {
    if (word.starts_with("-")) continue;
    const std::string option = option_for_words(name);
    usage_error(name + ": " + quote(word) + " belongs to no option" +
                (option.empty() ? "" : "; write " + option + " " + word) +
                "; see switchyard help " + name);
  }
}

// Replaces CLI11's messages and exit codes; requests for help or the version are not errors.
void parse_error(const CLI::App& app, const std::string& verb, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {
    app.exit(error);
    return;
  }
  const CLI::App& asked = *app.get_subcommand(verb);
  const std::string option = unknown_option(asked);
  const std::string see = "; see switchyard help " + verb;
  if (option.empty()) refuse_words(asked, verb);
  if (option.empty()) usage_error(verb + ": " + error.what() + see);
  std::vector<std::string> names;
  for (const CLI::Option* known : asked.get_options()) names.push_back(known->get_name());
  usage_error(verb + ": no option " + quote(option) + nearest_of(option, names) + see);
}

// An empty value is a variable of a script that was not set.
void require_values(const CLI::App& verb) {
  for (const CLI::Option* option : verb.get_options()) {
    if (option->count() == 0 || option->get_expected_min() == 0) continue;
    const std::vector<std::string>& values = option->results();
    if (std::find(values.begin(), values.end(), "") == values.end()) continue;
    usage_error(verb.get_name() + ": " + option->get_name() +
                " is empty, must be a value; leave it out for its default");
  }
}

// switchyard help [VERB]
void help(const CLI::App& app, const std::string& verb) {
  const std::vector<std::string> verbs = names_of_verbs(app);
  const bool is_verb = std::find(verbs.begin(), verbs.end(), verb) != verbs.end();
  if (!verb.empty() && !is_verb) no_verb_error(app, verb);
  const std::string text = verb.empty() ? app.help() : app.get_subcommand(verb)->help("switchyard");
  std::fputs(text.c_str(), stdout);
}

}  // namespace

Command::Command()
    : app_("Expert-parallel dispatch and combine for Mixture-of-Experts layers", "switchyard"),
      run_(add_run(app_, run_options_)),
      check_(add_check(app_, check_options_)),
      bench_(add_bench(app_, bench_options_)),
      plan_(add_plan(app_, plan_options_)),
      quantize_(add_quantize(app_, quantize_options_)),
      doctor_(add_doctor(app_, doctor_options_)) {
  const std::shared_ptr<CLI::Formatter> formatter = help_formatter();
  formatter->label("SUBCOMMAND", "VERB");
  app_.formatter(formatter);
  for (CLI::App* verb : app_.get_subcommands([](const CLI::App*) { return true; })) {
    verb->formatter(formatter);
  }
  app_.set_version_flag("-V,--version", version_line());
  app_.require_subcommand(1);
  app_.footer(
      "switchyard help VERB shows the options of a verb\n"
      "exit codes: 0 fine, 1 wrong result of run, or a case of check that disagrees, or bench with "
      "a wrong element or nothing measured, 2 usage or malformed file, 3 environment, 4 timeout or "
      "lost peer");
}

bool Command::parse(int argc, const char* const* argv) {
  const std::string word = argc > 1 ? argv[1] : "";
  const std::string second = argc > 2 ? argv[2] : "";
  if (word == "help" || word == "-h" || word == "--help") {
    help(app_, word == "help" || !second.starts_with("-") ? second : "");
    return false;
  }
  if (word == "-V" || word == "--version") {
    std::puts(version_line().c_str());
    return false;
  }
  const std::vector<std::string> verbs = names_of_verbs(app_);
  const bool is_verb = std::find(verbs.begin(), verbs.end(), word) != verbs.end();
  if (!is_verb) no_verb_error(app_, word);
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    parse_error(app_, word, error);
    return false;
  }
  require_values(*app_.get_subcommand(word));
  return true;
}

int Command::run(char** argv) {
  if (check_->parsed()) return check(check_options_, argv);
  if (bench_->parsed()) return bench(*bench_, bench_options_, argv);
  if (doctor_->parsed()) return doctor(doctor_options_);
  if (plan_->parsed()) return plan(*plan_, plan_options_);
  if (quantize_->parsed()) return quantize(*quantize_, quantize_options_);
  return cli::run(*run_, run_options_, argv);
}

}  // namespace switchyard::cli
