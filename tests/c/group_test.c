// SPDX-License-Identifier: Apache-2.0
//
// Groups: threads, one rank from the environment, files, the caller's store, parts, and their end.

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdatomic.h>
#include <threads.h>

#include "check.h"

static sy_status use_group(void* user, sy_group* group) {
  atomic_int* sum = user;
  sy_group_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_group_describe(group, &info));
  CHECK(info.size == 4 && info.host_size == 4 && info.host_rank == info.rank);
  CHECK(strcmp(info.engine, "local") == 0 && info.timeout_ms == 5000);
  CHECK_OK(sy_group_barrier(group));
  CHECK_OK(sy_group_check(group));

  // Ranks 0 and 2 in one part, ordered backwards; rank 1 in none; rank 3 alone.
  const int32_t color = info.rank == 1 ? -1 : info.rank == 3 ? 7 : 0;
  sy_group* part = group;
  CHECK_OK(sy_group_split(group, color, -info.rank, &part));
  if (info.rank == 1) {
    CHECK(part == NULL);
  } else {
    sy_group_info part_info = {.struct_size = sizeof(part_info)};
    CHECK_OK(sy_group_describe(part, &part_info));
    CHECK(part_info.size == (info.rank == 3 ? 1 : 2));
    CHECK(part_info.rank == (info.rank == 0 ? 1 : 0));
    CHECK_OK(sy_group_destroy(part));
  }
  *sum += info.rank;
  return SY_OK;
}

static sy_status fail_on_rank_1(void* user, sy_group* group) {
  (void)user;
  sy_group_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_group_describe(group, &info));
  if (info.rank == 1) return sy_group_split(NULL, 0, 0, NULL);
  const sy_status status = sy_group_barrier(group);
  CHECK(status == SY_ABORTED);
  CHECK(sy_group_check(group) == SY_ABORTED);
  return status;
}

static sy_status return_nonsense(void* user, sy_group* group) {
  (void)user, (void)group;
  return 1234;
}

static sy_status use_gpu(void* user, sy_group* group) {
  (void)user;
  sy_device device = {0, 0};
  if (sy_num_cuda_devices() == 0) {
    CHECK(sy_group_default_gpu(group, &device) == SY_NOT_AVAILABLE);
  } else {
    CHECK_OK(sy_group_default_gpu(group, &device));
    CHECK(device.device_type == SY_CUDA);
  }
  return SY_OK;
}

// A store in memory.
typedef struct Store {
  mtx_t mutex;
  int num_pairs;
  char keys[64][256];
  char values[64][1024];
} Store;

static int store_set(void* user, const char* key, const char* value) {
  Store* store = user;
  mtx_lock(&store->mutex);
  int i = 0;
  while (i < store->num_pairs && strcmp(store->keys[i], key) != 0) ++i;
  CHECK(i < 64 && strlen(key) < 256 && strlen(value) < 1024);
  strcpy(store->keys[i], key);
  strcpy(store->values[i], value);
  if (i == store->num_pairs) ++store->num_pairs;
  mtx_unlock(&store->mutex);
  return 0;
}

static int store_get(void* user, const char* key, int64_t timeout_ms,
                     void (*put)(void* into, const char* value), void* into) {
  Store* store = user;
  CHECK(timeout_ms >= 0 && timeout_ms <= 50);
  int result = 1;
  mtx_lock(&store->mutex);
  for (int i = 0; i < store->num_pairs; ++i) {
    if (strcmp(store->keys[i], key) != 0) continue;
    put(into, store->values[i]);
    result = 0;
  }
  mtx_unlock(&store->mutex);
  if (result == 1) thrd_sleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  return result;
}

static int store_without_answer(void* user, const char* key, int64_t timeout_ms,
                                void (*put)(void* into, const char* value), void* into) {
  (void)user, (void)key, (void)timeout_ms, (void)put, (void)into;
  return 0;
}

static int store_that_fails(void* user, const char* key, const char* value) {
  (void)user, (void)key, (void)value;
  return 5;
}

static void test_functions(void) {
  static Store store;
  mtx_init(&store.mutex, mtx_plain);
  sy_store_functions functions = {sizeof(functions), &store, store_set, store_get};
  sy_group* group = NULL;
  CHECK_OK(sy_group_from_functions(0, 1, &functions, NULL, &group));
  CHECK_OK(sy_group_barrier(group));
  CHECK_OK(sy_group_destroy(group));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "rank is 3",
                sy_group_from_functions(3, 2, &functions, NULL, &group));
  const sy_group_options hurried = {.struct_size = sizeof(hurried), .timeout_ms = 2000};
  functions.get = store_without_answer;
  CHECK_REFUSED(SY_SYSTEM, "without a call of put",
                sy_group_from_functions(0, 2, &functions, &hurried, &group));
  functions.get = store_get;
  functions.set = store_that_fails;
  CHECK_REFUSED(SY_SYSTEM, "must return 0",
                sy_group_from_functions(0, 2, &functions, &hurried, &group));
  functions.set = NULL;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "must be functions",
                sy_group_from_functions(0, 1, &functions, NULL, &group));
  mtx_destroy(&store.mutex);
}

static void test_file(void) {
  char path[] = "/tmp/switchyard_c_test_XXXXXX";
  const int file = mkstemp(path);
  CHECK(file >= 0);
  close(file);
  sy_group* group = NULL;
  CHECK_OK(sy_group_from_store(0, 1, path, NULL, &group));
  sy_group_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_group_describe(group, &info));
  CHECK(info.size == 1 && info.engine != NULL);
  CHECK_OK(sy_group_destroy(group));
  unlink(path);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "store is NULL",
                sy_group_from_store(0, 1, NULL, NULL, &group));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "store is \"nowhere\"",
                sy_group_from_store(0, 1, "nowhere", NULL, &group));
}

// Two processes meet at a store of rank 0, which refuses whoever does not speak its language and
// says so in a message.
typedef struct Messages {
  atomic_int count;
  char last[256];
} Messages;

static void keep_message(void* user, const char* level, int32_t rank, const char* subsystem,
                         const char* text) {
  Messages* messages = user;
  snprintf(messages->last, sizeof(messages->last), "%s %s %d %s", level, subsystem, rank, text);
  ++messages->count;
}

static void send_nonsense(const char* name) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "%s", name);
  const int stranger = socket(AF_UNIX, SOCK_STREAM, 0);
  const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
  CHECK(connect(stranger, (struct sockaddr*)&address, length) == 0);
  const char nonsense[64] = "GET / HTTP/1.1\r\n\r\n";
  CHECK(write(stranger, nonsense, sizeof(nonsense)) == (ssize_t)sizeof(nonsense));
  shutdown(stranger, SHUT_WR);
  char answer[64];
  while (read(stranger, answer, sizeof(answer)) > 0) continue;
  close(stranger);
}

static void test_two_processes(void) {
  static Messages messages;
  CHECK_OK(sy_log_to(keep_message, &messages));
  CHECK_OK(sy_log_level("warn"));
  char store[64];
  snprintf(store, sizeof(store), "unix:@switchyard-c-test-%d", (int)getpid());
  sy_group* group = NULL;
  const pid_t child = fork();
  CHECK_OK(sy_group_from_store(child == 0 ? 1 : 0, 2, store, NULL, &group));
  CHECK_OK(sy_group_barrier(group));
  if (child == 0) _exit(sy_group_destroy(group));
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  send_nonsense(store + strlen("unix:@"));
  for (int i = 0; i < 2000 && messages.count == 0; ++i) {
    thrd_sleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  CHECK_OK(sy_log_level("off"));
  CHECK_OK(sy_log_to(NULL, NULL));
  CHECK(messages.count > 0 && strncmp(messages.last, "warn store", 10) == 0);
  CHECK_OK(sy_log_level("warn"));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "must be error, warn", sy_log_level("loud"));
  CHECK_OK(sy_group_destroy(group));
}

// Nobody has called MPI_Init, and there may be no MPI at all.
static void test_mpi(void) {
  sy_group* group = NULL;
  CHECK_REFUSED(SY_NOT_AVAILABLE, "MPI", sy_group_from_mpi(0, NULL, &group));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "group is NULL", sy_group_from_mpi(0, NULL, NULL));
}

static sy_status destroy_and_fail(void* user, sy_group* group) {
  (void)user;
  CHECK_OK(sy_group_destroy(group));
  return sy_group_barrier(NULL);
}

void test_groups(void) {
  atomic_int sum = 0;
  const sy_group_options options = {.struct_size = sizeof(options), .timeout_ms = 5000};
  CHECK_OK(sy_run_local_ranks(4, use_group, &sum, &options));
  CHECK(sum == 6);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "part is NULL",
                sy_run_local_ranks(2, fail_on_rank_1, NULL, &options));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "the sy_group is NULL",
                sy_run_local_ranks(1, destroy_and_fail, NULL, NULL));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "returned 1234",
                sy_run_local_ranks(1, return_nonsense, NULL, NULL));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "body is NULL", sy_run_local_ranks(1, NULL, NULL, NULL));
  CHECK_OK(sy_run_local_ranks(1, use_gpu, NULL, NULL));

  sy_group* group = NULL;
  CHECK_OK(sy_group_from_environment(NULL, &group));
  CHECK_OK(sy_group_abort(group, "the test ends it"));
  CHECK_REFUSED(SY_ABORTED, "the test ends it", sy_group_check(group));
  CHECK_REFUSED(SY_ABORTED, "the test ends it", sy_group_barrier(group));
  CHECK_OK(sy_group_destroy(group));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_group was destroyed", sy_group_barrier(group));
  sy_array* not_a_group = NULL;
  const sy_dtype f32 = SY_F32;
  CHECK_OK(sy_array_create(f32, 0, NULL, (sy_device){SY_CPU, 0}, NULL, NULL, &not_a_group));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "is a sy_array, must be a sy_group",
                sy_group_barrier((sy_group*)(void*)not_a_group));
  CHECK_OK(sy_array_destroy(not_a_group));
  test_functions();
  test_file();
  test_two_processes();
  test_mpi();
}
