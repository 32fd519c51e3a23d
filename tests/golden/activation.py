# SPDX-License-Identifier: Apache-2.0
"""The function between the two products of an expert, and its quantization.

Formulas, each restated from the file that computes it:

  silu(g) * u          vLLM, csrc/activation_kernels.cu (silu_kernel), without rounding silu(g)
  clamped SwiGLU       vLLM, swigluoai_and_mul: g clamped from above, u on both sides, then
                       g * sigmoid(alpha g) * (u + 1); its beta as a parameter
  fused quantization   vLLM, persistent_masked_m_silu_mul_quant: scale max(amax, 1e-10) * (1 / 448)

Values have 40 digits and are rounded to f32 once.
"""

import decimal

import numpy as np

from numerics import BF16, E4M3, F32, decode, encode, normal, power_of_two, round_to, sigmoid
from quantize import exponent_up

ACTIVATIONS = {"silu": None, "gpt_oss": (1.702, 1.0, 7.0), "limited": (1.0, 0.0, 0.75),
               "odd": (-0.5, -2.0, float("inf"))}


def pairs():
    """Gates and ups over the whole range where the exp matters, and at the limits."""
    gate = normal(90, 480) * F32(4)
    up = normal(91, 480) * F32(4)
    gate[:64] = np.linspace(-104, 104, 64, dtype=F32)
    gate[64:96] = normal(92, 32) * F32(2.0**-30)
    gate[96:104] = [0, -0.0, 7, -7, 0.75, -0.75, 1e-38, -1e-38]
    up[96:112] = [1, 1, 7, -7, 7.5, -7.5, 0.75, -0.75, 1, -1, 2, -2, 100, -100, 3, -3]
    gate[112:128] = F32(8)
    up[112:120] = [0, -0.0, 1e-30, 3e38, 7, -7, -1, 2]
    return gate, up


def exact(gate, up, constants):
    g, u = float(gate), float(up)
    if constants is None:
        return decimal.Decimal(g) * sigmoid(g) * decimal.Decimal(u)
    alpha, beta, limit = (float(F32(c)) for c in constants)
    g, u = min(g, limit), max(-limit, min(u, limit))
    gated = decimal.Decimal(g) * sigmoid(decimal.Decimal(alpha) * decimal.Decimal(g))
    return gated * (decimal.Decimal(u) + decimal.Decimal(beta))


def activation_vectors():
    gate, up = pairs()
    yield "gate", gate
    yield "up", up
    for name, constants in ACTIVATIONS.items():
        yield name, np.array([float(exact(g, u, constants)) for g, u in zip(gate, up)]).astype(F32)


def fused(y, power):
    """y [T, I] in f64: what the scale and the elements of blocks of 128 should be."""
    blocks = y.reshape(y.shape[0], -1, 128)
    scale = np.maximum(np.abs(blocks).max(axis=-1).astype(F32), F32(1e-10)) * (F32(1) / F32(448))
    if power:
        scale = power_of_two(exponent_up(scale))
    codes = encode(E4M3, (blocks / scale[..., None].astype(np.float64)).astype(F32))
    assert np.isfinite(decode(E4M3, codes)).all()
    return codes.reshape(y.shape), scale


def fused_vectors():
    x = round_to(BF16, normal(93, 5 * 512).reshape(5, 512) * F32(3))
    x[3, :128] = 0
    value = x.astype(F32)
    y = np.array([[float(exact(value[t, i], value[t, 256 + i], None)) for i in range(256)]
                  for t in range(5)])
    yield "fused/x", x
    yield "fused/y", y.astype(F32)
    for name, power in [("fused/f32", False), ("fused/power", True)]:
        codes, scale = fused(y, power)
        yield name + "/q", codes
        yield name + "/scales", scale


def vectors():
    with np.errstate(all="ignore"):
        tensors = dict(activation_vectors())
        tensors.update(fused_vectors())
    return tensors
