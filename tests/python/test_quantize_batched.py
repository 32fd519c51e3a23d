# SPDX-License-Identifier: Apache-2.0
"""quantize_batched, silu_mul_quantize and relayout_scales against the calls that they stand for."""
import ml_dtypes
import numpy as np
import pytest

import switchyard
from switchyard import dequantize, quantize, quantize_batched, relayout_scales, silu_mul_quantize

L, C, H = 3, 5, 256
COUNTS = np.array([2, 0, 5], np.int32)
RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(L, C, H)).astype(np.float32)
LAYOUTS = ["row_major", "column_major", "column_major_aligned"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scheme", ["fp8_block", "fp8_token", "int8_token", "fp8_ue8m0", "mxfp8"])
def test_a_batch_is_its_valid_rows(scheme, layout):
    q, scales = quantize_batched(X, COUNTS, scheme, scale_layout=layout)
    assert q.shape == (L, C, H) and scales.shape[:2] == (L, C)
    num_scales = scales.shape[2]
    strides = {"row_major": (C * num_scales, num_scales, 1), "column_major": (num_scales * C, 1, C),
               "column_major_aligned": (8 * num_scales, 1, 8)}[layout]
    assert scales.strides == strides
    for expert, count in enumerate(COUNTS):
        rows, row_scales = quantize(X[expert, :count], scheme)
        assert q.numpy()[expert, :count].tobytes() == rows.numpy().tobytes()
        assert scales.numpy()[expert, :count].tobytes() == row_scales.numpy().tobytes()
        assert not any(scales.numpy()[expert, count:].tobytes())


def test_scales_of_a_tensor_and_of_nvfp4():
    q, scales = quantize_batched(X, COUNTS, "fp8_tensor")
    assert scales.shape == (L, 1, 1)
    back = dequantize(q, scales, "fp8_tensor", dtype="f32").numpy()
    np.testing.assert_allclose(back[2], X[2], atol=0.2)
    given, static = quantize_batched(X, COUNTS, "fp8_tensor", static_scale=np.full(L, 0.5, np.float32))
    assert static.numpy().ravel()[[0, 2]].tolist() == [0.5, 0.5] and given.dtype == "e4m3"
    fp4, tiles = quantize_batched(X, COUNTS, "nvfp4", static_scale=np.array([100], np.float32), scale_layout="swizzled")
    rows, _ = quantize(X[2], "nvfp4", static_scale=np.array([100], np.float32))
    assert fp4.numpy()[2].tobytes() == rows.numpy().tobytes() and tiles.shape == (L, 1, H // 16 // 4, 32, 4, 4)


def test_batched_results_go_where_the_caller_wants():
    q, scales = np.full((L, C, H), 7, np.int8), np.full((L, C, 1), 7, np.float32)
    got = quantize_batched(X, COUNTS, "int8_token", out=(q, scales))
    assert got[0] is q and got[1] is scales and (q[1] == 7).all() and (scales[1] == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("scheme", ["fp8_block", "int8_token", "mxfp8", "none"])
def test_silu_mul_quantize(scheme, dtype):
    x = X[2].astype(dtype)
    gate, up = np.split(x.astype(np.float32), 2, axis=1)
    plain = gate / (1 + np.exp(-gate)) * up
    q, scales = silu_mul_quantize(x, scheme)
    assert q.shape == plain.shape and (scales is None) == (scheme == "none")
    back = dequantize(q, scales, scheme, dtype="f32").numpy() if scales is not None else q.numpy().astype(np.float32)
    np.testing.assert_allclose(back, plain, rtol=0.1, atol=0.02)
    batch, batch_scales = silu_mul_quantize(X.astype(dtype), scheme, counts=COUNTS)
    assert batch.numpy()[2].tobytes() == q.numpy().tobytes()
    if scales is not None:
        assert batch_scales.numpy()[2].tobytes() == scales.numpy().tobytes()


def test_silu_mul_quantize_as_the_fused_kernel():
    q, scales = silu_mul_quantize(X[0], "fp8_block", fused=True)
    gate, up = np.split(X[0], 2, axis=1)
    largest = np.abs(gate / (1 + np.exp(-gate)) * up).max(axis=1, keepdims=True)
    np.testing.assert_allclose(scales.numpy(), largest / 448, rtol=1e-6)
    assert q.dtype == "e4m3"
    q, scales = silu_mul_quantize(X[0], "fp8_tensor", tensor_scale=np.array([0.25], np.float32))
    assert scales is None and q.shape == (C, H // 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_relayout_scales(layout):
    scales = RANDOM.normal(size=(6, 7)).astype(np.float32)
    moved = relayout_scales(scales, layout)
    assert moved.strides == {"row_major": (7, 1), "column_major": (1, 6), "column_major_aligned": (1, 8)}[layout]
    assert moved.numpy().tolist() == scales.tolist()
    batch = RANDOM.normal(size=(2, 6, 7)).astype(np.float32)
    assert relayout_scales(batch, layout).numpy().tolist() == batch.tolist()
    out = np.zeros((7, 6), np.float32).T
    assert relayout_scales(scales, out=out) is out and out.tolist() == scales.tolist()


def test_tiles_and_back():
    scales = RANDOM.integers(0, 255, (2, 130, 6)).astype(np.uint8)
    tiles = relayout_scales(scales, "swizzled")
    assert tiles.shape == (2, 2, 2, 32, 4, 4)
    assert tiles.numpy()[1, 1, 1, 1, 0, 0] == scales[1, 129, 4] and tiles.numpy()[1, 1, 1, 2:].sum() == 0
    assert relayout_scales(tiles, num_rows=130, num_scales=6).numpy().tolist() == scales.tolist()
    with pytest.raises(switchyard.InvalidArgumentError, match="tiles without num_rows and num_scales"):
        relayout_scales(tiles)


@pytest.mark.parametrize("call, phrase", [
    (lambda: quantize_batched(X[0], COUNTS, "fp8_block"), r"must be \[L, C, H\]"),
    (lambda: quantize_batched(X, COUNTS[:2], "fp8_block"), "counts"),
    (lambda: quantize_batched(X, COUNTS + 1, "fp8_block"), "6"),
    (lambda: quantize_batched(X, COUNTS, "fp8_block", out=X), "a pair"),
    (lambda: quantize_batched(X, COUNTS, "fp8_block", scale_layout="row"), 'scale_layout: "row", must be row_major,'),
    (lambda: silu_mul_quantize(X, "fp8_block"), r"must be \[T, 2I\]"),
    (lambda: silu_mul_quantize(X[0], "int8_token", fused=True), "silu_mul_quantize"),
    (lambda: silu_mul_quantize(X[0], "fp8_tensor"), "tensor_scale"),
    (lambda: relayout_scales(np.zeros(3, np.float32)), "must be"),
    (lambda: relayout_scales(np.zeros((2, 2), np.float32), out=np.zeros((3, 3), np.float32)), "relayout"),
])
def test_refusals(call, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase):
        call()
