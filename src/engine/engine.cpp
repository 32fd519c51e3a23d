// SPDX-License-Identifier: Apache-2.0

#include "engine/engine.h"

#include "core/fail.h"

namespace switchyard {

WindowSource& Engine::windows(std::string_view user) const {
  require(
      has_windows(), Errc::kNotSupported,
      "{}: ranks of engine \"{}\" do not address each other's memory, must be of an engine with "
      "windows; use local or shm",
      user, name_);
  return *windows_;
}

MessageSource& Engine::messages(std::string_view user) const {
  require(
      has_messages(), Errc::kNotSupported,
      "{}: ranks of engine \"{}\" exchange no messages, must be of an engine with messages; use "
      "local",
      user, name_);
  return *messages_;
}

}  // namespace switchyard
