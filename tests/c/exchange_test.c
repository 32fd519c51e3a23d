// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine between two ranks. Experts 0 and 1 live on rank 0, 2 and 3 on rank 1. Rank r
// has one token, of which every element is r + 1; it goes to experts 0 (weight 0.25) and 3 (0.5).

#include <pthread.h>
#include <stdatomic.h>
#include <threads.h>
#include <time.h>

#include "check.h"

enum { kHidden = 8 };

typedef struct Token {
  float row[1][kHidden];
  int32_t ids[1][2];
  float weights[1][2];
  float output[1][kHidden];
} Token;

static Token token_of(int32_t rank) {
  Token token = {.ids = {{0, 3}}, .weights = {{0.25f, 0.5f}}};
  for (int h = 0; h < kHidden; ++h) token.row[0][h] = (float)(rank + 1);
  return token;
}

static int32_t rank_of(sy_group* group) {
  sy_group_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_group_describe(group, &info));
  return info.rank;
}

static const sy_exchange_config kConfig = {.struct_size = sizeof(kConfig),
                                           .num_experts = 4,
                                           .num_topk = 2,
                                           .hidden = kHidden,
                                           .max_tokens_per_rank = 1,
                                           .row_dtype = "f32",
                                           .combine_scheme = "f32"};

static void check_counts(sy_dispatch* dispatch, int32_t rank) {
  sy_host_counts counts = {.struct_size = sizeof(counts)};
  CHECK_OK(sy_dispatch_counts(dispatch, &counts));
  CHECK(counts.num_rows == 2 && counts.num_dropped == 0);
  CHECK(counts.num_ranks == 2 && counts.rows_per_rank[0] == 1 && counts.rows_per_rank[1] == 1);
  CHECK(counts.num_local_experts == 2 && counts.rows_per_expert[rank == 0 ? 0 : 1] == 2);
  CHECK(counts.num_experts == 4 && counts.expert_load[0] == 2 && counts.expert_load[1] == 0);
  CHECK(counts.num_waits == 2 && counts.wait_ns[0] >= 0);
  int64_t sent = 0, returned = -1;
  CHECK_OK(sy_dispatch_wire_bytes(dispatch, &sent, &returned));
  CHECK(sent > 0 && returned > 0);

  int32_t source[2] = {-1, -1}, token[2] = {-1, -1}, rows[2] = {-1, -1};
  const sy_tensor ts = TENSOR(source, SY_I32, 2);
  const sy_tensor tt = TENSOR(token, SY_I32, 2);
  const sy_tensor tr = TENSOR(rows, SY_I32, 2);
  CHECK_OK(sy_dispatch_sources(dispatch, &ts, &tt, &tr, NULL));
  CHECK(source[0] == 0 && source[1] == 1 && token[1] == 0 && rows[0] == 1 && rows[1] == 1);
  int32_t choice[2] = {-1, -1};
  const sy_tensor tc = TENSOR(choice, SY_I32, 2);
  CHECK_OK(sy_dispatch_choices(dispatch, &tc, NULL));
  CHECK(choice[0] == rank && choice[1] == rank);  // expert 0 is the first choice, 3 the second
}

static void check_input(sy_dispatch* dispatch) {
  const sy_tensor* input = NULL;
  CHECK_OK(sy_combine_input(dispatch, &input));
  CHECK(input->dtype.code == 4 && input->dtype.bits == 16 && input->ndim == 2);
  CHECK(input->shape[0] == 2 && input->shape[1] == kHidden);
}

static void check_output(const Token* token, float expected) {
  for (int h = 0; h < kHidden; ++h) CHECK(token->output[0][h] == expected);
}

static sy_status run_exchange(void* user, sy_group* group) {
  (void)user;
  const int32_t rank = rank_of(group);
  Token token = token_of(rank);
  const sy_tensor tokens = TENSOR(token.row, SY_F32, 1, kHidden);
  const sy_tensor ids = TENSOR(token.ids, SY_I32, 1, 2);
  const sy_tensor weights = TENSOR(token.weights, SY_F32, 1, 2);
  const sy_tensor output = TENSOR(token.output, SY_F32, 1, kHidden);
  sy_exchange* exchange = NULL;
  CHECK_OK(sy_exchange_create(group, &kConfig, NULL, &exchange));
  sy_exchange_info info = {.struct_size = sizeof(info)};
  CHECK_OK(sy_exchange_describe(exchange, &info));
  CHECK(info.max_buffer_rows >= 2 && strcmp(info.heap, "host") == 0);
  CHECK(info.device.device_type == SY_CPU && info.window_bytes > 0 && !info.is_shared_gpu);
  CHECK_OK(sy_exchange_check(exchange));

  sy_dispatch* dispatch = NULL;
  CHECK_OK(sy_dispatch_tokens(exchange, &tokens, &ids, &weights, NULL, NULL, &dispatch));
  check_counts(dispatch, rank);
  sy_received received = {.struct_size = sizeof(received)};
  CHECK_OK(sy_dispatch_rows(dispatch, &received));
  CHECK(received.rows->shape[0] == 2 && received.rows->shape[1] == kHidden);
  CHECK(received.scales == NULL && received.topk_ids == NULL && received.num_payloads == 0);
  const float* rows = received.rows->data;
  CHECK(rows[0] == 1.0f && rows[kHidden] == 2.0f);
  CHECK(((int32_t*)received.total_rows->data)[0] == 2);
  CHECK(((int32_t*)received.num_rows->data)[rank] == 2);
  CHECK(((int64_t*)received.first_row->data)[0] == 0);
  CHECK(((float*)received.topk_weights->data)[0] == (rank == 0 ? 0.25f : 0.5f));
  check_input(dispatch);
  CHECK_OK(sy_combine_check(dispatch, &output, NULL));
  CHECK_OK(sy_combine(dispatch, received.rows, &output, NULL, NULL));
  check_output(&token, 0.75f * (float)(rank + 1));

  // The same routing again, for twice the rows; then once more without rows.
  for (int h = 0; h < kHidden; ++h) token.row[0][h] *= 2.0f;
  const sy_dispatch_options again = {.struct_size = sizeof(again), .earlier = dispatch};
  sy_dispatch* second = NULL;
  CHECK_OK(sy_dispatch_tokens(exchange, &tokens, NULL, &weights, &again, NULL, &second));
  CHECK_OK(sy_dispatch_rows(second, &received));
  const float* own_rows = received.rows->data;
  CHECK(own_rows[kHidden] == 4.0f);
  CHECK_OK(sy_dispatch_release(second));
  CHECK_OK(sy_dispatch_destroy(second));
  CHECK_OK(sy_dispatch_reopen(dispatch, NULL, &second));
  float ones[2][kHidden];
  for (int h = 0; h < 2 * kHidden; ++h) ones[h / kHidden][h % kHidden] = 1.0f;
  const sy_tensor gradients = TENSOR(ones, SY_F32, 2, kHidden);
  CHECK_OK(sy_combine(second, &gradients, &output, NULL, NULL));
  check_output(&token, 2.0f);
  CHECK_OK(sy_dispatch_destroy(second));

  CHECK_OK(sy_exchange_close(exchange, true));
  CHECK_OK(sy_exchange_close(exchange, false));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "check: the exchange was closed, must be open",
                sy_exchange_check(exchange));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "the exchange was closed",
                sy_dispatch_tokens(exchange, &tokens, &ids, &weights, NULL, NULL, &second));
  CHECK(own_rows[kHidden] == 4.0f);
  CHECK_OK(sy_exchange_destroy(exchange));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "exchange of this dispatch was destroyed",
                sy_dispatch_rows(dispatch, &received));
  CHECK_OK(sy_dispatch_destroy(dispatch));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_exchange was destroyed", sy_exchange_check(exchange));
  return SY_OK;
}

typedef struct Closing {
  sy_exchange* exchange;
  atomic_bool* is_done;
} Closing;

// A thread of POSIX: ThreadSanitizer does not know those of C11.
static void* close_soon(void* user) {
  const Closing* closing = user;
  const struct timespec soon = {.tv_nsec = 300000000};
  thrd_sleep(&soon, NULL);
  CHECK_OK(sy_exchange_close(closing->exchange, false));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "was closed, must be open",
                sy_exchange_check(closing->exchange));
  atomic_store(closing->is_done, true);
  return NULL;
}

// Rank 0 waits in its dispatch for rank 1, which waits until another thread has closed the exchange
// of rank 0: that call ends well, later ones are refused.
static sy_status run_closed_meanwhile(void* user, sy_group* group) {
  atomic_bool* is_done = user;
  const int32_t rank = rank_of(group);
  Token token = token_of(rank);
  const sy_tensor tokens = TENSOR(token.row, SY_F32, 1, kHidden);
  const sy_tensor ids = TENSOR(token.ids, SY_I32, 1, 2);
  const sy_tensor weights = TENSOR(token.weights, SY_F32, 1, 2);
  sy_exchange* exchange = NULL;
  CHECK_OK(sy_exchange_create(group, &kConfig, NULL, &exchange));
  Closing closing = {exchange, is_done};
  pthread_t thread;
  if (rank == 0) CHECK(pthread_create(&thread, NULL, close_soon, &closing) == 0);
  while (rank == 1 && !atomic_load(is_done)) thrd_yield();
  sy_dispatch* dispatch = NULL;
  CHECK_OK(sy_dispatch_tokens(exchange, &tokens, &ids, &weights, NULL, NULL, &dispatch));
  sy_received received = {.struct_size = sizeof(received)};
  CHECK_OK(sy_dispatch_rows(dispatch, &received));
  const float* rows = received.rows->data;
  CHECK(rows[0] == 1.0f && rows[kHidden] == 2.0f);
  if (rank == 0) {
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_REFUSED(SY_INVALID_ARGUMENT, "check: the exchange was closed, must be open",
                  sy_exchange_check(exchange));
  }
  CHECK_OK(sy_dispatch_destroy(dispatch));
  CHECK_OK(sy_exchange_destroy(exchange));
  return SY_OK;
}

// A payload and bias beside the rows, both calls in their phases.
static sy_status run_phases(void* user, sy_group* group) {
  (void)user;
  const int32_t rank = rank_of(group);
  Token token = token_of(rank);
  const sy_tensor tokens = TENSOR(token.row, SY_F32, 1, kHidden);
  const sy_tensor ids = TENSOR(token.ids, SY_I32, 1, 2);
  const sy_tensor weights = TENSOR(token.weights, SY_F32, 1, 2);
  const sy_tensor output = TENSOR(token.output, SY_F32, 1, kHidden);
  const int64_t payload_bytes = 4;
  sy_exchange_config config = kConfig;
  config.layout = "compact";
  config.reduce = "per_expert";
  config.payload_bytes = &payload_bytes;
  config.num_payloads = 1;
  config.max_in_flight = 2;
  sy_exchange* exchange = NULL;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "per_rank",
                sy_exchange_create(group, &config, NULL, &exchange));
  config.layout = NULL;
  CHECK_OK(sy_exchange_create(group, &config, NULL, &exchange));

  uint8_t mark[1][4] = {{(uint8_t)rank, 1, 2, 3}};
  const sy_tensor payload = TENSOR(mark, SY_U8, 1, 4);
  const sy_dispatch_options options = {
      .struct_size = sizeof(options), .payloads = &payload, .num_payloads = 1, .slot = 2};
  sy_dispatch* dispatch = NULL;
  CHECK_OK(sy_dispatch_send(exchange, &tokens, &ids, &weights, &options, NULL, &dispatch));
  sy_received received = {.struct_size = sizeof(received)};
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_dispatch_receive first",
                sy_dispatch_rows(dispatch, &received));
  CHECK_OK(sy_dispatch_receive(dispatch, NULL));
  CHECK_OK(sy_dispatch_rows(dispatch, &received));
  CHECK(received.num_payloads == 1);
  const uint8_t* marks = received.payloads[0]->data;
  CHECK(marks[0] == 0 && marks[4] == 1 && marks[7] == 3);

  uint16_t bias[1][kHidden];
  for (int h = 0; h < kHidden; ++h) bias[0][h] = bf16_bits(4.0f);
  const sy_tensor added = TENSOR(bias, SY_BF16, 1, kHidden);
  const sy_combine_options sums = {
      .struct_size = sizeof(sums), .bias = &added, .num_bias = 1, .copies_inputs = true};
  static _Thread_local float results[2][kHidden];
  memcpy(results, received.rows->data, sizeof(results));
  const sy_tensor rows = TENSOR(results, SY_F32, 2, kHidden);
  CHECK_OK(sy_combine_send(dispatch, &rows, &sums, NULL));
  memset(results, 0, sizeof(results));  // copies_inputs
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "output is NULL",
                sy_combine_receive(dispatch, NULL, &sums, NULL));
  CHECK_OK(sy_combine_receive(dispatch, &output, &sums, NULL));
  check_output(&token, 4.0f + 0.75f * (float)(rank + 1));
  CHECK_OK(sy_dispatch_destroy(dispatch));
  CHECK_OK(sy_exchange_destroy(exchange));
  return SY_OK;
}

// What is refused before anything is sent.
static sy_status misuse_exchange(void* user, sy_group* group) {
  (void)user;
  Token token = token_of(0);
  sy_tensor tokens = TENSOR(token.row, SY_F32, 1, kHidden);
  const sy_tensor ids = TENSOR(token.ids, SY_I32, 1, 2);
  const sy_tensor weights = TENSOR(token.weights, SY_F32, 1, 2);
  sy_exchange_config config = kConfig;
  sy_exchange* exchange = NULL;
  sy_dispatch* dispatch = NULL;
  config.scheme = "fp5";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "scheme is \"fp5\"",
                sy_exchange_create(group, &config, NULL, &exchange));
  config = kConfig;
  config.layout = "sideways";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "layout is \"sideways\"",
                sy_exchange_create(group, &config, NULL, &exchange));
  config = kConfig;
  config.scheme = "fp8_block";
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "row_dtype is \"f32\"",
                sy_exchange_create(group, &config, NULL, &exchange));
  config = kConfig;
  config.num_payloads = 1;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "payload_bytes is NULL",
                sy_exchange_create(group, &config, NULL, &exchange));
  config.num_payloads = 0;
  config.num_experts_per_rank = 1;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "experts_per_rank is NULL",
                sy_exchange_create(group, &config, NULL, &exchange));
  const int32_t too_many = kConfig.num_experts + 1;
  config.experts_per_rank = &too_many;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "experts_per_rank adds up to",
                sy_exchange_create(group, &config, NULL, &exchange));
  config.num_experts_per_rank = 0;
  config.num_payloads = SIZE_MAX;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "num_payloads is 18446744073709551615, must be at most 1024",
                sy_exchange_create(group, &config, NULL, &exchange));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "sy_group is NULL",
                sy_exchange_create(NULL, &kConfig, NULL, &exchange));
  CHECK_OK(sy_exchange_create(group, &kConfig, NULL, &exchange));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "tokens is NULL",
                sy_dispatch_tokens(exchange, NULL, &ids, &weights, NULL, NULL, &dispatch));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "topk_ids is NULL",
                sy_dispatch_tokens(exchange, &tokens, NULL, &weights, NULL, NULL, &dispatch));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "dispatch is NULL",
                sy_dispatch_tokens(exchange, &tokens, &ids, &weights, NULL, NULL, NULL));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "on the CPU",
                sy_dispatch_tokens(exchange, &tokens, &ids, &weights, NULL, &token, &dispatch));
  tokens.device = (sy_device){SY_CUDA, 0};
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "cuda:0",
                sy_dispatch_tokens(exchange, &tokens, &ids, &weights, NULL, NULL, &dispatch));
  tokens = TENSOR(token.row, SY_F32, 1, kHidden);
  config = kConfig;
  config.row_dtype = NULL;
  sy_exchange* plain = NULL;
  CHECK_OK(sy_exchange_create(group, &config, NULL, &plain));
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "set scheme to f32",
                sy_dispatch_tokens(plain, &tokens, &ids, &weights, NULL, NULL, &dispatch));
  CHECK_OK(sy_exchange_destroy(plain));
  token.ids[0][1] = 9;
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "topk_ids[0, 1] is 9",
                sy_dispatch_tokens(exchange, &tokens, &ids, &weights, NULL, NULL, &dispatch));
  CHECK(dispatch == NULL);
  CHECK_OK(sy_exchange_destroy(exchange));
  return SY_OK;
}

void test_exchange(void) {
  CHECK_OK(sy_run_local_ranks(2, run_exchange, NULL, NULL));
  CHECK_OK(sy_run_local_ranks(1, misuse_exchange, NULL, NULL));
  atomic_bool is_done = false;
  CHECK_OK(sy_run_local_ranks(2, run_closed_meanwhile, &is_done, NULL));
}

void test_phases(void) { CHECK_OK(sy_run_local_ranks(2, run_phases, NULL, NULL)); }
