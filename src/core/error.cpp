// SPDX-License-Identifier: Apache-2.0

#include "switchyard/error.h"

#include <cerrno>
#include <system_error>

#include "core/fail.h"
#include "core/text.h"

namespace switchyard {

namespace {

constexpr std::size_t kMaxMessageBytes = 4000;

}  // namespace

Error::Error(Errc code, const std::string& message)
    : std::runtime_error(one_line(shorten(message, kMaxMessageBytes))), code_(code) {}

const char* name_of(Errc code) noexcept {
  switch (code) {
    case Errc::kInvalidArgument: return "invalid_argument";
    case Errc::kWorkspaceTooSmall: return "workspace_too_small";
    case Errc::kCapacityExceeded: return "capacity_exceeded";
    case Errc::kMalformedFile: return "malformed_file";
    case Errc::kNotSupported: return "not_supported";
    case Errc::kNotAvailable: return "not_available";
    case Errc::kOutOfMemory: return "out_of_memory";
    case Errc::kTimeout: return "timeout";
    case Errc::kPeerLost: return "peer_lost";
    case Errc::kAborted: return "aborted";
    case Errc::kSystem: return "system";
    case Errc::kInternal: return "internal";
  }
  return "unknown";
}

void fail_errno(const char* call, const std::string& subject) {
  const int error = errno;
  const bool is_limit = error == ENOMEM || error == EMFILE || error == ENFILE;
  const Errc code = is_limit ? Errc::kOutOfMemory : Errc::kSystem;
  throw Error(code, fmt::format("{}: {}: {}{}", call, subject,
                                std::error_code(error, std::system_category()).message(),
                                error == EMFILE ? "; raise ulimit -n" : ""));
}

}  // namespace switchyard
