// SPDX-License-Identifier: Apache-2.0
//
// error.h: the library's only exception.
#pragma once

#include <stdexcept>
#include <string>

#include "switchyard/export.h"

namespace switchyard {

/// Why a call failed. The codes separate mistakes of the caller, faults of the environment and bugs
/// of this library.
enum class Errc {
  kInvalidArgument,    ///< a shape, dtype, id or option is wrong; nothing was written
  kWorkspaceTooSmall,  ///< memory from the caller is too small; the message says how much is needed
  kCapacityExceeded,   ///< more rows were sent to an expert than its capacity; nothing was moved
  kMalformedFile,      ///< a file is truncated, hostile or not in the format it claims
  kNotSupported,       ///< a valid request that this library does not support
  kNotAvailable,       ///< an optional part is missing in this build or on this machine
  kOutOfMemory,        ///< memory or another system limit is exhausted
  kTimeout,            ///< a peer did not answer within the group's timeout
  kPeerLost,           ///< a peer died or closed its connection
  kAborted,            ///< Group::abort() was called, here or on a peer
  kSystem,             ///< an operating system call failed
  kInternal,           ///< a bug in this library; please report it with the version line
};

/// The name used in logs and JSON, for example "invalid_argument".
SWITCHYARD_API const char* name_of(Errc code) noexcept;

/// Every failure of the library. The message is one sentence: what was found, what it must be, what
/// to do. In a group of several ranks it names the rank and the peers concerned. It is one line of
/// less than 4096 bytes.
///
/// After kTimeout, kPeerLost or kAborted, the group that raised it can only be destroyed.
class SWITCHYARD_API Error : public std::runtime_error {
 public:
  /// An error with a message of its own.
  Error(Errc code, const std::string& message);
  Errc code() const noexcept { return code_; }  ///< why the call failed

 private:
  Errc code_;
};

}  // namespace switchyard
