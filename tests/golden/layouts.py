# SPDX-License-Identifier: Apache-2.0
"""Scales in memory: columns, columns for TMA, tiles of 128 x 4, packed exponents; and rows of many
experts quantized into them.

Layouts, each restated from the file that makes it:

  tiles      FlashInfer, block_scale_interleave_kernel; vLLM, mxfp8_utils.py (swizzle_mxfp8_scale):
             [M/128, 4, 32, K/4, 4] with the second and fourth dimension exchanged, padding 0
  columns    vLLM, fp8_utils.py (column_major_scales, tma_aligned_scales): columns of up(M, 4) rows
  packed     vLLM, per_token_group_quant.cu (packed kernel): byte j of word p is scale 4p + j, words
             in columns of up(M, 4) rows, padding 0, and values of padding rows 0
  batched    vLLM, experts/fused_batched_moe.py (batched_moe_kernel_quantize_input): the rows of
             each expert alone, up to its count, into zeros
"""

import numpy as np

import quantize
from numerics import BF16, F32, integers, normal, power_of_two, round_to, uniform


def up(a, b):
    return -(-a // b) * b


def rows(scales):
    return scales


def columns(scales):
    return scales.T


def aligned_columns(scales):
    padded = np.zeros((up(scales.shape[0], 4), scales.shape[1]), scales.dtype)
    padded[: scales.shape[0]] = scales
    return padded.T


def tiles(scales):
    num_rows, num_scales = scales.shape
    m, k = up(num_rows, 128), up(num_scales, 4)
    padded = np.zeros((m, k), scales.dtype)
    padded[:num_rows, :num_scales] = scales
    return padded.reshape(m // 128, 4, 32, k // 4, 4).transpose(0, 3, 2, 1, 4)


LAYOUTS = {"row": rows, "column": columns, "column_aligned": aligned_columns, "swizzled": tiles}


def flat(array):
    return np.ascontiguousarray(array).reshape(-1)


def copy_vectors():
    """The same scales in every layout."""
    for num_rows, num_scales in [(1, 1), (37, 3), (130, 7)]:
        path = f"copy/{num_rows}x{num_scales}/"
        scales = integers(70 + num_rows, num_rows * num_scales, 255).reshape(num_rows, num_scales)
        scales = (scales + 1).astype(np.uint8)
        wide = uniform(71 + num_rows, num_rows * num_scales).reshape(num_rows, num_scales)
        for layout, arrange in LAYOUTS.items():
            yield path + "u8/" + layout, flat(arrange(scales))
            if layout != "swizzled":
                yield path + "f32/" + layout, flat(arrange(wide))
        yield path + "words", quantize.words_of(scales)
        yield path + "powers", power_of_two(scales)
    batch = integers(72, 2 * 37 * 5, 256).reshape(2, 37, 5).astype(np.uint8)
    yield "copy/batch/u8/row", batch
    yield "copy/batch/u8/swizzled", np.concatenate([flat(tiles(expert)) for expert in batch])


# ---- rows of experts ---------------------------------------------------------------------------

NUM_LOCAL, CAPACITY, H = 4, 6, 160
COUNTS = np.array([2, 0, 6, 5], np.int32)
GLOBAL_SCALES = np.array([1, 2, 600, 0.01], F32)
STATIC_SCALES = np.array([0.01, 1, 0.003, 2], F32)


def batch_of_rows():
    x = normal(75, NUM_LOCAL * CAPACITY * H).reshape(NUM_LOCAL, CAPACITY, H)
    x[2] *= F32(1e-4)
    x[3, 1, 7] = np.inf
    x[3, 2, 9] = np.nan
    x[3, 3] = 0
    for e in range(NUM_LOCAL):
        x[e, COUNTS[e]:] = np.nan  # not read
    return round_to(BF16, x)


def block_schemes(x, expert):
    """(scheme, layouts, codes, scales) of the valid rows of one expert."""
    q, scale, _ = quantize.fp8_block(x)
    yield "fp8_block", ("row", "column", "column_aligned"), q, scale
    q, scale, _ = quantize.fp8_block_deepep(x)
    yield "fp8_block_deepep", ("column",), q, scale
    q, _, exponents = quantize.fp8_block(x, 128, True)
    yield "fp8_ue8m0", ("row", "column_aligned"), q, quantize.words_of(exponents)
    q, _, exponents = quantize.fp8_block_deepep(x, 128, True)
    yield "fp8_ue8m0_deepep", ("column_aligned",), q, quantize.words_of(exponents)
    yield ("fp8_token", ("row",), *quantize.fp8_token(x))
    yield ("int8_token", ("row",), *quantize.int8_token(x))
    yield ("int8_block", ("row",), *quantize.int8_block(x))
    yield ("nvfp4", ("row", "swizzled"), *quantize.nvfp4(x, GLOBAL_SCALES[expert]))
    yield ("mxfp4", ("row", "swizzled"), *quantize.mxfp4(x))
    yield ("mxfp8", ("row", "swizzled"), *quantize.mxfp8(x))


def tensor_schemes(x, expert):
    yield ("fp8_tensor", *quantize.fp8_tensor(x))
    yield ("int8_tensor", *quantize.int8_tensor(x))
    static = STATIC_SCALES[expert: expert + 1]
    yield "fp8_tensor_static", quantize.fp8_static(x, static), static
    yield "int8_tensor_static", quantize.int8_static(x, static), static


def batched_vectors():
    x = batch_of_rows()
    yield "batched/x", x
    yield "batched/counts", COUNTS
    yield "batched/global_scales", GLOBAL_SCALES
    yield "batched/static_scales", STATIC_SCALES
    codes, memory, scales = {}, {}, {}
    for e in range(NUM_LOCAL):
        valid = x[e, : COUNTS[e]].astype(F32)
        # An expert without rows: those of zeros, of which none count.
        some = valid if len(valid) else np.zeros((1, H), F32)
        for scheme, layouts, q, scale in block_schemes(some, e):
            padded_q = np.zeros((CAPACITY, q.shape[1]), np.uint8)
            padded_q[: len(valid)] = q[: len(valid)]
            padded_scale = np.zeros((CAPACITY, scale.shape[1]), scale.dtype)
            padded_scale[: len(valid)] = scale[: len(valid)]
            codes.setdefault(scheme, []).append(padded_q)
            for layout in layouts:
                memory.setdefault((scheme, layout), []).append(flat(LAYOUTS[layout](padded_scale)))
        for scheme, q, scale in tensor_schemes(some, e):
            padded_q = np.zeros((CAPACITY, H), np.uint8)
            padded_q[: len(valid)] = q[: len(valid)]
            codes.setdefault(scheme, []).append(padded_q)
            scales.setdefault(scheme, []).append(scale if len(valid) else np.zeros(1, F32))
    for scheme, parts in codes.items():
        yield f"batched/{scheme}/q", np.stack(parts)
    for (scheme, layout), parts in memory.items():
        yield f"batched/{scheme}/{layout}", np.concatenate(parts)
    for scheme, parts in scales.items():
        yield f"batched/{scheme}/scales", np.concatenate(parts)


# ---- input of a layer --------------------------------------------------------------------------

def input_vectors():
    """moe_kernel_quantize_input (vLLM, fused_moe/utils.py): tiles for nvfp4 and mxfp8, words for
    DeepGEMM, given scales, and formats that are quantized and dequantized at once."""
    x = round_to(BF16, normal(76, 7 * H).reshape(7, H))
    value = x.astype(F32)
    yield "input/x", x
    q, sf = quantize.nvfp4(value, GLOBAL_SCALES[2])
    yield "input/nvfp4/q", q
    yield "input/nvfp4/swizzled", flat(tiles(sf))
    wide = np.zeros((7, up(H, 128)), F32)  # mx_alignment 128: zeros beside the row
    wide[:, :H] = value
    q, exponents = quantize.mxfp8(wide)
    yield "input/mxfp8/q", q
    yield "input/mxfp8/swizzled", flat(tiles(exponents))
    q, _, exponents = quantize.fp8_block(value, 128, True)
    padded = np.zeros((8, H), np.uint8)
    padded[:7] = q
    yield "input/fp8_ue8m0/q", padded
    yield "input/fp8_ue8m0/column_aligned", flat(aligned_columns(quantize.words_of(exponents)))
    # Static scales for five groups of 32, and formats that are only simulated.
    groups = uniform(77, 7 * 5).reshape(7, 5) * F32(0.01) + F32(0.001)
    yield "input/fp8_groups/scales", groups
    yield "input/fp8_groups/q", quantize.fp8_static(value, np.repeat(groups, 32, axis=1))
    q, scale = quantize.fp8_tensor(value)
    yield "input/fp8/y", round_to(BF16, quantize.dequantized("fp8_tensor", q, scale, None))
    q, exponents = quantize.mxfp4(value)
    yield "input/mxfp4/y", round_to(BF16, quantize.dequantized("mxfp4", q, exponents, None))


def vectors():
    with np.errstate(all="ignore"):
        return {name: np.asarray(array) for part in
                (copy_vectors(), batched_vectors(), input_vectors()) for name, array in part}
