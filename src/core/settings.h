// SPDX-License-Identifier: Apache-2.0
//
// settings.h: every environment variable of the library in one table. Precedence: program,
// environment, default.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

struct SettingInfo {
  const char* name;
  const char* default_text;
  const char* help;
};

enum class SettingOrigin { kDefault, kEnvironment, kProgram };

struct SettingValue {
  std::string text;
  SettingOrigin origin;
};

std::span<const SettingInfo> all_settings();
const char* name_of(SettingOrigin origin) noexcept;

/// Errors: kInternal when the table has no such name.
SettingValue setting(std::string_view name);

/// As reports and programs see it: a secret that is set is "(set)".
SettingValue shown_setting(std::string_view name);

/// Errors: kInvalidArgument when the text is not a whole number from `min` to `max`.
std::int64_t setting_integer(std::string_view name, std::int64_t min, std::int64_t max);

/// Sets a value that takes precedence over the environment. Errors: kInternal when the table has no
/// such name.
void set_setting(std::string_view name, std::string text);

}  // namespace switchyard
