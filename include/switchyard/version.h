// SPDX-License-Identifier: Apache-2.0
//
// version.h: the one place that states the version. CMake reads these three lines.
#pragma once

#include "switchyard/export.h"

/// @{ Version of the header.
#define SWITCHYARD_VERSION_MAJOR 0
#define SWITCHYARD_VERSION_MINOR 1
#define SWITCHYARD_VERSION_PATCH 0
/// @}

namespace switchyard {

/// Version of the loaded library, for example "0.1.0". Compare it with the macros above, which
/// state the version of the header.
SWITCHYARD_API const char* version();

/// One line for reports: version, compiler, build type and the optional parts of this build.
SWITCHYARD_API const char* build_summary();

}  // namespace switchyard
