// SPDX-License-Identifier: Apache-2.0
//
// What differs on a GPU: tensors there, streams, and errors that appear later. One rank.

#include "check.h"

enum { kHidden = 128 };

static const sy_device kGpu = {SY_CUDA, 0};

// A copy on the GPU; `tensor` becomes the copy's.
static sy_array* to_gpu(sy_tensor* tensor) {
  sy_array* array = NULL;
  CHECK_OK(sy_array_copy_of(tensor, kGpu, NULL, &array));
  CHECK_OK(sy_array_tensor(array, tensor));
  return array;
}

static float first_of(const sy_tensor* tensor) {
  sy_array* array = NULL;
  sy_tensor copy;
  CHECK_OK(sy_array_copy_of(tensor, (sy_device){SY_CPU, 0}, NULL, &array));
  CHECK_OK(sy_array_tensor(array, &copy));
  const float first = copy.dtype.bits == 32 ? *(float*)copy.data : *(uint8_t*)copy.data;
  CHECK_OK(sy_array_destroy(array));
  return first;
}

static void test_quantize_on_gpu(sy_tensor tokens) {
  sy_array* x = to_gpu(&tokens);
  sy_array *q = NULL, *scales = NULL;
  CHECK_OK(sy_quantize_new(&tokens, "fp8_block", NULL, NULL, NULL, NULL, &q, &scales));
  sy_tensor tq, ts;
  CHECK_OK(sy_array_tensor(q, &tq));
  CHECK_OK(sy_array_tensor(scales, &ts));
  CHECK(tq.device.device_type == SY_CUDA);
  CHECK(first_of(&tq) == 0x7E && first_of(&ts) == 1.0f);
  CHECK_OK(sy_array_destroy(q));
  CHECK_OK(sy_array_destroy(scales));
  CHECK_OK(sy_array_destroy(x));
}

static sy_status run_exchange(void* user, sy_group* group) {
  (void)user;
  static float row[1][kHidden];
  for (int h = 0; h < kHidden; ++h) row[0][h] = 448.0f;
  int32_t choices[1][2] = {{0, 3}};
  float shares[1][2] = {{0.25f, 0.5f}};
  sy_tensor tokens = TENSOR(row, SY_F32, 1, kHidden);
  test_quantize_on_gpu(tokens);
  sy_tensor ids = TENSOR(choices, SY_I32, 1, 2);
  sy_tensor weights = TENSOR(shares, SY_F32, 1, 2);
  sy_tensor output = tokens;
  sy_array* arrays[] = {to_gpu(&tokens), to_gpu(&ids), to_gpu(&weights), to_gpu(&output)};

  const sy_exchange_config config = {.struct_size = sizeof(config),
                                     .num_experts = 4,
                                     .num_topk = 2,
                                     .hidden = kHidden,
                                     .max_tokens_per_rank = 1,
                                     .scheme = "f32",
                                     .combine_scheme = "f32"};
  const sy_exchange_options options = {.struct_size = sizeof(options), .device = kGpu};
  sy_exchange* exchange = NULL;
  CHECK_OK(sy_exchange_create(group, &config, &options, &exchange));
  sy_dispatch* dispatch = NULL;
  CHECK_OK(sy_dispatch_tokens(exchange, &tokens, &ids, &weights, NULL, NULL, &dispatch));
  sy_host_counts counts = {.struct_size = sizeof(counts)};
  CHECK_REFUSED(SY_NOT_AVAILABLE, "host_counts", sy_dispatch_counts(dispatch, &counts));
  sy_received received = {.struct_size = sizeof(received)};
  CHECK_OK(sy_dispatch_rows(dispatch, &received));
  CHECK_OK(sy_combine(dispatch, received.rows, &output, NULL, NULL));
  CHECK(first_of(&output) == 336.0f);
  CHECK_OK(sy_exchange_check(exchange));
  CHECK_OK(sy_dispatch_destroy(dispatch));

  const sy_dispatch_options counted = {.struct_size = sizeof(counted), .host_counts = true};
  CHECK_OK(sy_dispatch_tokens(exchange, &tokens, &ids, &weights, &counted, NULL, &dispatch));
  CHECK_OK(sy_dispatch_counts(dispatch, &counts));
  CHECK(counts.num_rows == 2 && counts.rows_per_expert[3] == 1);
  CHECK_OK(sy_dispatch_rows(dispatch, &received));
  CHECK_OK(sy_combine(dispatch, received.rows, &output, NULL, NULL));
  CHECK(first_of(&output) == 336.0f);
  CHECK_OK(sy_dispatch_destroy(dispatch));

  sy_permuted* permuted = NULL;
  sy_scatter_outputs out = {.struct_size = sizeof(out)};
  CHECK_OK(sy_permute(&tokens, NULL, &ids, 4, NULL, NULL, NULL, &permuted));
  CHECK_OK(sy_permuted_tensors(permuted, &out));
  CHECK(out.x->device.device_type == SY_CUDA && out.x->shape[0] >= 256);
  CHECK_OK(sy_unpermute_and_reduce(out.x, out.inv_perm, &weights, &output, NULL, NULL));
  CHECK(first_of(&output) == 336.0f);
  CHECK_OK(sy_permuted_destroy(permuted));

  // An id that only the kernel sees ends the exchange.
  choices[0][1] = 99;
  sy_tensor wrong = TENSOR(choices, SY_I32, 1, 2);
  sy_array* wrong_ids = to_gpu(&wrong);
  CHECK_OK(sy_dispatch_tokens(exchange, &tokens, &wrong, &weights, NULL, NULL, &dispatch));
  CHECK(first_of(&tokens) == 448.0f);  // waits for the stream
  CHECK_REFUSED(SY_INVALID_ARGUMENT, "topk_ids[0, 1] is 99", sy_exchange_check(exchange));
  CHECK_OK(sy_dispatch_destroy(dispatch));
  CHECK_OK(sy_exchange_destroy(exchange));
  CHECK_OK(sy_array_destroy(wrong_ids));
  for (size_t i = 0; i < LENGTH(arrays); ++i) CHECK_OK(sy_array_destroy(arrays[i]));
  return SY_OK;
}

void test_gpu(void) {
  if (sy_num_cuda_devices() == 0) {
    printf("c_test: no GPU, skipped\n");
    exit(77);
  }
  CHECK_OK(sy_run_local_ranks(1, run_exchange, NULL, NULL));
  printf("c_test: the GPU parts passed\n");
}
