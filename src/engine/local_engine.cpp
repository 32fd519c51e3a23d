// SPDX-License-Identifier: Apache-2.0

#include "engine/local_engine.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "core/aligned_buffer.h"
#include "core/fail.h"
#include "engine/local_messages.h"
#include "engine/shared_control.h"
#include "transport/env.h"
#include "transport/hash_store.h"

namespace switchyard {
namespace {

// Every rank's buffer of one window.
using Buffers = std::vector<AlignedBuffer>;

// What the ranks of one group share.
struct LocalGroup {
  explicit LocalGroup(int num_ranks)
      : control_memory(ControlBlock::size_bytes(num_ranks)),
        control(control_memory.data(), num_ranks) {}

  AlignedBuffer control_memory;
  ControlBlock control;
  const std::shared_ptr<HashStore> store = std::make_shared<HashStore>();
  const std::shared_ptr<LocalMail> mail = std::make_shared<LocalMail>();

  struct PendingWindow {
    std::shared_ptr<Buffers> buffers;
    int num_taken = 0;
  };
  std::mutex mutex;
  std::map<std::uint64_t, PendingWindow> windows;  // by gather, until every rank has taken it

  std::map<std::string, std::weak_ptr<LocalGroup>> subgroups;  // by name; the first rank makes it
  std::shared_ptr<LocalGroup> subgroup(const std::string& name, int num_ranks);
};

std::shared_ptr<LocalGroup> LocalGroup::subgroup(const std::string& name, int num_ranks) {
  const std::lock_guard lock(mutex);
  std::erase_if(subgroups, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<LocalGroup> group = subgroups[name].lock();
  if (!group) subgroups[name] = group = std::make_shared<LocalGroup>(num_ranks);
  return group;
}

class LocalWindow final : public Window {
 public:
  LocalWindow(std::shared_ptr<Buffers> buffers, std::size_t bytes) : buffers_(std::move(buffers)) {
    for (const AlignedBuffer& buffer : *buffers_) bases_.push_back(buffer.data());
    size_bytes_ = bytes;
  }

 private:
  std::shared_ptr<Buffers> buffers_;
};

class LocalControl final : public SharedControl {
 public:
  LocalControl(GroupSpec spec, std::shared_ptr<LocalGroup> group)
      : SharedControl(std::move(spec)), group_(std::move(group)) {
    attach(group_->control);
  }
  /// Windows of a part of the ranks ring the bells of that part: look often.
  bool has_hosts() const { return host_size() < size(); }
  ~LocalControl() override { leave(); }

 private:
  void rest(std::uint32_t seen, std::int64_t ns) override {
    constexpr std::int64_t kLookNs = 100'000;
    SharedControl::rest(seen, has_hosts() ? std::min(ns, kLookNs) : ns);
  }

  std::shared_ptr<LocalGroup> group_;
};

class LocalWindows final : public SharedWindowSource {
 public:
  LocalWindows(LocalControl& control, std::shared_ptr<LocalGroup> group)
      : SharedWindowSource(control), control_(control), group_(std::move(group)) {}

  std::unique_ptr<Window> make_window(std::size_t bytes) override;
  std::vector<Fd> swap_descriptors(const Fd& /*own*/, std::size_t /*bytes*/) override {
    fail(Errc::kNotSupported, "group: engine \"local\" has no sockets to pass descriptors over");
  }

 private:
  std::shared_ptr<Buffers> place_own_buffer(std::uint64_t number, std::size_t bytes);
  void drop_pending(std::uint64_t number);

  LocalControl& control_;
  std::shared_ptr<LocalGroup> group_;
};

// Each rank allocates its own buffer, so that its pages are near the core that uses them.
std::shared_ptr<Buffers> LocalWindows::place_own_buffer(std::uint64_t number, std::size_t bytes) {
  AlignedBuffer own(bytes);
  const std::lock_guard lock(group_->mutex);
  LocalGroup::PendingWindow& pending = group_->windows[number];
  if (!pending.buffers)
    pending.buffers = std::make_shared<Buffers>(static_cast<std::size_t>(control_.size()));
  (*pending.buffers)[static_cast<std::size_t>(control_.rank())] = std::move(own);
  std::shared_ptr<Buffers> buffers = pending.buffers;
  if (++pending.num_taken == control_.size()) group_->windows.erase(number);
  return buffers;
}

// After a failure: a rank that could not allocate never takes the window, so it would stay.
void LocalWindows::drop_pending(std::uint64_t number) {
  const std::lock_guard lock(group_->mutex);
  group_->windows.erase(number);
}

std::unique_ptr<Window> LocalWindows::make_window(std::size_t bytes) {
  const std::uint64_t number = control_.num_gathers();
  std::shared_ptr<Buffers> buffers;
  std::string error;
  try {
    require_window_memory(control_, bytes);
    buffers = place_own_buffer(number, bytes);
  } catch (const Error& failure) {
    error = failure.what();
  }
  try {
    agree_on_window(control_, "window", bytes, error);
  } catch (...) {
    drop_pending(number);
    throw;
  }
  return std::make_unique<LocalWindow>(std::move(buffers), bytes);
}

class LocalEngine final : public Engine {
 public:
  static std::shared_ptr<Engine> make(const char* name, const GroupSpec& spec,
                                      std::shared_ptr<LocalGroup> group) {
    auto control = std::make_unique<LocalControl>(spec, group);
    const bool has_windows = name == std::string_view(kLocalEngine) && !control->has_hosts();
    auto windows = has_windows ? std::make_unique<LocalWindows>(*control, group) : nullptr;
    auto messages = std::make_unique<LocalMessages>(*control, group->mail);
    return std::shared_ptr<Engine>(new LocalEngine(name, std::move(control), std::move(windows),
                                                   std::move(messages), std::move(group)));
  }

 private:
  LocalEngine(const char* name, std::unique_ptr<Control> control,
              std::unique_ptr<WindowSource> windows, std::unique_ptr<MessageSource> messages,
              std::shared_ptr<LocalGroup> group)
      : Engine(name, std::move(control), std::move(windows), std::move(messages)),
        group_(std::move(group)) {}

  std::shared_ptr<Engine> make_subgroup(const GroupSpec& spec, const std::string& name) override {
    std::shared_ptr<LocalGroup> group = group_->subgroup(name, spec.size);
    GroupSpec own = spec;
    own.store = group->store;
    return make(this->name(), own, std::move(group));
  }

  std::shared_ptr<LocalGroup> group_;
};

}  // namespace

std::vector<std::shared_ptr<Engine>> make_local_engines(int num_ranks, std::int64_t timeout_ms,
                                                        const char* name,
                                                        const std::vector<int>& hosts) {
  require(num_ranks >= 1 && num_ranks <= kMaxRanks, Errc::kInvalidArgument,
          "run_local_ranks: {} ranks, must be from 1 to {}", num_ranks, kMaxRanks);
  const auto group = std::make_shared<LocalGroup>(num_ranks);
  std::vector<std::shared_ptr<Engine>> engines;
  for (int rank = 0; rank < num_ranks; ++rank) {
    engines.push_back(
        LocalEngine::make(name, {rank, num_ranks, timeout_ms, group->store, hosts}, group));
  }
  return engines;
}

}  // namespace switchyard
