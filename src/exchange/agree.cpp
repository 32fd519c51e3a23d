// SPDX-License-Identifier: Apache-2.0

#include "exchange/agree.h"

#include <algorithm>

#include "core/fail.h"

namespace switchyard {
namespace {

std::string to_text(const NamedValues& values) {
  std::string text;
  for (const auto& [name, value] : values) text += name + "=" + value + "\n";
  return text;
}

// The value of `name` in another rank's text; "absent" when that rank has no such field.
std::string value_in(const std::string& text, const std::string& name) {
  const std::string wanted = name + "=";
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (text.compare(begin, wanted.size(), wanted) == 0) {
      return text.substr(begin + wanted.size(), end - begin - wanted.size());
    }
    begin = end + 1;
  }
  return "absent";
}

}  // namespace

void require_agreement(Control& control, const Step& step, std::string_view what,
                       const NamedValues& values) {
  const std::vector<std::string> texts = control.all_gather_text(step, to_text(values));
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    for (const auto& field : values) {
      const std::string first = value_in(texts[0], field.first);
      const std::string other = value_in(texts[rank], field.first);
      require(first == other, Errc::kInvalidArgument,
              "{}: rank {} has {} {}, but rank 0 has {}; every rank must pass the same", what, rank,
              field.first, other, first);
    }
    fail(Errc::kInvalidArgument, "{}: rank {} runs another version of the library than rank 0",
         what, rank);
  }
}

}  // namespace switchyard
