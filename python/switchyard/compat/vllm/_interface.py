# SPDX-License-Identifier: Apache-2.0
"""The abstract classes of vLLM's fused_moe/modular_kernel.py: vLLM's own where it is installed, so that its engine
accepts what derives from them, and otherwise classes of the same names with the same methods."""
from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import importlib.util
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from switchyard import InvalidArgumentError, Tensor

HAS_VLLM = importlib.util.find_spec("vllm") is not None
_local = threading.local()


class _ActivationFormat(enum.Enum):
    """Which experts fit: rows [M, H], or [L, C, H] with counts."""

    Standard = ("standard",)
    BatchedExperts = ("batched_experts",)


@dataclasses.dataclass
class _ExpertTokensMetadata:
    """Rows of each local expert, i32 [L], where the rows are and in host memory."""

    expert_num_tokens: Any
    expert_num_tokens_cpu: Any
    psum_recv_per_rank: Any = None

    @staticmethod
    def make_from_list(expert_num_tokens_list: list[int], device: Any) -> _ExpertTokensMetadata:
        """Both tensors from a list. Those of torch where it is imported: the host's is pinned for a GPU, and the copy does not
        wait. Otherwise numpy arrays, for the CPU."""
        torch = sys.modules.get("torch")
        if torch is None:
            if str(device) != "cpu":
                raise InvalidArgumentError(f"make_from_list: device is {device}, must be cpu without torch; import torch first")
            counts = numpy.array(expert_num_tokens_list, numpy.int32)
            return ExpertTokensMetadata(expert_num_tokens=counts, expert_num_tokens_cpu=counts)
        counts = torch.tensor(expert_num_tokens_list, dtype=torch.int32, pin_memory=torch.device(device).type == "cuda")
        return ExpertTokensMetadata(expert_num_tokens=counts.to(device, non_blocking=True), expert_num_tokens_cpu=counts)


class _TopKWeightAndReduce(ABC):
    """How the rows of experts become one row per token."""

    @abstractmethod
    def apply(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool) -> Any:
        """Weighs and sums into `output` [T, H], or into new memory where it is None."""


class _PrepareAndFinalize(ABC):
    """Properties of a prepare/finalize object."""

    def post_init_setup(self, fused_experts: Any) -> None:
        """Called once, with the experts, before the first prepare."""

    @property
    @abstractmethod
    def activation_format(self) -> Any:
        """What prepare hands to the experts; must be the experts' own."""

    @abstractmethod
    def topk_indices_dtype(self) -> Any:
        """The dtype that topk_ids must have; None: i32 or i64."""

    @abstractmethod
    def max_num_tokens_per_rank(self) -> int | None:
        """Upper bound on the tokens of a rank; None: none."""

    @abstractmethod
    def num_dispatchers(self) -> int:
        """Ranks that may send to this one."""

    @abstractmethod
    def output_is_reduced(self) -> bool:
        """Whether finalize sums over all ranks that hold parts of a token."""

    def supports_async(self) -> bool:
        """Whether prepare_async and finalize_async are there."""
        return False


class _PrepareAndFinalizeModular(_PrepareAndFinalize):
    """Before the experts: quantize and dispatch. After them: combine, weigh and sum."""

    @abstractmethod
    def prepare(self, a1: Any, topk_weights: Any, topk_ids: Any, num_experts: int, expert_map: Any, apply_router_weight_on_input: bool,
                quant_config: Any, defer_input_quant: bool) -> tuple:
        """Returns (activations, scales, ExpertTokensMetadata, topk_ids, topk_weights); all but the first may be None."""

    def prepare_async(self, a1: Any, topk_weights: Any, topk_ids: Any, num_experts: int, expert_map: Any,
                      apply_router_weight_on_input: bool, quant_config: Any, defer_input_quant: bool) -> Any:
        """Sends. Returns a receiver, or (hook, receiver); receiver() returns what prepare returns."""
        raise NotImplementedError(f"{type(self).__name__}: prepare_async is not there; supports_async() is False")

    @abstractmethod
    def finalize(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool,
                 weight_and_reduce_impl: Any) -> None:
        """Writes the sums of this rank's tokens to `output` [T, H]."""

    def finalize_async(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any,
                       apply_router_weight_on_input: bool, weight_and_reduce_impl: Any) -> Any:
        """Sends. Returns a receiver, or (hook, receiver); `output` is written once the receiver has returned."""
        raise NotImplementedError(f"{type(self).__name__}: finalize_async is not there; supports_async() is False")


if HAS_VLLM:
    from vllm.model_executor.layers.fused_moe.modular_kernel import (  # pylint: disable=import-error
        ExpertTokensMetadata,
        FusedMoEActivationFormat,
        FusedMoEPrepareAndFinalize,
        FusedMoEPrepareAndFinalizeModular,
        TopKWeightAndReduce,
    )
else:
    FusedMoEActivationFormat, ExpertTokensMetadata = _ActivationFormat, _ExpertTokensMetadata
    TopKWeightAndReduce = _TopKWeightAndReduce
    FusedMoEPrepareAndFinalize, FusedMoEPrepareAndFinalizeModular = _PrepareAndFinalize, _PrepareAndFinalizeModular
    for _name, _class in {"FusedMoEActivationFormat": _ActivationFormat, "ExpertTokensMetadata": _ExpertTokensMetadata,
                          "TopKWeightAndReduce": _TopKWeightAndReduce, "FusedMoEPrepareAndFinalize": _PrepareAndFinalize,
                          "FusedMoEPrepareAndFinalizeModular": _PrepareAndFinalizeModular}.items():
        _class.__name__ = _class.__qualname__ = _name

PrepareResultType = tuple
ReceiverType = Callable[[], tuple]


def dtype_named(name: str) -> Any:
    """A dtype by this library's name: torch's where torch is imported, else numpy's."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return getattr(torch, {"i32": "int32", "i64": "int64", "i8": "int8", "e4m3": "float8_e4m3fn"}[name])
    return Tensor((0,), name).numpy().dtype


@functools.cache
def name_of_dtype(dtype: Any) -> str:
    """This library's name of a dtype of torch, numpy or ml_dtypes."""
    return Tensor((0,), dtype).dtype


@contextlib.contextmanager
def use_micro_batch(number: int) -> Iterator[None]:
    """Calls of this thread inside belong to the micro-batch `number`. Elsewhere vLLM's micro-batches count where it is installed, and
    otherwise the number is 0."""
    before, _local.micro_batch = getattr(_local, "micro_batch", None), number
    try:
        yield
    finally:
        _local.micro_batch = before


@contextlib.contextmanager
def use_local_sizes(sizes: list[int]) -> Iterator[None]:
    """The tokens of every rank, for calls of this thread inside: what vLLM's DPMetadata knows. Without them shapes follow the upper
    bound, or the number on which the ranks agree in each call."""
    before, _local.sizes = getattr(_local, "sizes", None), sizes
    try:
        yield
    finally:
        _local.sizes = before


def current_micro_batch() -> int:
    """The micro-batch of a call."""
    number = getattr(_local, "micro_batch", None)
    if number is None and HAS_VLLM:
        from vllm.v1.worker.ubatching import dbo_current_ubatch_id  # pylint: disable=import-error,import-outside-toplevel

        return dbo_current_ubatch_id()
    return number or 0


def run_pending_receive() -> None:
    """Receives what another micro-batch of vLLM left to this one."""
    if HAS_VLLM:
        from vllm.v1.worker.ubatching import dbo_maybe_run_recv_hook  # pylint: disable=import-error,import-outside-toplevel

        dbo_maybe_run_recv_hook()


def local_sizes() -> list[int] | None:
    """The tokens of every rank in this step, where the caller has said so."""
    if getattr(_local, "sizes", None) is not None:
        return _local.sizes
    if HAS_VLLM:
        from vllm import forward_context  # pylint: disable=import-error,import-outside-toplevel

        if forward_context.is_forward_context_available():
            return _sizes_of(forward_context.get_forward_context().dp_metadata)
    return None


def _sizes_of(metadata: Any) -> list[int] | None:
    if metadata is None:
        return None
    # Without the sizes of a scope those of the data-parallel ranks are an upper bound.
    return metadata.local_sizes or metadata.num_tokens_across_dp_cpu.tolist()
