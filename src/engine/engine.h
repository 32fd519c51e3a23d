// SPDX-License-Identifier: Apache-2.0
//
// engine.h: what a group stands on: a Control, and windows where ranks address each other's memory.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "engine/control.h"
#include "engine/window.h"

namespace switchyard {

class Engine {
 public:
  Engine(const char* name, std::unique_ptr<Control> control,
         std::unique_ptr<WindowSource> windows = nullptr)
      : name_(name), control_(std::move(control)), windows_(std::move(windows)) {}

  const char* name() const { return name_; }
  Control& control() const { return *control_; }

  bool has_windows() const { return windows_ != nullptr; }
  /// `user`, the function that needs them, opens the message.
  /// Errors: kNotSupported when ranks of this engine do not address each other's memory.
  WindowSource& windows(std::string_view user = "group") const;

 private:
  const char* name_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<WindowSource> windows_;  // after what it uses
};

}  // namespace switchyard
