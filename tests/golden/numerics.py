# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of the golden vectors: f32 with IEEE rounding, small formats, exact fma, input values.

numpy computes +, -, *, / of float32 arrays with one IEEE rounding each and keeps subnormals. Values
of transcendental functions come from `decimal`, because numpy's differ between processors.
"""

import decimal
import json
from fractions import Fraction

import ml_dtypes
import numpy as np

F32 = np.float32
BF16 = ml_dtypes.bfloat16
F16 = np.float16
DTYPES = {"bf16": BF16, "f16": F16, "f32": F32}
E4M3 = ml_dtypes.float8_e4m3fn
E2M1 = ml_dtypes.float4_e2m1fn
E3M2 = ml_dtypes.float6_e3m2fn
E2M3 = ml_dtypes.float6_e2m3fn
LARGEST = {E4M3: F32(448), E2M1: F32(6), E3M2: F32(28), E2M3: F32(7.5)}
SIGN_BIT = {E4M3: 0x80, E2M1: 0x08, E3M2: 0x20, E2M3: 0x20}
CANONICAL_NAN = {BF16: (np.uint16, 0x7FC0), F16: (np.uint16, 0x7E00), F32: (np.uint32, 0x7FC00000)}

decimal.getcontext().prec = 40


# ---- elements ----------------------------------------------------------------------------------

def round_to(dtype, x):
    """f32 to bf16, f16 or f32: to nearest, ties to even; NaN becomes the canonical quiet NaN."""
    x = np.asarray(x, F32)
    with np.errstate(all="ignore"):
        y = x.astype(dtype)
    word, nan = CANONICAL_NAN[dtype]
    bits = y.view(word).copy()
    bits[np.isnan(x)] = nan
    return bits.view(dtype)


def encode(kind, x):
    """Codes of a small format: to nearest, ties to even, saturating. x has no NaN."""
    x = np.asarray(x, F32)
    assert not np.isnan(x).any()
    largest = LARGEST[kind]
    clipped = np.maximum(-largest, np.minimum(x, largest))
    codes = clipped.astype(kind).view(np.uint8)
    _check_codes(kind, clipped, codes)
    return codes


def decode(kind, codes):
    return np.asarray(codes, np.uint8).view(kind).astype(F32)


def _check_codes(kind, x, codes):
    """The codes again, from the list of values that the format has: the nearest one, an even code
    where two are equally near."""
    sign = SIGN_BIT[kind]
    num_finite = int(np.abs(LARGEST[kind]).astype(kind).view(np.uint8)) + 1
    values = decode(kind, np.arange(num_finite)).astype(np.float64)
    middle = (values[:-1] + values[1:]) / 2
    magnitude = np.abs(x.astype(np.float64))
    below = np.searchsorted(middle, magnitude, side="left")
    is_tie = np.isin(magnitude, middle)
    want = below + (is_tie & (below % 2 == 1))
    assert (want == codes % sign).all() and ((codes >= sign) == np.signbit(x)).all()


def amax(x, axis=-1):
    """The largest magnitude; NaN counts as nothing. (fmax.reduce of numpy 1.26 loses values beside a
    NaN on some processors.)"""
    return np.where(np.isnan(x), F32(0), np.abs(x)).max(axis=axis)


def bits_of(x):
    return np.asarray(x, F32).view(np.uint32)


def from_bits(bits):
    return np.asarray(bits, np.uint32).view(F32)


def power_of_two(biased_exponent):
    """2^(e - 127) for e from 0, which is subnormal, to 255, which is infinity."""
    e = np.asarray(biased_exponent, np.uint32)
    return from_bits(np.where(e == 0, np.uint32(1 << 22), e << np.uint32(23)))


# ---- fma ---------------------------------------------------------------------------------------

def fma(a, b, c):
    """a * b + c in f32 with one rounding. The product is exact in f64; the sum is rounded to odd
    there, after which rounding to f32 (29 bits fewer) is the rounding of the exact sum."""
    with np.errstate(all="ignore"):
        p = np.asarray(a, np.float64) * np.asarray(b, np.float64)
        c = np.broadcast_to(np.asarray(c, np.float64), p.shape)
        s = p + c
        # The error of the sum, exactly (Knuth's TwoSum).
        t = s - p
        error = (p - (s - t)) + (c - t)
        bits = s.view(np.int64) if s.flags.c_contiguous else np.ascontiguousarray(s).view(np.int64)
        is_inexact = np.isfinite(s) & (error != 0) & (bits % 2 == 0)
        away = (error > 0) == (s > 0)  # the exact sum has the larger magnitude
        odd = np.where(is_inexact, np.where(away, bits + 1, bits - 1), bits)
        return odd.view(np.float64).astype(F32)


def fma_exact(a, b, c):
    """The same for one finite triple, by rational arithmetic: what `fma` is checked with."""
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if exact == 0:
        return F32(float(a) * float(b) + float(c))
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    steps, rest = divmod(magnitude, unit)
    if rest * 2 > unit or (rest * 2 == unit and steps % 2 == 1):
        steps += 1
    value = steps * unit
    if value >= Fraction(2) ** 128:
        return F32(np.inf) if exact > 0 else F32(-np.inf)
    return F32(float(value)) if exact > 0 else F32(-float(value))


def check_fma():
    a, b = normal(1, 4000).reshape(2, 2000) * F32(3)
    c = normal(2, 2000)
    c[:500] = -(a[:500] * b[:500])  # the rounded product: what remains is its error
    c[500:1000] *= F32(2) ** F32(-30)
    c[1000:1200] *= F32(2) ** F32(30)
    a[1200:1300] *= F32(2) ** F32(-100)
    b[1200:1300] *= F32(2) ** F32(-40)  # a subnormal product
    c[1200:1300] = 0
    got = fma(a, b, c)
    for i in range(a.size):
        want = fma_exact(a[i], b[i], c[i])
        assert bits_of(got[i]) == bits_of(want), (a[i], b[i], c[i], got[i], want)


# ---- transcendental functions ------------------------------------------------------------------

LARGEST_F32 = decimal.Decimal(float(np.finfo(F32).max))


def exp(x):
    """exp of a float or Decimal as a Decimal with 40 digits, infinite where f32 is: the originals'
    1 / (1 + exp(-x)) is 0 below -88.7, not subnormal."""
    x = decimal.Decimal(x)
    power = decimal.Decimal(0) if x < -2000 else x.exp()
    return power if power <= LARGEST_F32 else decimal.Decimal("Infinity")


def sigmoid(x):
    return 1 / (1 + exp(-decimal.Decimal(x)))


# ---- inputs ------------------------------------------------------------------------------------

def random_words(seed, count):
    """splitmix64, so that inputs do not depend on the version of numpy's generators."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(
            0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def uniform(seed, count):
    """[0, 1) in steps of 2^-24, f32."""
    return (random_words(seed, count) >> np.uint64(40)).astype(F32) * F32(2.0**-24)


def normal(seed, count):
    """Nearly normal: the sum of eight uniform numbers, each sum rounded to f32, in a fixed order."""
    parts = uniform(seed, 8 * count).reshape(8, count)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return (total - F32(4)) * F32(1.2247449)


def integers(seed, count, end):
    return (random_words(seed, count) % np.uint64(end)).astype(np.int64)


# ---- files -------------------------------------------------------------------------------------

DTYPE_NAMES = {
    np.dtype(np.uint8): "U8", np.dtype(np.int8): "I8", np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64", np.dtype(F32): "F32", np.dtype(F16): "F16", np.dtype(BF16): "BF16",
}


def write_safetensors(path, tensors):
    """The format of huggingface/safetensors: the same bytes for the same tensors."""
    entries = {}
    offset = 0
    arrays = []
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    for name in order:
        array = np.ascontiguousarray(tensors[name])
        entries[name] = {"dtype": DTYPE_NAMES[array.dtype], "shape": list(array.shape),
                         "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
        arrays.append(array.tobytes())
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + b"".join(arrays))
