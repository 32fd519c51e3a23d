# SPDX-License-Identifier: Apache-2.0
"""EPHandle.recv_src_metadata and dst_buffer_slot_idx on GPUs: computed with torch, in its current stream, without a
wait. On CPUs they come with the dispatch (python/compat/deep_ep/elastic_buffer.cpp), in the same form."""
from __future__ import annotations

from typing import Any


def recv_src_metadata(rank: Any, token: Any, k: Any, num_lines: int, max_tokens: int, num_ranks: int, num_topk: int,
                      is_expanded: bool) -> Any:
    """i32 [num_lines, K + 2], one line per received token by (rank, token), from the sources [N] of the rows:
    rank * max_tokens + token, rank * K + the highest k, and, if expanded, the row of each k or -1."""
    import torch  # pylint: disable=import-outside-toplevel

    has_token = rank >= 0
    name = torch.where(has_token, rank * max_tokens + token, num_ranks * max_tokens)  # rows without a token have the last one
    if is_expanded:
        is_received = torch.zeros(num_ranks * max_tokens + 1, dtype=torch.int32, device=rank.device)
        is_received.index_fill_(0, name.long(), 1)  # an assignment of 1 could not be captured
        line = torch.where(has_token, is_received.cumsum(0)[name.long()] - 1, num_lines)
    else:
        line = torch.where(has_token, torch.arange(len(rank), device=rank.device), num_lines)
    lines = torch.full((num_lines + 1, num_topk + 2), -1, dtype=torch.int32, device=rank.device)  # the last: of no token
    lines[line, 0] = name
    lines[:, 1].scatter_reduce_(0, line, rank * num_topk + k, "amax")
    if is_expanded:
        lines[line, 2 + k.clamp(min=0).long()] = torch.arange(len(rank), dtype=torch.int32, device=rank.device)
    return lines[:num_lines]


def dst_buffer_slot_idx(topk_idx: Any, num_experts: int, rank: int, num_ranks: int, max_tokens: int) -> Any:
    """i32 [T, K], at the highest k of each rank: own rank * max_tokens + the token's index among those that go there."""
    import torch  # pylint: disable=import-outside-toplevel

    base, extra = divmod(num_experts, num_ranks)  # the first ranks hold one expert more
    in_larger = extra * (base + 1)
    owner = torch.where(topk_idx < in_larger, topk_idx // (base + 1), extra + (topk_idx - in_larger) // max(base, 1))
    owner = torch.where(topk_idx >= 0, owner, -1)
    goes_to = (owner.unsqueeze(2) == torch.arange(num_ranks, device=owner.device)).any(1)
    index = (goes_to.cumsum(0) - 1).gather(1, owner.clamp(min=0))
    num_topk = owner.shape[1]
    is_later = torch.ones(num_topk, num_topk, dtype=torch.bool, device=owner.device).triu(1)
    has_later = ((owner.unsqueeze(2) == owner.unsqueeze(1)) & is_later).any(2)
    return torch.where((owner >= 0) & ~has_later, rank * max_tokens + index, -1).int()
