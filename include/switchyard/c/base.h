// SPDX-License-Identifier: Apache-2.0
//
// c/base.h: what all of the C interface shares: statuses, tensors, memory, settings, messages.
//
// Rules of every function here and in the other headers of c/:
//   - It returns a status, SY_OK or why nothing was done, and never throws. sy_last_error() has the
//     sentence.
//   - Handles are opaque and never used twice: a handle that was destroyed, NULL or of another type
//     is SY_INVALID_ARGUMENT. Each is destroyed once; destroying NULL does nothing.
//     One thread at a time uses a handle, unless the text says otherwise; any may close or destroy
//     it meanwhile.
//   - A struct of options begins with struct_size = sizeof the struct, and zero is the default of
//     every other field, so `{.struct_size = sizeof(x), ...}` says what differs from it. NULL
//     instead of a struct of options: all defaults. A struct that a function fills needs its
//     struct_size too.
//   - Fields have the names of C++ and Python. Where a flag is true there by default, it has `no_`
//     before its name here, so that zero is the default.
//   - `const sy_tensor*` may be NULL where the text says "or NULL".
//   - `void* stream` is a cudaStream_t of the device that the handle or the first tensor is on;
//     NULL is that device's default stream of the calling thread (cudaStreamPerThread). On CPUs it
//     is NULL.
//   - Names ("fp8_block", "expanded") are those of the command and of the name_of functions in C++;
//     NULL is the default.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// @{ Version of this header; sy_version() is that of the library.
#define SY_VERSION_MAJOR 0
#define SY_VERSION_MINOR 1
#define SY_VERSION_PATCH 0
/// @}

/// Marks what the shared library exports.
#define SY_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/// Result of a call. Numbers are never given another meaning; new ones may come.
typedef int32_t sy_status;
enum {
  SY_OK = 0,
  SY_INVALID_ARGUMENT = 1,     ///< a shape, dtype, handle, id or option is wrong
  SY_WORKSPACE_TOO_SMALL = 2,  ///< the sentence says how much is needed
  SY_CAPACITY_EXCEEDED = 3,    ///< more rows for an expert than its capacity; nothing was moved
  SY_MALFORMED_FILE = 4,
  SY_NOT_SUPPORTED = 5,
  SY_NOT_AVAILABLE = 6,  ///< an optional part is missing in this build or on this machine
  SY_OUT_OF_MEMORY = 7,
  SY_TIMEOUT = 8,  ///< after these three the group can only be destroyed
  SY_PEER_LOST = 9,
  SY_ABORTED = 10,
  SY_SYSTEM = 11,
  SY_INTERNAL = 12,  ///< a bug of the library
};

/// "0.1.0": of the library that is loaded. The macros above are of the header.
SY_API const char* sy_version(void);
/// One line for reports: version, compiler, build type and optional parts.
SY_API const char* sy_build_summary(void);
/// "ok", "invalid_argument", ...; "unknown" for other numbers.
SY_API const char* sy_status_name(sy_status status);
/// Why the last call of this thread that did not return SY_OK failed: one sentence with the values,
/// valid until the next such call. Empty before the first.
SY_API const char* sy_last_error(void);

// Tensors are DLPack's: sy_tensor is DLTensor. Where <dlpack/dlpack.h> is included first, these are
// its types; without it, or before it, they are structs of the same layout under names of our own.
// strides NULL: contiguous. e2m1 counts elements; with two lanes (torch) it counts pairs.
#ifdef DLPACK_DLPACK_H_
typedef DLDevice sy_device;
typedef DLDataType sy_dtype;
typedef DLTensor sy_tensor;
#else
/// DLDevice.
typedef struct sy_device {
  int32_t device_type;  ///< SY_CPU, SY_CUDA or SY_CUDA_HOST
  int32_t device_id;    ///< a GPU's CUDA ordinal; CPUs are one device, 0
} sy_device;
/// DLDataType.
typedef struct sy_dtype {
  uint8_t code;    ///< DLPack 1.1's DLDataTypeCode
  uint8_t bits;    ///< of an element
  uint16_t lanes;  ///< 1; torch's fp4 has 2
} sy_dtype;
/// DLTensor.
typedef struct sy_tensor {
  void* data;            ///< on `device`
  sy_device device;      ///< where the memory is
  int32_t ndim;          ///< at most 6
  sy_dtype dtype;        ///< of the elements
  int64_t* shape;        ///< [ndim]
  int64_t* strides;      ///< in elements
  uint64_t byte_offset;  ///< from data to the first element
} sy_tensor;
#endif

/// Device types: DLPack's numbers. Pinned host memory counts as host memory.
enum { SY_CPU = 1, SY_CUDA = 2, SY_CUDA_HOST = 3 };

/// @{ Initializer of an sy_dtype: `sy_dtype bf16 = SY_BF16;`.
#define SY_I8 \
  { 0, 8, 1 }
#define SY_I32 \
  { 0, 32, 1 }
#define SY_I64 \
  { 0, 64, 1 }
#define SY_U8 \
  { 1, 8, 1 }
#define SY_U16 \
  { 1, 16, 1 }
#define SY_F16 \
  { 2, 16, 1 }
#define SY_F32 \
  { 2, 32, 1 }
#define SY_BF16 \
  { 4, 16, 1 }
#define SY_E4M3 \
  { 10, 8, 1 }
#define SY_E5M2 \
  { 12, 8, 1 }
#define SY_E8M0 \
  { 14, 8, 1 }
#define SY_E2M3 \
  { 15, 6, 1 }
#define SY_E3M2 \
  { 16, 6, 1 }
#define SY_E2M1 \
  { 17, 4, 1 }
/// @}

/// The caller's memory for tensors that calls create. Both functions are called on the thread of
/// the call that needs them, `free` on the one that destroys the array; neither may call the
/// library. `stream` is where the memory is used first, or last as far as the library knows.
typedef struct sy_allocator {
  size_t struct_size;
  void* user;  ///< handed to both functions
  /// NULL: SY_OUT_OF_MEMORY. The contents may be anything.
  void* (*alloc)(void* user, size_t bytes, size_t alignment, sy_device device, void* stream);
  /// `stream` is that of `alloc`; it must exist as long as the memory does.
  void (*free)(void* user, void* data, size_t bytes, sy_device device, void* stream);
} sy_allocator;

/// A contiguous tensor that owns its memory.
typedef struct sy_array sy_array;

/// `allocator` NULL: the library's memory, filled with zeros, aligned to 128 bytes; on a GPU not
/// while a graph is captured. Errors: SY_OUT_OF_MEMORY, SY_NOT_AVAILABLE (no such GPU).
SY_API sy_status sy_array_create(sy_dtype dtype, int32_t ndim, const int64_t* shape,
                                 sy_device device, const sy_allocator* allocator, void* stream,
                                 sy_array** array);
/// A contiguous copy on `device`, complete when the call returns (copy_to in tensor.h). `stream` is
/// of the GPU that takes part.
SY_API sy_status sy_array_copy_of(const sy_tensor* from, sy_device device, void* stream,
                                  sy_array** array);
/// The tensor; its shape and strides live as long as the array.
SY_API sy_status sy_array_tensor(sy_array* array, sy_tensor* tensor);
/// Frees it.
SY_API sy_status sy_array_destroy(sy_array* array);

/// GPUs that this process can use; 0 without a driver, a GPU or the CUDA module.
SY_API int32_t sy_num_cuda_devices(void);

/// A setting of docs/settings.md, numbered from 0 to sy_num_settings() - 1.
typedef struct sy_setting {
  size_t struct_size;
  const char* name;           ///< SWITCHYARD_...
  const char* help;           ///< one sentence
  const char* default_value;  ///< the value unless it is set
  const char*
      value;  ///< the one that counts, a secret as "(set)"; valid until this thread's next call
  const char* origin;  ///< "default", "environment" or "program"
} sy_setting;
/// How many settings there are.
SY_API int32_t sy_num_settings(void);
/// Fills `setting`.
SY_API sy_status sy_setting_read(int32_t index, sy_setting* setting);
/// Takes precedence over the environment, for what is made afterwards.
SY_API sy_status sy_setting_write(const char* name, const char* value);

/// Receives one message, on any thread; `rank` is -1 outside any group. It may not call the
/// library.
typedef void (*sy_log_function)(void* user, const char* level, int32_t rank, const char* subsystem,
                                const char* text);
/// Messages go to `function` instead of stderr; NULL restores stderr. A call of the function before
/// may still be running when this returns, so its `user` must live on.
SY_API sy_status sy_log_to(sy_log_function function, void* user);
/// "error", "warn", "info", "debug", "trace" or "off".
SY_API sy_status sy_log_level(const char* level);

#ifdef __cplusplus
}
#endif
