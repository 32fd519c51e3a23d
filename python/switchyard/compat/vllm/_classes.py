# SPDX-License-Identifier: Apache-2.0
"""The classes of vLLM's fused_moe/prepare_finalize/, with its names and constructors."""
from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy

from switchyard import InvalidArgumentError
from switchyard.compat._arrays import device_of, is_torch, like, permuted, require_counts
from switchyard.compat.vllm import _interface as interface
from switchyard.compat.vllm._manager import Activations, All2AllManager, Need
from switchyard.compat.vllm._prepare import AsyncPrepareAndFinalize, Call, PrepareAndFinalize, contiguous_sum, empty_like
from switchyard.compat.vllm._weights import by_choice, kind_of

DEEPEP_QUANT_BLOCK_SIZE = 128
DEEPEP_QUANT_BLOCK_SHAPE = [DEEPEP_QUANT_BLOCK_SIZE, DEEPEP_QUANT_BLOCK_SIZE]


class DeepEPLLPrepareAndFinalize(AsyncPrepareAndFinalize):
    """Low latency: prepare returns [L, C, H] and counts, C = ranks * max_tokens_per_rank. Weights are applied in combine.

    buffer: All2AllManager, deep_ep.Buffer of switchyard.compat, or the ranks. use_fp8_dispatch: rows travel as DeepEP's fp8 blocks,
    whatever the experts want. global_to_physical [E]: physical id of each expert; the other two tables are not needed.
    """

    SUPPORTED_HIDDEN_SIZES = [2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192]

    backend = "deepep_low_latency"
    returns_hook = True
    delegate_means = "delegate"
    format = "BatchedExperts"
    ids_dtype = "i64"

    def __init__(self, buffer: Any, max_tokens_per_rank: int, num_dispatchers: int, use_fp8_dispatch: bool = False,
                 global_to_physical: Any = None, physical_to_global: Any = None, local_expert_global_ids: Any = None):
        super().__init__(buffer, num_dispatchers, max_tokens_per_rank)
        self.buffer, self.use_fp8_dispatch = buffer, use_fp8_dispatch
        self.global_to_physical, self.physical_to_global = global_to_physical, physical_to_global
        self.local_expert_global_ids = local_expert_global_ids
        self.use_ue8m0_dispatch = False
        self._physical = () if global_to_physical is None else tuple(int(number) for number in global_to_physical.tolist())
        self._nvfp4_dispatch = os.environ.get("VLLM_DEEPEPLL_NVFP4_DISPATCH", "0") == "1"

    @staticmethod
    def maybe_roundup_layer_hidden_size(hidden_size: int) -> int:
        """The smallest hidden size of DeepEP's kernels that is not below. Calls here take any size."""
        sizes = DeepEPLLPrepareAndFinalize.SUPPORTED_HIDDEN_SIZES
        if hidden_size > sizes[-1]:
            raise InvalidArgumentError(f"maybe_roundup_layer_hidden_size: hidden_size is {hidden_size}, must be at most {sizes[-1]}")
        return next(size for size in sizes if size >= hidden_size)

    def post_init_setup(self, fused_experts: Any) -> None:
        """Sends packed UE8M0 scales to experts that take them."""
        self.use_ue8m0_dispatch = self.use_fp8_dispatch and fused_experts.supports_packed_ue8m0_act_scales()
        self._found = None

    def max_num_tokens_per_rank(self) -> int | None:
        """max_tokens_per_rank."""
        return self.max_num_tokens

    def _largest_num_tokens(self, num_tokens: int) -> int:
        return 0  # C follows the upper bound

    def _need(self, a1: Any, topk_ids: Any, num_experts: int, activations: Activations, is_deferred: bool) -> Need:
        backend, wire = self.backend, None
        if self.use_fp8_dispatch and not activations.is_deepep_block:
            wire = "fp8_block_deepep"
        elif not self.use_fp8_dispatch and activations.is_deepep_block and not is_deferred:
            backend, wire = "pplx", "none"  # vLLM's rule, on arrival
        if is_deferred:
            activations = Activations()
        return Need(backend, num_experts, topk_ids.shape[1], a1.shape[1], self.max_num_tokens, interface.name_of_dtype(a1.dtype),
                    str(device_of(a1)), activations, nvfp4_dispatch=self._nvfp4_dispatch, wire_scheme=wire,
                    packs_scales=self.use_ue8m0_dispatch and not is_deferred, global_to_physical=self._physical)

    def _scales(self, call: Call) -> Any:
        assert call.prepared is not None
        scales = call.prepared.experts.scales
        if call.prepared.experts.scale_layout == "swizzled":
            return permuted(like(scales, call.a1), (3, 4, 1, 5, 2, 0))  # DeepEP's view [32, 4, C / 128, 4, H / 64, L]
        if scales is None or len(scales.shape) != 1:
            return like(scales, call.a1)
        one = like(scales, call.a1).reshape(1, 1, 1)  # one for all rows, as vLLM's batched kernels take it
        shape = (call.object.num_local_experts, 1, 1)
        return one.expand(shape) if is_torch(one) else numpy.broadcast_to(one, shape)

    def _metadata(self, call: Call) -> Any:
        assert call.prepared is not None
        return interface.ExpertTokensMetadata(expert_num_tokens=like(call.prepared.expert_num_tokens, call.a1), expert_num_tokens_cpu=None)

    def _weigh(self, call: Call, rows: Any, topk_weights: Any, topk_ids: Any, impl: Any) -> tuple[Any, str]:
        if kind_of(impl) != "delegate":
            raise InvalidArgumentError(f"{type(self).__name__}: weight_and_reduce_impl is {type(impl).__name__}, must be "
                                       "TopKWeightAndReduceDelegate: combine applies the weights")
        return rows, "delegate"


class NixlEPPrepareAndFinalize(DeepEPLLPrepareAndFinalize):
    """The low-latency class under NIXL-EP's name. There are no rank masks."""

    backend = "nixl_ep"
    ids_dtype = None


class DeepEPHTPrepareAndFinalize(AsyncPrepareAndFinalize):
    """High throughput: one row per token that has an expert here. Ids of other ranks' experts become one that expert_map sends to -1."""

    backend = "deepep_high_throughput"
    host_counts = True
    ids_dtype = "i64"

    def __init__(self, buffer: Any, num_dispatchers: int, dp_size: int, rank_expert_offset: int, *, max_num_tokens: int = 0):
        super().__init__(buffer, num_dispatchers, max_num_tokens)
        require_counts(type(self).__name__, 0, dp_size=dp_size, rank_expert_offset=rank_expert_offset)
        self.buffer, self.dp_size, self.rank_expert_offset = buffer, dp_size, rank_expert_offset

    @staticmethod
    def maybe_roundup_layer_hidden_size(hidden_size: int, dtype: Any) -> int:
        """The smallest hidden size not below whose rows are a multiple of 512 bytes. Calls here take any size."""
        return -(-hidden_size * dtype.itemsize // 512) * 512 // dtype.itemsize

    def _check(self, topk_ids: Any, num_experts: int) -> None:
        super()._check(topk_ids, num_experts)
        _check_offset(self, num_experts)

    def _receive(self, call: Call, prepared: Any) -> tuple:
        rows, scales, _, ids, weights = super()._receive(call, prepared)
        counts = prepared.host.rows_per_expert
        num_rows = prepared.host.num_rows
        metadata = interface.ExpertTokensMetadata(
            expert_num_tokens=like(prepared.experts.num_rows, call.a1), expert_num_tokens_cpu=_host_counts(counts, call.a1))
        ids = ids[:num_rows].clone() if is_torch(ids) else ids[:num_rows].copy()
        ids[ids < 0] = call.num_experts - 1 if self.rank_expert_offset == 0 else 0
        if scales is not None and prepared.experts.scale_layout == "row_major" and scales.shape[0] == rows.shape[0]:
            scales = scales[:num_rows]
        call.weights = weights[:num_rows]
        return rows[:num_rows], scales, metadata, ids, call.weights

    def _weigh(self, call: Call, rows: Any, topk_weights: Any, topk_ids: Any, impl: Any) -> tuple[Any, str]:
        """Rows go where combine reads them: the receive side has room for more than came."""
        assert call.prepared is not None
        all_rows, hidden = call.prepared.experts.rows.shape[0], call.object.hidden
        if kind_of(impl) not in ("delegate", "contiguous", "no_op"):
            rows, impl = impl.apply(None, rows, topk_weights, topk_ids, call.is_weighted), None
        is_final = impl is None or kind_of(impl) == "no_op"
        if is_final and rows.shape[0] == all_rows:
            return rows, "no_op"
        place = empty_like(rows, (all_rows, hidden))
        num_rows = topk_ids.shape[0]
        if is_final:
            place[:num_rows] = rows
        elif num_rows:
            contiguous_sum(by_choice(rows, topk_ids), topk_weights, topk_ids, call.is_weighted, place[:num_rows])
        return place, "no_op"


class DeepEPV2PrepareAndFinalize(AsyncPrepareAndFinalize):
    """ElasticBuffer. use_cudagraph: one row per token in fixed shapes, ids of this rank's experts and -1. Otherwise one row per token
    and expert, experts one after another, with counts; its shapes need the counts on the host."""

    backend = "deepep_v2"
    ids_dtype = "i64"

    def __init__(self, buffer: Any, num_dispatchers: int, dp_size: int, rank_expert_offset: int, num_experts: int, num_topk: int,
                 use_fp8_dispatch: bool = False, use_cudagraph: bool = False, sp_size: int = 1, *, max_num_tokens: int = 0):
        super().__init__(buffer, num_dispatchers, max_num_tokens)
        require_counts(type(self).__name__, 0, dp_size=dp_size, rank_expert_offset=rank_expert_offset, sp_size=sp_size)
        require_counts(type(self).__name__, 1, num_experts=num_experts, num_topk=num_topk)
        self.buffer, self.dp_size, self.rank_expert_offset, self.sp_size = buffer, dp_size, rank_expert_offset, sp_size
        self.num_experts, self.num_topk = num_experts, num_topk
        self.use_fp8_dispatch, self.use_cudagraph = use_fp8_dispatch, use_cudagraph
        self.host_counts = not use_cudagraph

    maybe_roundup_layer_hidden_size = staticmethod(DeepEPHTPrepareAndFinalize.maybe_roundup_layer_hidden_size)

    def _check(self, topk_ids: Any, num_experts: int) -> None:
        super()._check(topk_ids, num_experts)
        _check_number(self, num_experts)
        _check_offset(self, num_experts)

    def _need(self, *given: Any) -> Need:
        return dataclasses.replace(super()._need(*given), use_cudagraph=self.use_cudagraph)

    def _weigh(self, call: Call, rows: Any, topk_weights: Any, topk_ids: Any, impl: Any) -> tuple[Any, str]:
        rows, kind = super()._weigh(call, rows, topk_weights, topk_ids, impl)
        if not self.use_cudagraph and len(rows.shape) == 3:
            rows = rows.reshape(rows.shape[0] * rows.shape[1], rows.shape[2])  # K is 1
        return rows, kind


class MoEPrepareAndFinalizeNaiveDPEPModular(PrepareAndFinalize):
    """All-gather before the experts, reduce-scatter after them: every rank sees every token.

    slices_experts is this library's own: data parallelism without expert parallelism, each rank holds a slice of every expert.
    """

    backend = "allgather_reducescatter"
    is_reduced = False

    def __init__(self, is_sequence_parallel: bool = False, num_dispatchers: int = 1, *, all2all_manager: Any = None,
                 max_num_tokens: int = 0, slices_experts: bool = False):
        super().__init__(all2all_manager, num_dispatchers, max_num_tokens)
        self.is_sequence_parallel, self.slices_experts = is_sequence_parallel, slices_experts

    def _need(self, *given: Any) -> Need:
        return dataclasses.replace(super()._need(*given), slices_experts=self.slices_experts)


class MoEPrepareAndFinalizeNoDPEPModular(PrepareAndFinalize):
    """Nothing travels: quantizes before the experts, weighs and sums after them."""

    backend = "local"
    is_reduced = False

    def __init__(self) -> None:
        super().__init__(All2AllManager())

    def supports_deferred_moe_finalize(self) -> bool:
        """True: finalize weighs and sums, and nothing else."""
        return True

    def _receive(self, call: Call, prepared: Any) -> tuple:
        rows, scales, *_ = super()._receive(call, prepared)
        call.weights = None
        return rows, scales, None, None, None


class FlashInferNVLinkTwoSidedPrepareAndFinalize(PrepareAndFinalize):
    """FlashInfer's two-sided all-to-all: [ranks * Tm] rows, Tm the largest number of tokens of a rank; ids of other ranks' experts and
    of rows without a token are num_experts. Experts return rows that are weighted and summed, whatever they say."""

    backend = "flashinfer_nvlink_two_sided"
    weighs_in_place = True

    def __init__(self, num_dispatchers: int = 1, *, all2all_manager: Any = None, max_num_tokens: int = 0):
        super().__init__(all2all_manager, num_dispatchers, max_num_tokens)

    def _weigh(self, call: Call, rows: Any, topk_weights: Any, topk_ids: Any, impl: Any) -> tuple[Any, str]:
        if len(rows.shape) != 2 or rows.shape[0] != call.prepared.experts.rows.shape[0]:  # type: ignore[union-attr]
            raise InvalidArgumentError(f"{type(self).__name__}: fused_expert_output is {tuple(rows.shape)}, must be "
                                       f"{tuple(call.prepared.experts.rows.shape)}, "  # type: ignore[union-attr]
                                       "weighted and summed over the experts of this rank")
        return rows, "no_op"


class FlashInferNVLinkOneSidedPrepareAndFinalize(FlashInferNVLinkTwoSidedPrepareAndFinalize):
    """FlashInfer's one-sided all-to-all: the rows of each source rank at rank * Tm; ids of every expert, -1 in rows without a token.

    Formats and byte counts of the constructor are accepted, without effect: the quant_config of prepare has them.
    """

    backend = "flashinfer_nvlink_one_sided"
    ids_dtype = "i32"

    def __init__(self, max_num_tokens: int, top_k: int, num_experts: int, hidden_size: int, num_dispatchers: int = 1,
                 dispatch_dtype_bytes_per_elem: int = 0, dispatch_scale_bytes_per_token: int = 0, *, dispatch_format: Any = None,
                 extra_payload_bytes_per_token: int = 0, all2all_manager: Any = None):
        del dispatch_dtype_bytes_per_elem, dispatch_scale_bytes_per_token, dispatch_format, extra_payload_bytes_per_token
        require_counts(type(self).__name__, 1, top_k=top_k, num_experts=num_experts, hidden_size=hidden_size)
        super().__init__(num_dispatchers, all2all_manager=all2all_manager, max_num_tokens=max_num_tokens)
        self.top_k, self.num_experts, self.hidden_size = top_k, num_experts, hidden_size

    def _check(self, topk_ids: Any, num_experts: int) -> None:
        super()._check(topk_ids, num_experts)
        _check_number(self, num_experts)


class MoriPrepareAndFinalize(FlashInferNVLinkTwoSidedPrepareAndFinalize):
    """The nearest class to MoRI's: the two-sided all-to-all with i32 ids."""

    backend = "mori_high_throughput"
    ids_dtype = "i32"

    def __init__(self, mori_op: Any, max_tokens_per_rank: int, num_dispatchers: int, use_fp8_dispatch: bool = False,
                 use_fp4_dispatch: bool = False):
        super().__init__(num_dispatchers, all2all_manager=mori_op, max_num_tokens=max_tokens_per_rank)
        self.use_fp8_dispatch, self.use_fp4_dispatch = use_fp8_dispatch, use_fp4_dispatch

    def max_num_tokens_per_rank(self) -> int | None:
        """max_tokens_per_rank."""
        return self.max_num_tokens


def first_expert(num_experts: int, rank: int, size: int) -> int:
    """The first expert of a rank: where they do not divide, the first ranks have one more."""
    return num_experts // size * rank + min(rank, num_experts % size)


def _check_number(one: Any, num_experts: int) -> None:
    if num_experts != one.num_experts:
        raise InvalidArgumentError(f"{type(one).__name__}: num_experts is {num_experts}, must be {one.num_experts}, as in the constructor")


def _check_offset(one: Any, num_experts: int) -> None:
    size = one.manager.world_size
    first = first_expert(num_experts, one.manager.rank, size)
    if one.rank_expert_offset != first:
        raise InvalidArgumentError(f"{type(one).__name__}: rank_expert_offset is {one.rank_expert_offset}, must be {first}, the first of "
                                   f"{num_experts} experts on rank {one.manager.rank} of {size}")


def _host_counts(counts: list[int], sample: Any) -> Any:
    if is_torch(sample):
        import torch  # pylint: disable=import-outside-toplevel

        return torch.tensor(counts, dtype=torch.int32)
    return numpy.array(counts, numpy.int32)
