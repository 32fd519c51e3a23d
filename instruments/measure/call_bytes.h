// SPDX-License-Identifier: Apache-2.0
//
// call_bytes.h: counts what the calls of timed runs send to other hosts. A graph sends at every
// replay what its calls said when they were captured.
#pragma once

#include <cstdint>

#include "switchyard/exchange_types.h"

namespace switchyard::measure {

class CallBytes {
 public:
  /// Before the work of a run is enqueued or captured.
  void begin() { run_ = {}; }
  void add(const WireBytes& call) {
    run_.dispatch += call.dispatch;
    run_.combine += call.combine;
  }
  /// After each timed run, of `num_calls` dispatches and as many combines.
  void end(int num_calls) {
    all_.dispatch += run_.dispatch;
    all_.combine += run_.combine;
    num_calls_ += num_calls;
  }

  /// The mean of a dispatch and that of a combine.
  WireBytes per_call() const {
    if (num_calls_ == 0) return {};
    return {all_.dispatch / num_calls_, all_.combine / num_calls_};
  }

 private:
  WireBytes run_;
  WireBytes all_;
  std::int64_t num_calls_ = 0;
};

}  // namespace switchyard::measure
