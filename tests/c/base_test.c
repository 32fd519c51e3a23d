// SPDX-License-Identifier: Apache-2.0
//
// Statuses, tensors, memory, settings, messages and structs of other versions.

#include "check.h"

static void test_version_and_statuses(void) {
  char header[32];
  snprintf(header, sizeof(header), "%d.%d.%d", SY_VERSION_MAJOR, SY_VERSION_MINOR,
           SY_VERSION_PATCH);
  CHECK(strcmp(sy_version(), header) == 0);
  CHECK(strstr(sy_build_summary(), header) != NULL);
  CHECK(strcmp(sy_status_name(SY_OK), "ok") == 0);
  CHECK(strcmp(sy_status_name(SY_INVALID_ARGUMENT), "invalid_argument") == 0);
  CHECK(strcmp(sy_status_name(SY_ABORTED), "aborted") == 0);
  CHECK(strcmp(sy_status_name(SY_INTERNAL), "internal") == 0);
  CHECK(strcmp(sy_status_name(99), "unknown") == 0);
  CHECK(strcmp(sy_last_error(), "") == 0);
  CHECK(sy_num_cuda_devices() >= 0);
}

static void test_settings(void) {
  sy_setting setting = {.struct_size = sizeof(setting)};
  bool is_found = false;
  for (int32_t i = 0; i < sy_num_settings(); ++i) {
    CHECK_OK(sy_setting_read(i, &setting));
    CHECK(setting.help[0] != '\0');
    if (strcmp(setting.name, "SWITCHYARD_SECRET") == 0) {
      CHECK_OK(sy_setting_write("SWITCHYARD_SECRET", "sesame"));
      CHECK_OK(sy_setting_read(i, &setting));
      CHECK(strcmp(setting.value, "(set)") == 0);
      CHECK_OK(sy_setting_write("SWITCHYARD_SECRET", ""));
    }
    if (strcmp(setting.name, "SWITCHYARD_TIMEOUT_MS") != 0) continue;
    is_found = true;
    CHECK(strcmp(setting.default_value, "30000") == 0);
    CHECK_OK(sy_setting_write("SWITCHYARD_TIMEOUT_MS", "20000"));
    CHECK_OK(sy_setting_read(i, &setting));
    CHECK(strcmp(setting.value, "20000") == 0 && strcmp(setting.origin, "program") == 0);
  }
  CHECK(is_found);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "index is -1", sy_setting_read(-1, &setting));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "\"NO_SUCH\"", sy_setting_write("NO_SUCH", "1"));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "name is NULL", sy_setting_write(NULL, "1"));
}

typedef struct Pool {
  int num_live;
  size_t num_bytes;
  bool is_empty;
} Pool;

static void* pool_alloc(void* user, size_t bytes, size_t alignment, sy_device device,
                        void* stream) {
  Pool* pool = user;
  CHECK(device.device_type == SY_CPU && stream == NULL && alignment == 128);
  if (pool->is_empty) return NULL;
  ++pool->num_live;
  pool->num_bytes += bytes;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void pool_free(void* user, void* data, size_t bytes, sy_device device, void* stream) {
  Pool* pool = user;
  CHECK(device.device_type == SY_CPU && stream == NULL);
  --pool->num_live;
  pool->num_bytes -= bytes;
  free(data);
}

static void test_arrays(void) {
  const int64_t shape[] = {2, 3};
  const sy_dtype f32 = SY_F32;
  const sy_device cpu = {SY_CPU, 0};
  sy_array* array = NULL;
  sy_tensor tensor;
  CHECK_OK(sy_array_create(f32, 2, shape, cpu, NULL, NULL, &array));
  CHECK_OK(sy_array_tensor(array, &tensor));
  CHECK(tensor.ndim == 2 && tensor.shape[1] == 3 && tensor.strides[0] == 3);
  CHECK(((float*)tensor.data)[5] == 0.0f);
  ((float*)tensor.data)[5] = 7.0f;
  sy_array* copy = NULL;
  sy_tensor copied;
  CHECK_OK(sy_array_copy_of(&tensor, cpu, NULL, &copy));
  CHECK_OK(sy_array_tensor(copy, &copied));
  CHECK(copied.data != tensor.data && ((float*)copied.data)[5] == 7.0f);
  CHECK_OK(sy_array_destroy(array));
  CHECK_OK(sy_array_destroy(copy));
  CHECK_OK(sy_array_destroy(NULL));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_array was destroyed", sy_array_destroy(array));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_array was destroyed", sy_array_tensor(array, &tensor));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_array is NULL", sy_array_tensor(NULL, &tensor));

  Pool pool = {0, 0, false};
  const sy_allocator allocator = {sizeof(allocator), &pool, pool_alloc, pool_free};
  CHECK_OK(sy_array_create(f32, 2, shape, cpu, &allocator, NULL, &array));
  CHECK(pool.num_live == 1 && pool.num_bytes == 24);
  CHECK_OK(sy_array_destroy(array));
  CHECK(pool.num_live == 0 && pool.num_bytes == 0);
  pool.is_empty = true;
  CHECK_REFUSED(SY_OUT_OF_MEMORY, "no 24 bytes",
                sy_array_create(f32, 2, shape, cpu, &allocator, NULL, &array));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "the work is on the CPU",
                sy_array_create(f32, 2, shape, cpu, NULL, &pool, &array));
}

// Every way in which a tensor can be wrong, by a function that takes any contiguous tensor.
static void test_tensors(void) {
  float data[8] = {0};
  const sy_device cpu = {SY_CPU, 0};
  sy_array* array = NULL;
  const sy_tensor good = TENSOR(data, SY_F32, 2, 4);
#define CHECK_TENSOR_REFUSED(phrase, change)                                               \
  do {                                                                                     \
    sy_tensor bad = good;                                                                  \
    change;                                                                                \
    CHECK_REFUSED(SY_INVALID_ARGUMENT, phrase, sy_array_copy_of(&bad, cpu, NULL, &array)); \
  } while (0)
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "from is NULL", sy_array_copy_of(NULL, cpu, NULL, &array));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "array is NULL", sy_array_copy_of(&good, cpu, NULL, NULL));
  CHECK_TENSOR_REFUSED("from: data is NULL", bad.data = NULL);
  CHECK_TENSOR_REFUSED("ndim is 7", bad.ndim = 7);
  CHECK_TENSOR_REFUSED("ndim is -1", bad.ndim = -1);
  CHECK_TENSOR_REFUSED("shape is NULL", bad.shape = NULL);
  CHECK_TENSOR_REFUSED("shape[1] is -4", bad.shape = ((int64_t[]){2, -4}));
  CHECK_TENSOR_REFUSED("strides[0] is -4", bad.strides = ((int64_t[]){-4, 1}));
  CHECK_TENSOR_REFUSED("no memory holds", bad.strides = ((int64_t[]){INT64_MAX, 1}));
  CHECK_TENSOR_REFUSED("contiguous", bad.strides = ((int64_t[]){1, 2}));
  CHECK_TENSOR_REFUSED("64 bits", bad.dtype.bits = 64);
  CHECK_TENSOR_REFUSED("4 lanes", bad.dtype.lanes = 4);
  CHECK_TENSOR_REFUSED("device type 10", bad.device.device_type = 10);
  CHECK_TENSOR_REFUSED("device id 1 of the CPU", bad.device.device_id = 1);
  CHECK_TENSOR_REFUSED("aligned", bad.byte_offset = 2);
#undef CHECK_TENSOR_REFUSED

  sy_tensor tensor;
  sy_tensor shifted = TENSOR(data, SY_F32, 4);
  data[4] = 5.0f;
  shifted.byte_offset = 16;
  CHECK_OK(sy_array_copy_of(&shifted, cpu, NULL, &array));
  CHECK_OK(sy_array_tensor(array, &tensor));
  CHECK(((float*)tensor.data)[0] == 5.0f);
  CHECK_OK(sy_array_destroy(array));

  // fp4: [2, 4] pairs are [2, 8] elements.
  sy_tensor pairs = TENSOR(data, SY_E2M1, 2, 4);
  pairs.dtype.lanes = 2;
  CHECK_OK(sy_array_copy_of(&pairs, cpu, NULL, &array));
  CHECK_OK(sy_array_tensor(array, &tensor));
  CHECK(tensor.shape[1] == 8 && tensor.dtype.lanes == 1 && tensor.dtype.bits == 4);
  CHECK_OK(sy_array_destroy(array));
}

void test_base(void) {
  test_version_and_statuses();
  test_settings();
  test_arrays();
  test_tensors();
}

// An exchange configuration with fields that this library does not have.
typedef struct NewerConfig {
  sy_exchange_config known;
  int64_t unknown[2];
} NewerConfig;

// Callers that were compiled with older and with newer headers.
void test_structs(void) {
  sy_exchange_memory memory = {.struct_size = sizeof(memory)};
  const sy_exchange_config config = {.struct_size = sizeof(config),
                                     .num_experts = 4,
                                     .num_topk = 2,
                                     .hidden = 8,
                                     .max_tokens_per_rank = 1};
  CHECK_OK(sy_exchange_plan(&config, 2, 0, &memory));
  CHECK(memory.window_bytes > 0 && memory.receive_bytes > 0);

  // On one host it is the same; on two, each rank with a host of its own, there are messages alone.
  sy_exchange_memory over_hosts = {.struct_size = sizeof(over_hosts)};
  const int32_t one_host[2] = {5, 5};
  const int32_t two_hosts[2] = {0, 1};
  CHECK_OK(sy_exchange_plan_hosts(&config, one_host, 2, 0, &over_hosts));
  CHECK(memcmp(&memory, &over_hosts, sizeof(memory)) == 0);
  CHECK_OK(sy_exchange_plan_hosts(&config, two_hosts, 2, 1, &over_hosts));
  CHECK(over_hosts.window_bytes == 0 && over_hosts.receive_bytes > memory.receive_bytes);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "hosts is NULL",
                sy_exchange_plan_hosts(&config, NULL, 2, 0, &over_hosts));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "rank 2 of 2",
                sy_exchange_plan_hosts(&config, two_hosts, 2, 2, &over_hosts));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "num_ranks is",
                sy_exchange_plan_hosts(&config, two_hosts, (size_t)-1, 0, &over_hosts));

  // An older caller ends after max_tokens_per_rank: what follows may be anything and is not read.
  sy_exchange_memory same = {.struct_size = sizeof(same)};
  sy_exchange_config older = config;
  older.struct_size = offsetof(sy_exchange_config, layout);
  memset((char*)&older + older.struct_size, 0xA5, sizeof(older) - older.struct_size);
  CHECK_OK(sy_exchange_plan(&older, 2, 0, &same));
  CHECK(memcmp(&memory, &same, sizeof(memory)) == 0);

  NewerConfig newer = {.known = config};
  newer.known.struct_size = sizeof(newer);
  CHECK_OK(sy_exchange_plan(&newer.known, 2, 0, &same));
  newer.unknown[1] = 1;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "newer fields", sy_exchange_plan(&newer.known, 2, 0, &same));

  older.struct_size = 0;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "struct_size is 0", sy_exchange_plan(&older, 2, 0, &same));
  older.struct_size = (size_t)-1;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "struct_size is", sy_exchange_plan(&older, 2, 0, &same));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "config is NULL", sy_exchange_plan(NULL, 2, 0, &same));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "memory is NULL", sy_exchange_plan(&config, 2, 0, NULL));

  // A result for an older caller stops where its struct stops; a newer one gets zeros.
  same.receive_bytes = 77;
  same.struct_size = offsetof(sy_exchange_memory, receive_bytes);
  CHECK_OK(sy_exchange_plan(&config, 2, 0, &same));
  CHECK(same.window_bytes == memory.window_bytes && same.receive_bytes == 77);
  struct {
    sy_exchange_memory known;
    int64_t unknown;
  } more = {.known = {.struct_size = sizeof(more)}, .unknown = 5};
  CHECK_OK(sy_exchange_plan(&config, 2, 0, &more.known));
  CHECK(more.known.receive_bytes == memory.receive_bytes && more.unknown == 0);
}
