// SPDX-License-Identifier: Apache-2.0
//
// measured.h: predictions beside the rows of `bench --json`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forecast/hosts_shape.h"
#include "forecast/layer_time.h"
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
  std::string gpu;  ///< its name, for kind_of_gpu()
  bool is_layer = false;
  int num_hosts = 1;      ///< between which rows travelled
  std::string constants;  ///< with which predict() has predicted
  std::vector<MeasuredRow> rows;
};

/// Errors: kInvalidArgument, kMalformedFile, kNotSupported (ranks that exchange messages alone, or
/// not as many on each host), kSystem.
MeasuredFile read_measured(const std::string& path);

/// With `keeps_roles` as in TimeOptions. `experts`: of layers, but for the bits of weights, which
/// those of `bench` have. Errors: kInvalidArgument (a machine of the other device).
void predict(MeasuredFile& file, const Machine& machine, const ExpertCosts& experts,
             bool keeps_roles);

}  // namespace switchyard::forecast
