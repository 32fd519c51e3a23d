# SPDX-License-Identifier: Apache-2.0
"""permute, its inverse, weight_and_reduce and the router, against plain numpy and the golden vectors."""
import ml_dtypes
import numpy as np
import pytest

import golden
import switchyard

T, K, H, E, L = 11, 3, 40, 6, 4
RANDOM = np.random.default_rng(5)
X = RANDOM.integers(-9, 9, (T, H)).astype(np.float32)
IDS = np.array([RANDOM.permutation(E)[:K] for _ in range(T)], np.int64)
MAP = np.array([-1, 0, 1, 2, 3, -1], np.int32)
WEIGHTS = (RANDOM.integers(1, 8, (T, K)) / 8).astype(np.float32)
LOCAL = np.where(IDS >= 0, MAP[IDS], -1)


@pytest.mark.parametrize("alignment", [1, 8, 128])
def test_rows_by_expert_and_back(alignment):
    scales = RANDOM.random((T, 5)).astype(np.float32)
    made = switchyard.permute(X, IDS, L, scales=scales, expert_map=MAP, alignment=alignment, scale_layout="column_major_aligned")
    counts, first = made.expert_num_tokens.numpy(), made.first_row.numpy()
    np.testing.assert_array_equal(counts, [(LOCAL == e).sum() for e in range(L)])
    assert not (first % alignment).any() and repr(made).startswith("Permuted(f32 [")
    places = made.inv_perm.numpy()
    np.testing.assert_array_equal(places >= 0, LOCAL >= 0)
    for token, k in zip(*np.nonzero(LOCAL >= 0)):
        row = places[token, k]
        np.testing.assert_array_equal(made.x.numpy()[row], X[token])
        np.testing.assert_array_equal(made.scales.numpy()[row], scales[token])
        assert made.m_indices.numpy()[row] == LOCAL[token, k]
    assert made.scales.strides[0] == 1 and made.scales.strides[1] % 4 == 0
    expected = X * np.where(LOCAL >= 0, WEIGHTS, 0).sum(axis=1, keepdims=True)
    for back in (switchyard.unpermute_and_reduce(made.x, made, WEIGHTS), switchyard.unpermute_and_reduce(made.x, places, WEIGHTS),
                 switchyard.ep_gather(made.x, IDS, WEIGHTS, made.inv_perm, MAP)):
        np.testing.assert_allclose(back.numpy(), expected, rtol=1e-6)
    out = np.zeros((T, H), ml_dtypes.bfloat16)
    assert switchyard.unpermute_and_reduce(made.x, made, out=out) is out


def test_memory_of_the_caller():
    out = np.zeros((switchyard.compute_aligned_m(T, K, L, 8), H), np.float32)
    made = switchyard.permute(X, IDS, L, expert_map=MAP, alignment=8, out=out)
    assert made.x.data_ptr() == out.ctypes.data and made.scales is None
    del out
    np.testing.assert_array_equal(made.x.numpy()[made.inv_perm.numpy()[0][LOCAL[0] >= 0]], np.repeat(X[:1], (LOCAL[0] >= 0).sum(), 0))


def test_packed_scales():
    scales = RANDOM.integers(0, 255, (T, 6)).astype(np.uint8)
    made = switchyard.permute(X, IDS, L, scales=scales, expert_map=MAP, alignment=1, packs_scales=True)
    row = made.inv_perm.numpy()[LOCAL >= 0][0]
    token = np.argwhere(LOCAL >= 0)[0][0]
    assert made.scales.dtype == "i32" and made.scales.numpy()[row].copy().view(np.uint8)[:6].tolist() == scales[token].tolist()


@pytest.mark.parametrize("wrong", [-2, -2**31, 10**6])
def test_places_that_are_no_rows(wrong):
    made = switchyard.permute(X, IDS, L, expert_map=MAP)
    places = made.inv_perm.numpy().copy()
    places[1, 0] = wrong
    with pytest.raises(switchyard.InvalidArgumentError, match=rf"inv_perm\[1, 0\] is {wrong}"):
        switchyard.unpermute_and_reduce(made.x, places)


def test_counts_and_maps():
    np.testing.assert_array_equal(switchyard.count_expert_num_tokens(IDS, L, MAP).numpy(), [(LOCAL == e).sum() for e in range(L)])
    np.testing.assert_array_equal(switchyard.apply_expert_map(IDS, MAP).numpy(), LOCAL)
    out = np.zeros_like(IDS)
    assert switchyard.apply_expert_map(IDS, MAP, out) is out and (out == LOCAL).all()
    assert switchyard.compute_aligned_m(4, 2, 3) % switchyard.DEEP_GEMM_ALIGNMENT == 0


@pytest.mark.parametrize("num_topk", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["f32", "bf16", "f16"])
def test_golden_contiguous_sums(num_topk, name):
    vectors = golden.load("reduce")
    path = f"contiguous/{num_topk}/"
    weights, ids = vectors[path + "weights"], vectors[path + "ids"]
    for case, options in (("weighted", {}), ("plain", {"apply_router_weight_on_input": True}),
                          ("skip", {"skips_padding": True, "expert_map": vectors["contiguous/map"]})):
        rows = vectors[f"{path}{name}/rows"].copy()
        got = switchyard.weight_and_reduce(rows, weights, ids, **options)
        assert golden.same_bytes(got.numpy(), vectors[f"{path}{name}/{case}/out"]), case
        if case != "plain":
            assert golden.same_bytes(rows, vectors[f"{path}{name}/{case}/rows"]), case


def test_kinds_of_sums():
    rows = np.ones((T, K, H), np.float32)
    got = switchyard.weight_and_reduce(rows, WEIGHTS, IDS)
    np.testing.assert_allclose(got.numpy(), np.broadcast_to(WEIGHTS.sum(1, keepdims=True), (T, H)), rtol=1e-6)
    assert rows[0, 0, 0] == WEIGHTS[0, 0]  # weighed in place
    final = np.ones((T, H), np.float32)
    assert switchyard.weight_and_reduce(final, kind="no_op") is final
    out = np.zeros((T, H), np.float32)
    assert switchyard.weight_and_reduce(final, kind="no_op", out=out) is out and out.all()
    ids = np.zeros((2, 1), np.int32)
    batch = np.stack([np.full((2, 4), 3, np.float32)])
    np.testing.assert_array_equal(switchyard.weight_and_reduce(batch, np.ones((2, 1), np.float32), ids, kind="naive_batched").numpy(), 3)
    with pytest.raises(switchyard.InvalidArgumentError):
        switchyard.weight_and_reduce(rows, WEIGHTS, IDS, kind="delegate")


@pytest.mark.parametrize("call, phrase", [
    (lambda: switchyard.permute(X, IDS + 9, L), "topk_ids"),
    (lambda: switchyard.permute(X[0], IDS, L), "must be"),
    (lambda: switchyard.permute(X, IDS, L, expert_map=MAP, alignment=0), "alignment"),
    (lambda: switchyard.permute(X, IDS, L, expert_map=MAP, compat_padding="zero"), 'compat_padding: "zero"'),
    (lambda: switchyard.unpermute_and_reduce(X, np.full((T, K), 99, np.int32), WEIGHTS), "inv_perm"),
    (lambda: switchyard.count_expert_num_tokens(IDS.astype(np.float32), L), "topk_ids"),
    (lambda: switchyard.weight_and_reduce(X, kind="all"), 'weight_and_reduce: "all"'),
])
def test_errors(call, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        call()


def test_a_buffer_that_is_too_small():
    with pytest.raises(switchyard.WorkspaceTooSmallError):
        switchyard.permute(X, IDS, L, expert_map=MAP, out=np.zeros((1, H), np.float32))


def test_router():
    gate = RANDOM.normal(size=(E, H)).astype(np.float32)
    logits = switchyard.router_logits(X, gate)
    np.testing.assert_allclose(logits.numpy(), X @ gate.T, rtol=1e-4, atol=1e-4)
    ids, weights = switchyard.select_experts(logits, K, norm_topk_prob=True)
    expected = np.argsort(-(X @ gate.T), axis=1)[:, :K]
    np.testing.assert_array_equal(ids.numpy(), expected)
    np.testing.assert_allclose(weights.numpy().sum(1), 1, rtol=1e-6)
    bias = np.zeros(E, np.float32)
    bias[4] = 1e3
    assert (switchyard.select_experts(logits, 1, bias=bias, scoring="sigmoid")[0].numpy() == 4).all()
    ids, weights = switchyard.select_experts(logits, 1, bias=bias, bias_on_logits=True, norm_topk_prob=True, norm_min=2.0)
    assert (ids.numpy() == 4).all() and (weights.numpy() == 0.5).all()
    ids, weights = switchyard.select_experts(np.array([[1, 0.99, 0.5, -3]], np.float32), 2, scoring="sparse_mixer", jitter=0.01)
    assert ids.numpy().tolist() == [[0, 1]]
    np.testing.assert_allclose(weights.numpy(), [[0.5025, 1]], rtol=1e-6)
    for wrong in (0, E + 1):
        with pytest.raises(switchyard.InvalidArgumentError):
            switchyard.select_experts(logits, wrong)
