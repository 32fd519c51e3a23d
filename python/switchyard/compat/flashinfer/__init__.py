# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's MoE all-to-all: MoeAlltoAll (one-sided, also as functions) and MnnvlMoe (two-sided) of flashinfer.comm.

    from switchyard.compat import flashinfer          # or switchyard.compat.install("flashinfer.comm")

    moe = flashinfer.MoeAlltoAll(mapping, max_num_tokens, top_k, num_experts, hidden_size=hidden)
    x, ids, weights = moe.dispatch(ids, [x, ids, weights], runtime_max_tokens_per_rank,
                                   invalid_token_expert_id=-1, expert_id_payload_index=1)
    output = moe.combine(rows, runtime_max_tokens_per_rank)

`mapping` says which rank this is; the ranks themselves are those of `use_group`, else of torch's default process
group, else of mpi4py's COMM_WORLD. A group may also stand in the place of the mapping.
"""
from switchyard.compat._flashinfer_functions import (
    MOE_A2A_RANK_MASK_WORDS,
    MnnvlMemory,
    moe_a2a_active_rank_mask,
    moe_a2a_combine,
    moe_a2a_dispatch,
    moe_a2a_get_workspace_size_per_rank,
    moe_a2a_initialize,
    moe_a2a_sanitize_expert_ids,
    moe_a2a_wrap_payload_tensor_in_workspace,
)
from switchyard.compat._flashinfer_one_sided import MoeAlltoAll
from switchyard.compat._flashinfer_ranks import Mapping, use_group
from switchyard.compat._flashinfer_two_sided import MnnvlMoe, MoEAlltoallInfo, Workspace

__all__ = [
    "MOE_A2A_RANK_MASK_WORDS",
    "Mapping",
    "MnnvlMemory",
    "MnnvlMoe",
    "MoEAlltoallInfo",
    "MoeAlltoAll",
    "Workspace",
    "moe_a2a_active_rank_mask",
    "moe_a2a_combine",
    "moe_a2a_dispatch",
    "moe_a2a_get_workspace_size_per_rank",
    "moe_a2a_initialize",
    "moe_a2a_sanitize_expert_ids",
    "moe_a2a_wrap_payload_tensor_in_workspace",
    "use_group",
]
