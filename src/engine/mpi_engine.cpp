// SPDX-License-Identifier: Apache-2.0

#include "engine/mpi_engine.h"

#include <utility>

#include "core/fail.h"
#include "engine/mpi_messages.h"
#include "engine/remote_control.h"
#include "engine/shm_engine.h"

namespace switchyard {
namespace {

class MpiEngine final : public Engine {
 public:
  MpiEngine(std::unique_ptr<RemoteControl> control, std::unique_ptr<MpiMessages> messages)
      : MpiEngine(*control, *messages, control, messages) {}

 private:
  MpiEngine(RemoteControl& remote, MpiMessages& over_mpi, std::unique_ptr<RemoteControl>& control,
            std::unique_ptr<MpiMessages>& messages)
      : Engine("mpi", std::move(control), nullptr, std::move(messages)),
        remote_(remote),
        over_mpi_(over_mpi) {}

  MeetingPlace place() const {
    MeetingPlace place;
    place.is_for_meeting_only = true;
    place.is_of_one_group = true;
    place.secret = remote_.secret();
    place.met_at = [this] { return remote_.met_at(); };
    return place;
  }
  std::shared_ptr<Engine> make_subgroup(const GroupSpec& spec,
                                        const std::string& /*name*/) override {
    Meeting meeting(spec, place());
    std::unique_ptr<RemoteControl> control;  // leaves after give_up() has said why
    try {
      control = RemoteControl::join(spec, meeting);
      auto messages = over_mpi_.for_subgroup(*control, spec.parent.ranks);
      return std::make_shared<MpiEngine>(std::move(control), std::move(messages));
    } catch (...) {
      meeting.give_up();
    }
  }
  std::shared_ptr<Engine> make_host_subgroup(const GroupSpec& spec,
                                             const std::string& /*name*/) override {
    return make_shm_engine(spec, std::make_unique<Meeting>(spec, place()));
  }

  RemoteControl& remote_;
  MpiMessages& over_mpi_;
};

}  // namespace

std::shared_ptr<Engine> make_mpi_engine(const GroupSpec& spec, std::unique_ptr<Meeting> meeting,
                                        const MpiWish& wish) {
  std::unique_ptr<RemoteControl> control;  // leaves after give_up() has said why
  try {
    control = RemoteControl::join(spec, *meeting);
    auto messages = connect_over_mpi(*control, wish.fortran_handle);
    if (!wish.needs_mpi || messages->why_not().empty()) {
      return std::make_shared<MpiEngine>(std::move(control), std::move(messages));
    }
    meeting->withdraw();
    control->barrier();  // each rank sees that all have withdrawn, should they try again
    fail(Errc::kNotAvailable, "group: engine \"mpi\": {}", messages->why_not());
  } catch (...) {
    meeting->give_up();
  }
}

}  // namespace switchyard
