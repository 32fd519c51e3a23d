// SPDX-License-Identifier: Apache-2.0
//
// store_engine.h: an engine without shared memory, to prove that there can be one. Ranks have a
// store and nothing else: who waits asks it every millisecond.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/fail.h"
#include "engine/engine.h"

namespace switchyard::test {

class StoreControl final : public Control {
 public:
  explicit StoreControl(GroupSpec spec) : Control(std::move(spec)) {}
  ~StoreControl() override { put("left/" + std::to_string(rank()), "yes"); }

  bool abort(Errc code, int culprit, const std::string& reason) noexcept override {
    if (find_lost_peer(); has_cause()) return false;
    put("abort", fmt::format("{} {} {}", static_cast<int>(code), culprit, reason));
    find_lost_peer();
    return true;
  }

 private:
  // A store that is gone says nothing.
  void put(const std::string& key, const std::string& value) noexcept try {
    store().set(key, value);
  } catch (const Error&) {
  }
  std::string look_up(const std::string& key) noexcept try {
    return store().get(key, Deadline::after_ms(0)).value_or("");
  } catch (const Error&) {
    return "";
  }

  void rest(std::uint32_t /*seen*/, std::int64_t ns) override {
    usleep(static_cast<useconds_t>(std::min<std::int64_t>(ns / 1000, 1000)));
    find_lost_peer();
  }
  // It cannot see who is lost; it does see what others said.
  int find_lost_peer() noexcept override {
    const std::string text = look_up("abort");
    const std::lock_guard lock(mutex_);
    if (cause_.empty()) cause_ = text;
    return -1;
  }
  bool has_left(int peer) const noexcept override {
    return !const_cast<StoreControl*>(this)->look_up("left/" + std::to_string(peer)).empty();
  }
  bool has_cause() const noexcept override {
    const std::lock_guard lock(mutex_);
    return !cause_.empty();
  }
  AbortCause abort_cause() const override {
    const std::lock_guard lock(mutex_);
    const char* const end = cause_.data() + cause_.size();
    int code = 0;
    AbortCause cause;
    const char* next = std::from_chars(cause_.data(), end, code).ptr + 1;
    next = std::from_chars(next, end, cause.culprit).ptr + 1;
    cause.code = static_cast<Errc>(code);
    cause.reason.assign(next, end);
    return cause;
  }

  mutable std::mutex mutex_;
  std::string cause_;  // code, culprit, reason; empty: none
};

class StoreEngine final : public Engine {
 public:
  explicit StoreEngine(const GroupSpec& spec)
      : Engine("store", std::make_unique<StoreControl>(spec)) {}

 private:
  std::shared_ptr<Engine> make_subgroup(const GroupSpec& spec,
                                        const std::string& /*name*/) override {
    return std::make_shared<StoreEngine>(spec);
  }
};

}  // namespace switchyard::test
