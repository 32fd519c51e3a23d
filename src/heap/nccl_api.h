// SPDX-License-Identifier: Apache-2.0
//
// nccl_api.h: the functions of libnccl.so.2 that windows, messages between hosts and measurements
// need, loaded on first use.
#pragma once

#include <nccl.h>
#include <string>

#include <nccl_device/core.h>

namespace switchyard {

/// Functions that every version has.
struct NcclCalls {
  int version = 0;  ///< for example 22809
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRank) comm_init_rank = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
};

/// Errors: kNotAvailable if there is no library or it lacks a function.
const NcclCalls& nccl_calls();

/// The same for messages between hosts. Errors: kNotAvailable, also if the library is too old.
const NcclCalls& nccl_link_calls();

struct NcclApi : NcclCalls {
  decltype(&::ncclMemAlloc) mem_alloc = nullptr;
  decltype(&::ncclMemFree) mem_free = nullptr;
  decltype(&::ncclCommWindowRegister) window_register = nullptr;
  decltype(&::ncclCommWindowDeregister) window_deregister = nullptr;
  /// Before 2.29.2, and only if the version is that of our headers: the structs have no size field.
  decltype(&::ncclDevCommCreate) dev_comm_create = nullptr;
  decltype(&::ncclDevCommDestroy) dev_comm_destroy = nullptr;
  /// From 2.29.2 on; else null.
  ncclResult_t (*get_peer_device_pointer)(ncclWindow_t window, std::size_t offset, int peer,
                                          void** pointer) = nullptr;

  /// Whether the loaded library is the one whose structs our headers describe.
  bool is_of_our_headers() const { return version == NCCL_VERSION_CODE; }
};

/// Errors: kNotAvailable if there is no library, it has no windows, or there is no way to get their
/// pointers.
const NcclApi& nccl_api();

/// Formats 22809 as "2.28.9".
std::string nccl_version_text(int version);

/// Throws unless `result` is ncclSuccess. Errors: kSystem.
void check_nccl(ncclResult_t result, const char* what);

}  // namespace switchyard
