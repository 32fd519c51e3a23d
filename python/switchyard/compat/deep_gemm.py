# SPDX-License-Identifier: Apache-2.0
"""The permutation around DeepGEMM's contiguous grouped GEMM, with the names and arguments that vLLM has for it
(fused_moe/deep_gemm_utils.py). The GEMM itself is not here.

Rows of an expert are in the order of tokens, dropped choices are -1 in inv_perm, rows without a token have the
expert id -1 and scales of 0.
"""
from __future__ import annotations

from typing import Any

import switchyard
from switchyard import DEEP_GEMM_ALIGNMENT, InvalidArgumentError, Tensor
from switchyard.arrays import whole_numbers
from switchyard.compat._arrays import device_of, is_torch, like, names_wrong_types, require_counts

__all__ = ["compute_aligned_M", "count_expert_num_tokens", "deep_gemm_block_shape", "deepgemm_moe_permute",
           "deepgemm_unpermute_and_reduce", "ep_gather", "ep_scatter", "expert_num_tokens_round_up_and_sum",
           "get_m_alignment_for_contiguous_layout", "get_mk_alignment_for_contiguous_layout"]


def get_m_alignment_for_contiguous_layout() -> int:
    """DeepGEMM's: each expert's rows start at a multiple of it."""
    return DEEP_GEMM_ALIGNMENT


get_mk_alignment_for_contiguous_layout = get_m_alignment_for_contiguous_layout


def deep_gemm_block_shape() -> list[int]:
    """[128, 128]: rows and columns of a block of weights."""
    return [DEEP_GEMM_ALIGNMENT, DEEP_GEMM_ALIGNMENT]


def expert_num_tokens_round_up_and_sum(expert_num_tokens: Any, alignment: int) -> int:
    """The sum of counts, each rounded up to a multiple of `alignment`. Waits for a GPU that has them."""
    require_counts("expert_num_tokens_round_up_and_sum", 1, alignment=alignment)
    counts = whole_numbers(expert_num_tokens, "expert_num_tokens_round_up_and_sum: expert_num_tokens")
    return sum(-(-count // alignment) * alignment for count in counts)


def compute_aligned_M(M: int, num_topk: int, local_num_experts: int, alignment: int,  # pylint: disable=invalid-name
                      expert_tokens_meta: Any = None) -> int:
    """Rows of the permuted buffer: exact when the counts are on the host, otherwise enough for any routing."""
    counts = getattr(expert_tokens_meta, "expert_num_tokens_cpu", None)
    if counts is None:
        return switchyard.compute_aligned_m(M, num_topk, local_num_experts, alignment)
    return expert_num_tokens_round_up_and_sum(counts, alignment)


def count_expert_num_tokens(topk_ids: Any, num_local_experts: int, expert_map: Any = None) -> Any:
    """i32 [L]: how many ids each local expert has."""
    return like(switchyard.count_expert_num_tokens(topk_ids, num_local_experts, expert_map), topk_ids)


@names_wrong_types
def deepgemm_moe_permute(aq: Any, aq_scale: Any | None, topk_ids: Any, local_num_experts: int, expert_map: Any = None,
                         expert_tokens_meta: Any = None, aq_out: Any = None) -> tuple[Any, Any, Any, Any]:
    """Returns (aq_out [M, H], aq_scale_out [M, S], expert_ids i32 [M], inv_perm i32 [T, K]), M as of compute_aligned_M;
    on GPUs always the one for any routing. An aq_out of more rows makes M as large; they belong to no expert.

    aq [T, H], aq_scale [T, S], topk_ids [T, K]; negative: none. expert_tokens_meta has expert_num_tokens [L],
    and may have expert_num_tokens_cpu.
    """
    on_cpu = device_of(aq).is_cpu
    num_rows = compute_aligned_M(topk_ids.shape[0], topk_ids.shape[1], local_num_experts, DEEP_GEMM_ALIGNMENT,
                                 expert_tokens_meta if on_cpu else None)
    if aq_out is not None and (len(aq_out.shape) != 2 or aq_out.shape[0] < num_rows or aq_out.shape[1] != aq.shape[1]):
        raise InvalidArgumentError(f"deepgemm_moe_permute: aq_out is {tuple(aq_out.shape)}, must be {(num_rows, aq.shape[1])} or have "
                                   "more rows")
    out = aq_out
    if out is None and on_cpu:
        out = Tensor((num_rows, aq.shape[1]), Tensor.wrap(aq).dtype)
    made = switchyard.permute(aq, topk_ids, local_num_experts, scales=aq_scale, expert_map=expert_map,
                              expert_num_tokens=getattr(expert_tokens_meta, "expert_num_tokens", None), out=out)
    return (like(made.x, aq) if aq_out is None else aq_out, like(made.scales, aq), like(made.m_indices, aq), like(made.inv_perm, aq))


def deepgemm_unpermute_and_reduce(a: Any, topk_ids: Any, topk_weights: Any, inv_perm: Any, expert_map: Any, output: Any) -> None:
    """ep_gather under its other name."""
    ep_gather(a, topk_ids, topk_weights, inv_perm, expert_map, output)


@names_wrong_types
def ep_gather(input_tensor: Any, recv_topk_ids: Any, recv_topk_weight: Any, input_index: Any, expert_map: Any | None,
              output_tensor: Any) -> None:
    """Writes output_tensor [T, H]: the weighted sum of each token's rows, in f32, k ascending, rounded once."""
    switchyard.ep_gather(input_tensor, recv_topk_ids, recv_topk_weight, input_index, expert_map, output_tensor)


@names_wrong_types
def ep_scatter(recv_x: Any, recv_x_scale: Any | None, recv_topk: Any, num_recv_tokens_per_expert: Any, expert_map: Any | None,
               expert_start_loc: Any, output_tensor: Any, output_tensor_scale: Any | None, m_indices: Any, output_index: Any) -> None:
    """deepgemm_moe_permute into memory of the caller.

    Writes output_tensor [M, H], output_tensor_scale [M, S], m_indices i32 [M], output_index i32 [T, K], and
    expert_start_loc i32 [L], which ends as the end of each expert's rows. The last four are copied there.
    """
    made = switchyard.permute(recv_x, recv_topk, num_recv_tokens_per_expert.shape[0], scales=recv_x_scale, expert_map=expert_map,
                              expert_num_tokens=num_recv_tokens_per_expert, out=output_tensor)
    for name, to, found in (("output_tensor_scale", output_tensor_scale, made.scales), ("m_indices", m_indices, made.m_indices),
                            ("output_index", output_index, made.inv_perm)):
        if found is not None:
            _copy(name, found, to)
    ends = like(made.first_row, recv_topk), like(made.expert_num_tokens, recv_topk)
    if isinstance(recv_topk, Tensor):
        ends = tuple(tensor.numpy() for tensor in ends)
    _copy("expert_start_loc", ends[0] + ends[1], expert_start_loc)


def _copy(name: str, source: Any, to: Any) -> None:
    if tuple(to.shape) != tuple(source.shape):
        raise InvalidArgumentError(f"ep_scatter: {name} is {tuple(to.shape)}, must be {tuple(source.shape)}")
    if is_torch(to):
        to.copy_(source.torch() if isinstance(source, Tensor) else source)
    else:
        to = to.numpy() if isinstance(to, Tensor) else to
        to[...] = source.numpy() if isinstance(source, Tensor) else source
