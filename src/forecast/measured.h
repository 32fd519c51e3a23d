// SPDX-License-Identifier: Apache-2.0
//
// measured.h: predictions beside the rows of `bench --json`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forecast/hosts_shape.h"
#include "forecast/machine.h"

namespace switchyard::forecast {

struct MeasuredRow {
  HostsShape shape;
  std::string date;
  double measured_us = 0;  ///< of one operation, also where several make an iteration
  double predicted_us = 0;
  const char* dispatch_path = "";
  const char* combine_path = "";
  double ratio() const { return predicted_us / measured_us; }
};

struct MeasuredFile {
  std::string path;
  bool is_gpu = true;
  std::vector<MeasuredRow> rows;
};

/// Errors: kInvalidArgument, kMalformedFile, kSystem.
MeasuredFile read_measured(const std::string& path);

/// With `keeps_roles` as in TimeOptions. Errors: kInvalidArgument (a machine of the other device).
void predict(MeasuredFile& file, const Machine& machine, bool keeps_roles);

}  // namespace switchyard::forecast
