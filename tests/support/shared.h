// SPDX-License-Identifier: Apache-2.0
//
// shared.h: a value in memory that forked processes share.
#pragma once

#include <sys/mman.h>

#include <new>

namespace switchyard::test {

/// A zero-filled T shared by forked processes. T must be trivially destructible (atomics).
template <typename T>
class Shared {
 public:
  Shared()
      : data_(new (mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                        0)) T{}) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(data_, sizeof(T)); }
  T* operator->() const { return data_; }
  T& operator*() const { return *data_; }

 private:
  T* data_;
};

}  // namespace switchyard::test
