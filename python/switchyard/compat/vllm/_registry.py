# SPDX-License-Identifier: Apache-2.0
"""Which class implements a configuration: vLLM's maybe_make_prepare_finalize."""
from __future__ import annotations

from typing import Any

from switchyard import InvalidArgumentError, NotSupportedError
from switchyard.compat.vllm import _classes as classes
from switchyard.compat.vllm._interface import FusedMoEPrepareAndFinalize
from switchyard.compat.vllm._manager import Activations, All2AllManager, manager_of


def maybe_make_prepare_finalize(moe: Any, quant_config: Any, routing_tables: tuple[Any, Any, Any] | None = None,
                                allow_new_interface: bool = False, use_monolithic: bool = False, eep_stage: bool = False,
                                all2all_manager: Any = None, input_dtype: Any = None, *,
                                use_cudagraph: bool = True) -> FusedMoEPrepareAndFinalize | None:
    """The object for a FusedMoEConfig of ours or of vLLM's; None where vLLM's returns None.

    routing_tables     (global_to_physical, physical_to_global, local_expert_global_ids) of placements that are not linear
    all2all_manager    All2AllManager, or the ranks; None: vLLM's expert-parallel group
    eep_stage, input_dtype  accepted, without effect
    use_cudagraph      of deepep_v2; vLLM: not enforce_eager

    Not collective; the first prepare is. Errors: NotSupportedError for use_monolithic and backends without a class here.
    """
    del eep_stage, input_dtype
    _refuse_monolithic("maybe_make_prepare_finalize", use_monolithic)
    parallel = moe.moe_parallel_config
    if not parallel.use_all2all_kernels:
        if not allow_new_interface:
            return None
        if parallel.dp_size == 1:
            return classes.MoEPrepareAndFinalizeNoDPEPModular()
        return classes.MoEPrepareAndFinalizeNaiveDPEPModular(parallel.is_sequence_parallel, all2all_manager=manager_of(all2all_manager),
                                                             slices_experts=True)
    return _with_all2all(moe, quant_config, routing_tables, allow_new_interface, all2all_manager, use_cudagraph)


def _with_all2all(moe: Any, quant_config: Any, routing_tables: tuple[Any, Any, Any] | None, allow_new_interface: bool,
                  all2all_manager: Any, use_cudagraph: bool) -> FusedMoEPrepareAndFinalize | None:
    parallel = moe.moe_parallel_config
    backend = parallel.all2all_backend
    if backend in ("allgather_reducescatter", "naive") and not allow_new_interface:
        return None
    manager = manager_of(all2all_manager)
    _check_ranks(parallel, manager)
    ranks, experts = manager.world_size, moe.num_experts
    first = classes.first_expert(experts, manager.rank, ranks)
    block_fp8 = Activations.of(quant_config).is_deepep_block
    tables = routing_tables or (None, None, None)
    if backend in ("deepep_low_latency", "nixl_ep"):
        low_latency = classes.DeepEPLLPrepareAndFinalize if backend == "deepep_low_latency" else classes.NixlEPPrepareAndFinalize
        return low_latency(manager, moe.max_num_tokens, ranks, block_fp8, *tables)
    if backend == "deepep_high_throughput":
        return classes.DeepEPHTPrepareAndFinalize(manager, ranks, parallel.dp_size, first)
    if backend == "deepep_v2":
        return classes.DeepEPV2PrepareAndFinalize(manager, ranks, parallel.dp_size, first, experts, moe.experts_per_token, block_fp8,
                                                  use_cudagraph, parallel.sp_size, max_num_tokens=moe.max_num_tokens)
    if backend in ("allgather_reducescatter", "naive"):
        return classes.MoEPrepareAndFinalizeNaiveDPEPModular(parallel.is_sequence_parallel, ranks, all2all_manager=manager)
    if backend in ("flashinfer_nvlink_two_sided", "flashinfer_all2allv"):
        return classes.FlashInferNVLinkTwoSidedPrepareAndFinalize(ranks, all2all_manager=manager)
    if backend == "flashinfer_nvlink_one_sided":
        return classes.FlashInferNVLinkOneSidedPrepareAndFinalize(moe.max_num_tokens, moe.experts_per_token, experts, moe.hidden_dim, ranks,
                                                                  all2all_manager=manager)
    if backend in ("mori_high_throughput", "mori_low_latency"):
        return classes.MoriPrepareAndFinalize(manager, moe.max_num_tokens, ranks)
    raise NotSupportedError(f'maybe_make_prepare_finalize: all2all_backend is "{backend}", must be one that docs/configuration.md lists '
                            "and that has a class here")


def _check_ranks(parallel: Any, manager: All2AllManager) -> None:
    if (parallel.ep_size, parallel.ep_rank) != (manager.world_size, manager.rank):
        raise InvalidArgumentError(f"maybe_make_prepare_finalize: the manager has rank {manager.rank} of {manager.world_size}, must have "
                                   f"rank {parallel.ep_rank} of {parallel.ep_size}, the ranks that hold the experts")


def make_moe_prepare_and_finalize_naive_dp_ep(use_monolithic: bool, is_sequence_parallel: bool = False, num_dispatchers: int = 1, *,
                                              all2all_manager: Any = None) -> classes.MoEPrepareAndFinalizeNaiveDPEPModular:
    """All-gather and reduce-scatter."""
    _refuse_monolithic("make_moe_prepare_and_finalize_naive_dp_ep", use_monolithic)
    return classes.MoEPrepareAndFinalizeNaiveDPEPModular(is_sequence_parallel, num_dispatchers, all2all_manager=all2all_manager)


def make_moe_prepare_and_finalize_no_dp_ep(use_monolithic: bool) -> classes.MoEPrepareAndFinalizeNoDPEPModular:
    """Nothing travels."""
    _refuse_monolithic("make_moe_prepare_and_finalize_no_dp_ep", use_monolithic)
    return classes.MoEPrepareAndFinalizeNoDPEPModular()


def create_flashinfer_prepare_finalize(use_dp: bool, use_nvfp4: bool = False, enable_alltoallv: bool = False, *,
                                       all2all_manager: Any = None) -> FusedMoEPrepareAndFinalize:
    """The class for FlashInfer's CUTLASS experts in vLLM of 2025: nothing travels without use_dp, nvfp4 rows go by all-to-all with
    enable_alltoallv, everything else by all-gather."""
    if not use_dp:
        return classes.MoEPrepareAndFinalizeNoDPEPModular()
    if use_nvfp4 and enable_alltoallv:
        return classes.FlashInferNVLinkTwoSidedPrepareAndFinalize(all2all_manager=all2all_manager)
    return classes.MoEPrepareAndFinalizeNaiveDPEPModular(all2all_manager=all2all_manager)


def _refuse_monolithic(function: str, use_monolithic: bool) -> None:
    if use_monolithic:
        raise NotSupportedError(f"{function}: use_monolithic is set, must not be: classes that route inside the experts are not here")
