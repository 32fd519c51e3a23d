# SPDX-License-Identifier: Apache-2.0
"""Switchyard: expert parallelism for Mixture-of-Experts layers, on CPUs and GPUs.

    import numpy as np
    import switchyard

    def rank(group):
        tokens = np.ones((1, 8), np.float32)
        topk_ids, topk_weights = np.array([[0, 3]]), np.array([[0.25, 0.5]], np.float32)
        with switchyard.Exchange(group, num_experts=4, num_topk=2, hidden=8, max_tokens_per_rank=1) as exchange:
            received = exchange.dispatch(tokens, topk_ids, topk_weights)
            return exchange.combine(received, received.rows).numpy()

    print(switchyard.run_local(2, rank))

docs/python.md has a complete layer. Arrays are those of any library; results are Tensor objects, which
numpy, torch, cupy and jax use without a copy.
"""
from switchyard._native import (
    DEEP_GEMM_ALIGNMENT,
    Device,
    Dispatched,
    Exchange,
    ExchangeConfig,
    ExchangeOptions,
    ExpertLoad,
    ExpertMap,
    ExpertRows,
    Experts,
    Group,
    Handle,
    HostCounts,
    LogicalMaps,
    ModularKernel,
    MoEConfig,
    ParallelConfig,
    ParallelOptions,
    Pending,
    Permuted,
    Prepared,
    PrepareFinalize,
    PrepareFinalizeConfig,
    QuantConfig,
    QuantScheme,
    RoutingTables,
    Setting,
    Tensor,
    apply_expert_map,
    balance_experts,
    build_summary,
    choose_placement,
    choose_prepare_finalize,
    choose_replica,
    compute_aligned_m,
    compute_chunked_local_num_tokens,
    compute_logical_maps,
    compute_sp_num_tokens,
    count_expert_num_tokens,
    cu_tokens_across_sp,
    dequantize,
    determine_expert_map,
    ep_gather,
    expert_rows,
    experts_from_config,
    global_to_local_ids,
    initial_physical_to_logical,
    load_balance,
    local_to_global_ids,
    make_prepare_finalize,
    map_expert_ids,
    map_logical_to_physical,
    num_cuda_devices,
    permute,
    prepare_finalize_from_config,
    quantize,
    quantize_batched,
    relayout_scales,
    round_robin_routing_tables,
    router_logits,
    select_experts,
    set_log_callback,
    set_log_level,
    set_setting,
    settings,
    silu_mul_quantize,
    unpermute_and_reduce,
    weight_and_reduce,
)
from switchyard._native import version as _version
from switchyard.command import Report, bench, check
from switchyard.errors import (
    AbortedError,
    ArgumentTypeError,
    CapacityExceededError,
    Error,
    InternalError,
    InvalidArgumentError,
    MalformedFileError,
    NotAvailableError,
    NotSupportedError,
    OutOfMemoryError,
    PeerLostError,
    SystemCallError,
    TimeoutError,
    WorkspaceTooSmallError,
)
from switchyard.groups import run_local

__version__ = _version()

# Users see the names of this module.
for _object in list(globals().values()):
    if isinstance(_object, type) and _object.__module__ == "switchyard._native":
        _object.__module__ = "switchyard"
del _object
