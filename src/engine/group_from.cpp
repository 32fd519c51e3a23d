// SPDX-License-Identifier: Apache-2.0
//
// group_from.cpp: groups whose rank, size and store the program says, or whose communicator.

#include "switchyard/group_from_mpi.h"

#include "core/fail.h"
#include "core/log.h"
#include "engine/describe_group.h"
#include "engine/group_options.h"
#include "engine/mpi_meeting.h"
#include "engine/mpi_messages.h"
#include "engine/registry.h"
#include "transport/env.h"
#include "transport/file_store.h"
#include "transport/function_store.h"

namespace switchyard {
namespace {

// How long to offer a refusal to peers. A constant, because the timeout itself may be wrong.
constexpr std::int64_t kRefusalMs = 30'000;

// Errors: as Group::from.
void take_options(JoinRequest& request, const GroupOptions& options) {
  request.timeout_ms = timeout_of(options);
  request.secret = secret_of(options);
}

JoinRequest request_of(int rank, int size) {
  require(size >= 1 && size <= kMaxRanks, Errc::kInvalidArgument,
          "group: size is {}, must be from 1 to {} (rank {})", size, kMaxRanks, rank);
  require(rank >= 0 && rank < size, Errc::kInvalidArgument,
          "group: rank is {}, but size is {}; must be from 0 to {}", rank, size, size - 1);
  JoinRequest request;
  request.ranks.rank = rank;
  request.ranks.size = size;
  request.ranks.source = "the program";
  request.claims_ranks = true;
  return request;
}

bool has_scheme(const std::string& store) {
  return store.starts_with("tcp://") || store.starts_with("unix:@");
}

// "host:port" as an address with its scheme.
std::string address_text(const std::string& store) {
  try {
    const Address address = Address::parse(has_scheme(store) ? store : "tcp://" + store);
    if (address.kind == Address::Kind::kUnix || address.port > 0) return address.text();
  } catch (const Error&) {  // in the words of this function
  }
  fail(Errc::kInvalidArgument,
       "group: store is \"{}\", must be host:port, unix:@name or a path with a slash", store);
}

Group join(const JoinRequest& request, const GroupOptions& options) {
  set_log_rank(request.ranks.rank);
  Group group(join_engine(engine_of(options), request));
  log_group(group.engine(), request.ranks.source);
  return group;
}

}  // namespace

Group Group::from(int rank, int size, const std::string& store, const GroupOptions& options) {
  JoinRequest request = request_of(rank, size);
  take_options(request, options);
  const bool is_path = !has_scheme(store) && store.find('/') != store.npos;
  request.store = is_path ? store : address_text(store);
  if (is_path) request.meeting = std::make_shared<FileStore>(store, request.timeout_ms);
  return join(request, options);
}

Group Group::from(int rank, int size, const StoreFunctions& store, const GroupOptions& options) {
  JoinRequest request = request_of(rank, size);
  take_options(request, options);
  request.meeting = std::make_shared<FunctionStore>(store);
  return join(request, options);
}

Group group_from_mpi_handle(std::int32_t communicator, const GroupOptions& options) {
  const std::string why_not = why_no_communicators_here();
  require(why_not.empty(), Errc::kNotAvailable, "group: {}", why_not);
  const int handle = communicator;
  int rank = 0;
  int size = 0;
  const std::string refusal = mpi_module().place_in(&handle, rank, size);
  require(refusal.empty(), Errc::kInvalidArgument, "group: {}", refusal);
  JoinRequest request = request_of(rank, size);
  request.ranks.source = "MPI";
  request.communicator = handle;
  request.timeout_ms = kRefusalMs;
  try {
    take_options(request, options);
    require_engine(engine_of(options), request);
  } catch (const Error& error) {  // this rank's own: the others may have passed others
    refuse_over_mpi(request, error);
    throw;
  }
  return join(request, options);
}

}  // namespace switchyard
