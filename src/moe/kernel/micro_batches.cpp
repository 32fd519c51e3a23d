// SPDX-License-Identifier: Apache-2.0
//
// A ring of threads of which one has the turn. Only that one runs, also while an error unwinds the
// others, so nothing but the turn itself needs a lock: handing it over orders all the rest. Who
// waits too long, or hears an interrupt, says so and aborts the group, but unwinds no sooner than
// it has the turn.

#include "switchyard/micro_batches.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/fail.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "device/cuda_module.h"
#include "moe/kernel/communication_order.h"

namespace switchyard {
namespace {

constexpr int kMaxMicroBatches = 64;  // as many as an exchange has handles

class Ring {
 public:
  /// One micro-batch.
  struct Context {
    Ring* ring = nullptr;
    int id = 0;
    std::vector<std::function<void()>> hooks;  ///< left by others; for who has the turn
    std::condition_variable has_turn;
    bool has_ended = false;
  };

  Ring(const Group& group, int size)
      : group_(group),
        turn_limit_(2 * group.timeout_ms()),
        contexts_(static_cast<std::size_t>(size)) {
    for (int id = 0; id < size; ++id) {
      at(id).ring = this;
      at(id).id = id;
    }
  }

  void run(const std::function<void(int)>& body);
  void yield(Context& self);
  void leave_hook(Context& self, std::function<void()> hook);
  static void run_hooks(Context& self);
  void launch_in_order(Stream stream, const std::function<void()>& launch);

 private:
  Context& at(int id) { return contexts_[static_cast<std::size_t>(id)]; }
  int size() const { return static_cast<int>(contexts_.size()); }
  int next_of(const Context& self);
  void serve(Context& self, const std::function<void(int)>& body);
  void pass_turn(const Context& self);
  void wait_for_turn(Context& self);
  void wait_for_others(const Context& self);
  void listen(const Context& self, std::unique_lock<std::mutex>& lock);
  void end(Context& self);
  void record(const Context& self, const std::string& what);
  void record_late_turn(const Context& self, int holder);

  const Group& group_;
  const std::chrono::milliseconds turn_limit_;
  std::vector<Context> contexts_;
  std::shared_ptr<void> last_launch_;  // event; for who has the turn, as the next
  Stream last_stream_ = Stream::host();
  std::mutex mutex_;  // guards what follows, and has_ended
  int turn_ = 0;
  std::uint64_t num_turns_ = 0;
  std::condition_variable all_ended_;
  std::exception_ptr error_;
  std::string reason_;
};

thread_local Ring::Context* current = nullptr;

class CurrentContext {
 public:
  explicit CurrentContext(Ring::Context& context) { current = &context; }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext() { current = nullptr; }
};

void Ring::run(const std::function<void(int)>& body) {
  {
    std::vector<std::jthread> threads;
    try {
      for (int id = 1; id < size(); ++id) {
        threads.emplace_back([this, id, &body] {
          set_log_rank(group_.rank());
          serve(at(id), body);
        });
      }
    } catch (const std::system_error& error) {
      try {
        fail(Errc::kSystem, "run_micro_batches: thread {} of {}: {}", threads.size() + 1, size(),
             error.what());
      } catch (const Error& no_thread) {
        record(at(static_cast<int>(threads.size()) + 1), no_thread.what());
      }
      for (int id = static_cast<int>(threads.size()) + 1; id < size(); ++id) end(at(id));
    }
    serve(at(0), body);
    wait_for_others(at(0));
  }
  if (error_) std::rethrow_exception(error_);
}

void Ring::serve(Context& self, const std::function<void(int)>& body) {
  const CurrentContext here(self);
  try {
    wait_for_turn(self);
    body(self.id);
    run_hooks(self);
  } catch (const std::exception& error) {
    record(self, error.what());
  } catch (...) {
    record(self, "unknown exception");
  }
  end(self);
}

// The first error counts; the peers, who wait for rows of this rank, learn of it.
void Ring::record(const Context& self, const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = std::current_exception();
    reason_ = fmt::format("micro-batch {} ended with: {}", self.id, what);
  }
  group_.abort("its " + reason_);
}

void Ring::end(Context& self) {
  const std::lock_guard lock(mutex_);
  self.has_ended = true;
  if (turn_ == self.id) pass_turn(self);
  all_ended_.notify_one();
}

// Itself when it is the last. Under the lock.
int Ring::next_of(const Context& self) {
  for (int step = 1; step < size(); ++step) {
    const int id = (self.id + step) % size();
    if (!at(id).has_ended) return id;
  }
  return self.id;
}

// Under the lock.
void Ring::pass_turn(const Context& self) {
  turn_ = next_of(self);
  ++num_turns_;
  at(turn_).has_turn.notify_one();
}

void Ring::record_late_turn(const Context& self, int holder) {
  try {
    fail(Errc::kTimeout,
         "run_micro_batches: micro-batch {} has not yielded for {:.1f} s, twice the group's "
         "timeout (micro-batch {} of rank {} waited for its turn)",
         holder, std::chrono::duration<double>(turn_limit_).count(), self.id, group_.rank());
  } catch (const Error& late) {
    record(self, late.what());
  }
}

void Ring::wait_for_turn(Context& self) {
  std::unique_lock lock(mutex_);
  while (turn_ != self.id) {
    const std::uint64_t seen = num_turns_;
    const auto is_moved = [&] { return turn_ == self.id || num_turns_ != seen; };
    // In slices, so that the time for which the whole job was stopped does not count.
    const Deadline deadline = Deadline::after_ms(turn_limit_.count());
    while (!is_moved() && !deadline.expired()) {
      if (!self.has_turn.wait_for(lock, std::chrono::milliseconds(kSliceMs), is_moved)) {
        listen(self, lock);
      }
    }
    if (is_moved() || error_) continue;
    const int holder = turn_;
    lock.unlock();
    record_late_turn(self, holder);
    lock.lock();
  }
  if (error_) {
    fail(Errc::kAborted, "run_micro_batches: micro-batch {} was ended, because {}", self.id,
         reason_);
  }
}

// The caller's thread stays until the others have ended: it alone may hear interrupts.
void Ring::wait_for_others(const Context& self) {
  const auto have_ended = [&] {
    return std::all_of(contexts_.begin(), contexts_.end(),
                       [](const Context& context) { return context.has_ended; });
  };
  std::unique_lock lock(mutex_);
  while (!all_ended_.wait_for(lock, std::chrono::milliseconds(kSliceMs), have_ended)) {
    listen(self, lock);
  }
}

// Without the lock while it asks, because the answer may take one of the program's.
void Ring::listen(const Context& self, std::unique_lock<std::mutex>& lock) {
  if (error_) return;
  lock.unlock();
  if (is_interrupted()) {
    try {
      fail(Errc::kAborted, "run_micro_batches: it was interrupted (micro-batch {} of rank {})",
           self.id, group_.rank());
    } catch (const Error& interrupted) {
      record(self, interrupted.what());
    }
  }
  lock.lock();
}

void Ring::yield(Context& self) {
  {
    const std::lock_guard lock(mutex_);
    pass_turn(self);
  }
  wait_for_turn(self);
}

void Ring::leave_hook(Context& self, std::function<void()> hook) {
  int next = 0;
  {
    const std::lock_guard lock(mutex_);
    next = next_of(self);
  }
  if (next == self.id) return hook();
  at(next).hooks.push_back(std::move(hook));
}

void Ring::run_hooks(Context& self) {
  const std::vector<std::function<void()>> hooks = std::exchange(self.hooks, {});
  for (const std::function<void()>& hook : hooks) hook();
}

void Ring::launch_in_order(Stream stream, const std::function<void()>& launch) {
  if (last_launch_ != nullptr && last_stream_ != stream) {
    cuda_module().wait_event(last_launch_.get(), stream);
  }
  launch();
  last_launch_ = cuda_module().record_event(stream);
  last_stream_ = stream;
}

}  // namespace

void launch_in_order(Stream stream, const std::function<void()>& launch) {
  if (current == nullptr || stream.device().is_cpu()) return launch();
  require(
      stream != Stream::default_of(stream.device()), Errc::kInvalidArgument,
      "run_micro_batches: micro-batch {} launches into the default stream, which is another one "
      "on each thread; use a stream of its own",
      current->id);
  current->ring->launch_in_order(stream, launch);
}

void run_micro_batches(const Group& group, int num_micro_batches,
                       const std::function<void(int)>& body) {
  require(num_micro_batches >= 1 && num_micro_batches <= kMaxMicroBatches, Errc::kInvalidArgument,
          "run_micro_batches: num_micro_batches is {}, must be from 1 to {}", num_micro_batches,
          kMaxMicroBatches);
  require(current == nullptr, Errc::kInvalidArgument,
          "run_micro_batches: called inside micro-batch {}, must be outside of all",
          dbo_current_micro_batch());
  if (num_micro_batches == 1) return body(0);
  Ring(group, num_micro_batches).run(body);
}

bool dbo_enabled() noexcept { return current != nullptr; }

int dbo_current_micro_batch() noexcept { return current == nullptr ? 0 : current->id; }

void dbo_yield() {
  if (current != nullptr) current->ring->yield(*current);
}

void dbo_register_recv_hook(std::function<void()> hook) {
  if (current == nullptr) return hook();
  current->ring->leave_hook(*current, std::move(hook));
}

void dbo_maybe_run_recv_hook() {
  if (current != nullptr) Ring::run_hooks(*current);
}

}  // namespace switchyard
