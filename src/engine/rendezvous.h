// SPDX-License-Identifier: Apache-2.0
//
// rendezvous.h: the store that the processes of a group meet at. Our launcher serves it, or rank 0.
// A server of rank 0 lives as long as a group that met there or a client of it: a rank that is
// ahead may come for the next group while others still leave the last. Groups differ by a prefix of
// their keys.
#pragma once

#include <memory>

#include "engine/registry.h"
#include "transport/store.h"
#include "transport/store_server.h"

namespace switchyard {

/// The store of one group, and its server when this rank runs it.
struct StoreAccess {
  std::shared_ptr<StoreServer> server;
  std::shared_ptr<Store> store;
};

/// `group` counts the groups that these processes had before. Errors: kTimeout and kPeerLost (rank
/// 0 did not come, or went), kInvalidArgument (no address, a wrong secret), kSystem.
StoreAccess open_store(const JoinRequest& request, int group);

/// After a set-up that failed: ends the server, and what was written there, unless an earlier group
/// uses it.
void close_store(const JoinRequest& request);

}  // namespace switchyard
