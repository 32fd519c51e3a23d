// SPDX-License-Identifier: Apache-2.0
//
// commit.h: of which commit a program is, for the results that it writes. The definition is made by
// cmake/Commit.cmake and linked by switchyard_commit.
#pragma once

namespace switchyard {

/// "391c2870a1b2", or "391c2870a1b2 with changes"; "unknown" where it was not
/// built from a repository.
const char* build_commit() noexcept;

}  // namespace switchyard
