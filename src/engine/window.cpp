// SPDX-License-Identifier: Apache-2.0

#include "engine/window.h"

#include "core/bytes.h"
#include "core/fail.h"
#include "core/memory.h"
#include "engine/control.h"

namespace switchyard {

void require_window_memory(const Control& control, std::size_t bytes) {
  const int num_ranks = control.host_size();
  require_memory(fmt::format("window: {} bytes on each of {} ranks", bytes, num_ranks),
                 checked_mul(bytes, static_cast<std::size_t>(num_ranks)));
}

void agree_on_window(Control& control, const char* step, std::size_t bytes,
                     const std::string& own_error) {
  const std::vector<std::string> notes = control.all_gather_text(
      {Phase::kExchange, step}, own_error.empty() ? fmt::format("{}", bytes) : "!" + own_error);
  for (int peer = 0; peer < control.size(); ++peer) {
    const std::string& note = notes[static_cast<std::size_t>(peer)];
    require(note.empty() || note[0] != '!', Errc::kOutOfMemory, "window: rank {} of {}: {}", peer,
            control.size(), note.substr(1));
    require(note == notes[0], Errc::kInvalidArgument,
            "window: rank {} asks for {} bytes, but rank 0 for {}; sizes must be equal", peer, note,
            notes[0]);
  }
}

}  // namespace switchyard
