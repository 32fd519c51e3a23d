# SPDX-License-Identifier: Apache-2.0
"""vLLM's reference for the batched format: BatchedPrepareAndFinalize, which moves nothing between ranks and waits for counts."""
from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy

import switchyard
from switchyard import ArgumentTypeError, InvalidArgumentError, NotSupportedError, Tensor
from switchyard.compat._arrays import device_of, is_torch, like, names_wrong_types, require_counts
from switchyard.compat.vllm import _interface as interface
from switchyard.compat.vllm._manager import Activations
from switchyard.compat.vllm._weights import TopKWeightAndReduceNaiveBatched, kind_of


class BatchedPrepareAndFinalize(interface.FusedMoEPrepareAndFinalizeModular):
    """prepare returns this rank's tokens as [num_local_experts, max_num_tokens, H]: those of each expert, ascending, fill its first
    rows, and the others are 0. finalize sums what this rank's experts made of this rank's tokens; the caller adds up the ranks."""

    def __init__(self, max_num_tokens: int, num_local_experts: int, num_dispatchers: int, rank: int):
        require_counts("BatchedPrepareAndFinalize", 1, max_num_tokens=max_num_tokens, num_dispatchers=num_dispatchers)
        require_counts("BatchedPrepareAndFinalize", 0, num_local_experts=num_local_experts, rank=rank)
        # The bases of vLLM keep nothing that this class reads.
        self.max_num_tokens, self.num_local_experts, self.num_dispatchers_, self.rank = (
            max_num_tokens, num_local_experts, num_dispatchers, rank)

    @property
    def activation_format(self) -> Any:
        """BatchedExperts."""
        return interface.FusedMoEActivationFormat.BatchedExperts

    def max_num_tokens_per_rank(self) -> int | None:
        """max_num_tokens, the rows of an expert."""
        return self.max_num_tokens

    def topk_indices_dtype(self) -> Any:
        """None: i32 or i64."""
        return None

    def num_dispatchers(self) -> int:
        """As in the constructor."""
        return self.num_dispatchers_

    def output_is_reduced(self) -> bool:
        """False."""
        return False

    @names_wrong_types
    def prepare(self, a1: Any, topk_weights: Any, topk_ids: Any, num_experts: int, expert_map: Any | None, apply_router_weight_on_input: bool,
                quant_config: Any | None, defer_input_quant: bool = False) -> tuple:
        """Returns (activations, scales f32 of batched_scale_shape, ExpertTokensMetadata with counts i32 [num_experts], None, None).
        Each expert's rows are quantized alone."""
        del expert_map
        if apply_router_weight_on_input:
            _weigh_in_place(a1, topk_weights)
        scheme, static = self._scheme(quant_config, defer_input_quant)
        static_scale = None
        if static is not None:
            static_scale = _zeros(a1, (1,), "f32")
            static_scale[0] = static
        shape = (self.num_local_experts, self.max_num_tokens, a1.shape[1])
        q_dtype = interface.name_of_dtype(a1.dtype) if scheme is None else switchyard.QuantScheme(scheme).dtype
        rows = _zeros(a1, shape, q_dtype)
        scales = None if scheme is None else _zeros(a1, quant_config.batched_scale_shape(*shape), "f32")
        counts = _zeros(a1, (num_experts,), "i32")
        for local in range(self.num_local_experts):
            here = (topk_ids == self.rank * self.num_local_experts + local).any(1)
            count = int(here.sum())
            if count > self.max_num_tokens:
                raise InvalidArgumentError(f"BatchedPrepareAndFinalize: {count} tokens chose local expert {local}, must be at most "
                                           f"{self.max_num_tokens}, the max_num_tokens of the constructor")
            counts[local] = count
            if count and scheme is None:
                rows[local, :count] = a1[here]
            elif count:
                q, made = switchyard.quantize(a1[here], scheme, static_scale=static_scale)
                rows[local, :count] = like(q, a1)
                made = like(made, a1)
                scales[local, :made.shape[0]] = made.reshape(made.shape[0], -1)
        metadata = interface.ExpertTokensMetadata(expert_num_tokens=counts, expert_num_tokens_cpu=None)
        return rows, scales, metadata, None, None

    @names_wrong_types
    def finalize(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool,
                 weight_and_reduce_impl: Any) -> None:
        """Writes `output` [T, H]; TopKWeightAndReduceDelegate means TopKWeightAndReduceNaiveBatched(rank)."""
        if output is None:  # which the reductions take for new memory
            raise ArgumentTypeError("finalize: output is None, must be given")
        impl = weight_and_reduce_impl
        if kind_of(impl) == "delegate":
            impl = TopKWeightAndReduceNaiveBatched(self.rank)
        impl.apply(output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input)

    @staticmethod
    def _scheme(quant_config: Any | None, is_deferred: bool) -> tuple[str | None, float | None]:
        activations = Activations() if is_deferred else Activations.of(quant_config)
        if activations.dtype is None:
            return None, None
        if activations.dtype not in ("fp8_e4m3", "int8"):
            raise NotSupportedError(f"BatchedPrepareAndFinalize: quant_dtype is {activations.dtype}, must be fp8_e4m3 or int8, whose "
                                    "scales are f32")
        given = dict(activations.scales).get("a1_scale")
        if given is not None and (len(given) != 1 or activations.block or activations.per_act_token):
            raise NotSupportedError(f"BatchedPrepareAndFinalize: a1_scale has {len(given)} elements, must be absent or one for the tensor")
        if given is not None and not 0 < given[0] < math.inf:
            raise InvalidArgumentError(f"BatchedPrepareAndFinalize: a1_scale is {given[0]}, must be a positive number")
        scheme = dataclasses.replace(activations, scales=()).config().activation_scheme.name
        return scheme, None if given is None else given[0]


def _weigh_in_place(a1: Any, topk_weights: Any) -> None:
    if topk_weights.shape[1] != 1:
        raise InvalidArgumentError(f"BatchedPrepareAndFinalize: apply_router_weight_on_input is set with {topk_weights.shape[1]} experts "
                                   "per token, must be one")
    a1 *= topk_weights.to(a1.dtype) if is_torch(topk_weights) else topk_weights.astype(a1.dtype)


def _zeros(sample: Any, shape: tuple[int, ...], dtype: str) -> Any:
    made = like(Tensor(shape, dtype, device_of(sample)), sample)
    if is_torch(made):
        return made.zero_()
    made.view(numpy.uint8)[...] = 0
    return made
