// SPDX-License-Identifier: Apache-2.0
//
// shared_control.h: the control of ranks that share memory. Every group keeps one ControlBlock that
// all ranks (and our launcher) map: an abort line and two lines a rank. A rank sleeps on its own
// doorbell (an event count: read the doorbell, look again, sleep unless it moved); a peer that
// changed something the rank may wait for rings it.
#pragma once

#include "engine/control.h"
#include "engine/window.h"
#include "transport/control_block.h"

namespace switchyard {

class SharedControl : public Control {
 public:
  void enter(Phase phase, std::uint64_t call) noexcept override;
  bool abort(Errc code, int culprit, const std::string& reason) noexcept override;

  void notify(int peer) noexcept { block_.ring(peer); }
  void notify_all() noexcept;

 protected:
  explicit SharedControl(GroupSpec spec) : Control(std::move(spec)) {}
  /// Takes part from here on; `leave` tells the peers that this rank waits for nobody any more.
  void attach(ControlBlock block);
  void leave() noexcept;
  bool has_left(int peer) const noexcept override;
  void rest(std::uint32_t seen, std::int64_t ns) override;

 private:
  std::uint32_t bell() noexcept override;
  void meet_all(std::uint64_t number) override;
  bool has_cause() const noexcept override;
  AbortCause abort_cause() const override;
  std::string place_of(int peer) const override;

  ControlBlock block_;
};

/// Rings the doorbells of a SharedControl, which outlives it.
class SharedWindowSource : public WindowSource {
 public:
  void notify(int peer) noexcept override { control_.notify(peer); }
  void notify_all() noexcept override { control_.notify_all(); }

 protected:
  explicit SharedWindowSource(SharedControl& control) : control_(control) {}

 private:
  SharedControl& control_;
};

}  // namespace switchyard
