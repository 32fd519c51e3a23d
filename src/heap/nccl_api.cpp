// SPDX-License-Identifier: Apache-2.0

#include "heap/nccl_api.h"

#include <dlfcn.h>

#include "core/fail.h"
#include "heap/nccl_heap.h"

namespace switchyard {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr int kFirstWithWindows = NCCL_VERSION(2, 28, 0);
constexpr int kFirstWithLinks = NCCL_VERSION(2, 28, 0);
constexpr int kFirstWithHostPointers = NCCL_VERSION(2, 29, 2);

template <typename Function>
void find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  require(function != nullptr, Errc::kNotAvailable, "{} has no {}", kLibrary, name);
}

// The library stays loaded: the program's own communicators may live in it.
void* open_library() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  require(library != nullptr, Errc::kNotAvailable,
          "{} cannot be loaded; install NCCL 2.28 or newer, or put its folder into LD_LIBRARY_PATH",
          kLibrary);
  return library;
}

NcclCalls load_calls() {
  void* const library = open_library();
  NcclCalls api;
  decltype(&::ncclGetVersion) get_version = nullptr;
  find(library, get_version, "ncclGetVersion");
  get_version(&api.version);
  find(library, api.get_unique_id, "ncclGetUniqueId");
  find(library, api.comm_init_rank, "ncclCommInitRank");
  find(library, api.comm_init_rank_config, "ncclCommInitRankConfig");
  find(library, api.comm_get_async_error, "ncclCommGetAsyncError");
  find(library, api.comm_abort, "ncclCommAbort");
  find(library, api.group_start, "ncclGroupStart");
  find(library, api.group_end, "ncclGroupEnd");
  find(library, api.send, "ncclSend");
  find(library, api.receive, "ncclRecv");
  find(library, api.get_error_string, "ncclGetErrorString");
  find(library, api.get_last_error, "ncclGetLastError");
  return api;
}

NcclApi load() {
  NcclApi api;
  static_cast<NcclCalls&>(api) = nccl_calls();
  require(api.version >= kFirstWithWindows, Errc::kNotAvailable,
          "{} is version {}, windows need 2.28 or newer", kLibrary, nccl_version_text(api.version));
  const bool has_host_pointers = api.version >= kFirstWithHostPointers;
  require(has_host_pointers || api.is_of_our_headers(), Errc::kNotAvailable,
          "{} is version {}, this build knows the windows of {} and of 2.29.2 and newer", kLibrary,
          nccl_version_text(api.version), nccl_version_text(NCCL_VERSION_CODE));
  void* const library = open_library();
  find(library, api.mem_alloc, "ncclMemAlloc");
  find(library, api.mem_free, "ncclMemFree");
  find(library, api.window_register, "ncclCommWindowRegister");
  find(library, api.window_deregister, "ncclCommWindowDeregister");
  if (has_host_pointers) {
    find(library, api.get_peer_device_pointer, "ncclGetPeerDevicePointer");
  } else {
    find(library, api.dev_comm_create, "ncclDevCommCreate");
    find(library, api.dev_comm_destroy, "ncclDevCommDestroy");
  }
  return api;
}

}  // namespace

const NcclCalls& nccl_calls() {
  static const NcclCalls calls = load_calls();
  return calls;
}

const NcclCalls& nccl_link_calls() {
  const NcclCalls& calls = nccl_calls();
  require(calls.version >= kFirstWithLinks, Errc::kNotAvailable,
          "{} is version {}, messages between hosts need {} or newer", kLibrary,
          nccl_version_text(calls.version), nccl_version_text(kFirstWithLinks));
  return calls;
}

const NcclApi& nccl_api() {
  static const NcclApi api = load();
  return api;
}

int nccl_version() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 0;
  const auto get_version =
      reinterpret_cast<decltype(&::ncclGetVersion)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get_version != nullptr) get_version(&version);
  return version;
}

namespace {

template <typename Load>
std::string obstacle_of(Load load_it) {
  try {
    (void)load_it();
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string nccl_obstacle() { return obstacle_of(nccl_api); }

std::string nccl_calls_obstacle() { return obstacle_of(nccl_calls); }

std::string nccl_links_obstacle() { return obstacle_of(nccl_link_calls); }

void check_nccl(ncclResult_t result, const char* what) {
  if (result == ncclSuccess) return;
  const NcclCalls& api = nccl_calls();
  const char* detail = api.get_last_error(nullptr);
  fail(Errc::kSystem, "{}: NCCL says {}: {}", what, api.get_error_string(result),
       detail == nullptr || *detail == '\0' ? "nothing more; NCCL_DEBUG=INFO does" : detail);
}

}  // namespace switchyard
