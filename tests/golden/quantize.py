# SPDX-License-Identifier: Apache-2.0
"""Quantized rows and scales of every scheme.

Formulas, each restated from the file that computes it (vLLM unless another project is named):

  fp8 per tensor, per token   csrc/quantization/w8a8/fp8/common.cu, common.cuh
  fp8 and int8 blocks         csrc/quantization/w8a8/fp8/per_token_group_quant.cu
  int8 per token              vllm/model_executor/layers/quantization/utils/int8_utils.py
  int8 per tensor             csrc/quantization/w8a8/int8/scaled_quant.cu
  fp8 blocks of DeepEP        DeepEP, csrc/kernels/utils.cuh and internode_ll.cu
  nvfp4                       csrc/quantization/fp4/nvfp4_utils.cuh, with IEEE reciprocals
  mxfp4                       tests/quantization/reference_mxfp4.py
  mxfp6                       amd/Quark, quark/torch/quantization/utils.py (even_round)
  back to floats              vllm/model_executor/layers/fused_moe/deepep_ll (dequant_fp8): f32
                              products, rounded once
  mxfp8                       FlashInfer, quantization_utils.cuh (cvt_warp_fp16_to_mxfp8)

amax ignores NaN everywhere, and a NaN element has the value that docs/schemes.md states; where an
original differs, docs/lab/formulas.md says how.
"""

import numpy as np

from numerics import (BF16, DTYPES, E2M1, E2M3, E3M2, E4M3, F32, LARGEST, amax, bits_of, decode,
                      encode, normal, power_of_two, round_to, uniform)

H = 288       # 2 blocks of 128 and a partial one of 32
NARROW = 50   # partial blocks of every size: 50 of 128, 18 of 32, 2 of 16


# ---- inputs ------------------------------------------------------------------------------------

def finite_rows():
    rows = np.zeros((11, H), F32)
    rows[0, 1::2] = F32(-0.0)
    rows[1] = normal(10, H)
    # Ties of e4m3 (steps of 1/16 between 1 and 2), e2m1 and int8 once amax is the format's largest.
    rows[2] = np.tile(np.arange(-18, 18, dtype=F32) / F32(32), 8) * F32(14)
    rows[2, ::36] = F32(448)
    rows[3] = np.tile(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -1.25, -1.75,
                                -2.5, -3.5, -5, 6, -6], F32), 18)
    rows[4] = np.tile(np.arange(-127, 129, dtype=F32) + F32(0.5), 2)[:H]
    rows[4, ::32] = F32(127)
    # Subnormal in every dtype, alone and beside a normal value.
    rows[5] = normal(11, H) * F32(2.0**-24)
    rows[5, 128:256] *= F32(2.0**-110)
    rows[5, 256] = F32(1)
    rows[6] = normal(12, H) * F32(2.0**-126)
    # Exponents over a wide range, and mantissas just below and at the rounding of MX scales.
    rows[7] = normal(13, H) * power_of_two(127 + (np.arange(H) * 7) % 31 - 15)
    thresholds = np.array([1.75, 1.7421875, 1.875, 1.8671875, 1.9375, 1.9296875, 1, 1.5], F32)
    rows[8] = normal(14, H) * F32(0.01)
    rows[8, ::16] = np.tile(thresholds, 3)[: H // 16]
    # Amax values of semantics.md 2.12, one per block of 16.
    rows[9] = uniform(15, H) * F32(1e-6)
    rows[9, ::16] = np.tile(np.array([1e-5, 1e-4, 0.5, 3, 6, 448, 1000, 449, 65504], F32), 2)
    # 65504 is the largest f16; the other dtypes get their own largest value below.
    rows[10] = normal(16, H) * F32(65504 / 8)
    rows[10, ::37] = F32(65504)
    return np.clip(rows, -65504, 65504).astype(F32)


def largest_of(dtype):
    return F32(65504) if dtype is np.float16 else np.finfo(F32).max if dtype is F32 else F32(
        3.3895314e38)


def special_rows(dtype):
    rows = normal(17, 5 * H).reshape(5, H)
    rows[0, 5] = np.inf
    rows[0, 40] = -np.inf
    rows[0, 257:259] = [np.nan, -0.0]
    rows[1, ::7] = np.nan
    rows[1, 128:] *= F32(1e-3)
    rows[2] = np.nan
    rows[2, 130] = -np.inf
    rows[3, ::3] = largest_of(dtype)
    rows[3, 1::3] = -largest_of(dtype)
    rows[4, :] = np.inf
    rows[4, 1::2] = -np.inf
    rows[4, 64:96] = np.nan
    return rows


def with_odd_nans(x):
    """Replaces each second NaN by a negative one with a payload."""
    word = np.uint32 if x.dtype == F32 else np.uint16
    odd = {np.dtype(BF16): 0xFFA1, np.dtype(np.float16): 0xFD01}.get(x.dtype, 0xFFA00001)
    bits = x.view(word).copy()
    where = np.flatnonzero(np.isnan(x.astype(F32)))[::2]
    bits.reshape(-1)[where] = odd
    return bits.view(x.dtype)


def inputs():
    narrow = normal(18, 4 * NARROW).reshape(4, NARROW)
    narrow[1] *= power_of_two(127 + np.arange(NARROW) % 24 - 12)
    narrow[2] = 0
    narrow[3, 48] = np.nan
    for name, dtype in DTYPES.items():
        with np.errstate(over="ignore"):
            yield name, "finite", round_to(dtype, finite_rows())
            yield name, "special", with_odd_nans(round_to(dtype, special_rows(dtype)))
            yield name, "narrow", with_odd_nans(round_to(dtype, narrow))


# ---- schemes -----------------------------------------------------------------------------------

def blocks_of(x, size):
    """[T, S, size], filled with zeros, which no largest magnitude notices."""
    num_blocks = -(-x.shape[1] // size)
    padded = np.zeros((x.shape[0], num_blocks * size), F32)
    padded[:, : x.shape[1]] = x
    return padded.reshape(x.shape[0], num_blocks, size)


def rows_of(blocks, width):
    return blocks.reshape(blocks.shape[0], -1)[:, :width]


def codes_of(kind, x, nan_code):
    is_nan = np.isnan(x)
    return np.where(is_nan, np.uint8(nan_code), encode(kind, np.where(is_nan, F32(0), x)))


def packed(codes):
    return codes[:, 0::2] | codes[:, 1::2] << 4


def exponent_up(x):
    """Biased exponent of the power of two at or above x > 0, by the bits."""
    bits = bits_of(x)
    return (bits >> 23 & 0xFF) + (bits & 0x7FFFFF != 0)


def words_of(exponents):
    num_rows, num_scales = exponents.shape
    padded = np.zeros((num_rows, -(-num_scales // 4) * 4), np.uint8)
    padded[:, :num_scales] = exponents
    return padded.view("<i4")


def fp8_block(x, block=128, power=False):
    blocks = blocks_of(x, block)
    scale = np.maximum(amax(blocks), F32(1e-10)) / F32(448)
    exponents = None
    if power:
        exponents = exponent_up(np.maximum(scale, F32(1e-10)))
        scale = power_of_two(exponents)
    codes = codes_of(E4M3, blocks / scale[..., None], 0xFE)
    return rows_of(codes, x.shape[1]), scale, exponents


def fp8_block_deepep(x, block=128, power=False):
    blocks = blocks_of(x, block)
    largest = np.maximum(F32(1e-4), amax(blocks))
    scale = largest * (F32(1) / F32(448))
    factor = F32(448) / largest
    exponents = None
    if power:
        exponents = exponent_up(scale)
        scale = power_of_two(exponents)
        factor = F32(1) / scale
    codes = codes_of(E4M3, blocks * factor[..., None], 0x7F)
    return rows_of(codes, x.shape[1]), scale, exponents


def fp8_token(x, upper=None):
    largest = amax(x)[:, None]
    if upper is not None:
        largest = np.minimum(largest, upper)
    scale = np.maximum(largest / F32(448), F32(1) / F32(448 * 512))
    return codes_of(E4M3, x / scale, 0x7E), scale


def fp8_static(x, scale):
    """One scale, or one per row [T, 1]: the product with its reciprocal."""
    return codes_of(E4M3, x * (F32(1) / scale), 0x7E)


def fp8_tensor(x):
    scale = np.max(amax(x) / F32(448)).reshape(1)
    return fp8_static(x, scale), scale


def int8_of(rounded):
    clipped = np.clip(np.where(np.isnan(rounded), F32(0), rounded), F32(-128), F32(127))
    return clipped.astype(np.int8).view(np.uint8)


def away_from_zero(x):
    """C's round. The sum with a half is exact in f64."""
    return np.copysign(np.floor(np.abs(x).astype(np.float64) + 0.5), x).astype(F32)


def int8_token(x):
    largest = np.maximum(amax(x)[:, None], F32(1e-10))
    return int8_of(away_from_zero(x * (F32(127) / largest))), largest / F32(127)


def int8_static(x, scale):
    return int8_of(np.rint(x / scale))


def int8_tensor(x):
    scale = np.maximum(amax(x).max() / F32(127), F32(1e-10)).reshape(1)
    return int8_static(x, scale), scale


def int8_block(x, block=128):
    blocks = blocks_of(x, block)
    scale = np.maximum(F32(1e-10), amax(blocks)) / F32(127)
    return rows_of(int8_of(np.trunc(blocks / scale[..., None])), x.shape[1]), scale


def nvfp4(x, global_scale):
    blocks = blocks_of(x, 16)
    wanted = global_scale * (amax(blocks) * (F32(1) / F32(6)))
    sf = codes_of(E4M3, wanted, 0x7F)
    value = decode(E4M3, sf)
    factor = np.where(value != 0, F32(1) / (value * (F32(1) / global_scale)), F32(0))
    codes = codes_of(E2M1, blocks * factor[..., None].astype(F32), 0x07)
    return packed(rows_of(codes, x.shape[1])), sf


def mx_exponent(largest, rounding_bit, format_exponent):
    """amax rounded half up at `rounding_bit`, its exponent less that of the format's largest."""
    exponent = (bits_of(largest) + np.uint32(rounding_bit) >> 23).astype(np.int64)
    return np.clip(exponent - format_exponent, 0, 254).astype(np.uint8)


def mxfp4(x):
    blocks = blocks_of(x, 32)
    exponents = mx_exponent(amax(blocks), 1 << 21, 2)
    codes = codes_of(E2M1, blocks / power_of_two(exponents)[..., None], 0x07)
    return packed(rows_of(codes, x.shape[1])), exponents


def mxfp6(x, kind):
    bit, exponent, largest_code = (1 << 20, 4, 0x1F) if kind is E3M2 else (1 << 19, 2, 0x1F)
    blocks = blocks_of(x, 32)
    scale = power_of_two(mx_exponent(amax(blocks), bit, exponent))[..., None]
    value = decode(kind, codes_of(kind, blocks / scale, largest_code))
    value = np.where(value == 0, F32(0), value)  # a value that rounds to zero is +0
    assert np.abs(value).max() <= LARGEST[kind]
    return rows_of(value * scale, x.shape[1])


def mxfp8(x):
    blocks = blocks_of(x, 32)
    exponents = np.minimum(exponent_up(amax(blocks) / F32(448)), 254).astype(np.uint8)
    codes = codes_of(E4M3, blocks / power_of_two(exponents)[..., None], 0x7F)
    return rows_of(codes, x.shape[1]), exponents


# ---- back --------------------------------------------------------------------------------------

def scale_of_exponent(e):
    return np.where(np.asarray(e) == 255, F32(np.nan), power_of_two(e))


def nibbles(packed_codes):
    codes = np.zeros((packed_codes.shape[0], 2 * packed_codes.shape[1]), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = packed_codes & 0xF, packed_codes >> 4
    return codes


def dequantized(scheme, q, scales, global_scale):
    """Element times scale in f32, of rows of 8-bit and 4-bit codes."""
    if scheme.startswith("mxfp4") or scheme.startswith("nvfp4"):
        value, block = decode(E2M1, nibbles(q)), 32 if scheme.startswith("mxfp4") else 16
    elif scheme.startswith("int8"):
        value, block = q.view(np.int8).astype(F32), 32 if scheme == "int8_block32" else 128
    else:
        value, block = decode(E4M3, q), {"mxfp8": 32, "fp8_block64_power": 64}.get(scheme, 128)
    if scales.dtype == np.int32:
        scale = scale_of_exponent(np.ascontiguousarray(scales).view(np.uint8))
    elif scheme.startswith("nvfp4"):
        scale = decode(E4M3, scales) * (F32(1) / global_scale)
    elif scales.dtype == np.uint8:
        scale = scale_of_exponent(scales)
    else:
        scale = scales.reshape(-1, 1) if scales.ndim == 1 else scales
    if scale.shape[1] > 1 or "block" in scheme or scales.dtype != F32:
        scale = np.repeat(scale, block, axis=1)[:, : value.shape[1]]
    return value * scale


# ---- vectors -----------------------------------------------------------------------------------

STATIC = {"fp8_tensor": F32(0.0123), "int8_tensor": F32(0.0371)}
GLOBAL_SCALES = {"": F32(1), "_small": F32(0.001), "_large": F32(448 * 6 / 4.5)}
UPPER = F32(0.75)


def row_scales(num_rows):
    return (F32(0.001) * (np.arange(num_rows, dtype=F32) + F32(1)))[:, None]


def results(x, dtype):
    """(scheme, tensors) of rows x, f32 values that `dtype` holds exactly."""
    for name, block, power in [("fp8_block", 128, False), ("fp8_block64_power", 64, True)]:
        q, scale, _ = fp8_block(x, block, power)
        yield name, {"q": q, "scales": scale}
    for name, block, power in [("fp8_block_deepep", 128, False),
                               ("fp8_block_deepep_power", 128, True)]:
        q, scale, _ = fp8_block_deepep(x, block, power)
        yield name, {"q": q, "scales": scale}
    q, _, exponents = fp8_block(x, 128, True)
    yield "fp8_ue8m0", {"q": q, "scales": words_of(exponents)}
    q, _, exponents = fp8_block_deepep(x, 128, True)
    yield "fp8_ue8m0_deepep", {"q": q, "scales": words_of(exponents)}
    for name, (q, scale) in [("fp8_token", fp8_token(x)), ("fp8_token_ub", fp8_token(x, UPPER)),
                             ("fp8_tensor", fp8_tensor(x)), ("int8_token", int8_token(x)),
                             ("int8_tensor", int8_tensor(x)), ("int8_block", int8_block(x)),
                             ("int8_block32", int8_block(x, 32)), ("mxfp4", mxfp4(x)),
                             ("mxfp8", mxfp8(x))]:
        yield name, {"q": q, "scales": scale}
    yield "fp8_token_static", {"q": fp8_static(x, row_scales(len(x)))}
    yield "fp8_tensor_static", {"q": fp8_static(x, STATIC["fp8_tensor"])}
    yield "int8_tensor_static", {"q": int8_static(x, STATIC["int8_tensor"])}
    for suffix, scale in GLOBAL_SCALES.items():
        q, sf = nvfp4(x, scale)
        yield "nvfp4" + suffix, {"q": q, "scales": sf}
    yield "mxfp6_e3m2", {"q": round_to(dtype, mxfp6(x, E3M2))}
    yield "mxfp6_e2m3", {"q": round_to(dtype, mxfp6(x, E2M3))}


def vectors():
    tensors = {}
    with np.errstate(all="ignore"):
        for dtype_name, kind, x in inputs():
            tensors[f"{dtype_name}/{kind}/x"] = x
            for scheme, parts in results(x.astype(F32), DTYPES[dtype_name]):
                for part, array in parts.items():
                    tensors[f"{dtype_name}/{kind}/{scheme}/{part}"] = array
                if dtype_name == "bf16" and "scales" in parts:
                    given = GLOBAL_SCALES.get(scheme.removeprefix("nvfp4"), F32(1))
                    y = dequantized(scheme, parts["q"], parts["scales"], given)
                    tensors[f"{dtype_name}/{kind}/{scheme}/y"] = round_to(BF16, y)
    for scheme, scale in STATIC.items():
        tensors[f"static/{scheme}_static"] = scale.reshape(1)
    for suffix, scale in GLOBAL_SCALES.items():
        tensors[f"static/nvfp4{suffix}"] = scale.reshape(1)
    tensors["static/fp8_token_static"] = row_scales(11)
    return tensors
