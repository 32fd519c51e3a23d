// SPDX-License-Identifier: Apache-2.0
//
// engine.h: what a group stands on: a Control, windows where ranks address each other's memory, and
// messages where they can send them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/control.h"
#include "engine/messages.h"
#include "engine/window.h"

namespace switchyard {

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  const char* name() const { return name_; }
  Control& control() const { return *control_; }

  bool has_windows() const { return windows_ != nullptr; }
  /// `user`, the function that needs them, opens the message.
  /// Errors: kNotSupported when ranks of this engine do not address each other's memory.
  WindowSource& windows(std::string_view user = "group") const;

  bool has_messages() const { return messages_ != nullptr; }
  /// Errors: kNotSupported when ranks of this engine exchange no messages.
  MessageSource& messages(std::string_view user = "group") const;

  /// As Group::split; null for a negative color.
  std::shared_ptr<Engine> split(int color, int key);

  /// Collective: the ranks of this rank's host, in their order, with windows: this engine if it has
  /// windows and one host, else a subgroup, as split makes it. Errors: as split; kNotSupported when
  /// ranks that say that they share a host cannot share memory.
  std::shared_ptr<Engine> make_host_group();

 protected:
  Engine(const char* name, std::unique_ptr<Control> control,
         std::unique_ptr<WindowSource> windows = nullptr,
         std::unique_ptr<MessageSource> messages = nullptr)
      : name_(name),
        control_(std::move(control)),
        windows_(std::move(windows)),
        messages_(std::move(messages)) {}

 private:
  /// Collective over the ranks of `spec`: an engine of this kind for them. `name` is the same on
  /// each of them and no other subgroup's. `spec.store` is a part of this group's store: ranks may
  /// meet there, but who serves it need not be in the subgroup and may leave afterwards.
  virtual std::shared_ptr<Engine> make_subgroup(const GroupSpec& spec, const std::string& name) = 0;

  /// The same for ranks of one host; what they make has windows.
  virtual std::shared_ptr<Engine> make_host_subgroup(const GroupSpec& spec,
                                                     const std::string& name) {
    return make_subgroup(spec, name);
  }

  using Maker = std::shared_ptr<Engine> (Engine::*)(const GroupSpec&, const std::string&);
  std::shared_ptr<Engine> split(int color, int key, Maker make);
  GroupSpec spec_of(const std::vector<int>& members, const std::string& name);

  const char* name_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<WindowSource> windows_;  // after what it uses
  std::unique_ptr<MessageSource> messages_;
};

}  // namespace switchyard
