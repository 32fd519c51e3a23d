# SPDX-License-Identifier: Apache-2.0
"""vLLM's makers of a FusedMoEQuantConfig, one per format, with its arguments in its order. In 2025 some had no biases, and what
is behind them now stood in their place: that order is understood too."""
from __future__ import annotations

from typing import Any

from switchyard import InvalidArgumentError
from switchyard.compat.vllm._interface import dtype_named
from switchyard.compat.vllm._quant import OCP_MX_DTYPES, FusedMoEQuantConfig, FusedMoEQuantDesc, GroupShape


def fp8_w8a8_moe_quant_config(
        w1_scale: Any, w2_scale: Any, a1_scale: Any = None, a2_scale: Any = None, w1_bias: Any = None, w2_bias: Any = None,
        per_act_token_quant: bool = False, per_out_ch_quant: bool = False, block_shape: list[int] | None = None, a1_gscale: Any = None,
        a2_gscale: Any = None, g1_alphas: Any = None, g2_alphas: Any = None, gemm1_alpha: float | None = None,
        gemm1_beta: float | None = None, gemm1_clamp_limit: float | None = None) -> FusedMoEQuantConfig:
    """e4m3 activations and weights."""
    if isinstance(w1_bias, bool):
        if w2_bias is not None and not isinstance(w2_bias, bool):
            raise InvalidArgumentError(f"fp8_w8a8_moe_quant_config: per_out_ch_quant is a {type(w2_bias).__name__}, must be a bool behind "
                                       "per_act_token_quant")
        w1_bias, w2_bias, per_act_token_quant, per_out_ch_quant, block_shape = (
            None, None, w1_bias, bool(w2_bias) or per_out_ch_quant, per_act_token_quant or block_shape)
    return FusedMoEQuantConfig.make(**{**locals(), "quant_dtype": dtype_named("e4m3")})


def int8_w8a8_moe_quant_config(w1_scale: Any, w2_scale: Any, a1_scale: Any, a2_scale: Any, w1_bias: Any = None,
                               w2_bias: Any = None, per_act_token_quant: bool = False) -> FusedMoEQuantConfig:
    """int8 activations and weights."""
    if isinstance(w1_bias, bool):
        w1_bias, per_act_token_quant = None, w1_bias
    return FusedMoEQuantConfig.make(**{**locals(), "quant_dtype": dtype_named("i8")})


def nvfp4_moe_quant_config(g1_alphas: Any, g2_alphas: Any, a1_gscale: Any, a2_gscale: Any, w1_scale: Any, w2_scale: Any,
                           w1_bias: Any = None, w2_bias: Any = None, is_scale_swizzled: bool = True, gemm1_alpha: float | None = None,
                           gemm1_beta: float | None = None, gemm1_clamp_limit: float | None = None) -> FusedMoEQuantConfig:
    """nvfp4 activations and weights."""
    return FusedMoEQuantConfig.make(**{**locals(), "quant_dtype": "nvfp4"})


def mxfp4_moe_quant_config(w1_scale: Any, w2_scale: Any) -> FusedMoEQuantConfig:
    """mxfp4 activations and weights."""
    return FusedMoEQuantConfig.make("mxfp4", w1_scale=w1_scale, w2_scale=w2_scale)


def ocp_mx_moe_quant_config(quant_dtype: str, w1_scale: Any, w2_scale: Any, weight_dtype: str | None = None, a1_scale: Any = None,
                            a2_scale: Any = None, w1_bias: Any = None, w2_bias: Any = None, block_shape: list[int] | None = None,
                            gemm1_alpha: float | None = None, gemm1_beta: float | None = None,
                            gemm1_clamp_limit: float | None = None) -> FusedMoEQuantConfig:
    """Activations of an OCP MX format, weights of the same or another."""
    if quant_dtype not in OCP_MX_DTYPES:
        raise InvalidArgumentError(f'ocp_mx_moe_quant_config: quant_dtype is "{quant_dtype}", must be one of '
                                   f'{", ".join(sorted(OCP_MX_DTYPES))}')
    return FusedMoEQuantConfig.make(**locals())


def int4_w4afp8_moe_quant_config(w1_scale: Any, w2_scale: Any, g1_alphas: Any, g2_alphas: Any, per_act_token_quant: bool = False,
                                 per_out_ch_quant: bool = False, block_shape: list[int] | None = None) -> FusedMoEQuantConfig:
    """e4m3 activations, int4 weights."""
    return FusedMoEQuantConfig.make(**{**locals(), "quant_dtype": dtype_named("e4m3"), "weight_dtype": "int4"})


def nvfp4_w4a16_moe_quant_config(g1_alphas: Any, g2_alphas: Any, w1_scale: Any, w2_scale: Any, gemm1_alpha: float | None = None,
                                 gemm1_beta: float | None = None, gemm1_clamp_limit: float | None = None) -> FusedMoEQuantConfig:
    """nvfp4 weights alone."""
    return FusedMoEQuantConfig.make(**{**locals(), "weight_dtype": "nvfp4"})


# The others state the four operands.


def _weights(dtype: Any, shape: GroupShape | None, given: dict[str, Any]) -> tuple[FusedMoEQuantDesc, FusedMoEQuantDesc]:
    first, second = (FusedMoEQuantDesc(dtype, shape, given.get(f"{w}_scale"), None, given.get(f"{w}_zp"), given.get(f"{w}_bias"))
                     for w in ("w1", "w2"))
    return first, second


def _with(first: FusedMoEQuantDesc, second: FusedMoEQuantDesc, dtype: Any, shape: GroupShape | None,
          given: dict[str, Any]) -> FusedMoEQuantConfig:
    extras = {name: given[name] for name in ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit", "mx_alignment", "is_scale_swizzled")
              if name in given}
    return FusedMoEQuantConfig(first, second, *_weights(dtype, shape, given), **extras)


def biased_moe_quant_config(w1_bias: Any, w2_bias: Any, gemm1_alpha: float | None = None, gemm1_beta: float | None = None,
                            gemm1_clamp_limit: float | None = None) -> FusedMoEQuantConfig:
    """Nothing quantized, biases."""
    return _with(FusedMoEQuantDesc(), FusedMoEQuantDesc(), None, None, locals())


def mxfp4_w4a16_moe_quant_config(w1_scale: Any, w2_scale: Any, w1_bias: Any = None, w2_bias: Any = None, gemm1_alpha: float | None = None,
                                 gemm1_beta: float | None = None, gemm1_clamp_limit: float | None = None) -> FusedMoEQuantConfig:
    """mxfp4 weights alone."""
    return _with(FusedMoEQuantDesc(), FusedMoEQuantDesc(), "mxfp4", None, locals())


def mxfp4_mxfp8_moe_quant_config(w1_scale: Any, w2_scale: Any, a1_scale: Any = None, a2_scale: Any = None, w1_bias: Any = None,
                                 w2_bias: Any = None, block_shape: list[int] | None = None, gemm1_alpha: float | None = None,
                                 gemm1_beta: float | None = None, gemm1_clamp_limit: float | None = None, mx_alignment: int = 0,
                                 is_scale_swizzled: bool = True) -> FusedMoEQuantConfig:
    """mxfp8 activations, mxfp4 weights. As in vLLM, a1_scale, a2_scale and block_shape are not read: the format has its own."""
    return _with(FusedMoEQuantDesc("mxfp8"), FusedMoEQuantDesc("mxfp8"), "mxfp4", None, locals())


def mxfp4_w4a8_moe_quant_config(w1_scale: Any, w2_scale: Any, a1_scale: Any = None, a2_scale: Any = None, w1_bias: Any = None,
                                w2_bias: Any = None, block_shape: list[int] | None = None,
                                gemm1_clamp_limit: float | None = None) -> FusedMoEQuantConfig:
    """fp8 activations with one scale, mxfp4 weights. As in vLLM, block_shape is not read."""
    return _with(FusedMoEQuantDesc("fp8", scale=a1_scale), FusedMoEQuantDesc("fp8", scale=a2_scale), "mxfp4", None, locals())


def fp8_w8a16_moe_quant_config(w1_scale: Any, w2_scale: Any, w1_bias: Any = None, w2_bias: Any = None,
                               block_shape: list[int] | None = None, gemm1_alpha: float | None = None, gemm1_beta: float | None = None,
                               gemm1_clamp_limit: float | None = None) -> FusedMoEQuantConfig:
    """e4m3 weights alone."""
    return _with(FusedMoEQuantDesc(), FusedMoEQuantDesc(), dtype_named("e4m3"), _shape(block_shape), locals())


def int4_w4a16_moe_quant_config(w1_scale: Any, w2_scale: Any, w1_zp: Any = None, w2_zp: Any = None, w1_bias: Any = None,
                                w2_bias: Any = None, block_shape: list[int] | None = None, a1_gscale: Any = None, a2_gscale: Any = None,
                                gemm1_clamp_limit: float | None = None, gemm1_alpha: float | None = None,
                                gemm1_beta: float | None = None) -> FusedMoEQuantConfig:
    """int4 weights alone. The block is stored with the activations too."""
    if isinstance(w1_bias, (list, tuple)):
        w1_bias, block_shape = None, w1_bias
    shape = _shape(block_shape)
    return _with(FusedMoEQuantDesc(shape=shape, alpha_or_gscale=a1_gscale), FusedMoEQuantDesc(shape=shape, alpha_or_gscale=a2_gscale),
                 "int4", shape, locals())


def int8_w8a16_moe_quant_config(w1_scale: Any, w2_scale: Any, w1_zp: Any = None, w2_zp: Any = None, w1_bias: Any = None,
                                w2_bias: Any = None, block_shape: list[int] | None = None, a1_gscale: Any = None, a2_gscale: Any = None,
                                gemm1_clamp_limit: float | None = None, gemm1_alpha: float | None = None,
                                gemm1_beta: float | None = None) -> FusedMoEQuantConfig:
    """int8 weights alone. The block is stored with the activations too."""
    if isinstance(w1_bias, (list, tuple)):
        w1_bias, block_shape = None, w1_bias
    shape = _shape(block_shape)
    return _with(FusedMoEQuantDesc(shape=shape, alpha_or_gscale=a1_gscale), FusedMoEQuantDesc(shape=shape, alpha_or_gscale=a2_gscale),
                 dtype_named("i8"), shape, locals())


def gptq_marlin_moe_quant_config(w1_scale: Any, w2_scale: Any, weight_bits: int, group_size: int, w1_zp: Any = None, w2_zp: Any = None,
                                 w1_bias: Any = None, w2_bias: Any = None) -> FusedMoEQuantConfig:
    """int4 or int8 weights in groups along the input; group_size -1: none."""
    if weight_bits not in (4, 8):
        raise InvalidArgumentError(f"gptq_marlin_moe_quant_config: weight_bits is {weight_bits}, must be 4 or 8")
    shape = None if group_size == -1 else GroupShape(1, group_size)
    return _with(FusedMoEQuantDesc(shape=shape), FusedMoEQuantDesc(shape=shape), "int4" if weight_bits == 4 else dtype_named("i8"), shape,
                 locals())


def _shape(block_shape: list[int] | None) -> GroupShape | None:
    return None if block_shape is None else GroupShape(*block_shape)


FUSED_MOE_UNQUANTIZED_CONFIG = FusedMoEQuantConfig.make()
