// SPDX-License-Identifier: Apache-2.0

#include "engine/shm_engine.h"

#include <utility>

#include "engine/shm_control.h"
#include "engine/shm_windows.h"

namespace switchyard {
namespace {

class ShmEngine final : public Engine {
 public:
  static std::shared_ptr<Engine> make(const GroupSpec& spec, std::unique_ptr<Meeting> meeting) {
    auto control = std::make_unique<ShmControl>(spec, std::move(meeting));
    control->join();
    const bool has_launcher = control->has_launcher();
    auto windows = std::make_unique<ShmWindows>(*control);
    return std::shared_ptr<Engine>(
        new ShmEngine(std::move(control), std::move(windows), has_launcher));
  }

 private:
  ShmEngine(std::unique_ptr<Control> control, std::unique_ptr<WindowSource> windows,
            bool has_launcher)
      : Engine("shm", std::move(control), std::move(windows)), has_launcher_(has_launcher) {}

  std::shared_ptr<Engine> make_subgroup(const GroupSpec& spec, const std::string& name) override {
    (void)name;  // the store is the subgroup's own part
    MeetingPlace place;
    place.is_for_meeting_only = true;
    place.is_of_one_group = true;
    place.has_launcher = has_launcher_;
    return make(spec, std::make_unique<Meeting>(spec, std::move(place)));
  }

  bool has_launcher_;
};

}  // namespace

std::shared_ptr<Engine> make_shm_engine(const GroupSpec& spec, std::unique_ptr<Meeting> meeting) {
  return ShmEngine::make(spec, std::move(meeting));
}

}  // namespace switchyard
