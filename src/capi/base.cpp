// SPDX-License-Identifier: Apache-2.0
//
// base.cpp: version, settings and messages.

#include "switchyard/c/base.h"

#include <optional>
#include <string>

#include "switchyard/device.h"
#include "switchyard/log.h"
#include "switchyard/version.h"

#include "capi/names.h"
#include "capi/sized.h"
#include "core/settings.h"

static_assert(SY_VERSION_MAJOR == SWITCHYARD_VERSION_MAJOR &&
              SY_VERSION_MINOR == SWITCHYARD_VERSION_MINOR &&
              SY_VERSION_PATCH == SWITCHYARD_VERSION_PATCH);

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

const char* sy_version(void) { return version(); }
const char* sy_build_summary(void) { return build_summary(); }

int32_t sy_num_cuda_devices(void) {
  int32_t count = 0;
  call(__func__, [&] { count = num_cuda_devices(); });
  return count;
}

int32_t sy_num_settings(void) { return static_cast<int32_t>(all_settings().size()); }

sy_status sy_setting_read(int32_t index, sy_setting* setting) {
  return call(__func__, [&] {
    check(index >= 0 && index < sy_num_settings(), "index is {}, must be from 0 to {}", index,
          sy_num_settings() - 1);
    const SettingInfo& info = all_settings()[static_cast<std::size_t>(index)];
    static thread_local std::string value;
    const SettingValue found = shown_setting(info.name);
    value = found.text;
    write_sized(setting, "setting",
                {0, info.name, info.help, info.default_text, value.c_str(), name_of(found.origin)});
  });
}

sy_status sy_setting_write(const char* name, const char* value) {
  return call(__func__, [&] {
    const std::string_view wanted = text(name, "name");
    bool is_known = false;
    for (const SettingInfo& info : all_settings()) is_known |= wanted == info.name;
    check(is_known, "there is no setting \"{}\"; docs/settings.md has them", wanted);
    set_setting(wanted, text(value, "value"));
  });
}

sy_status sy_log_to(sy_log_function function, void* user) {
  return call(__func__, [&] {
    if (function == nullptr) return set_log_callback({});
    set_log_callback(
        [=](LogLevel level, int rank, std::string_view subsystem, std::string_view message) {
          function(user, enum_name(level), rank, std::string(subsystem).c_str(),
                   std::string(message).c_str());
        });
  });
}

sy_status sy_log_level(const char* level) {
  return call(__func__,
              [&] { set_log_level(named(text(level, "level"), "level", LogLevel::kWarn)); });
}

}  // extern "C"
