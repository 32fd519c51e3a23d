// SPDX-License-Identifier: Apache-2.0
//
// group.h: switchyard.Group.
#pragma once

#include "switchyard/group.h"

#include "owned.h"

namespace switchyard::python {

struct PyGroup {
  Owned<Group> group;

  Exclusive call() const { return {group.busy(), "Group"}; }
  std::shared_ptr<const Group> live() const { return group.live("Group"); }
};

}  // namespace switchyard::python
