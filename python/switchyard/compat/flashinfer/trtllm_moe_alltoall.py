# SPDX-License-Identifier: Apache-2.0
"""flashinfer.comm.trtllm_moe_alltoall: the one-sided all-to-all."""
from switchyard.compat._flashinfer_functions import (
    MOE_A2A_RANK_MASK_WORDS,
    moe_a2a_active_rank_mask,
    moe_a2a_combine,
    moe_a2a_dispatch,
    moe_a2a_get_workspace_size_per_rank,
    moe_a2a_initialize,
    moe_a2a_sanitize_expert_ids,
    moe_a2a_wrap_payload_tensor_in_workspace,
)
from switchyard.compat._flashinfer_one_sided import MoeAlltoAll

__all__ = [
    "MOE_A2A_RANK_MASK_WORDS",
    "MoeAlltoAll",
    "moe_a2a_active_rank_mask",
    "moe_a2a_combine",
    "moe_a2a_dispatch",
    "moe_a2a_get_workspace_size_per_rank",
    "moe_a2a_initialize",
    "moe_a2a_sanitize_expert_ids",
    "moe_a2a_wrap_payload_tensor_in_workspace",
]
