# SPDX-License-Identifier: Apache-2.0
"""The classes of vLLM's fused_moe/topk_weight_and_reduce.py, over switchyard.weight_and_reduce."""
from __future__ import annotations

import functools
from typing import Any

import switchyard
from switchyard import InvalidArgumentError
from switchyard.compat._arrays import like
from switchyard.compat.vllm._interface import TopKWeightAndReduce


class _ByType(TopKWeightAndReduce):
    """Objects of one class are equal."""

    def __eq__(self, other: object) -> bool:
        return kind_of(other) == kind_of(self)

    def __hash__(self) -> int:
        return hash(kind_of(self))

    def apply(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool) -> Any:
        raise NotImplementedError


class TopKWeightAndReduceDelegate(_ByType):
    """The prepare/finalize object chooses."""

    def apply(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool) -> Any:
        """An error: whoever calls this should have chosen."""
        raise InvalidArgumentError("TopKWeightAndReduceDelegate: apply was called, must not be: the prepare/finalize object chooses a "
                                   "class")


class TopKWeightAndReduceNoOP(_ByType):
    """Rows are weighted and summed already: [T, H]."""

    def apply(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool) -> Any:
        """Returns the rows, or copies them to `output`."""
        if output is None or output is fused_expert_output:
            return fused_expert_output
        if tuple(output.shape) != tuple(fused_expert_output.shape):
            raise InvalidArgumentError(f"TopKWeightAndReduceNoOP: output is {tuple(output.shape)}, must be "
                                       f"{tuple(fused_expert_output.shape)}, as the rows")
        output[...] = fused_expert_output
        return output


class TopKWeightAndReduceContiguous(_ByType):
    """Rows [T, K, H] or [T * K, H]: each is multiplied by its weight in place and rounded, then summed in f32, k ascending."""

    def apply(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool) -> Any:
        """Writes `output` [T, H], or new memory."""
        rows = by_choice(fused_expert_output, topk_ids)
        made = switchyard.weight_and_reduce(rows, topk_weights, topk_ids, kind="contiguous", out=output,
                                            apply_router_weight_on_input=apply_router_weight_on_input)
        return made if output is not None else like(made, fused_expert_output)


class TopKWeightAndReduceNaiveBatched(_ByType):
    """Rows [L, C, H]: the tokens of each of this rank's experts, ascending, fill its first rows."""

    def __init__(self, rank: int):
        self.rank = rank

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and getattr(other, "rank", None) == self.rank

    def __hash__(self) -> int:
        return hash((kind_of(self), self.rank))

    def apply(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool) -> Any:
        """Writes `output` [T, H], or new memory: f32 sums, experts ascending, rounded once."""
        made = switchyard.weight_and_reduce(fused_expert_output, topk_weights, topk_ids, kind="naive_batched", rank=self.rank, out=output,
                                            apply_router_weight_on_input=apply_router_weight_on_input)
        return made if output is not None else like(made, fused_expert_output)


_KINDS = {"TopKWeightAndReduceDelegate": "delegate", "TopKWeightAndReduceNoOP": "no_op", "TopKWeightAndReduceContiguous": "contiguous",
          "TopKWeightAndReduceNaiveBatched": "naive_batched"}


def kind_of(impl: Any) -> str | None:
    """"delegate", "no_op", "contiguous" or "naive_batched" for an object of ours or of vLLM's; None for a class of the caller."""
    return _kind_of(type(impl))


@functools.cache
def _kind_of(policy: type) -> str | None:
    return next((_KINDS[base.__name__] for base in policy.__mro__ if base.__name__ in _KINDS), None)


def by_choice(rows: Any, topk_ids: Any) -> Any:
    """[T, K, H] over the memory of [T * K, H]."""
    num_tokens, num_topk = topk_ids.shape
    if len(rows.shape) == 2 and rows.shape[0] == num_tokens * num_topk:
        return rows.reshape(num_tokens, num_topk, rows.shape[1])
    return rows
