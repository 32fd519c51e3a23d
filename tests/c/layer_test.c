// SPDX-License-Identifier: Apache-2.0
//
// prepare -> experts -> finalize by the factory, and the whole layer, between two ranks. Experts
// multiply a row by their global id + 1, so that every output can be checked by eye.

#include <pthread.h>
#include <stdatomic.h>
#include <threads.h>

#include "check.h"

enum { kHidden = 128, kExperts = 4, kLocal = 2 };

typedef struct Batch {
  uint16_t hidden[2][kHidden];
  int32_t ids[2][2];
  float weights[2][2];
  uint16_t output[2][kHidden];
} Batch;

// Token t of rank r is 2^t (r + 1) and goes to experts t and 3.
static void fill(Batch* batch, int32_t rank) {
  memset(batch, 0, sizeof(*batch));
  for (int t = 0; t < 2; ++t) {
    for (int h = 0; h < kHidden; ++h) {
      batch->hidden[t][h] = bf16_bits((float)((t + 1) * (rank + 1)));
    }
    batch->ids[t][0] = t;
    batch->ids[t][1] = 3;
    batch->weights[t][0] = 0.5f;
    batch->weights[t][1] = 0.25f;
  }
}

static void check_layer(const Batch* batch, int32_t rank) {
  for (int t = 0; t < 2; ++t) {
    const float token = (float)((t + 1) * (rank + 1));
    const float expected = token * (0.5f * (float)(t + 1) + 0.25f * 4.0f);
    for (int h = 0; h < kHidden; ++h) CHECK(float_of_bf16(batch->output[t][h]) == expected);
  }
}

static sy_moe_config moe_of(const sy_parallel_options* parallel) {
  return (sy_moe_config){.struct_size = sizeof(sy_moe_config),
                         .num_experts = kExperts,
                         .num_topk = 2,
                         .hidden = kHidden,
                         .parallel = parallel,
                         .max_num_tokens = 2};
}

static sy_parallel_options parallel_of(int32_t rank, const char* backend) {
  return (sy_parallel_options){.struct_size = sizeof(sy_parallel_options),
                               .dp_size = 2,
                               .dp_rank = rank,
                               .enable_expert_parallel = true,
                               .all2all_backend = backend};
}

// rows [L, C, H] times global id + 1, as bf16.
static void multiply(int32_t rank, const sy_tensor* rows, const sy_tensor* num_rows,
                     uint16_t* output) {
  const int64_t capacity = rows->shape[1];
  const uint16_t* in = rows->data;
  const int32_t* counts = num_rows->data;
  for (int64_t e = 0; e < kLocal; ++e) {
    for (int64_t i = 0; i < counts[e] * kHidden; ++i) {
      const int64_t at = e * capacity * kHidden + i;
      output[at] = bf16_bits(float_of_bf16(in[at]) * (float)(rank * kLocal + e + 1));
    }
  }
}

// A rank's part; `split` uses the phases.
static void run_parts(sy_prepare_finalize* prepare, int32_t rank, bool split) {
  Batch batch;
  fill(&batch, rank);
  const sy_tensor hidden = TENSOR(batch.hidden, SY_BF16, 2, kHidden);
  const sy_tensor ids = TENSOR(batch.ids, SY_I32, 2, 2);
  const sy_tensor weights = TENSOR(batch.weights, SY_F32, 2, 2);
  const sy_tensor output = TENSOR(batch.output, SY_BF16, 2, kHidden);
  const sy_prepare_arguments arguments = {.struct_size = sizeof(arguments),
                                          .hidden = &hidden,
                                          .topk_ids = &ids,
                                          .topk_weights = &weights};
  sy_prepared prepared = {.struct_size = sizeof(prepared)};
  if (split) {
    CHECK_OK(sy_prepare_send(prepare, &arguments, NULL));
    CHECK_OK(sy_prepare_receive(prepare, 0, &prepared));
    CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_prepare_send first",
                  sy_prepare_receive(prepare, 0, &prepared));
  } else {
    CHECK_OK(sy_prepare(prepare, &arguments, NULL, &prepared));
  }
  CHECK(prepared.rows->ndim == 3 && prepared.rows->shape[0] == kLocal);
  CHECK(prepared.scales == NULL && strcmp(prepared.scheme, "none") == 0);
  CHECK(((int32_t*)prepared.num_rows->data)[0] == (rank == 0 ? 2 : 0));
  CHECK(((int32_t*)prepared.expert_num_tokens->data)[1] == (rank == 0 ? 2 : 4));

  static _Thread_local uint16_t results[kLocal * 4 * kHidden];
  CHECK(prepared.rows->shape[1] <= 4);
  multiply(rank, prepared.rows, prepared.num_rows, results);
  const sy_tensor rows = TENSOR(results, SY_BF16, kLocal, prepared.rows->shape[1], kHidden);
  const sy_finalize_arguments last = {
      .struct_size = sizeof(last), .output = &output, .expert_output = &rows};
  if (split) {
    CHECK_OK(sy_finalize_send(prepare, &last, NULL));
    CHECK_OK(sy_finalize_receive(prepare, 0));
  } else {
    CHECK_OK(sy_finalize(prepare, &last, NULL));
  }
  check_layer(&batch, rank);
}

static int32_t rank_of(sy_group* group) {
  sy_group_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_group_describe(group, &info));
  return info.rank;
}

// How rows travel, and whether there is memory for rows that are not quantized.
static void check_wire(sy_group* group, const sy_moe_config* moe) {
  sy_prepare_options options = {.struct_size = sizeof(options), .wire_scheme = "fp8_token"};
  sy_prepare_choice choice = {.struct_size = sizeof(choice)};
  CHECK_OK(sy_prepare_choose(moe, NULL, &options, &choice));
  CHECK(strcmp(choice.scheme, "none") == 0 && strcmp(choice.wire_scheme, "fp8_token") == 0);
  size_t bytes[2];
  for (int defers = 0; defers < 2; ++defers) {
    options.defers_input_quant = defers != 0;
    sy_prepare_finalize* prepare = NULL;
    CHECK_OK(sy_prepare_finalize_create(group, moe, NULL, &options, &prepare));
    sy_prepare_finalize_info info = {.struct_size = sizeof(info)};
    CHECK_OK(sy_prepare_finalize_describe(prepare, &info));
    bytes[defers] = info.window_bytes;
    CHECK_OK(sy_prepare_finalize_destroy(prepare));
  }
  CHECK(bytes[1] > bytes[0]);
  options.wire_scheme = "fp9";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "wire_scheme is \"fp9\"",
                sy_prepare_choose(moe, NULL, &options, &choice));
}

static sy_status run_factory(void* user, sy_group* group) {
  (void)user;
  const int32_t rank = rank_of(group);
  const sy_parallel_options parallel = parallel_of(rank, "deepep_low_latency");
  const sy_moe_config moe = moe_of(&parallel);
  sy_prepare_choice choice = {.struct_size = sizeof(choice)};
  CHECK_OK(sy_prepare_choose(&moe, NULL, NULL, &choice));
  CHECK(strcmp(choice.kind, "low_latency") == 0 && strcmp(choice.scheme, "none") == 0);
  CHECK(strcmp(choice.scale_layout, "row_major") == 0 && !choice.slices_experts);
  CHECK(choice.wire_scheme == NULL);
  check_wire(group, &moe);

  sy_prepare_finalize* prepare = NULL;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "group is NULL",
                sy_prepare_finalize_create(NULL, &moe, NULL, NULL, &prepare));
  CHECK_OK(sy_prepare_finalize_create(group, &moe, NULL, NULL, &prepare));
  sy_prepare_finalize_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_prepare_finalize_describe(prepare, &info));
  CHECK(strcmp(info.kind, "low_latency") == 0 && strcmp(info.activation_format, "batched") == 0);
  CHECK(info.num_local_experts == kLocal && info.num_dispatchers == 2 && info.hidden == kHidden);
  CHECK(info.max_num_tokens_per_rank == 2 && info.num_micro_batches == 2);
  CHECK(((int32_t*)info.expert_map->data)[rank * kLocal] == 0);
  run_parts(prepare, rank, false);
  run_parts(prepare, rank, true);
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "micro_batch is 2", sy_finalize_receive(prepare, 2));
  CHECK_OK(sy_prepare_finalize_check(prepare));
  CHECK_OK(sy_prepare_finalize_close(prepare, true));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "the exchange was closed", sy_prepare_finalize_check(prepare));
  CHECK_OK(sy_prepare_finalize_destroy(prepare));
  return SY_OK;
}

// Alone, a micro-batch whose experts failed is free again.
static void test_abandon(void) {
  const sy_moe_config moe = moe_of(NULL);
  sy_prepare_finalize* prepare = NULL;
  CHECK_OK(sy_prepare_finalize_create(NULL, &moe, NULL, NULL, &prepare));
  Batch batch;
  fill(&batch, 0);
  const sy_tensor hidden = TENSOR(batch.hidden, SY_BF16, 2, kHidden);
  const sy_tensor ids = TENSOR(batch.ids, SY_I32, 2, 2);
  const sy_tensor weights = TENSOR(batch.weights, SY_F32, 2, 2);
  const sy_prepare_arguments arguments = {.struct_size = sizeof(arguments),
                                          .hidden = &hidden,
                                          .topk_ids = &ids,
                                          .topk_weights = &weights};
  sy_prepared prepared = {.struct_size = sizeof(prepared)};
  for (int i = 0; i < 3; ++i) {
    CHECK_OK(sy_prepare(prepare, &arguments, NULL, &prepared));
    CHECK_OK(sy_prepare_finalize_abandon(prepare, 0, "the experts are ill"));
  }
  CHECK_OK(sy_prepare_finalize_destroy(prepare));
}

// The caller's experts inside a kernel.
typedef struct Multiplier {
  int32_t rank;
  int num_calls;
  int num_releases;
  sy_status result;
} Multiplier;

static sy_status apply_multiplier(void* user, const sy_expert_rows* rows, const sy_tensor* output,
                                  void* workspace, size_t workspace_bytes, void* stream) {
  Multiplier* multiplier = user;
  ++multiplier->num_calls;
  CHECK(workspace != NULL && workspace_bytes >= 64 && stream == NULL);
  CHECK(strcmp(rows->scheme, "none") == 0);
  if (multiplier->result == SY_OK) {
    multiply(multiplier->rank, rows->rows, rows->num_rows, output->data);
  }
  return multiplier->result;
}

static size_t bytes_of_multiplier(void* user, const sy_tensor* rows) {
  (void)user;
  CHECK(rows->ndim == 3);
  return 64;
}

static void release_multiplier(void* user) { ++((Multiplier*)user)->num_releases; }

static sy_kernel* make_kernel(sy_group* group, Multiplier* multiplier,
                              const sy_shared_expert* shared) {
  const sy_parallel_options parallel = parallel_of(multiplier->rank, "deepep_low_latency");
  const sy_moe_config moe = moe_of(&parallel);
  sy_prepare_finalize* prepare = NULL;
  CHECK_OK(sy_prepare_finalize_create(group, &moe, NULL, NULL, &prepare));
  const sy_expert_functions functions = {.struct_size = sizeof(functions),
                                         .user = multiplier,
                                         .name = "multiplier",
                                         .apply = apply_multiplier,
                                         .workspace_bytes = bytes_of_multiplier,
                                         .release = release_multiplier,
                                         .is_batch_invariant = true};
  sy_experts* experts = NULL;
  CHECK_OK(sy_experts_from_functions(&functions, &experts));
  sy_kernel* kernel = NULL;
  CHECK_OK(sy_kernel_create(prepare, experts, shared, &kernel));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_experts was destroyed", sy_experts_destroy(experts));
  return kernel;
}

static sy_status run_kernel(void* user, sy_group* group) {
  const bool fails = user != NULL;
  Multiplier multiplier = {.rank = rank_of(group), .result = fails ? SY_SYSTEM : SY_OK};
  sy_kernel* kernel = make_kernel(group, &multiplier, NULL);
  sy_kernel_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_kernel_describe(kernel, &info));
  CHECK(info.device.device_type == SY_CPU && info.workspace_bytes >= 64);
  CHECK(info.num_micro_batches == 2 && !info.is_capturable);
  Batch batch;
  fill(&batch, multiplier.rank);
  const sy_tensor hidden = TENSOR(batch.hidden, SY_BF16, 2, kHidden);
  const sy_tensor ids = TENSOR(batch.ids, SY_I32, 2, 2);
  const sy_tensor weights = TENSOR(batch.weights, SY_F32, 2, 2);
  const sy_tensor output = TENSOR(batch.output, SY_BF16, 2, kHidden);
  const sy_prepare_arguments arguments = {.struct_size = sizeof(arguments),
                                          .hidden = &hidden,
                                          .topk_ids = &ids,
                                          .topk_weights = &weights};
  if (fails) {
    const sy_status status = sy_kernel_apply(kernel, &arguments, &output, NULL);
    CHECK(status == SY_SYSTEM || status == SY_ABORTED);
    CHECK(sy_kernel_check(kernel) == SY_ABORTED);
    CHECK_OK(sy_kernel_destroy(kernel));
    return SY_OK;
  }
  CHECK_OK(sy_kernel_apply(kernel, &arguments, &output, NULL));
  check_layer(&batch, multiplier.rank);
  fill(&batch, multiplier.rank);
  CHECK_OK(sy_kernel_apply_overlapped(kernel, &arguments, &output, 2, NULL));
  check_layer(&batch, multiplier.rank);
  CHECK(multiplier.num_calls == 3);
  CHECK_OK(sy_kernel_check(kernel));
  CHECK_OK(sy_kernel_close(kernel, true));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "it was closed, must be open",
                sy_kernel_apply(kernel, &arguments, &output, NULL));
  CHECK_OK(sy_kernel_destroy(kernel));
  CHECK(multiplier.num_releases == 1);
  return SY_OK;
}

// Experts that stay in their call until they are told.
typedef struct Waiting {
  sy_experts* experts;
  atomic_bool has_begun;
  atomic_bool may_end;
} Waiting;

static sy_status apply_waiting(void* user, const sy_expert_rows* rows, const sy_tensor* output,
                               void* workspace, size_t workspace_bytes, void* stream) {
  (void)rows, (void)output, (void)workspace, (void)workspace_bytes, (void)stream;
  Waiting* waiting = user;
  atomic_store(&waiting->has_begun, true);
  while (!atomic_load(&waiting->may_end)) thrd_yield();
  return SY_OK;
}

static void* call_waiting(void* user) {
  const Waiting* waiting = user;
  uint16_t row[kLocal * kHidden] = {0};
  int32_t num_rows[kLocal] = {1, 1};
  int64_t first_row[kLocal] = {0, 1};
  const sy_tensor rows = TENSOR(row, SY_BF16, kLocal, 1, kHidden);
  const sy_tensor counts = TENSOR(num_rows, SY_I32, kLocal);
  const sy_tensor firsts = TENSOR(first_row, SY_I64, kLocal);
  const sy_expert_rows given = {.struct_size = sizeof(given),
                                .rows = &rows,
                                .scheme = "none",
                                .first_row = &firsts,
                                .num_rows = &counts};
  CHECK_OK(sy_experts_apply(waiting->experts, &given, &rows, NULL, 0, NULL));
  return NULL;
}

// A kernel takes no experts that another thread is calling.
static void test_busy_experts(void) {
  const sy_moe_config moe = moe_of(NULL);
  sy_prepare_finalize* prepare = NULL;
  CHECK_OK(sy_prepare_finalize_create(NULL, &moe, NULL, NULL, &prepare));
  Waiting waiting = {.experts = NULL};
  const sy_expert_functions functions = {.struct_size = sizeof(functions),
                                         .user = &waiting,
                                         .name = "waiting",
                                         .apply = apply_waiting};
  CHECK_OK(sy_experts_from_functions(&functions, &waiting.experts));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, call_waiting, &waiting) == 0);
  while (!atomic_load(&waiting.has_begun)) thrd_yield();
  sy_kernel* kernel = NULL;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "another call is using the sy_experts, which must be idle",
                sy_kernel_create(prepare, waiting.experts, NULL, &kernel));
  atomic_store(&waiting.may_end, true);
  CHECK(pthread_join(thread, NULL) == 0);
  CHECK_OK(sy_experts_destroy(waiting.experts));
  sy_prepare_finalize_destroy(prepare);
}

void test_layer(void) {
  CHECK_OK(sy_run_local_ranks(2, run_factory, NULL, NULL));
  test_abandon();
  test_busy_experts();
  CHECK_OK(sy_run_local_ranks(2, run_kernel, NULL, NULL));
  int fails = 1;
  CHECK_OK(sy_run_local_ranks(2, run_kernel, &fails, NULL));
}
