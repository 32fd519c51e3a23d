// SPDX-License-Identifier: Apache-2.0
//
// dlpack.h: the structures of DLPack 1.1, as they lie in memory (dmlc/dlpack, dlpack.h), and what a
// capsule holds.
#pragma once

#include <cstdint>

namespace switchyard::python::dlpack {

struct Tensor {
  void* data;
  std::int32_t device_type;
  std::int32_t device_id;
  std::int32_t num_dims;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null: contiguous
  std::uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct Versioned {
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(Versioned*);
  std::uint64_t flags;
  Tensor tensor;
};

inline constexpr std::uint32_t kMajor = 1;  ///< other versions may have other members
inline constexpr std::uint64_t kReadOnly = 1;
inline constexpr const char* kName = "dltensor";
inline constexpr const char* kVersionedName = "dltensor_versioned";

}  // namespace switchyard::python::dlpack
