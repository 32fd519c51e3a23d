# SPDX-License-Identifier: Apache-2.0
"""How rows are quantized, in torch, and back: what referee.py compares with."""
import torch

GLOBAL_SCALE = 512.0  # of nvfp4


def e4m3_blocks(x):
    """e4m3 [T, H] and f32 [T, H / 128], as vLLM's kernel: one scale per 128 elements."""
    groups = x.float().unflatten(-1, (x.shape[-1] // 128, 128))
    scales = groups.abs().amax(dim=-1).clamp(min=1e-10) / 448
    return (groups / scales.unsqueeze(-1)).clamp(-448, 448).to(torch.float8_e4m3fn).view(x.shape), scales


def e4m3_blocks_of_deep_ep(x):
    """The same as DeepEP's kernel rounds: times 448 / amax, amax at least 1e-4."""
    groups = x.float().unflatten(-1, (x.shape[-1] // 128, 128))
    amax = groups.abs().amax(dim=-1).clamp(min=1e-4)
    return (groups * (torch.tensor(448.0) / amax).unsqueeze(-1)).to(torch.float8_e4m3fn).view(x.shape), amax * torch.tensor(1 / 448)


def e4m3_blocks_ue8m0(x):
    """The same with scales that are powers of two."""
    groups = x.float().unflatten(-1, (x.shape[-1] // 128, 128))
    scales = power_of_two_from(groups.abs().amax(dim=-1).clamp(min=1e-4) * torch.tensor(1 / 448))
    return (groups / scales.unsqueeze(-1)).to(torch.float8_e4m3fn).view(x.shape), scales


def power_of_two_from(values):
    """The least power of two that is not smaller."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp(torch.ones_like(values), exponent - (mantissa == 0.5).int())


def e4m3_tensor(x, scale):
    """e4m3 with one given scale."""
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def mxfp8(x):
    """e4m3 with a power of two per 32 elements, as its exponent in a byte."""
    groups = x.float().unflatten(-1, (x.shape[-1] // 32, 32))
    scales = power_of_two_from(groups.abs().amax(dim=-1).clamp(min=2.0**-126 * 448) / 448)
    return (groups / scales.unsqueeze(-1)).to(torch.float8_e4m3fn).view(x.shape), (torch.log2(scales) + 127).to(torch.uint8)


def nvfp4(x):
    """e2m1, two in a byte, with an e4m3 scale per 16 elements."""
    groups = x.float().unflatten(-1, (x.shape[-1] // 16, 16))
    scales = (GLOBAL_SCALE * (groups.abs().amax(dim=-1) * torch.tensor(1 / 6))).clamp(max=448).to(torch.float8_e4m3fn)
    factor = torch.where(scales.float() == 0, 0, 1 / (scales.float() / GLOBAL_SCALE))
    values = (groups * factor.unsqueeze(-1)).flatten(-2)
    size = values.abs()
    codes = sum((size > limit).byte() if is_open else (size >= limit).byte() for limit, is_open in (
        (0.25, True), (0.75, False), (1.25, True), (1.75, False), (2.5, True), (3.5, False), (5, True)))
    codes += 8 * torch.signbit(values).byte()
    return codes[..., ::2] | codes[..., 1::2] << 4, scales


def dequantized(rows, scales):
    """f64 of rows [n, H] of any of the formats."""
    if rows.dtype == torch.uint8:
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
        codes = torch.stack((rows & 15, rows >> 4), dim=-1).flatten(-2)
        values = torch.where(codes < 8, 1, -1) * table[(codes & 7).long()]
        scales = scales.view(torch.float8_e4m3fn).double() / GLOBAL_SCALE
    else:
        values = rows.double()
    if scales is None:
        return values
    if scales.dtype == torch.int32:  # four exponents
        scales = scales.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    scales = torch.exp2(scales.double() - 127) if scales.dtype == torch.uint8 else scales.double()
    if scales.numel() == 1 or scales.shape[-1] == 1:
        return values * scales
    return (values.unflatten(-1, (scales.shape[-1], values.shape[-1] // scales.shape[-1])) * scales.unsqueeze(-1)).flatten(-2)


def plain_scales(scales, expert, count):
    """Scales of an expert's first rows, of the batched layouts."""
    if scales is None:
        return None
    if scales.ndim == 6:  # [32, 4, C / 128, 4, H / 64, L]: tiles of 128 rows and 4 columns
        return scales[..., expert].permute(2, 1, 0, 4, 3).flatten(3).flatten(0, 2)[:count]
    return scales[expert, :count] if scales.shape[1] > 1 else scales[expert]
