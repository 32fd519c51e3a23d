// SPDX-License-Identifier: Apache-2.0
//
// group_hosts.h: the hosts between which rows are counted: those of the group, or as many as the
// user wants to know about.
#pragma once

#include "switchyard/group.h"

#include "plan/host_crossings.h"

namespace switchyard::cli {

bool has_several_hosts(const Group& group);

/// The group's hosts where it has several, else `asked` hosts with as many consecutive ranks each.
/// `verb` opens the message. Errors: kInvalidArgument: the group has another number of hosts.
HostsOfRanks hosts_of(const Group& group, const char* verb, int asked);

int count_hosts(const HostsOfRanks& hosts);

/// What balance_experts can take into account: the number of hosts if each has as many consecutive
/// ranks, else 1.
int count_even_hosts(const HostsOfRanks& hosts);

}  // namespace switchyard::cli
