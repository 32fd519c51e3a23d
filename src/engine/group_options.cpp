// SPDX-License-Identifier: Apache-2.0

#include "engine/group_options.h"

#include "core/fail.h"
#include "core/settings.h"

namespace switchyard {

std::int64_t timeout_of(const GroupOptions& options) {
  constexpr std::int64_t kMaxTimeoutMs = 86'400'000;
  if (options.timeout_ms == 0) return setting_integer("SWITCHYARD_TIMEOUT_MS", 1, kMaxTimeoutMs);
  require(options.timeout_ms > 0 && options.timeout_ms <= kMaxTimeoutMs, Errc::kInvalidArgument,
          "group: timeout_ms is {}, must be from 1 to {}", options.timeout_ms, kMaxTimeoutMs);
  return options.timeout_ms;
}

std::string engine_of(const GroupOptions& options) {
  return options.engine.empty() ? setting("SWITCHYARD_ENGINE").text : options.engine;
}

std::string secret_of(const GroupOptions& options) {
  return options.secret.empty() ? setting("SWITCHYARD_SECRET").text : options.secret;
}

}  // namespace switchyard
