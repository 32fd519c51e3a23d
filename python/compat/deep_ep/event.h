// SPDX-License-Identifier: Apache-2.0
//
// event.h: the value that calls return in place of a CUDA event.
#pragma once

#include <memory>
#include <utility>

#include "switchyard/stream.h"

namespace switchyard::deep_ep {

/// Mirrors DeepEP's EventOverlap. On a GPU it stands behind the work that a call has put into its
/// stream. On CPUs results are complete when the call has returned or its hook has run.
class EventOverlap {
 public:
  EventOverlap() = default;
  explicit EventOverlap(std::shared_ptr<void> event) : event_(std::move(event)) {}

  /// What comes next in `stream` waits for the call. Without an event nothing happens.
  ///
  /// Errors: kInvalidArgument when a call on a GPU is to be waited for in the host's stream.
  void current_stream_wait(Stream stream = Stream::host()) const;

 private:
  std::shared_ptr<void> event_;
};

/// Behind what the stream has so far; on CPUs empty.
EventOverlap event_behind(Stream stream);

}  // namespace switchyard::deep_ep
