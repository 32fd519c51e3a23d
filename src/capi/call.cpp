// SPDX-License-Identifier: Apache-2.0

#include "capi/call.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string_view>

namespace switchyard::capi {
namespace {

// No message is longer (error.h), and memory that is there already cannot run out.
struct LastError {
  sy_status status = SY_OK;
  std::array<char, 4096> text{};
};

thread_local LastError last_error;
thread_local const char* function_name = "switchyard";

sy_status status_of(Errc code) noexcept { return static_cast<sy_status>(code) + 1; }

static_assert(static_cast<int>(Errc::kInvalidArgument) + 1 == SY_INVALID_ARGUMENT);
static_assert(static_cast<int>(Errc::kNotAvailable) + 1 == SY_NOT_AVAILABLE);
static_assert(static_cast<int>(Errc::kTimeout) + 1 == SY_TIMEOUT);
static_assert(static_cast<int>(Errc::kInternal) + 1 == SY_INTERNAL);

sy_status record(sy_status status, std::string_view text) noexcept {
  const std::size_t length = std::min(text.size(), last_error.text.size() - 1);
  std::memmove(last_error.text.data(), text.data(), length);
  last_error.text[length] = '\0';
  last_error.status = status;
  return status;
}

}  // namespace

const char* current_function() noexcept { return function_name; }

CallScope::CallScope(const char* function) noexcept
    : outer_(std::exchange(function_name, function)) {}
CallScope::~CallScope() { function_name = outer_; }

sy_status record_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return record(status_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return record(SY_OUT_OF_MEMORY, "host memory is exhausted; use fewer tokens or ranks");
  } catch (const std::exception& error) {
    return record(SY_INTERNAL, error.what());
  } catch (...) {
    return record(SY_INTERNAL, "an exception of unknown type; was it thrown by a callback?");
  }
}

Error error_of(const char* callback, sy_status status) {
  if (status < SY_INVALID_ARGUMENT || status > SY_INTERNAL) {
    return Error(
        Errc::kInvalidArgument,
        fmt::format("{}: {} returned {}, which is not a status; return SY_OK or one of c/base.h",
                    current_function(), callback, status));
  }
  const auto code = static_cast<Errc>(status - 1);
  if (last_error.status == status) return Error(code, last_error.text.data());
  return Error(code,
               fmt::format("{}: {} returned {}", current_function(), callback, name_of(code)));
}

void throw_status(const char* callback, sy_status status) { throw error_of(callback, status); }

}  // namespace switchyard::capi

extern "C" {

const char* sy_last_error(void) { return switchyard::capi::last_error.text.data(); }

const char* sy_status_name(sy_status status) {
  if (status == SY_OK) return "ok";
  return switchyard::name_of(static_cast<switchyard::Errc>(status - 1));
}

}  // extern "C"
