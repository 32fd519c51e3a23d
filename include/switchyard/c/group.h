// SPDX-License-Identifier: Apache-2.0
//
// c/group.h: the ranks that exchange. See group.h.
//
// One thread of each rank makes the collective calls, in the same order on every rank.
// sy_group_abort and sy_group_check may be called from any thread.
#pragma once

#include "switchyard/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sy_group sy_group;  ///< the ranks that exchange

/// GroupOptions.
typedef struct sy_group_options {
  size_t struct_size;
  const char* engine;  ///< "auto", "local", "shm" or "mpi"; NULL: the setting SWITCHYARD_ENGINE
  const char* secret;  ///< of a store over TCP; NULL: the setting SWITCHYARD_SECRET
  int64_t timeout_ms;  ///< longest wait for a peer; 0: the setting SWITCHYARD_TIMEOUT_MS
} sy_group_options;

/// The ranks that a launcher started: torchrun, mpirun, srun or ours; without any of them one.
/// Collective; returns when every rank has arrived.
SY_API sy_status sy_group_from_environment(const sy_group_options* options, sy_group** group);

/// `size` ranks, of which this process is `rank`. `store`, the same on every rank: "host:port"
/// (rank 0 serves there; needs a secret), "unix:@name", or the path, with a slash, of a file that
/// all ranks share. Collective.
SY_API sy_status sy_group_from_store(int32_t rank, int32_t size, const char* store,
                                     const sy_group_options* options, sy_group** group);

/// The caller's own key-value store; each group needs one of its own. Called from the calling
/// thread. A result other than the ones below is an error: SY_SYSTEM.
typedef struct sy_store_functions {
  size_t struct_size;
  void* user;  ///< handed to both functions
  /// Stores `value` for all ranks, in place of an older value, and returns 0.
  int (*set)(void* user, const char* key, const char* value);
  /// Hands the value of `key` to `put` and returns 0; returns 1 when no rank set it within
  /// `timeout_ms` (from 0 to 50), or earlier, and is called again then.
  int (*get)(void* user, const char* key, int64_t timeout_ms,
             void (*put)(void* into, const char* value), void* into);
} sy_store_functions;
/// As sy_group_from_store, over a store of the caller's.
SY_API sy_status sy_group_from_functions(int32_t rank, int32_t size,
                                         const sy_store_functions* store,
                                         const sy_group_options* options, sy_group** group);

/// The ranks of an MPI communicator, in its order; `communicator` is MPI_Comm_c2f of it. Without
/// MPI in this process SY_NOT_AVAILABLE. See group_from_mpi.h. Collective over the communicator.
SY_API sy_status sy_group_from_mpi(int32_t communicator, const sy_group_options* options,
                                   sy_group** group);

/// Runs `body` once per rank, each rank a thread of this process. A status other than SY_OK aborts
/// the other ranks and is returned here, with the sentence of that thread, once all have ended. The
/// group is destroyed when `body` has returned.
/// @{
typedef sy_status (*sy_rank_function)(void* user, sy_group* group);
SY_API sy_status sy_run_local_ranks(int32_t num_ranks, sy_rank_function body, void* user,
                                    const sy_group_options* options);
/// @}

/// Ranks that pass the same `color` get a group of their own, ordered by (`key`, rank here). A
/// negative color gets NULL. Collective.
SY_API sy_status sy_group_split(sy_group* group, int32_t color, int32_t key, sy_group** part);

/// What a group says of itself.
typedef struct sy_group_info {
  size_t struct_size;
  int32_t rank;        ///< this one, from 0
  int32_t size;        ///< how many ranks there are
  int32_t host_rank;   ///< place among the ranks that share this host
  int32_t host_size;   ///< how many those are
  int64_t timeout_ms;  ///< longest wait for a peer
  const char* engine;  ///< "local", "shm" or "mpi"; as long as the library is loaded
} sy_group_info;
/// Fills `info`.
SY_API sy_status sy_group_describe(sy_group* group, sy_group_info* info);

/// The GPU that a rank uses unless it chooses another (default_gpu).
SY_API sy_status sy_group_default_gpu(sy_group* group, sy_device* device);
/// Returns when every rank has called it. Collective.
SY_API sy_status sy_group_barrier(sy_group* group);
/// Every rank's current and later calls end with SY_ABORTED, within milliseconds.
SY_API sy_status sy_group_abort(sy_group* group, const char* reason);
/// SY_OK while all is well, else why the group ended. Looks for ranks that died, does not wait.
SY_API sy_status sy_group_check(sy_group* group);
/// Gives up this handle; what was made from the group keeps it alive. Not collective.
SY_API sy_status sy_group_destroy(sy_group* group);

#ifdef __cplusplus
}
#endif
