// SPDX-License-Identifier: Apache-2.0

#include "heap/gather_or_fail.h"

#include <charconv>

#include "core/fail.h"

namespace switchyard {
namespace {

constexpr char kFailed = '!';

// "!<code> <message>"
std::string failure_text(const Error& error) {
  return fmt::format("{}{} {}", kFailed, static_cast<int>(error.code()), error.what());
}

[[noreturn]] void fail_as(const std::string& text, std::size_t rank, int num_ranks) {
  int code = static_cast<int>(Errc::kInternal);
  const char* const end = text.data() + text.size();
  const char* message = std::from_chars(text.data() + 1, end, code).ptr;
  if (message != end) ++message;
  fail(static_cast<Errc>(code), "device window: rank {} of {}: {}", rank, num_ranks,
       std::string(message, end));
}

}  // namespace

std::vector<std::string> gather_or_fail(Control& control, const Step& step,
                                        const std::function<std::string()>& action) {
  std::string text;
  try {
    text = action();
  } catch (const Error& error) {
    if (ends_the_group(error.code())) throw;
    text = failure_text(error);
  }
  const std::vector<std::string> texts = control.all_gather_text(step, text);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty() && texts[rank][0] == kFailed) {
      fail_as(texts[rank], rank, control.size());
    }
  }
  return texts;
}

}  // namespace switchyard
