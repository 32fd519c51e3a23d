# SPDX-License-Identifier: Apache-2.0
"""permute, unpermute_and_reduce and weight_and_reduce as operators. They work on one rank.

Letters used for shapes:
  T  tokens     K  experts chosen per token     H  elements per row     L  local experts
  C  capacity of an expert                      M  rows of the permuted buffer, for any routing
"""
# pylint: disable=unused-argument
from __future__ import annotations

from typing import Literal, NamedTuple

import torch

import switchyard
from switchyard.torch._library import MAYBE_TENSOR, NAME, SIZE, TENSOR, operator, require_type


class Permuted(NamedTuple):
    """Rows grouped by expert, each group at a multiple of the alignment."""

    x: torch.Tensor
    """[M, H]; 0 in rows without a token."""
    scales: torch.Tensor | None
    """[M, S]; 0 in rows without a token. None: none were given."""
    m_indices: torch.Tensor
    """i32 [M]: local expert of each row, -1 without a token."""
    inv_perm: torch.Tensor
    """i32 [T, K]: row of each choice, -1 for none."""
    first_row: torch.Tensor
    """i64 [L]: first row of each expert."""
    expert_num_tokens: torch.Tensor
    """i32 [L]: rows of each expert."""


def permute(x: torch.Tensor, topk_ids: torch.Tensor, num_local_experts: int, *, scales: torch.Tensor | None = None,
            expert_map: torch.Tensor | None = None, alignment: int = switchyard.DEEP_GEMM_ALIGNMENT) -> Permuted:
    """Copies each row to the experts that it is routed to. M is switchyard.compute_aligned_m(T, K, L, alignment).

    x           [T, H] any dtype
    topk_ids    [T, K] i32 or i64; negative: none
    scales      [T, S] any dtype
    expert_map  i32 [E]: local index of each expert, or negative; None: ids are local

    Gradient: that of x is the sum of the gradients of its copies, rounded once.
    """
    require_type("permute", TENSOR, x=x, topk_ids=topk_ids)
    require_type("permute", MAYBE_TENSOR, scales=scales, expert_map=expert_map)
    require_type("permute", SIZE, num_local_experts=num_local_experts, alignment=alignment)
    rows, row_scales, *others = torch.ops.switchyard.permute(x, topk_ids, num_local_experts, scales, expert_map, alignment)
    return Permuted(rows, row_scales if scales is not None else None, *others)


def unpermute_and_reduce(expert_output: torch.Tensor, inv_perm: torch.Tensor, topk_weights: torch.Tensor | None = None) -> torch.Tensor:
    """[T, H]: the weighted sum of each token's rows, in f32, rounded once.

    expert_output  [M, H] bf16, f16 or f32
    inv_perm       i32 [T, K], of permute
    topk_weights   [T, K] f32; None: 1

    Gradients: to expert_output and to topk_weights.
    """
    require_type("unpermute_and_reduce", TENSOR, expert_output=expert_output, inv_perm=inv_perm)
    require_type("unpermute_and_reduce", MAYBE_TENSOR, topk_weights=topk_weights)
    return torch.ops.switchyard.unpermute_and_reduce(expert_output, inv_perm, topk_weights)


def weight_and_reduce(expert_output: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, *,
                      kind: Literal["contiguous", "naive_batched"] = "contiguous", rank: int = 0) -> torch.Tensor:
    """[T, H]: weighs the expert rows of each token and sums them. expert_output is not changed.

    topk_weights   [T, K] f32
    topk_ids       [T, K] i32 or i64
    contiguous     expert_output [T, K, H]; its rows are weighed, rounded, then summed
    naive_batched  expert_output [L, C, H]; an expert's tokens, ascending, fill its first rows; local expert e is
                   expert rank * L + e

    Gradients: to expert_output and to topk_weights.
    """
    require_type("weight_and_reduce", TENSOR, expert_output=expert_output, topk_weights=topk_weights, topk_ids=topk_ids)
    require_type("weight_and_reduce", NAME, kind=kind)
    require_type("weight_and_reduce", SIZE, rank=rank)
    return torch.ops.switchyard.weight_and_reduce(expert_output, topk_weights, topk_ids, kind, rank)


def _permute_fake(x, topk_ids, num_local_experts, scales, expert_map, alignment):
    num_tokens, num_topk = topk_ids.shape
    num_choices = num_tokens * num_topk
    padded = num_choices + torch.sym_min(num_choices, num_local_experts) * (alignment - 1)
    num_rows = (padded + alignment - 1) // alignment * alignment
    return (x.new_empty((num_rows, x.shape[1])), x.new_empty(0) if scales is None else scales.new_empty((num_rows, scales.shape[1])),
            x.new_empty(num_rows, dtype=torch.int32), x.new_empty((num_tokens, num_topk), dtype=torch.int32),
            x.new_empty(num_local_experts, dtype=torch.int64), x.new_empty(num_local_experts, dtype=torch.int32))


@operator("permute(Tensor x, Tensor topk_ids, int num_local_experts, Tensor? scales, Tensor? expert_map, int alignment)"
          " -> (Tensor rows, Tensor row_scales, Tensor m_indices, Tensor inv_perm, Tensor first_row, Tensor expert_num_tokens)",
          _permute_fake)
def _permute(x, topk_ids, num_local_experts, scales, expert_map, alignment):
    num_rows = switchyard.compute_aligned_m(*topk_ids.shape, num_local_experts, alignment)
    rows = x.new_zeros((num_rows, x.shape[1]))
    made = switchyard.permute(x.contiguous(), topk_ids, num_local_experts, scales=scales, expert_map=expert_map, alignment=alignment,
                              out=rows)
    return (rows, x.new_empty(0) if scales is None else made.scales.torch().clone(), made.m_indices.torch().clone(),
            made.inv_perm.torch().clone(), made.first_row.torch().clone(), made.expert_num_tokens.torch().clone())


def _unpermute_fake(expert_output, inv_perm, topk_weights):
    return expert_output.new_empty((inv_perm.shape[0], expert_output.shape[1]))


@operator("unpermute_and_reduce(Tensor expert_output, Tensor inv_perm, Tensor? topk_weights) -> Tensor", _unpermute_fake)
def _unpermute(expert_output, inv_perm, topk_weights):
    out = _unpermute_fake(expert_output, inv_perm, topk_weights)
    weights = None if topk_weights is None else topk_weights.contiguous()
    switchyard.unpermute_and_reduce(expert_output.contiguous(), inv_perm.contiguous(), weights, out=out)
    return out


def _reduce_fake(expert_output, topk_weights, topk_ids, kind, rank):
    return expert_output.new_empty((topk_ids.shape[0], expert_output.shape[-1]))


@operator("weight_and_reduce(Tensor expert_output, Tensor topk_weights, Tensor topk_ids, str kind, int rank) -> Tensor", _reduce_fake)
def _reduce(expert_output, topk_weights, topk_ids, kind, rank):
    out = _reduce_fake(expert_output, topk_weights, topk_ids, kind, rank)
    # "contiguous" weighs rows where they are.
    rows = expert_output.clone(memory_format=torch.contiguous_format) if kind == "contiguous" else expert_output.contiguous()
    switchyard.weight_and_reduce(rows, topk_weights.contiguous(), topk_ids.contiguous(), kind=kind, rank=rank, out=out)
    return out


def _keep_permute(ctx, inputs, output):
    ctx.save_for_backward(output[3])
    ctx.mark_non_differentiable(*output[1:])


def _permute_gradient(ctx, grad_rows, *_):
    (inv_perm,) = ctx.saved_tensors
    return torch.ops.switchyard.unpermute_and_reduce(grad_rows, inv_perm, None), None, None, None, None, None


def _keep_unpermute(ctx, inputs, output):
    expert_output, inv_perm, topk_weights = inputs
    ctx.wants_weights = topk_weights is not None and ctx.needs_input_grad[2]
    ctx.save_for_backward(expert_output if ctx.wants_weights else None, inv_perm, topk_weights)
    ctx.num_rows = expert_output.shape[0]


def _unpermute_gradient(ctx, grad):
    expert_output, inv_perm, topk_weights = ctx.saved_tensors
    rows = inv_perm.long()
    has_row = rows >= 0
    weighted = grad.unsqueeze(1).expand(-1, rows.shape[1], -1)
    if topk_weights is not None:
        weighted = (weighted * topk_weights.unsqueeze(-1)).to(grad.dtype)
    grad_weights = None
    if ctx.wants_weights:
        products = (grad.unsqueeze(1).float() * expert_output[rows.clamp(min=0)].float()).sum(dim=-1)
        grad_weights = torch.where(has_row, products, 0)
    # Choices without a row write to one beyond the last.
    targets = torch.where(has_row, rows, ctx.num_rows).flatten()
    spread = grad.new_zeros((ctx.num_rows + 1, grad.shape[1])).index_copy(0, targets, weighted.flatten(0, 1))
    return spread[: ctx.num_rows], None, grad_weights


def _keep_reduce(ctx, inputs, output):
    expert_output, topk_weights, topk_ids, ctx.kind, ctx.rank = inputs
    ctx.wants_weights = ctx.needs_input_grad[1]
    ctx.save_for_backward(expert_output if ctx.wants_weights else None, topk_weights, topk_ids)
    ctx.shape = expert_output.shape


def _reduce_gradient(ctx, grad):
    expert_output, topk_weights, topk_ids = ctx.saved_tensors
    if ctx.kind == "contiguous":
        grad_rows = (grad.unsqueeze(1) * topk_weights.unsqueeze(-1)).to(grad.dtype).view(ctx.shape)
        grad_weights = None
        if ctx.wants_weights:
            grad_weights = (grad.unsqueeze(1).float() * expert_output.view(*topk_ids.shape, -1).float()).sum(dim=-1)
        return grad_rows, grad_weights, None, None, None
    num_experts, capacity, _ = ctx.shape
    experts = torch.arange(num_experts, device=grad.device) + ctx.rank * num_experts
    chosen = topk_ids.unsqueeze(0) == experts.view(-1, 1, 1)  # [L, T, K]
    is_here = chosen.any(dim=-1)
    weights = torch.where(chosen, topk_weights, 0).sum(dim=-1)  # [L, T]
    place = is_here.long().cumsum(dim=1) - 1  # row of each token among those of the expert
    targets = torch.where(is_here, place, capacity)
    spread = grad.new_zeros((num_experts, capacity + 1, grad.shape[1]))
    spread = spread.scatter(1, targets.unsqueeze(-1).expand(-1, -1, grad.shape[1]), (weights.unsqueeze(-1) * grad).to(grad.dtype))
    grad_weights = None
    if ctx.wants_weights:
        rows = expert_output.gather(1, place.clamp(min=0).unsqueeze(-1).expand(-1, -1, grad.shape[1]))  # [L, T, H]
        products = (rows.float() * grad.float()).sum(dim=-1)
        grad_weights = torch.where(chosen, products.unsqueeze(-1), 0).sum(dim=0)
    return spread[:, :capacity], grad_weights, None, None, None


for _name, _gradient, _keep in (("permute", _permute_gradient, _keep_permute),
                                ("unpermute_and_reduce", _unpermute_gradient, _keep_unpermute),
                                ("weight_and_reduce", _reduce_gradient, _keep_reduce)):
    torch.library.register_autograd(f"switchyard::{_name}", _gradient, setup_context=_keep)
