// SPDX-License-Identifier: Apache-2.0
//
// error.h: the one exception of the library.
#pragma once

#include <stdexcept>
#include <string>

#include "switchyard/export.h"

namespace switchyard {

/// Why a call failed. Caller mistakes, faults of the environment and bugs of ours are told apart.
enum class Errc {
  kInvalidArgument,    ///< a shape, dtype, id or option is wrong; nothing was written
  kWorkspaceTooSmall,  ///< memory given by the caller is too small; the message says what is needed
  kCapacityExceeded,   ///< an expert was sent more rows than its capacity; nothing was moved
  kMalformedFile,      ///< a file is truncated, hostile or not of the format it claims
  kNotSupported,       ///< a valid request that this library does not serve
  kNotAvailable,       ///< an optional part is missing in this build or on this machine
  kOutOfMemory,        ///< memory or another system limit
  kTimeout,            ///< a peer did not answer within the group's timeout
  kPeerLost,           ///< a peer died or closed its connection
  kAborted,            ///< Group::abort() was called, here or on a peer
  kSystem,             ///< an operating system call failed
  kInternal,           ///< a bug of ours; please report it with the version line
};

/// The name used in logs and JSON, for example "invalid_argument".
SWITCHYARD_API const char* name_of(Errc code) noexcept;

/// Every failure of the library. The message is one sentence: what is, what should be, what to do;
/// with more than one rank it names the rank and the peers concerned.
///
/// After kTimeout, kPeerLost or kAborted the group it came from can only be destroyed.
class SWITCHYARD_API Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& message) : std::runtime_error(message), code_(code) {}
  Errc code() const noexcept { return code_; }

 private:
  Errc code_;
};

}  // namespace switchyard
