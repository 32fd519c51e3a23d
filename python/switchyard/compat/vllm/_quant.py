# SPDX-License-Identifier: Apache-2.0
"""The quantization records of vLLM's fused_moe/config.py. They hold arrays of the caller and compute nothing but names and shapes;
prepare reads from them what activations need. dtypes are those of torch, numpy or ml_dtypes, or vLLM's words."""
from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

from switchyard import InvalidArgumentError
from switchyard.compat.vllm._interface import name_of_dtype

_WORDS = {"nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8"}
OCP_MX_DTYPES = {"mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8"}
# (activations, weights) -> the scheme that vLLM emulates.
_OCP_MX_SCHEMES = {
    (activations, weights): f"w_{weights}" + (f"_a_{activations}" if activations else "")
    for weights in ("mxfp4", "mxfp6_e3m2", "mxfp6_e2m3")
    for activations in (None, "fp8", weights, *(("mxfp6_e3m2", "mxfp6_e2m3") if weights == "mxfp4" else ()))}


class _Shape(NamedTuple):
    row: int
    col: int


class GroupShape(_Shape):
    """Rows and columns that share one scale; -1: all."""

    PER_TENSOR: ClassVar[GroupShape]
    PER_TOKEN: ClassVar[GroupShape]
    PER_CHANNEL: ClassVar[GroupShape]

    def is_per_tensor(self) -> bool:
        """(-1, -1)."""
        return self == (-1, -1)

    def is_per_token(self) -> bool:
        """(1, -1)."""
        return self == (1, -1)

    def is_per_channel(self) -> bool:
        """(-1, 1)."""
        return self == (-1, 1)

    def is_per_group(self) -> bool:
        """(1, g)."""
        return self.row == 1 and self.col >= 1


GroupShape.PER_TENSOR, GroupShape.PER_TOKEN, GroupShape.PER_CHANNEL = GroupShape(-1, -1), GroupShape(1, -1), GroupShape(-1, 1)


@dataclasses.dataclass
class FusedMoEQuantDesc:
    """One of the four operands. scale: an array, or an object that only the caller's experts understand."""

    dtype: Any = None
    shape: GroupShape | None = None
    scale: Any = None
    alpha_or_gscale: Any = None
    zp: Any = None
    bias: Any = None


def _is(dtype: Any, name: str) -> bool:
    """Whether a dtype, and not a word, is this one."""
    return dtype is not None and not isinstance(dtype, str) and name_of_dtype(dtype) == name


def _of(operand: str, field: str, doc: str) -> property:
    return property(lambda self: getattr(getattr(self, operand), field), doc=doc)


def _precision(operand: str) -> property:
    def get(self: FusedMoEQuantConfig) -> Any:
        scale = getattr(self, operand).scale
        if scale is not None and hasattr(scale, "shape"):
            raise InvalidArgumentError(f"{operand[1:]}_precision: the scale is an array, must be an opaque object; use {operand[1:]}_scale")
        return scale

    return property(get, doc="The opaque object in the place of the scale.")


def _scale(operand: str) -> property:
    def get(self: FusedMoEQuantConfig) -> Any:
        scale = getattr(self, operand).scale
        if scale is not None and not hasattr(scale, "shape"):
            raise InvalidArgumentError(f"{operand[1:]}_scale: the scale is a {type(scale).__name__}, must be an array; "
                                       f"use {operand[1:]}_precision for an opaque object")
        return scale

    return property(get, doc="The scale, an array or None.")


@dataclasses.dataclass
class FusedMoEQuantConfig:
    """How activations (a1, a2) and weights (w1, w2) of both GEMMs are quantized."""

    _a1: FusedMoEQuantDesc
    _a2: FusedMoEQuantDesc
    _w1: FusedMoEQuantDesc
    _w2: FusedMoEQuantDesc
    is_scale_swizzled: bool = True
    gemm1_alpha: float | None = None
    gemm1_beta: float | None = None
    gemm1_clamp_limit: float | None = None
    mx_alignment: int = 0

    quant_dtype = _of("_a1", "dtype", "Of activations; None: not quantized, or by the caller.")
    weight_quant_dtype = _of("_w1", "dtype", "Of weights.")
    a1_scale, a2_scale, w1_scale, w2_scale = _scale("_a1"), _scale("_a2"), _scale("_w1"), _scale("_w2")
    w1_precision, w2_precision = _precision("_w1"), _precision("_w2")
    a1_gscale = _of("_a1", "alpha_or_gscale", "Global scale of the first GEMM's input.")
    a2_gscale = _of("_a2", "alpha_or_gscale", "Global scale of the second GEMM's input.")
    g1_alphas = _of("_w1", "alpha_or_gscale", "Alphas of the first GEMM.")
    g2_alphas = _of("_w2", "alpha_or_gscale", "Alphas of the second GEMM.")
    w1_zp, w2_zp = _of("_w1", "zp", "Zero points."), _of("_w2", "zp", "Zero points.")
    w1_bias, w2_bias = _of("_w1", "bias", "Bias."), _of("_w2", "bias", "Bias.")

    @property
    def is_quantized(self) -> bool:
        """Whether activations have a dtype."""
        return self.quant_dtype is not None

    @property
    def is_per_act_token(self) -> bool:
        """One scale per row of activations."""
        return self._a1.shape == GroupShape.PER_TOKEN

    @property
    def per_act_token_quant(self) -> bool:
        """One scale per row of activations."""
        return self._a1.shape == GroupShape.PER_TOKEN

    @property
    def per_out_ch_quant(self) -> bool:
        """One scale per output channel of weights, which vLLM stores as (1, -1)."""
        return self._w1.shape == GroupShape.PER_TOKEN

    @property
    def is_per_tensor(self) -> bool:
        """One scale for all activations."""
        return self._a1.shape == GroupShape.PER_TENSOR

    @property
    def block_shape(self) -> list[int] | None:
        """[rows, columns] of a block, else None."""
        shape = self._a1.shape
        return None if shape in (None, GroupShape.PER_TENSOR, GroupShape.PER_TOKEN) else [shape.row, shape.col]

    @property
    def is_block_quantized(self) -> bool:
        """Whether there is a block shape."""
        return self.block_shape is not None

    @property
    def use_fp8_w8a8(self) -> bool:
        """e4m3 activations."""
        return _is(self.quant_dtype, "e4m3")

    @property
    def use_int8_w8a8(self) -> bool:
        """int8 activations."""
        return _is(self.quant_dtype, "i8")

    @property
    def use_int8_w8a16(self) -> bool:
        """int8 weights alone."""
        return self.quant_dtype is None and _is(self.weight_quant_dtype, "i8")

    @property
    def use_fp8_w8a16(self) -> bool:
        """e4m3 weights alone."""
        return self.quant_dtype is None and _is(self.weight_quant_dtype, "e4m3")

    def _has(self, activations: str | None, weights: str | None) -> bool:
        have = (self.quant_dtype, self.weight_quant_dtype)
        return all(one is None or isinstance(one, str) for one in have) and have == (activations, weights)

    use_int4_w4a16 = property(lambda self: self._has(None, "int4"), doc="int4 weights alone.")
    use_nvfp4_w4a16 = property(lambda self: self._has(None, "nvfp4"), doc="nvfp4 weights alone.")
    use_mxfp4_w4a16 = property(lambda self: self._has(None, "mxfp4"), doc="mxfp4 weights alone.")
    use_mxfp4_w4a4 = property(lambda self: self._has("mxfp4", "mxfp4"), doc="Both mxfp4.")
    use_mxfp4_w4a8 = property(lambda self: self._has("fp8", "mxfp4"), doc="mxfp4 weights, fp8 activations with one scale.")
    use_nvfp4_w4a4 = property(lambda self: isinstance(self.quant_dtype, str) and self.quant_dtype == "nvfp4", doc="nvfp4 activations.")

    @property
    def ocp_mx_scheme(self) -> str | None:
        """The name of a pair that vLLM emulates."""
        have = (self.quant_dtype, self.weight_quant_dtype)
        return _OCP_MX_SCHEMES.get(have) if all(one is None or isinstance(one, str) for one in have) else None

    def config_name(self, dtype: Any) -> str | None:
        """The word for this format in names of tuned kernel files; dtype: of the activations."""
        for name in ("fp8_w8a8", "fp8_w8a16", "int8_w8a16", "int4_w4a16"):
            if getattr(self, f"use_{name}"):
                return name
        return "float32" if self.ocp_mx_scheme is None and _is(dtype, "f32") else None

    def scale_shape(self, max_tokens: int, hidden_dim: int) -> tuple[int, int] | None:
        """Shape of the scales of [max_tokens, hidden_dim] activations."""
        if not self.is_quantized:
            return None
        if self.block_shape is not None:
            return max_tokens, -(-hidden_dim // self.block_shape[1])
        return (max_tokens, 1) if self.is_per_act_token else (1, 1)

    def batched_scale_shape(self, num_experts: int, max_tokens: int, hidden_dim: int) -> tuple[int, int, int] | None:
        """The same for [num_experts, max_tokens, hidden_dim]."""
        shape = self.scale_shape(max_tokens, hidden_dim)
        return None if shape is None else (num_experts, *shape)

    @staticmethod
    def make(quant_dtype: Any = None, per_act_token_quant: bool = False, per_out_ch_quant: bool = False,
             block_shape: list[int] | None = None, w1_scale: Any = None, w2_scale: Any = None, a1_scale: Any = None, a2_scale: Any = None,
             g1_alphas: Any = None, g2_alphas: Any = None, a1_gscale: Any = None, a2_gscale: Any = None, w1_bias: Any = None,
             w2_bias: Any = None, w1_zp: Any = None, w2_zp: Any = None, weight_dtype: Any = None, is_scale_swizzled: bool = True,
             gemm1_alpha: float | None = None, gemm1_beta: float | None = None,
             gemm1_clamp_limit: float | None = None) -> FusedMoEQuantConfig:
        """From flags: a block stands alone, words are those of OCP MX and nvfp4, weights are like activations unless weight_dtype says
        otherwise."""
        _check_word("quant_dtype", quant_dtype, _WORDS)
        _check_word("weight_dtype", weight_dtype, _WORDS | {"int4"})
        activations, weights = group_shapes(quant_dtype, per_act_token_quant, per_out_ch_quant, block_shape)
        weight_dtype = quant_dtype if weight_dtype is None else weight_dtype
        return FusedMoEQuantConfig(
            FusedMoEQuantDesc(quant_dtype, activations, a1_scale, a1_gscale),
            FusedMoEQuantDesc(quant_dtype, activations, a2_scale, a2_gscale),
            FusedMoEQuantDesc(weight_dtype, weights, w1_scale, g1_alphas, w1_zp, w1_bias),
            FusedMoEQuantDesc(weight_dtype, weights, w2_scale, g2_alphas, w2_zp, w2_bias),
            is_scale_swizzled, gemm1_alpha, gemm1_beta, gemm1_clamp_limit)


def group_shapes(quant_dtype: Any, per_act_token_quant: bool, per_out_ch_quant: bool,
                 block_shape: list[int] | None) -> tuple[GroupShape | None, GroupShape | None]:
    """Group shapes of activations and weights from vLLM's flags."""
    if block_shape is not None:
        if per_act_token_quant or per_out_ch_quant:
            raise InvalidArgumentError(f"make: block_shape is {list(block_shape)} with per_act_token_quant={per_act_token_quant} and "
                                       f"per_out_ch_quant={per_out_ch_quant}, both must be False with a block")
        if len(block_shape) != 2:
            raise InvalidArgumentError(f"make: block_shape is {list(block_shape)}, must be [rows, columns]")
        shape = GroupShape(*block_shape)
        if shape in (GroupShape.PER_TENSOR, GroupShape.PER_TOKEN):
            raise InvalidArgumentError(f"make: block_shape is {list(block_shape)}, must be a block: leave it out for one scale per tensor, "
                                       "set per_act_token_quant for one per token")
        return shape, shape
    activations = None if quant_dtype is None else GroupShape.PER_TENSOR
    return GroupShape.PER_TOKEN if per_act_token_quant else activations, GroupShape.PER_TOKEN if per_out_ch_quant else None


def _check_word(argument: str, dtype: Any, words: set[str]) -> None:
    if isinstance(dtype, str) and dtype not in words:
        raise InvalidArgumentError(f'make: {argument} is "{dtype}", must be a dtype, None or one of {", ".join(sorted(words))}')
