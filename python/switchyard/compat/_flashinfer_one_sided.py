# SPDX-License-Identifier: Apache-2.0
"""flashinfer.comm.MoeAlltoAll."""
from __future__ import annotations

from typing import Any

from switchyard import InvalidArgumentError, Tensor
from switchyard._native import OneSidedAllToAll, one_sided_workspace_size
from switchyard.compat._arrays import copy_into, device_of, like, names_wrong_types, refuse, require_counts
from switchyard.compat._flashinfer_ranks import ranks_of

_STATS = "statistics do not travel with a dispatch; switchyard.ExpertLoad counts them"
_MASK = "without the rows of a masked rank a result would look complete; a rank that does not come ends the group"


class MoeAlltoAll:
    """Several payloads in one dispatch, then exactly one combine. Every rank makes the same calls.

    Memory is the library's, taken at the first call of each row size; `workspace_size_per_rank`
    and `hidden_size` have no effect, and of `mnnvl_config` only comm_backend. Masks are accepted while they have all ranks.
    """

    def __init__(self, mapping: Any, max_num_tokens: int, top_k: int, num_experts: int, workspace_size_per_rank: int | None = None,
                 hidden_size: int | None = None, mnnvl_config: Any = None, eplb_stats_num_experts: int = 0,
                 enable_rank_mask: bool = False, *, backend: str = "trtllm"):
        del enable_rank_mask, backend
        if eplb_stats_num_experts:
            raise refuse("MoeAlltoAll", "eplb_stats_num_experts", _STATS)
        require_counts("MoeAlltoAll", 1, max_num_tokens=max_num_tokens, top_k=top_k, num_experts=num_experts)
        self._group = ranks_of(mapping, mnnvl_config)
        self.ep_rank, self.ep_size = self._group.rank, self._group.size
        self.max_num_tokens, self.top_k, self.num_experts = max_num_tokens, top_k, num_experts
        if workspace_size_per_rank is None and hidden_size is not None:
            workspace_size_per_rank = self.get_moe_workspace_size_per_rank(self.ep_size, top_k, max_num_tokens, hidden_size)
        self.workspace_size_per_rank = workspace_size_per_rank
        self._native: OneSidedAllToAll | None = None
        self._tokens: int | None = None  # of the dispatch that waits for its combine
        self._runtime_max = 0
        self.eplb_gathered_stats = None

    @staticmethod
    @names_wrong_types
    def get_moe_workspace_size_per_rank(ep_size: int, top_k: int, max_num_tokens: int, hidden_size: int,
                                        extra_payload_bytes_per_token: int = 0, eplb_stats_num_experts: int = 0, *,
                                        backend: str = "trtllm") -> int:
        """Bytes that the original wants for bf16 rows, ids, weights and extra payloads, without its control
        words. No call here needs the number."""
        del eplb_stats_num_experts, backend
        return one_sided_workspace_size(ep_size, max_num_tokens, hidden_size * 2 + top_k * 8 + extra_payload_bytes_per_token,
                                        hidden_size * 2, 0)

    @names_wrong_types
    def dispatch(self, token_selected_experts: Any, input_payloads: list[Any], runtime_max_tokens_per_rank: int,
                 invalid_token_expert_id: int | None = None, expert_id_payload_index: int | None = None,
                 eplb_local_stats: Any = None, active_rank_mask: Any = None, enable_pdl: bool | None = None) -> list[Any]:
        """[P, runtime_max_tokens_per_rank, ...] for each payload: the n-th token from rank s is at (s, n).

        token_selected_experts  [T, K] i32; negative: none
        input_payloads          [T, cols] each, any dtype, contiguous
        invalid_token_expert_id written into the ids of rows without a token; expert_id_payload_index says
                                which payload has the ids

        Valid until combine.
        """
        del enable_pdl
        if eplb_local_stats is not None:
            raise refuse("dispatch", "eplb_local_stats", _STATS)
        self._refuse_masked_ranks("dispatch", active_rank_mask)
        if invalid_token_expert_id is not None and expert_id_payload_index is None:
            raise InvalidArgumentError("dispatch: invalid_token_expert_id is given without expert_id_payload_index, must come with it")
        if self._native is None:
            self._native = OneSidedAllToAll(self._group, device_of(token_selected_experts), self.max_num_tokens, self.top_k, self.num_experts)
        received = self._native.dispatch(token_selected_experts, input_payloads, runtime_max_tokens_per_rank, invalid_token_expert_id,
                                         expert_id_payload_index or 0)
        self._tokens, self._runtime_max = token_selected_experts.shape[0], runtime_max_tokens_per_rank
        return [like(rows, sent) for rows, sent in zip(received, input_payloads)]

    def _refuse_masked_ranks(self, call: str, mask: Any) -> None:
        if mask is not None and mask.reshape(-1).tolist() != [(1 << self.ep_size) - 1]:
            raise refuse(call, "active_rank_mask without some of the ranks", _MASK)

    @property
    def recv_counts(self) -> Tensor:
        """i32 [P]: tokens from each rank in the last dispatch. An addition."""
        if self._native is None:
            raise InvalidArgumentError("recv_counts: nothing was dispatched, must follow a dispatch")
        return self._native.recv_counts

    @property
    def num_tokens(self) -> int | None:
        """T of the dispatch that waits for its combine. An addition."""
        return self._tokens

    @names_wrong_types
    def combine(self, payload: Any, runtime_max_tokens_per_rank: int, payload_in_workspace: bool = False, output_dtype: Any = None,
                output_scales: Any = None, output_scalar_scale: float = 1.0, sf_layout: Any = None, output: Any = None, *,
                use_low_precision: bool = False, active_rank_mask: Any = None, enable_pdl: bool | None = None) -> Any:
        """[T, H] of the payload's dtype: for each token the sum of one row from each rank that received it.

        payload [P, runtime_max_tokens_per_rank, H] bf16, f16 or f32, weighted by the caller. Rows are read
        where they are, so payload_in_workspace changes nothing. The result is copied into `output`, if given.
        output_scalar_scale and sf_layout belong to quantized results, which are not supported.
        """
        del payload_in_workspace, output_scalar_scale, sf_layout, enable_pdl
        if _is_dtype(payload, output_dtype):
            output_dtype = None
        for name, value, why in (("output_dtype", output_dtype, "results have the dtype of the rows; quantize them with switchyard.quantize"),
                                 ("output_scales", output_scales, "results are not quantized"),
                                 ("use_low_precision", use_low_precision or None, "rows return in their own dtype")):
            if value is not None:
                raise refuse("combine", name, why)
        self._refuse_masked_ranks("combine", active_rank_mask)
        if self._tokens is None:
            raise InvalidArgumentError("combine: nothing was dispatched since the last combine, must follow a dispatch")
        if runtime_max_tokens_per_rank != self._runtime_max:
            raise InvalidArgumentError(f"combine: runtime_max_tokens_per_rank is {runtime_max_tokens_per_rank}, "
                                       f"must be {self._runtime_max} as in the dispatch")
        result = like(self._native.combine(payload), payload)
        self._tokens = None
        if output is None:
            return result
        copy_into(output, result)
        return output

    @names_wrong_types
    def get_combine_payload_tensor_in_workspace(self, runtime_max_tokens_per_rank: int, hidden_size: int, dtype: Any) -> Any:
        """New memory [P, runtime_max_tokens_per_rank, hidden_size]: combine takes rows from any."""
        if self._native is None:
            raise InvalidArgumentError("get_combine_payload_tensor_in_workspace: nothing was dispatched, must follow a dispatch")
        shape = (self.ep_size, runtime_max_tokens_per_rank, hidden_size)
        if type(dtype).__module__ == "torch":
            import torch  # pylint: disable=import-outside-toplevel

            return torch.empty(shape, dtype=dtype, device=str(self.recv_counts.device))
        return Tensor(shape, dtype, self.recv_counts.device)

    def close(self) -> None:
        """Frees the windows; what was received stays. Every rank calls it, or none. An addition."""
        if self._native is not None:
            self._native.close()


def _is_dtype(array: Any, dtype: Any) -> bool:
    try:
        return bool(array.dtype == dtype)
    except TypeError:  # numpy knows no dtype of this name
        return False
