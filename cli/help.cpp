// SPDX-License-Identifier: Apache-2.0

#include "help.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "core/text.h"

namespace switchyard::cli {
namespace {

constexpr std::size_t kTextColumn = 24;

// What is in "TEXT:{a,b}" or "INT:INT in [1 - 64]" behind the first colon.
std::string rule_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t colon = type.find(':');
  return colon == type.npos ? "" : type.substr(colon + 1);
}

std::string value_name(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (option.get_type_size() == 0 || type.empty()) return "";
  if (type.starts_with('[')) return type;
  if (rule_of(option).starts_with('{')) return "NAME";
  return type.starts_with("INT") || type.starts_with("UINT") ? "N"
         : type.starts_with("FLOAT")                         ? "X"
                                                             : "TEXT";
}

// "one of a, b" or "1 to 64"; empty where it says nothing: a limit that nobody reaches.
std::string rule_text(const CLI::Option& option) {
  const std::string rule = rule_of(option);
  if (rule.starts_with('{')) {
    std::string names;
    for (const char c : rule.substr(1, rule.size() - 2))
      names += c == ',' ? ", " : std::string(1, c);
    return "one of " + names;
  }
  const std::size_t open = rule.find('[');
  const std::size_t dash = rule.find(" - ");
  if (open == rule.npos || dash == rule.npos) return "";
  constexpr long long kFar = 1 << 20;
  const std::string least = rule.substr(open + 1, dash - open - 1);
  const std::string most = rule.substr(dash + 3, rule.find(']') - dash - 3);
  if (std::atoll(most.c_str()) < kFar) return least + " to " + most;
  return std::atoll(least.c_str()) <= 1 ? "" : "at least " + least;
}

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string head = "  " + make_option_name(option, is_positional);
    const std::size_t mark = head.find("{false}");
    if (mark != head.npos) head.erase(mark, std::string_view("{false}").size());
    const std::string value = value_name(*option);
    if (!value.empty()) head += " " + value;
    std::string text = option->get_description();
    if (option->get_required()) text += "; required";
    const std::string rule = rule_text(*option);
    if (!rule.empty()) text += "; " + rule;
    const std::string preset = option->get_default_str();
    if (!preset.empty()) text += "; default: " + preset;
    return entry(head, text);
  }

  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description() + "\n", 0, help_width());
  }

  std::string make_footer(const CLI::App* app) const override {
    const std::string footer = app->get_footer();
    return footer.empty() ? "" : wrapped(footer + "\n", 0, help_width());
  }

  std::string make_subcommand(const CLI::App* verb) const override {
    return entry("  " + verb->get_name(), verb->get_description());
  }

 private:
  static std::string entry(const std::string& head, const std::string& text) {
    const bool is_beside = head.size() < kTextColumn - 1;
    const std::string gap = is_beside ? std::string(kTextColumn - head.size(), ' ')
                                      : "\n" + std::string(kTextColumn, ' ');
    return head + gap + wrapped(text, kTextColumn, help_width()) + "\n";
  }
};

}  // namespace

std::string wrapped(const std::string& text, std::size_t column, std::size_t width) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool is_last = lines.peek() == std::istringstream::traits_type::eof();
    const bool is_laid_out = line.starts_with(' ');
    std::size_t at = column;
    std::istringstream words(line);
    for (std::string word; !is_laid_out && words >> word;) {
      const bool is_first = at == column;
      if (!is_first && at + 1 + word.size() > width) {
        out += "\n" + std::string(column, ' ');
        at = column;
      } else if (!is_first) {
        out += ' ';
        ++at;
      }
      out += word;
      at += word.size();
    }
    if (is_laid_out) out += line;
    if (!is_last || text.ends_with('\n')) out += "\n";
  }
  return out;
}

std::size_t help_width() {
  constexpr std::size_t kLeast = 40;
  constexpr std::size_t kMost = 120;
  std::size_t width = 80;
  winsize window{};
  const char* const columns = std::getenv("COLUMNS");
  if (columns != nullptr && std::atoi(columns) > 0) {
    width = static_cast<std::size_t>(std::atoi(columns));
  } else if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) {
    width = window.ws_col;
  }
  return std::clamp(width, kLeast, kMost);
}

std::shared_ptr<CLI::Formatter> help_formatter() { return std::make_shared<HelpFormatter>(); }

CLI::Validator one_of(std::vector<std::string_view> names) {
  const std::string choices = fmt::format("{{{}}}", fmt::join(names, ","));
  return CLI::Validator(
      [names = std::move(names)](const std::string& value) {
        if (std::ranges::find(names, value) != names.end()) return std::string();
        return must_be(value, names);
      },
      choices);
}

}  // namespace switchyard::cli
