# SPDX-License-Identifier: Apache-2.0
"""switchyard.compat.deep_gemm with numpy arrays, against plain numpy."""
import types

import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import InvalidArgumentError
from switchyard.compat import deep_gemm

T, K, H, E, L, A = 9, 3, 256, 6, 4, 128
RANDOM = np.random.default_rng(3)
X = RANDOM.integers(-9, 9, (T, H)).astype(ml_dtypes.float8_e4m3fn)
SCALES = RANDOM.random((T, H // 128)).astype(np.float32)
IDS = np.array([RANDOM.permutation(E)[:K] for _ in range(T)], np.int64)
IDS[0, 0] = -1
MAP = np.array([-1, 0, 1, 2, 3, -1], np.int32)
WEIGHTS = (RANDOM.integers(1, 8, (T, K)) / 8).astype(np.float32)
LOCAL = np.where(IDS >= 0, MAP[IDS], -1)
COUNTS = np.array([(LOCAL == e).sum() for e in range(L)], np.int32)
ALIGNED = -(-COUNTS // A) * A
STARTS = np.cumsum(ALIGNED) - ALIGNED
METAS = {"none": None, "counts": types.SimpleNamespace(expert_num_tokens=COUNTS, expert_num_tokens_cpu=None),
         "host counts": types.SimpleNamespace(expert_num_tokens=COUNTS, expert_num_tokens_cpu=COUNTS)}


def check(rows, scales, expert_ids, inv_perm):
    np.testing.assert_array_equal(inv_perm >= 0, LOCAL >= 0)
    next_row = STARTS.copy()
    expected_ids = np.full(len(rows), -1)
    for token, k in zip(*np.nonzero(LOCAL >= 0)):
        row, expert = inv_perm[token, k], LOCAL[token, k]
        assert row == next_row[expert]
        next_row[expert] += 1
        expected_ids[row] = expert
        np.testing.assert_array_equal(rows[row].astype(np.float32), X[token].astype(np.float32))
        np.testing.assert_array_equal(scales[row], SCALES[token])
    np.testing.assert_array_equal(expert_ids, expected_ids)
    assert not scales[expected_ids < 0].any()


@pytest.mark.parametrize("meta", METAS)
@pytest.mark.parametrize("gives_memory", [False, True])
def test_permute_and_back(meta, gives_memory):
    num_rows = ALIGNED.sum() if meta == "host counts" else switchyard.compute_aligned_m(T, K, L)
    assert deep_gemm.compute_aligned_M(T, K, L, A, METAS[meta]) == num_rows
    out = np.zeros((num_rows, H), X.dtype) if gives_memory else None
    rows, scales, expert_ids, inv_perm = deep_gemm.deepgemm_moe_permute(X, SCALES, IDS, L, MAP, METAS[meta], out)
    assert out is None or rows is out
    assert rows.shape == (num_rows, H) and rows.dtype == X.dtype and scales.shape == (num_rows, H // 128)
    assert expert_ids.shape == (num_rows,) and expert_ids.dtype == inv_perm.dtype == np.int32
    check(rows, scales, expert_ids, inv_perm)
    output = np.empty((T, H), np.float32)
    assert deep_gemm.deepgemm_unpermute_and_reduce(rows.astype(np.float32), IDS, WEIGHTS, inv_perm, MAP, output) is None
    expected = X.astype(np.float32) * np.where(LOCAL >= 0, WEIGHTS, 0).sum(axis=1, keepdims=True)
    np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("num_tokens", [0, 1, T])
def test_memory_of_more_rows(num_tokens):
    num_rows = -(-(num_tokens * K + L * (A - 1)) // A) * A  # vLLM's size of 2025
    x, scales, ids = X[:num_tokens], SCALES[:num_tokens], IDS[:num_tokens]
    out = np.ones((num_rows, H), X.dtype)
    rows, row_scales, expert_ids, inv_perm = deep_gemm.deepgemm_moe_permute(x, scales, ids, L, MAP, None, out)
    assert rows is out and row_scales.shape == (num_rows, H // 128) and expert_ids.shape == (num_rows,)
    assert (expert_ids >= 0).sum() == (inv_perm >= 0).sum() == (LOCAL[:num_tokens] >= 0).sum()
    with pytest.raises(InvalidArgumentError, match="alignment is 0, must be at least 1"):
        deep_gemm.expert_num_tokens_round_up_and_sum(np.ones(2, np.int32), 0)
    with pytest.raises(InvalidArgumentError, match="or have more rows"):
        deep_gemm.deepgemm_moe_permute(X, SCALES, IDS, L, MAP, None, np.zeros((A - 1, H), X.dtype))


def test_sizes_of_blocks():
    assert deep_gemm.deep_gemm_block_shape() == [A, A] and deep_gemm.get_mk_alignment_for_contiguous_layout() == A
    assert deep_gemm.expert_num_tokens_round_up_and_sum(COUNTS, A) == ALIGNED.sum()
    assert deep_gemm.expert_num_tokens_round_up_and_sum(switchyard.Tensor.wrap(COUNTS.copy()), A) == ALIGNED.sum()


@pytest.mark.parametrize("wrap", [lambda array: array, switchyard.Tensor.wrap])
def test_scatter_into_memory_of_the_caller(wrap):
    num_rows = int(ALIGNED.sum())
    rows, scales = np.zeros((num_rows, H), X.dtype), np.ones((num_rows, H // 128), np.float32)
    expert_ids, inv_perm, starts = (np.full(shape, 7, np.int32) for shape in (num_rows, (T, K), L))
    deep_gemm.ep_scatter(*map(wrap, (X, SCALES, IDS, COUNTS, MAP, starts, rows, scales, expert_ids, inv_perm)))
    check(rows, scales, expert_ids, inv_perm)
    np.testing.assert_array_equal(starts, STARTS + COUNTS)
    with pytest.raises(InvalidArgumentError, match="m_indices is"):
        deep_gemm.ep_scatter(X, SCALES, IDS, COUNTS, MAP, starts, rows, scales, expert_ids[1:], inv_perm)


def test_counts_and_errors():
    counts = deep_gemm.count_expert_num_tokens(IDS, L, MAP)
    assert counts.dtype == np.int32 and counts.tolist() == COUNTS.tolist()
    with pytest.raises(InvalidArgumentError, match="aq_out is"):
        deep_gemm.deepgemm_moe_permute(X, SCALES, IDS, L, MAP, None, np.zeros((1, H), X.dtype))
    with pytest.raises(InvalidArgumentError):
        deep_gemm.deepgemm_moe_permute(X, SCALES, IDS, L, MAP, types.SimpleNamespace(expert_num_tokens=COUNTS + 1))


@pytest.mark.parametrize("wrong", [None, [[1]], "x"])
def test_wrong_types_are_named(wrong):
    x, ids = np.ones((4, 128), np.float32), np.zeros((4, 2), np.int32)
    given = {"aq": x, "aq_scale": None, "topk_ids": ids, "local_num_experts": 4}
    for name in ("aq", "topk_ids", "local_num_experts"):
        with pytest.raises(switchyard.ArgumentTypeError, match=f"{name}(:| is) (None|a list|'x'), must be "):
            deep_gemm.deepgemm_moe_permute(**{**given, name: wrong})
    with pytest.raises(switchyard.ArgumentTypeError, match="alignment is"):
        deep_gemm.expert_num_tokens_round_up_and_sum([1], wrong)
    with pytest.raises(switchyard.InvalidArgumentError, match="expert_num_tokens"):
        deep_gemm.expert_num_tokens_round_up_and_sum(np.array([np.nan]), 8)


def test_counts_without_memory():
    torch = pytest.importorskip("torch")
    freed = torch.ones(1, dtype=torch.int32)
    freed.untyped_storage().resize_(0)
    with pytest.raises(InvalidArgumentError, match="expert_num_tokens shows no values"):
        deep_gemm.expert_num_tokens_round_up_and_sum(freed, 8)
