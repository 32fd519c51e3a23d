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

}  // namespace switchyard
