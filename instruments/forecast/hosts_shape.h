// SPDX-License-Identifier: Apache-2.0
//
// hosts_shape.h: a shape of bench on hosts of one size.
#pragma once

#include "measure/bench_shape.h"

namespace switchyard::forecast {

struct HostsShape : measure::BenchShape {
  int num_hosts = 1;  ///< divides num_ranks; consecutive ranks share one
};

}  // namespace switchyard::forecast
