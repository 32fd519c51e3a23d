# SPDX-License-Identifier: Apache-2.0
"""quantize and dequantize as operators. They have no gradient: formats and scales are what a layer chooses, not learns."""
# pylint: disable=unused-argument
from __future__ import annotations

import functools

import torch

import switchyard
from switchyard.errors import InvalidArgumentError
from switchyard.torch._library import MAYBE_TENSOR, NAME, TENSOR, operator, require_type, without_gradient

_DTYPES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "e8m0": "float8_e8m0fnu", "i8": "int8", "i32": "int32", "f32": "float32",
           "f16": "float16", "bf16": "bfloat16"}


def quantize(x: torch.Tensor, scheme: str, *, static_scale: torch.Tensor | None = None, scale_ub: float | None = None,
             scale_layout: str = "row_major") -> tuple[torch.Tensor, torch.Tensor | None]:
    """Quantizes rows and returns (q, scales).

    x             [T, H] bf16, f16 or f32
    scheme        the name of a scheme
    q             [T, H] of the scheme's dtype; e2m1: uint8 [T, H / 2]
    scales        [T, S] in the scale layout, [1] for one scale per tensor, None without scales; uint8 where this
                  torch does not have their dtype
    static_scale  f32, instead of a computed scale: [1] or [T, 1]; nvfp4 needs it, [1]
    scale_ub      upper bound on the largest magnitude of a row, for fp8_token
    """
    require_type("quantize", TENSOR, x=x)
    require_type("quantize", MAYBE_TENSOR, static_scale=static_scale)
    require_type("quantize", (float, int, type(None)), scale_ub=scale_ub)
    require_type("quantize", NAME, scheme=scheme, scale_layout=scale_layout)
    q, scales = torch.ops.switchyard.quantize(x, scheme, static_scale, scale_ub, scale_layout)
    return q, None if scales.dim() == 1 and scales.shape[0] == 0 else scales


def dequantize(q: torch.Tensor, scales: torch.Tensor | None, scheme: str, *, dtype: torch.dtype = torch.bfloat16,
               tensor_scale: torch.Tensor | None = None) -> torch.Tensor:
    """The inverse: [T, H] or [L, C, H] of dtype.

    q             [T, H] or [L, C, H] of the scheme's dtype; e2m1: uint8, half as many
    scales        [T, S] or [L, C, S], or [1]; None without scales
    tensor_scale  f32 [1], nvfp4 only: the scale that it was quantized with
    """
    require_type("dequantize", TENSOR, q=q)
    require_type("dequantize", MAYBE_TENSOR, scales=scales, tensor_scale=tensor_scale)
    require_type("dequantize", NAME, scheme=scheme)
    require_type("dequantize", (torch.dtype,), dtype=dtype)
    return torch.ops.switchyard.dequantize(q, scales, scheme, dtype, tensor_scale)


def _quantize_fake(x, scheme, static_scale, scale_ub, scale_layout):
    if x.dim() != 2:
        raise InvalidArgumentError(f"quantize: x is {list(x.shape)}, must be [T, H]; reshape it, or call switchyard.quantize_batched")
    rule, (num_rows, hidden) = _scheme(scheme), x.shape
    if rule.dtype == "e2m1":
        q = x.new_empty((num_rows, hidden // 2), dtype=torch.uint8)
    else:
        q = x.new_empty((num_rows, hidden), dtype=x.dtype if _is_simulated(rule) else _dtype(rule.dtype))
    if not _has_scales(rule):
        return q, x.new_empty(0, dtype=torch.float32)
    dtype = _dtype(rule.scale_dtype)
    if rule.group == "tensor":
        return q, x.new_empty(1, dtype=dtype)
    return q, empty_scales(x, num_rows, rule.num_scales(hidden), scale_layout, dtype)


@operator("quantize(Tensor x, str scheme, Tensor? static_scale, float? scale_ub, str scale_layout) -> (Tensor q, Tensor scales)",
          _quantize_fake)
def _quantize(x, scheme, static_scale, scale_ub, scale_layout):
    out = _quantize_fake(x, scheme, static_scale, scale_ub, scale_layout)
    rule = _scheme(scheme)
    q = switchyard.Tensor.wrap(out[0]).view("e2m1") if rule.dtype == "e2m1" else out[0]
    scales = _as_scales(out[1], rule) if _has_scales(rule) else None
    switchyard.quantize(x.contiguous(), scheme, static_scale=static_scale, scale_ub=scale_ub, out=(q, scales))
    return out


def _dequantize_fake(q, scales, scheme, dtype, tensor_scale):
    shape = list(q.shape)
    if _scheme(scheme).dtype == "e2m1":
        shape[-1] *= 2
    return q.new_empty(shape, dtype=dtype)


@operator("dequantize(Tensor q, Tensor? scales, str scheme, ScalarType dtype, Tensor? tensor_scale) -> Tensor", _dequantize_fake)
def _dequantize(q, scales, scheme, dtype, tensor_scale):
    out = _dequantize_fake(q, scales, scheme, dtype, tensor_scale)
    rule = _scheme(scheme)
    bits = switchyard.Tensor.wrap(q.contiguous()).view("e2m1") if rule.dtype == "e2m1" else q.contiguous()
    if scales is not None:
        scales = _as_scales(scales, rule)
    switchyard.dequantize(bits, scales, scheme, tensor_scale=tensor_scale, out=out)
    return out


@functools.cache
def _scheme(name: str) -> switchyard.QuantScheme:
    return switchyard.QuantScheme(name)


def _is_simulated(rule: switchyard.QuantScheme) -> bool:
    return rule.dtype in ("e2m3", "e3m2")


def _has_scales(rule: switchyard.QuantScheme) -> bool:
    return rule.is_quantized and not _is_simulated(rule)


def _dtype(name: str) -> torch.dtype:
    """The dtype of torch; uint8 where this torch has none."""
    return getattr(torch, _DTYPES[name], torch.uint8)


def _as_scales(scales: torch.Tensor, rule: switchyard.QuantScheme) -> torch.Tensor | switchyard.Tensor:
    return switchyard.Tensor.wrap(scales).view(rule.scale_dtype) if scales.dtype == torch.uint8 else scales


def empty_scales(x, num_rows, num_scales, layout, dtype) -> torch.Tensor:
    """Scales of rows in a layout, on the device of x, without contents."""
    strides = {"row_major": (num_scales, 1), "column_major": (1, num_rows), "column_major_aligned": (1, (num_rows + 3) // 4 * 4)}
    if layout not in strides:
        raise InvalidArgumentError(f'quantize: scale_layout "{layout}", must be one of {", ".join(strides)}')
    return torch.empty_strided((num_rows, num_scales), strides[layout], dtype=dtype, device=x.device)


for _name in ("quantize", "dequantize"):
    without_gradient(_name)
