// SPDX-License-Identifier: Apache-2.0
//
// window.h: memory that all ranks of a group address. Only engines whose ranks share memory have
// it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "transport/socket.h"

namespace switchyard {

class Control;

/// One region of equal size on each rank, mapped on every rank, zero-filled. Offsets in it come
/// from the layout structs of plan.
class Window {
 public:
  Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  virtual ~Window() = default;

  std::byte* base(int rank) const { return bases_[static_cast<std::size_t>(rank)]; }
  std::size_t size_bytes() const { return size_bytes_; }

 protected:
  std::vector<std::byte*> bases_;
  std::size_t size_bytes_ = 0;
};

/// Where windows come from, and how a rank says that it has written into one.
class WindowSource {
 public:
  WindowSource() = default;
  WindowSource(const WindowSource&) = delete;
  WindowSource& operator=(const WindowSource&) = delete;
  virtual ~WindowSource() = default;

  /// Collective: every rank passes the same size. Errors: kOutOfMemory, kTimeout, kPeerLost.
  virtual std::unique_ptr<Window> make_window(std::size_t bytes) = 0;

  /// Wakes `peer` if it sleeps in Control::wait. Call after the release store it may wait for.
  virtual void notify(int peer) noexcept = 0;
  virtual void notify_all() noexcept = 0;

  /// True when ranks are processes that can pass descriptors to each other.
  virtual bool can_swap_descriptors() const { return false; }

  /// Collective, set-up only: each rank gives every peer a descriptor of `own` and gets theirs, by
  /// rank (its own place is empty). `bytes`, equal on all ranks, is compared with what comes. A
  /// rank that cannot take or give one still serves its peers, so that all are in step when it
  /// throws. Errors: kNotSupported (see can_swap_descriptors), kTimeout, kPeerLost, kOutOfMemory,
  /// kSystem.
  virtual std::vector<Fd> swap_descriptors(const Fd& own, std::size_t bytes) = 0;
};

/// For make_window: throws unless this host has memory for a window on each of its ranks. Errors:
/// kOutOfMemory.
void require_window_memory(const Control& control, std::size_t bytes);

/// For make_window: throws on every rank, naming the first, when sizes differ or a rank could not
/// do this step (`own_error`: why this one could not, else empty).
void agree_on_window(Control& control, const char* step, std::size_t bytes,
                     const std::string& own_error);

}  // namespace switchyard
