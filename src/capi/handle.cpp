// SPDX-License-Identifier: Apache-2.0

#include "capi/handle.h"

#include <cstdint>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace switchyard::capi {
namespace {

struct Entry {
  const char* type;
  std::shared_ptr<void> object;
};

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<std::uintptr_t, Entry> entries;
  std::uintptr_t next = 0x1000;
};

// Never destroyed: handles may outlive static objects.
Table& table() {
  static Table& instance = *new Table;
  return instance;
}

std::shared_ptr<void> checked(const Table& handles, std::uintptr_t number, const char* type) {
  const auto found = handles.entries.find(number);
  check(found != handles.entries.end(), "the {} was destroyed, or never was one", type);
  check(std::strcmp(found->second.type, type) == 0, "the handle is a {}, must be a {}",
        found->second.type, type);
  return found->second.object;
}

}  // namespace

void* add_handle(const char* type, std::shared_ptr<void> object) {
  Table& handles = table();
  const std::lock_guard lock(handles.mutex);
  const std::uintptr_t number = handles.next;
  handles.entries.emplace(number, Entry{type, std::move(object)});
  handles.next += 16;
  return reinterpret_cast<void*>(number);
}

std::shared_ptr<void> find_handle(const void* handle, const char* type, Finding finding) {
  check(handle != nullptr, "the {} is NULL", type);
  Table& handles = table();
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (finding == Finding::kUse) {
    const std::shared_lock lock(handles.mutex);
    return checked(handles, number, type);
  }
  const std::lock_guard lock(handles.mutex);
  std::shared_ptr<void> object = checked(handles, number, type);
  // Calls get their reference under this lock; two are the table's and this one.
  check(finding != Finding::kEndIdle || object.use_count() <= 2,
        "another call is using the {}, which must be idle", type);
  handles.entries.erase(number);
  return object;
}

}  // namespace switchyard::capi
