# SPDX-License-Identifier: Apache-2.0
"""The prepare/finalize classes of vLLM's modular MoE kernel, and the records that configure them, on CPUs and GPUs.

    from switchyard.compat import vllm

    ranks = vllm.All2AllManager(group)  # torch's process group, mpi4py's communicator or a switchyard.Group
    prepare_finalize = vllm.maybe_make_prepare_finalize(moe, quant_config, allow_new_interface=True, all2all_manager=ranks)
    rows, scales, counts, ids, weights = prepare_finalize.prepare(hidden, topk_weights, topk_ids, num_experts, None, False, quant_config)
    prepare_finalize.finalize(output, experts(rows), topk_weights, topk_ids, False, vllm.TopKWeightAndReduceDelegate())

Where vLLM is installed the classes derive from its own, so that its engine takes them; they read its records as well as these. Arrays are
torch tensors, or arrays of numpy and ml_dtypes; results are of the kind that went in. docs/from_vllm.md lists what differs.
"""
from switchyard.compat.vllm._batched import BatchedPrepareAndFinalize
from switchyard.compat.vllm._classes import (
    DEEPEP_QUANT_BLOCK_SHAPE,
    DEEPEP_QUANT_BLOCK_SIZE,
    DeepEPHTPrepareAndFinalize,
    DeepEPLLPrepareAndFinalize,
    DeepEPV2PrepareAndFinalize,
    FlashInferNVLinkOneSidedPrepareAndFinalize,
    FlashInferNVLinkTwoSidedPrepareAndFinalize,
    MoEPrepareAndFinalizeNaiveDPEPModular,
    MoEPrepareAndFinalizeNoDPEPModular,
    MoriPrepareAndFinalize,
    NixlEPPrepareAndFinalize,
)
from switchyard.compat.vllm._config import FusedMoEConfig, FusedMoEParallelConfig, RoutingMethodType, get_routing_method_type
from switchyard.compat.vllm._interface import (
    ExpertTokensMetadata,
    FusedMoEActivationFormat,
    FusedMoEPrepareAndFinalize,
    FusedMoEPrepareAndFinalizeModular,
    PrepareResultType,
    ReceiverType,
    TopKWeightAndReduce,
    use_local_sizes,
    use_micro_batch,
)
from switchyard.compat.vllm._makers import (
    FUSED_MOE_UNQUANTIZED_CONFIG,
    biased_moe_quant_config,
    fp8_w8a8_moe_quant_config,
    fp8_w8a16_moe_quant_config,
    gptq_marlin_moe_quant_config,
    int4_w4a16_moe_quant_config,
    int4_w4afp8_moe_quant_config,
    int8_w8a8_moe_quant_config,
    int8_w8a16_moe_quant_config,
    mxfp4_moe_quant_config,
    mxfp4_mxfp8_moe_quant_config,
    mxfp4_w4a8_moe_quant_config,
    mxfp4_w4a16_moe_quant_config,
    nvfp4_moe_quant_config,
    nvfp4_w4a16_moe_quant_config,
    ocp_mx_moe_quant_config,
)
from switchyard.compat.vllm._manager import All2AllManager
from switchyard.compat.vllm._quant import FusedMoEQuantConfig, FusedMoEQuantDesc, GroupShape
from switchyard.compat.vllm._registry import (
    create_flashinfer_prepare_finalize,
    make_moe_prepare_and_finalize_naive_dp_ep,
    make_moe_prepare_and_finalize_no_dp_ep,
    maybe_make_prepare_finalize,
)
from switchyard.compat.vllm._weights import (
    TopKWeightAndReduceContiguous,
    TopKWeightAndReduceDelegate,
    TopKWeightAndReduceNaiveBatched,
    TopKWeightAndReduceNoOP,
)
