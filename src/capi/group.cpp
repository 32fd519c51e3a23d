// SPDX-License-Identifier: Apache-2.0

#include "switchyard/c/group.h"

#include <optional>
#include <string>

#include "switchyard/group_from_mpi.h"

#include "capi/objects.h"
#include "capi/sized.h"

namespace switchyard::capi {
namespace {

GroupOptions options_of(const sy_group_options* given) {
  const sy_group_options options = read_sized(given, "options");
  return {text_or_empty(options.engine), options.timeout_ms, text_or_empty(options.secret)};
}

// What the caller's `get` hands over. It is called from C, so nothing may leave it.
struct Found {
  std::optional<std::string> value;
  std::exception_ptr error;

  static void put(void* into, const char* value) noexcept {
    auto& found = *static_cast<Found*>(into);
    try {
      found.value = text(value, "value");
    } catch (...) {
      found.error = std::current_exception();
    }
  }
};

[[noreturn]] void fail_store(const char* function, const std::string& key, const char* what) {
  throw Error(Errc::kSystem,
              fmt::format("{}: {}(\"{}\") {}", current_function(), function, key, what));
}

StoreFunctions store_of(const sy_store_functions& store) {
  check(store.set != nullptr && store.get != nullptr,
        "store->set or store->get is NULL, must be functions");
  StoreFunctions functions;
  functions.set = [store](const std::string& key, const std::string& value) {
    const int result = store.set(store.user, key.c_str(), value.c_str());
    if (result != 0) fail_store("set", key, "failed, must return 0");
  };
  functions.get = [store](const std::string& key, std::int64_t timeout_ms) {
    Found found;
    const int result = store.get(store.user, key.c_str(), timeout_ms, &Found::put, &found);
    if (found.error != nullptr) std::rethrow_exception(found.error);
    if (result != 0 && result != 1) fail_store("get", key, "failed, must return 0 or 1");
    if (result == 0 && !found.value.has_value()) {
      fail_store("get", key, "returned 0 without a call of put; return 1 while there is no value");
    }
    return result == 0 ? found.value : std::nullopt;
  };
  return functions;
}

}  // namespace
}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_group_from_environment(const sy_group_options* options, sy_group** group) {
  return call(__func__, [&] {
    sy_group*& result = out(group, "group");
    result = give<sy_group>(Group::from_environment(options_of(options)));
  });
}

sy_status sy_group_from_store(int32_t rank, int32_t size, const char* store,
                              const sy_group_options* options, sy_group** group) {
  return call(__func__, [&] {
    sy_group*& result = out(group, "group");
    result = give<sy_group>(
        Group::from(rank, size, std::string(text(store, "store")), options_of(options)));
  });
}

sy_status sy_group_from_functions(int32_t rank, int32_t size, const sy_store_functions* store,
                                  const sy_group_options* options, sy_group** group) {
  return call(__func__, [&] {
    sy_group*& result = out(group, "group");
    result = give<sy_group>(
        Group::from(rank, size, store_of(read_required(store, "store")), options_of(options)));
  });
}

sy_status sy_group_from_mpi(int32_t communicator, const sy_group_options* options,
                            sy_group** group) {
  return call(__func__, [&] {
    sy_group*& result = out(group, "group");
    result = give<sy_group>(group_from_mpi_handle(communicator, options_of(options)));
  });
}

sy_status sy_run_local_ranks(int32_t num_ranks, sy_rank_function body, void* user,
                             const sy_group_options* options) {
  return call(__func__, [&] {
    check(body != nullptr, "body is NULL, must be the work of one rank");
    const auto run_rank = [&](const Group& group) {
      const CallScope scope("sy_run_local_ranks");
      sy_group* const handle = give<sy_group>(group);
      const sy_status status = body(user, handle);
      if (status == SY_OK) {
        take(handle);
        return;
      }
      const auto error = std::make_exception_ptr(error_of("body", status));
      destroy("sy_run_local_ranks", handle);  // the body may have done so, which is an error here
      std::rethrow_exception(error);
    };
    run_local_ranks(num_ranks, run_rank, options_of(options));
  });
}

sy_status sy_group_split(sy_group* group, int32_t color, int32_t key, sy_group** part) {
  return call(__func__, [&] {
    sy_group*& result = out(part, "part");
    Group made = use(group)->split(color, key);
    result = made.is_empty() ? nullptr : give<sy_group>(std::move(made));
  });
}

sy_status sy_group_describe(sy_group* group, sy_group_info* info) {
  return call(__func__, [&] {
    const auto of = use(group);
    write_sized(info, "info",
                {0, of->rank(), of->size(), of->host_rank(), of->host_size(), of->timeout_ms(),
                 of->engine_name()});
  });
}

sy_status sy_group_default_gpu(sy_group* group, sy_device* device) {
  return call(__func__, [&] { out(device, "device") = to_dlpack(default_gpu(*use(group))); });
}

sy_status sy_group_barrier(sy_group* group) {
  return call(__func__, [&] { use(group)->barrier(); });
}

sy_status sy_group_abort(sy_group* group, const char* reason) {
  return call(__func__, [&] { use(group)->abort(text(reason, "reason")); });
}

sy_status sy_group_check(sy_group* group) {
  return call(__func__, [&] {
    const std::optional<Error> error = use(group)->error();
    if (error.has_value()) throw Error(*error);
  });
}

sy_status sy_group_destroy(sy_group* group) { return destroy(__func__, group); }

}  // extern "C"
