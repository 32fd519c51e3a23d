// SPDX-License-Identifier: Apache-2.0

#include "switchyard/version.h"

namespace switchyard {

#define SWITCHYARD_TEXT_(x) #x
#define SWITCHYARD_TEXT(x) SWITCHYARD_TEXT_(x)

const char* version() {
  return SWITCHYARD_TEXT(SWITCHYARD_VERSION_MAJOR) "." SWITCHYARD_TEXT(
      SWITCHYARD_VERSION_MINOR) "." SWITCHYARD_TEXT(SWITCHYARD_VERSION_PATCH);
}

const char* build_summary() {
  return SWITCHYARD_TEXT(SWITCHYARD_VERSION_MAJOR) "." SWITCHYARD_TEXT(
      SWITCHYARD_VERSION_MINOR) "." SWITCHYARD_TEXT(SWITCHYARD_VERSION_PATCH) " " SWITCHYARD_BUILD_SUMMARY;
}

}  // namespace switchyard
