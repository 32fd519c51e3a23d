# SPDX-License-Identifier: Apache-2.0
"""quantize and dequantize against the golden vectors, and their errors."""
import ml_dtypes
import numpy as np
import pytest

import golden
import switchyard
from switchyard import QuantScheme, quantize

NAMES = ["none", "fp8_block", "fp8_block_deepep", "fp8_ue8m0", "fp8_ue8m0_deepep", "fp8_token", "fp8_tensor", "int8_token",
         "int8_tensor", "int8_block", "nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8"]
CASES = [(name, name, {}) for name in NAMES[1:] if name != "nvfp4"] + [
    ("fp8_token_ub", "fp8_token", {"scale_ub": 0.75}),
    ("fp8_block64_power", QuantScheme(dtype="e4m3", group="block", block=64, scale_format="f32_power_of_two"), {}),
    ("int8_block32", QuantScheme(dtype="i8", group="block", block=32), {}),
] + [(name, scheme, {"static": True}) for name, scheme in (
    ("nvfp4", "nvfp4"), ("nvfp4_small", "nvfp4"), ("fp8_token_static", "fp8_token"), ("int8_tensor_static", "int8_tensor"))]


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("name, scheme, options", CASES, ids=[case[0] for case in CASES])
def test_golden_vectors(name, scheme, options, dtype):
    vectors = golden.load("quantize")
    for kind in ("finite", "special", "narrow"):
        path = f"{dtype}/{kind}/"
        x = vectors[path + "x"]
        scale = None
        if "static" in options:
            scale = vectors["static/" + name]
            scale = scale[:len(x)].reshape(-1, 1) if scheme == "fp8_token" else scale
        q, scales = quantize(x, scheme, static_scale=scale, scale_ub=options.get("scale_ub"))
        assert golden.same_bytes(q.numpy(), vectors[path + name + "/q"]), path
        if path + name + "/scales" in vectors:
            assert golden.same_bytes(scales.numpy(), vectors[path + name + "/scales"]), path
        if path + name + "/y" in vectors:
            y = switchyard.dequantize(q, scales, scheme, tensor_scale=scale if name.startswith("nvfp4") else None)
            assert golden.same_bytes(y.numpy(), vectors[path + name + "/y"]), path


@pytest.mark.parametrize("layout, strides", [("row_major", (3, 1)), ("column_major", (1, 5)), ("column_major_aligned", (1, 8))])
def test_scale_layouts(layout, strides):
    x = np.random.default_rng(1).normal(size=(5, 300)).astype(np.float32)
    _, scales = quantize(x, "fp8_block", scale_layout=layout)
    assert scales.shape == (5, 3) and scales.strides == strides
    np.testing.assert_array_equal(scales.numpy(), quantize(x, "fp8_block")[1].numpy())


def test_out_is_written():
    x = np.ones((2, 256), ml_dtypes.bfloat16)
    q, scales = np.zeros((2, 256), ml_dtypes.float8_e4m3fn), np.zeros((2, 2), np.float32)
    got = quantize(x, "fp8_block", out=(q, scales))
    assert got[0] is q and got[1] is scales and (q == 448).all() and (scales == np.float32(1 / 448)).all()
    y = np.zeros((2, 256), np.float16)
    assert switchyard.dequantize(q, scales, "fp8_block", out=y) is y and (y == 1).all()


def test_schemes_without_scales():
    assert quantize(np.ones((1, 32), np.float32), "mxfp6_e3m2")[1] is None


@pytest.mark.parametrize("name", NAMES)
def test_names_of_schemes(name):
    scheme = QuantScheme(name)
    assert scheme.name == name and repr(scheme) == f"QuantScheme('{name}')" and scheme == QuantScheme(name)
    assert scheme.is_quantized == (name != "none") and scheme.needs_tensor_scale == (name == "nvfp4")


def test_scheme_objects():
    scheme = QuantScheme("fp8_block")
    assert (scheme.num_scales(300), scheme.scale_dtype, scheme.block) == (3, "f32", 128)
    wide = scheme.replace(block=256)
    assert wide != scheme and wide.num_scales(300) == 2 and scheme.block == 128
    assert repr(wide) == "QuantScheme(dtype='e4m3', group='block', block=256)"


@pytest.mark.parametrize("call, phrase", [
    (lambda: quantize(np.zeros((1, 4), np.float32), "fp9"), 'scheme: "fp9"'),
    (lambda: quantize(np.zeros(4, np.float32), "int8_token"), "must be rows"),
    (lambda: quantize(np.zeros((1, 4), np.int32), "int8_token"), "i32"),
    (lambda: quantize(np.zeros((1, 32), np.float32), "nvfp4"), "scale"),
    (lambda: quantize(np.zeros((1, 4), np.float32), "int8_token", scale_layout="diagonal"), 'scale_layout: "diagonal"'),
    (lambda: quantize(np.zeros((1, 4), np.float32), "int8_token", out=3), "must be a pair"),
    (lambda: QuantScheme(group="row"), 'group: "row"'),
])
def test_errors(call, phrase):
    with pytest.raises(switchyard.InvalidArgumentError, match=phrase) as raised:
        call()
    assert isinstance(raised.value, ValueError) and raised.value.code == "invalid_argument"


def test_keywords_that_do_not_exist():
    with pytest.raises(switchyard.ArgumentTypeError, match="unexpected keyword argument 'colour'"):
        QuantScheme(colour=1)
    with pytest.raises(TypeError, match="block: 'x', must be int"):
        QuantScheme(block="x")
