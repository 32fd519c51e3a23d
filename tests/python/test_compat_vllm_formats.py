# SPDX-License-Identifier: Apache-2.0
"""Scales in tiles: what vLLM-shaped prepare calls return for nvfp4 and mxfp8, against switchyard.quantize and the formula of the layout."""
import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import run_local
from switchyard.compat import vllm

P, E, K, H, T = 2, 4, 2, 256, 5
BF16 = ml_dtypes.bfloat16
ONES, GSCALE = np.ones(E, np.float32), np.array([300.0], np.float32)
NVFP4 = {swizzled: vllm.nvfp4_moe_quant_config(ONES, ONES, GSCALE, GSCALE, ONES, ONES, is_scale_swizzled=swizzled)
         for swizzled in (True, False)}
MXFP8 = vllm.mxfp4_mxfp8_moe_quant_config(ONES, ONES)
PLAIN = vllm.FUSED_MOE_UNQUANTIZED_CONFIG
CLASSES = {
    "high_throughput": lambda m: vllm.DeepEPHTPrepareAndFinalize(m, P, P, m.rank * E // P),
    "v2": lambda m: vllm.DeepEPV2PrepareAndFinalize(m, P, P, m.rank * E // P, E, K, use_cudagraph=True),
    "all_gather": lambda m: vllm.MoEPrepareAndFinalizeNaiveDPEPModular(num_dispatchers=P, all2all_manager=m),
    "two_sided": lambda m: vllm.FlashInferNVLinkTwoSidedPrepareAndFinalize(P, all2all_manager=m),
    "no_dp_ep": lambda m: vllm.MoEPrepareAndFinalizeNoDPEPModular()}


def batch(rank, one):
    random = np.random.default_rng(rank)
    hidden = random.normal(size=(T, H)).astype(BF16)
    ids = np.array([random.permutation(E)[:K] for _ in range(T)])
    dtype = one.topk_indices_dtype()
    return hidden, np.ones((T, K), np.float32), ids if dtype is None else ids.astype(str(dtype).rpartition(".")[2])


def untiled(tiles, num_rows, num_columns):
    """Scale (m, k) is element ((m / 128) * KT + k / 4) * 512 + (m % 32) * 16 + (m % 128) / 32 * 4 + k % 4, KT tiles in a row of tiles."""
    m, k = np.meshgrid(np.arange(num_rows), np.arange(num_columns), indexing="ij")
    in_a_row = tiles.shape[1] // 4
    return tiles.reshape(-1)[((m // 128) * in_a_row + k // 4) * 512 + (m % 32) * 16 + (m % 128) // 32 * 4 + k % 4]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("quant, scheme, group", [(NVFP4[True], "nvfp4", 16), (NVFP4[False], "nvfp4", 16), (MXFP8, "mxfp8", 32)],
                         ids=["nvfp4", "nvfp4 in rows", "mxfp8"])
def test_classes_that_keep_tokens_apart(name, quant, scheme, group):
    def rank(group_of_ranks):
        with vllm.All2AllManager(group_of_ranks) as manager:
            plain, one = CLASSES[name](manager), CLASSES[name](manager)
            given = (*batch(group_of_ranks.rank, one), E, None, False)
            expected, *_ = plain.prepare(*given, PLAIN)
            rows, scales, *_ = one.prepare(*given, quant)
            q, row_scales = switchyard.quantize(expected.copy(), scheme, static_scale=GSCALE if scheme == "nvfp4" else None)
            valid = expected.astype(np.float32).any(axis=1)
            np.testing.assert_array_equal(rows.view(np.uint8)[valid], q.numpy().view(np.uint8)[valid])
            if quant.is_scale_swizzled:
                assert scales.shape == (128, H // group) and scales.dtype.itemsize == 1
                scales = untiled(scales, len(rows), H // group)
            np.testing.assert_array_equal(scales.view(np.uint8)[valid], row_scales.numpy().view(np.uint8)[valid])

    run_local(P, rank)


def test_low_latency_dispatch_of_nvfp4(monkeypatch):
    monkeypatch.setenv("VLLM_DEEPEPLL_NVFP4_DISPATCH", "1")

    def rank(group):
        with vllm.All2AllManager(group) as manager:
            plain, one = vllm.DeepEPLLPrepareAndFinalize(manager, 8, P), vllm.DeepEPLLPrepareAndFinalize(manager, 8, P)
            given = (*batch(group.rank, one), E, None, False)
            expected, _, counts, *_ = plain.prepare(*given, PLAIN)
            rows, scales, *_ = one.prepare(*given, NVFP4[True])
            assert rows.shape == (E // P, P * 8, H // 2) and scales.shape == (32, 4, 1, 4, H // 64, E // P)
            for local, count in enumerate(counts.expert_num_tokens):
                q, row_scales = switchyard.quantize(expected[local, :count].copy(), "nvfp4", static_scale=GSCALE)
                np.testing.assert_array_equal(rows[local, :count], q.numpy())
                for m in range(count):
                    found = scales[m % 32, m % 128 // 32, m // 128, :, :, local].T.reshape(-1)  # k is 4 * (k / 4) + k % 4
                    np.testing.assert_array_equal(found.astype(np.float32), row_scales.numpy()[m].astype(np.float32))

    run_local(P, rank)


def test_low_latency_leaves_nvfp4_to_the_experts():
    def rank(group):
        with vllm.All2AllManager(group) as manager:
            one = vllm.DeepEPLLPrepareAndFinalize(manager, 8, P)
            rows, scales, *_ = one.prepare(*batch(group.rank, one), E, None, False, NVFP4[True])
            assert rows.dtype == BF16 and scales is None

    run_local(P, rank)


def test_scales_with_columns_first_are_refused():
    class Newer(vllm.FusedMoEQuantConfig):
        is_scale_transposed = True

    plain = vllm.fp8_w8a8_moe_quant_config(ONES, ONES, block_shape=[128, 128])
    newer = Newer(plain._a1, plain._a2, plain._w1, plain._w2)
    one = vllm.MoEPrepareAndFinalizeNoDPEPModular()
    with pytest.raises(switchyard.NotSupportedError, match="is_scale_transposed"):
        one.prepare(*batch(0, one), E, None, False, newer)


def test_the_reference_of_the_batched_format():
    """Two ranks of the reference, each with its own tokens, against the low-latency class."""

    def rank(group):
        with vllm.All2AllManager(group) as manager:
            low_latency, mine = vllm.DeepEPLLPrepareAndFinalize(manager, T, P), slice(group.rank * T, (group.rank + 1) * T)
            hidden, weights, ids = batch(group.rank, low_latency)
            rows, _, counts, *_ = low_latency.prepare(hidden, weights, ids, E, None, False, PLAIN)
            # All tokens on one rank, the experts of this one.
            everyone = [batch(other, low_latency) for other in range(P)]
            all_hidden, all_weights, all_ids = (np.concatenate(parts) for parts in zip(*everyone))
            one = vllm.BatchedPrepareAndFinalize(P * T, E // P, P, group.rank)
            assert one.activation_format is vllm.FusedMoEActivationFormat.BatchedExperts and one.max_num_tokens_per_rank() == P * T
            assert one.topk_indices_dtype() is None and one.num_dispatchers() == P and not one.output_is_reduced()
            found, scales, found_counts, *_ = one.prepare(all_hidden, all_weights, all_ids, E, None, False, PLAIN)
            assert scales is None and found_counts.expert_num_tokens.tolist() == [*counts.expert_num_tokens.tolist(), 0, 0]
            for local, count in enumerate(counts.expert_num_tokens):
                np.testing.assert_array_equal(found[local, :count], rows[local, :count])
                assert not found[local, count:].any()
            output, partial = np.zeros_like(hidden), np.zeros_like(all_hidden)
            low_latency.finalize(output, rows.copy(), weights, ids, False, vllm.TopKWeightAndReduceDelegate())
            one.finalize(partial, found, all_weights, all_ids, False, vllm.TopKWeightAndReduceDelegate())
            return output, partial, mine

    results = run_local(P, rank)
    for output, _, mine in results:
        summed = sum(partial.astype(np.float32) for _, partial, _ in results)
        np.testing.assert_array_equal(summed[mine], output.astype(np.float32))  # twice the tokens, exactly


@pytest.mark.parametrize("flags, scale_shape", [({}, (1, 1)), ({"per_act_token_quant": True}, (8, 1)),
                                                ({"block_shape": [128, 128]}, (8, 2)),
                                                ({"a1_scale": np.array([0.05], np.float32)}, (1, 1))])
def test_formats_of_the_reference(flags, scale_shape):
    quant = vllm.fp8_w8a8_moe_quant_config(ONES, ONES, **flags)
    one = vllm.BatchedPrepareAndFinalize(8, E, 1, 0)
    hidden, weights, ids = batch(0, one)
    expected, *_ = one.prepare(hidden, weights, ids, E, None, False, PLAIN)
    rows, scales, counts, *_ = one.prepare(hidden, weights, ids, E, None, False, quant)
    assert rows.dtype == ml_dtypes.float8_e4m3fn and scales.shape == (E, *scale_shape) and counts.expert_num_tokens.sum() == T * K
    values = rows.astype(np.float32) * np.repeat(scales, H // scale_shape[1], axis=-1)
    np.testing.assert_allclose(values, expected.astype(np.float32), atol=0.1, rtol=0.07)


def test_errors_of_the_reference():
    hidden, weights, ids = batch(0, vllm.BatchedPrepareAndFinalize(1, E, 1, 0))
    for one, quant, is_weighted, phrase in [(vllm.BatchedPrepareAndFinalize(1, E, 1, 0), PLAIN, False, "tokens chose local expert"),
                                            (vllm.BatchedPrepareAndFinalize(8, E, 1, 0), PLAIN, True, "2 experts per token"),
                                            (vllm.BatchedPrepareAndFinalize(8, E, 1, 0), NVFP4[True], False, "quant_dtype is nvfp4")]:
        with pytest.raises(switchyard.Error, match=phrase):
            one.prepare(hidden, weights, ids, E, None, is_weighted, quant)
