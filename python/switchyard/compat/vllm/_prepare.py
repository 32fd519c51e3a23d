# SPDX-License-Identifier: Apache-2.0
"""What vLLM's prepare/finalize classes have in common here: each is a PrepareFinalize of the library behind vLLM's methods."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy

from switchyard import InvalidArgumentError, Prepared, PrepareFinalize
from switchyard.compat._arrays import device_of, is_torch, like, names_wrong_types, require_counts
from switchyard.compat.vllm import _interface as interface
from switchyard.compat.vllm._manager import Activations, Need, manager_of
from switchyard.compat.vllm._weights import TopKWeightAndReduceContiguous, by_choice, kind_of

_MIN_TOKENS = 128


@dataclasses.dataclass
class Call:
    """A prepare whose finalize has not come. The receiver fills in the last two."""

    object: PrepareFinalize
    a1: Any
    num_tokens: int
    num_experts: int
    ids_dtype: Any
    is_weighted: bool
    prepared: Prepared | None = None
    weights: Any = None


class PrepareAndFinalize(interface.FusedMoEPrepareAndFinalizeModular):
    """The common part. Calls are collective over the ranks of the manager; what prepare returns is of the kind of `a1`, memory of the
    library, and valid until finalize of the same micro-batch.

    max_num_tokens is this library's own: an upper bound on the tokens of a rank, the same on every rank. 0: the ranks agree on one in
    each call, on the host, and windows grow with it.
    """

    backend = ""
    weighs_in_place = False
    returns_hook = False
    host_counts = False
    delegate_means = "contiguous"
    format = "Standard"
    ids_dtype: str | None = None
    is_reduced = True
    is_async = False
    num_micro_batches = 0

    def __init__(self, ranks: Any, num_dispatchers: int = 1, max_num_tokens: int = 0):
        # The bases of vLLM keep nothing that these classes read.
        require_counts(type(self).__name__, 0, max_num_tokens=max_num_tokens)
        self.manager = manager_of(ranks)
        if num_dispatchers not in (1, self.manager.world_size):
            raise InvalidArgumentError(f"{type(self).__name__}: num_dispatchers is {num_dispatchers}, must be {self.manager.world_size}, "
                                       "the ranks of the group")
        self.max_num_tokens = max_num_tokens
        self._windows = max_num_tokens
        self._activations: tuple[Any, Activations] | None = None
        self._found: tuple[Any, tuple, PrepareFinalize] | None = None
        self._calls: dict[int, Call] = {}

    # Properties of the class.

    @property
    def activation_format(self) -> Any:
        """FusedMoEActivationFormat of what prepare returns."""
        return interface.FusedMoEActivationFormat[self.format]

    def topk_indices_dtype(self) -> Any:
        """The dtype of topk_ids, torch's where torch is imported; None: i32 or i64."""
        return None if self.ids_dtype is None else interface.dtype_named(self.ids_dtype)

    def max_num_tokens_per_rank(self) -> int | None:
        """None: calls of any size."""
        return None

    def num_dispatchers(self) -> int:
        """The ranks."""
        return self.manager.world_size

    def output_is_reduced(self) -> bool:
        """Whether finalize sums over all ranks that hold parts of a token."""
        return self.is_reduced

    def supports_async(self) -> bool:
        """Whether prepare_async and finalize_async are there."""
        return self.is_async

    # Prepare.

    @names_wrong_types
    def prepare(self, a1: Any, topk_weights: Any, topk_ids: Any, num_experts: int, expert_map: Any | None, apply_router_weight_on_input: bool,
                quant_config: Any | None, defer_input_quant: bool = False) -> tuple:
        """Quantizes and dispatches. Collective.

        a1 [T, H] bf16, f16 or f32; topk_weights [T, K] f32; topk_ids [T, K]; num_experts: of all ranks. `expert_map` is not read:
        expert e lies on rank e // (num_experts / ranks). Returns (activations, scales, ExpertTokensMetadata, topk_ids, topk_weights).
        """
        call, arguments = self._begin(a1, topk_weights, topk_ids, num_experts, expert_map, apply_router_weight_on_input, quant_config,
                                      defer_input_quant)
        prepared = call.object.prepare(a1, topk_ids, topk_weights, **arguments)
        self._calls[arguments["micro_batch"]] = call
        return self._receive(call, prepared)

    def _send(self, *given: Any) -> Any:
        call, arguments = self._begin(*given)
        a1, topk_weights, topk_ids = given[:3]
        pending = call.object.prepare_async(a1, topk_ids, topk_weights, copies_inputs=True, **arguments)
        self._calls[arguments["micro_batch"]] = call
        return self._split("prepare_async", pending, lambda: self._receive(call, pending.wait()))

    def _begin(self, a1: Any, topk_weights: Any, topk_ids: Any, num_experts: int, expert_map: Any | None, apply_router_weight_on_input: bool,
               quant_config: Any | None, defer_input_quant: bool) -> tuple[Call, dict[str, Any]]:
        del topk_weights, expert_map  # the library maps experts to ranks by itself
        largest = self._largest_num_tokens(a1.shape[0])
        facts = (num_experts, a1.shape[1], a1.dtype, getattr(a1, "device", None), topk_ids.shape[1], topk_ids.dtype, defer_input_quant,
                 self._windows)
        # Calls of a layer are alike: what depends on these facts is found once.
        if self._found is None or self._found[0] is not quant_config or self._found[1] != facts:
            self._check(topk_ids, num_experts)
            need = self._need(a1, topk_ids, num_experts, self._read(quant_config), defer_input_quant)
            self._found = (quant_config, facts, self.manager.object_for(need))
        call = Call(self._found[2], a1, a1.shape[0], num_experts, topk_ids.dtype, apply_router_weight_on_input)
        return call, {"micro_batch": interface.current_micro_batch(), "apply_router_weight_on_input": apply_router_weight_on_input,
                      "weighs_in_place": apply_router_weight_on_input and self.weighs_in_place, "max_tokens": largest,
                      "host_counts": self.host_counts}

    def _check(self, topk_ids: Any, num_experts: int) -> None:
        """The constructor's promises; classes that were told where their experts are check that too."""
        del num_experts
        dtype = interface.name_of_dtype(topk_ids.dtype)
        if self.ids_dtype is not None and dtype != self.ids_dtype:
            raise InvalidArgumentError(f"{type(self).__name__}: topk_ids is {dtype}, must be {self.ids_dtype}, its topk_indices_dtype")

    def _read(self, quant_config: Any) -> Activations:
        if self._activations is None or self._activations[0] is not quant_config:
            self._activations = (quant_config, Activations.of(quant_config))
        return self._activations[1]

    def _largest_num_tokens(self, num_tokens: int) -> int:
        """The largest number of tokens of a rank, 0 where only the upper bound is known; windows grow to it."""
        sizes = interface.local_sizes()
        largest = max(sizes) if sizes else 0
        if not self.max_num_tokens:
            largest = largest or self.manager.largest(num_tokens)
            if largest > self._windows:
                self._windows = max(_MIN_TOKENS, 1 << (largest - 1).bit_length())
        return largest

    def _need(self, a1: Any, topk_ids: Any, num_experts: int, activations: Activations, is_deferred: bool) -> Need:
        """The exchange for a call."""
        return Need(self.backend, num_experts, topk_ids.shape[1], a1.shape[1], self._windows or _MIN_TOKENS,
                    interface.name_of_dtype(a1.dtype), str(device_of(a1)), Activations() if is_deferred else activations,
                    num_micro_batches=self.num_micro_batches)

    # What prepare returns.

    def _receive(self, call: Call, prepared: Prepared) -> tuple:
        call.prepared = prepared
        rows = like(prepared.experts.rows, call.a1)
        ids, call.weights = like(prepared.topk_ids, call.a1), like(prepared.topk_weights, call.a1)
        if ids is not None and ids.dtype != call.ids_dtype:
            ids = ids.to(call.ids_dtype) if is_torch(ids) else ids.astype(call.ids_dtype)
        return rows, self._scales(call), self._metadata(call), ids, call.weights

    def _scales(self, call: Call) -> Any:
        """Scales [M, S]; those in tiles of 128 x 4 as the matrix that vLLM's kernels take."""
        assert call.prepared is not None
        scales = call.prepared.experts.scales
        if scales is not None and call.prepared.experts.scale_layout == "swizzled" and len(scales.shape) == 5:
            return like(scales, call.a1).reshape(scales.shape[0] * 128, scales.shape[1] * 4)
        return like(scales, call.a1)

    def _metadata(self, call: Call) -> Any:
        assert call.prepared is not None
        counts = call.prepared.expert_num_tokens
        if counts is None:
            return None
        return interface.ExpertTokensMetadata(expert_num_tokens=like(counts, call.a1),
                                              expert_num_tokens_cpu=like(call.prepared.expert_num_tokens_cpu, call.a1))

    # Finalize.

    @names_wrong_types
    def finalize(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool,
                 weight_and_reduce_impl: Any) -> None:
        """Writes `output` [T, H], the weighted sums of this rank's tokens. Collective.

        fused_expert_output: what the experts made of the rows of prepare, [L, C, H], [M, H], [M, K, H] or [M * K, H].
        topk_weights, topk_ids: those that prepare returned, or this rank's own where it returned none.
        """
        call, rows, arguments = self._end(output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input,
                                          weight_and_reduce_impl)
        call.object.finalize(rows, output, **arguments)
        del self._calls[arguments["micro_batch"]]

    def _return(self, output: Any, *given: Any) -> Any:
        interface.run_pending_receive()
        call, rows, arguments = self._end(output, *given)
        pending = call.object.finalize_async(rows, output, copies_inputs=True, **arguments)
        del self._calls[arguments["micro_batch"]]
        return self._split("finalize_async", pending, lambda: _nothing(pending.wait()))

    def _end(self, output: Any, rows: Any, topk_weights: Any, topk_ids: Any, apply_router_weight_on_input: bool,
             impl: Any) -> tuple[Call, Any, dict[str, Any]]:
        micro_batch = interface.current_micro_batch()
        call = self._calls.get(micro_batch)
        name = type(self).__name__
        if call is None or call.prepared is None:
            raise InvalidArgumentError(f"{name}: finalize of micro-batch {micro_batch} follows no prepare, must follow one whose result "
                                       "was received")
        if tuple(output.shape) != (call.num_tokens, call.object.hidden):
            raise InvalidArgumentError(f"{name}: output is {tuple(output.shape)}, must be {(call.num_tokens, call.object.hidden)}, as a1")
        if bool(apply_router_weight_on_input) != bool(call.is_weighted):
            raise InvalidArgumentError(f"{name}: apply_router_weight_on_input is {apply_router_weight_on_input}, must "
                                       f"be {call.is_weighted}, as in prepare")
        rows, kind = self._weigh(call, rows, topk_weights, topk_ids, impl)
        arguments = {"micro_batch": micro_batch, "weight_and_reduce": kind}
        if kind != "no_op" and topk_weights is not call.weights and topk_weights is not None:
            arguments["topk_weights"] = topk_weights
        if kind == "contiguous":
            arguments["reduced"] = empty_like(rows, (call.prepared.experts.rows.shape[0], call.object.hidden))
        return call, rows, arguments

    def _weigh(self, call: Call, rows: Any, topk_weights: Any, topk_ids: Any, impl: Any) -> tuple[Any, str]:
        """Rows as the library takes them, and who weighs and sums them."""
        kind = kind_of(impl)
        if kind == "delegate":
            kind = self.delegate_means
        if kind in ("no_op", "delegate"):
            return rows, kind
        if kind == "contiguous":
            return by_choice(rows, topk_ids), kind
        return impl.apply(None, rows, topk_weights, topk_ids, call.is_weighted), "no_op"

    def _split(self, function: str, pending: Any, receive: Callable[[], Any]) -> Any:
        """The receiver of a split call, or (hook, receiver): the hook once, before the receiver."""
        if not self.returns_hook:
            return receive
        state = {"is_received": False}

        def hook() -> None:
            if state["is_received"]:
                raise InvalidArgumentError(f"{function}: the hook was called twice, must be called once")
            state["is_received"] = True
            pending.hook()

        def receiver() -> Any:
            if not state["is_received"]:
                raise InvalidArgumentError(f"{function}: the receiver was called before the hook, must be called after it")
            return receive()

        return hook, receiver


class AsyncPrepareAndFinalize(PrepareAndFinalize):
    """With the split calls."""

    is_async = True

    @names_wrong_types
    def prepare_async(self, a1: Any, topk_weights: Any, topk_ids: Any, num_experts: int, expert_map: Any | None,
                      apply_router_weight_on_input: bool, quant_config: Any | None, defer_input_quant: bool = False) -> Any:
        """prepare in two parts: sends, and returns what receives. The arrays may be overwritten once it has returned."""
        return self._send(a1, topk_weights, topk_ids, num_experts, expert_map, apply_router_weight_on_input, quant_config,
                          defer_input_quant)

    @names_wrong_types
    def finalize_async(self, output: Any, fused_expert_output: Any, topk_weights: Any, topk_ids: Any,
                       apply_router_weight_on_input: bool, weight_and_reduce_impl: Any) -> Any:
        """finalize in two parts: sends, and returns what receives and writes `output`. The rows may be overwritten once it has
        returned, `topk_weights` not before the rest has been received."""
        return self._return(output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input, weight_and_reduce_impl)


def empty_like(sample: Any, shape: tuple[int, ...]) -> Any:
    """Memory of another shape, of the kind, dtype and device of an array; torch's comes from its allocator, as CUDA graphs need."""
    if is_torch(sample):
        return sample.new_empty(shape)
    return numpy.empty(shape, sample.dtype)


def contiguous_sum(rows: Any, topk_weights: Any, topk_ids: Any, is_weighted: bool, output: Any) -> Any:
    """What TopKWeightAndReduceContiguous does, into `output`."""
    return TopKWeightAndReduceContiguous().apply(output, rows, topk_weights, topk_ids, is_weighted)


def _nothing(_: Any) -> None:
    return None
