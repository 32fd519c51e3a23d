# SPDX-License-Identifier: Apache-2.0
"""The classes and functions of switchyard.compat.vllm have the methods and arguments of vLLM's. The tables state them for vLLM of
August 2026; where vLLM is installed, its own classes are asked too."""
import dataclasses
import importlib
import inspect
import sys
import types

import numpy as np
import pytest

import switchyard
from switchyard import run_local
from switchyard.compat import vllm
from switchyard.compat.vllm import _interface as interface

PREPARE = ["a1", "topk_weights", "topk_ids", "num_experts", "expert_map", "apply_router_weight_on_input", "quant_config",
           "defer_input_quant"]
FINALIZE = ["output", "fused_expert_output", "topk_weights", "topk_ids", "apply_router_weight_on_input", "weight_and_reduce_impl"]
METHODS = {"prepare": PREPARE, "prepare_async": PREPARE, "finalize": FINALIZE, "finalize_async": FINALIZE,
           "post_init_setup": ["fused_experts"], "topk_indices_dtype": [], "max_num_tokens_per_rank": [], "num_dispatchers": [],
           "output_is_reduced": [], "supports_async": []}
ABSTRACT = {"activation_format", "topk_indices_dtype", "max_num_tokens_per_rank", "num_dispatchers", "output_is_reduced", "prepare",
            "finalize"}
ROUTING_TABLES = ["global_to_physical", "physical_to_global", "local_expert_global_ids"]
LOW_LATENCY = ["buffer", "max_tokens_per_rank", "num_dispatchers", "use_fp8_dispatch", *ROUTING_TABLES]
HIGH_THROUGHPUT = ["buffer", "num_dispatchers", "dp_size", "rank_expert_offset"]
CONSTRUCTORS = {
    "BatchedPrepareAndFinalize": ["max_num_tokens", "num_local_experts", "num_dispatchers", "rank"],
    "DeepEPLLPrepareAndFinalize": LOW_LATENCY, "NixlEPPrepareAndFinalize": LOW_LATENCY, "DeepEPHTPrepareAndFinalize": HIGH_THROUGHPUT,
    "DeepEPV2PrepareAndFinalize": [*HIGH_THROUGHPUT, "num_experts", "num_topk", "use_fp8_dispatch", "use_cudagraph", "sp_size"],
    "MoEPrepareAndFinalizeNaiveDPEPModular": ["is_sequence_parallel", "num_dispatchers"], "MoEPrepareAndFinalizeNoDPEPModular": [],
    "FlashInferNVLinkTwoSidedPrepareAndFinalize": ["num_dispatchers"],
    "FlashInferNVLinkOneSidedPrepareAndFinalize": [
        "max_num_tokens", "top_k", "num_experts", "hidden_size", "num_dispatchers", "dispatch_dtype_bytes_per_elem",
        "dispatch_scale_bytes_per_token"],
    "MoriPrepareAndFinalize": ["mori_op", "max_tokens_per_rank", "num_dispatchers", "use_fp8_dispatch", "use_fp4_dispatch"]}
WEIGH = ["output", "fused_expert_output", "topk_weights", "topk_ids", "apply_router_weight_on_input"]
SCALES, BIAS, ZP = ["w1_scale", "w2_scale"], ["w1_bias", "w2_bias"], ["w1_zp", "w2_zp"]
A, G, ALPHAS, GEMM = ["a1_scale", "a2_scale"], ["a1_gscale", "a2_gscale"], ["g1_alphas", "g2_alphas"], ["gemm1_alpha", "gemm1_beta",
                                                                                                        "gemm1_clamp_limit"]
FLAGS = ["per_act_token_quant", "per_out_ch_quant", "block_shape"]
WEIGHTS_ONLY = [*SCALES, *ZP, *BIAS, "block_shape", *G, "gemm1_clamp_limit", "gemm1_alpha", "gemm1_beta"]
MAKERS = {
    "fp8_w8a8": [*SCALES, *A, *BIAS, *FLAGS, *G, *ALPHAS, *GEMM], "int8_w8a8": [*SCALES, *A, *BIAS, "per_act_token_quant"],
    "gptq_marlin": [*SCALES, "weight_bits", "group_size", *ZP, *BIAS], "mxfp4_w4a16": [*SCALES, *BIAS, *GEMM],
    "mxfp4_mxfp8": [*SCALES, *A, *BIAS, "block_shape", *GEMM, "mx_alignment", "is_scale_swizzled"],
    "mxfp4_w4a8": [*SCALES, *A, *BIAS, "block_shape", "gemm1_clamp_limit"],
    "ocp_mx": ["quant_dtype", *SCALES, "weight_dtype", *A, *BIAS, "block_shape", *GEMM],
    "nvfp4": [*ALPHAS, *G, *SCALES, *BIAS, "is_scale_swizzled", *GEMM], "mxfp4": SCALES, "nvfp4_w4a16": [*ALPHAS, *SCALES, *GEMM],
    "int4_w4a16": WEIGHTS_ONLY, "int8_w8a16": WEIGHTS_ONLY, "fp8_w8a16": [*SCALES, *BIAS, "block_shape", *GEMM],
    "int4_w4afp8": [*SCALES, *ALPHAS, *FLAGS], "biased": [*BIAS, *GEMM]}
FUNCTIONS = {
    **{f"{name}_moe_quant_config": arguments for name, arguments in MAKERS.items()},
    "FusedMoEQuantConfig.make": ["quant_dtype", *FLAGS, *SCALES, *A, *ALPHAS, *G, *BIAS, *ZP, "weight_dtype", "is_scale_swizzled", *GEMM],
    "FusedMoEQuantConfig.scale_shape": ["self", "max_tokens", "hidden_dim"], "FusedMoEQuantConfig.config_name": ["self", "dtype"],
    "FusedMoEQuantConfig.batched_scale_shape": ["self", "num_experts", "max_tokens", "hidden_dim"],
    "FusedMoEParallelConfig.make": ["tp_size_", "pcp_size_", "dp_size_", "sp_size_", "vllm_parallel_config"],
    "FusedMoEParallelConfig.make_no_parallel": [], "ExpertTokensMetadata.make_from_list": ["expert_num_tokens_list", "device"],
    "FusedMoEParallelConfig.flatten_tp_across_dp_and_pcp": ["tp_size", "dp_size", "dp_rank", "pcp_size", "pcp_rank"],
    "TopKWeightAndReduceNaiveBatched": ["rank"],
    **{f"TopKWeightAndReduce{name}.apply": ["self", *WEIGH] for name in ("Delegate", "NoOP", "Contiguous", "NaiveBatched")},
    "maybe_make_prepare_finalize": ["moe", "quant_config", "routing_tables", "allow_new_interface", "use_monolithic"],
    "make_moe_prepare_and_finalize_naive_dp_ep": ["use_monolithic", "is_sequence_parallel", "num_dispatchers"],
    "make_moe_prepare_and_finalize_no_dp_ep": ["use_monolithic"]}
FIELDS = {
    "ExpertTokensMetadata": ["expert_num_tokens", "expert_num_tokens_cpu"],
    "FusedMoEQuantDesc": ["dtype", "shape", "scale", "alpha_or_gscale", "zp", "bias"],
    "FusedMoEQuantConfig": ["_a1", "_a2", "_w1", "_w2", "is_scale_swizzled", *GEMM, "mx_alignment"],
    "FusedMoEParallelConfig": ["tp_size", "pcp_size", "dp_size", "ep_size", "tp_rank", "pcp_rank", "dp_rank", "ep_rank", "sp_size",
                               "use_ep", "all2all_backend", "enable_eplb"],
    "FusedMoEConfig": ["num_experts", "experts_per_token", "hidden_dim", "intermediate_size", "num_local_experts", "num_logical_experts",
                       "activation", "device", "routing_method", "moe_parallel_config", "in_dtype", "router_logits_dtype",
                       "hidden_dim_unpadded", "intermediate_size_per_partition_unpadded", "intermediate_pad", "moe_backend",
                       "max_num_tokens", "has_bias", "is_lora_enabled"]}


def positional(function):
    return [name for name, one in inspect.signature(function).parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]


def named(path, module=vllm):
    for part in path.split("."):
        module = getattr(module, part)
    return module


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_classes(name):
    one = getattr(vllm, name)
    assert issubclass(one, vllm.FusedMoEPrepareAndFinalizeModular) and issubclass(one, vllm.FusedMoEPrepareAndFinalize)
    assert not inspect.isabstract(one) and positional(one) == CONSTRUCTORS[name]
    for method, arguments in METHODS.items():
        assert positional(getattr(one, method)) == ["self", *arguments], method
    assert isinstance(inspect.getattr_static(one, "activation_format"), property)


def test_abstract_classes():
    assert vllm.FusedMoEPrepareAndFinalizeModular.__abstractmethods__ == ABSTRACT
    assert [one.name for one in vllm.FusedMoEActivationFormat] == ["Standard", "BatchedExperts"]
    assert vllm.TopKWeightAndReduce.__abstractmethods__ == {"apply"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    expected = FUNCTIONS[name]
    assert positional(named(name))[:len(expected)] == expected


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name):
    assert [field.name for field in dataclasses.fields(getattr(vllm, name))][:len(FIELDS[name])] == FIELDS[name]


@pytest.fixture
def engine(monkeypatch):
    """Stands for the parts of a running vLLM that know ranks, token counts and micro-batches."""
    state = types.SimpleNamespace(metadata=None, micro_batch=0, received=[], ranks=None)
    ranks = {"get_ep_group": lambda: state.ranks, "get_tensor_model_parallel_rank": lambda: 1,
             "get_dp_group": lambda: types.SimpleNamespace(rank_in_group=2),
             "get_pcp_group": lambda: types.SimpleNamespace(rank_in_group=0)}
    modules = {
        "vllm.distributed": ranks,
        "vllm.forward_context": {"is_forward_context_available": lambda: state.metadata is not None,
                                 "get_forward_context": lambda: types.SimpleNamespace(dp_metadata=state.metadata)},
        "vllm.v1.worker.ubatching": {"dbo_current_ubatch_id": lambda: state.micro_batch,
                                     "dbo_maybe_run_recv_hook": lambda: state.received.append(True)},
        "vllm": {}, "vllm.v1": {}, "vllm.v1.worker": {}}
    for name, contents in modules.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("distributed", "forward_context"):
        setattr(sys.modules["vllm"], name, sys.modules[f"vllm.{name}"])
    for part in ("_interface", "_manager", "_config"):
        monkeypatch.setattr(importlib.import_module(f"switchyard.compat.vllm.{part}"), "HAS_VLLM", True)
    return state


def test_ranks_and_token_counts_of_a_running_vllm(engine):
    def rank(group):
        engine.ranks = types.SimpleNamespace(cpu_group=group)
        one = vllm.MoEPrepareAndFinalizeNaiveDPEPModular()
        assert one.manager.group is group and vllm.FlashInferNVLinkTwoSidedPrepareAndFinalize().manager is one.manager
        assert interface.local_sizes() is None
        engine.metadata = types.SimpleNamespace(local_sizes=[3], num_tokens_across_dp_cpu=np.array([4]))
        assert interface.local_sizes() == [3]
        engine.metadata.local_sizes = None  # without a scope: the data-parallel ranks' tokens
        assert interface.local_sizes() == [4]
        two_sided = vllm.FlashInferNVLinkTwoSidedPrepareAndFinalize()
        rows, *_ = two_sided.prepare(np.ones((2, 8), np.float32), np.ones((2, 1), np.float32), np.zeros((2, 1), np.int32), 2, None, False,
                                     vllm.FUSED_MOE_UNQUANTIZED_CONFIG)
        assert rows.shape == (4, 8)
        one.manager.close()

    run_local(1, rank)


def test_micro_batches_of_a_running_vllm(engine):
    def rank(group):
        one = vllm.DeepEPLLPrepareAndFinalize(vllm.All2AllManager(group), 4, 1)
        hidden, weights, ids = np.ones((2, 8), np.float32), np.ones((2, 1), np.float32), np.zeros((2, 1), np.int64)
        call = (hidden, weights, ids, 2, None, False, vllm.FUSED_MOE_UNQUANTIZED_CONFIG)
        rows = []
        for engine.micro_batch in (0, 1):
            rows.append(one.prepare(*call)[0].copy() * (engine.micro_batch + 2))
        for engine.micro_batch in (1, 0):
            output = np.zeros_like(hidden)
            hook, receiver = one.finalize_async(output, rows[engine.micro_batch], weights, ids, False, vllm.TopKWeightAndReduceDelegate())
            hook()
            receiver()
            assert (output == engine.micro_batch + 2).all()
        assert len(engine.received) == 2  # what the other micro-batch left is received first

    run_local(1, rank)


def test_ranks_of_parallelism_of_a_running_vllm(engine):
    del engine
    options = types.SimpleNamespace(enable_expert_parallel=True, all2all_backend="deepep_v2", enable_eplb=False)
    made = vllm.FusedMoEParallelConfig.make(2, 1, 3, 1, options)
    assert (made.ep_size, made.ep_rank, made.dp_rank, made.tp_rank) == (6, 5, 2, 0)


def test_ranks_of_parallelism_must_be_given():
    options = types.SimpleNamespace(enable_expert_parallel=True, all2all_backend="deepep_v2", enable_eplb=False)
    if not interface.HAS_VLLM:
        with pytest.raises(switchyard.InvalidArgumentError, match="dp_rank is absent, must be given where dp_size is 3"):
            vllm.FusedMoEParallelConfig.make(1, 1, 3, 1, options)


needs_vllm = pytest.mark.skipif(not interface.HAS_VLLM, reason="vLLM is not installed; the tables stand for it")
MOE = "vllm.model_executor.layers.fused_moe"


@needs_vllm
@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_classes_against_the_installed_vllm(name):
    kernel = importlib.import_module(f"{MOE}.modular_kernel")
    base, one = kernel.FusedMoEPrepareAndFinalizeModular, getattr(vllm, name)
    assert issubclass(one, base) and not inspect.isabstract(one)
    for method, theirs in inspect.getmembers(base, inspect.isfunction):
        if not method.startswith("_"):
            assert positional(getattr(one, method)) == positional(theirs), method
    for method in base.__abstractmethods__:
        assert not getattr(inspect.getattr_static(one, method), "__isabstractmethod__", False), method


@needs_vllm
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if not name.startswith(("maybe", "make", "TopK", "Expert"))])
def test_functions_against_the_installed_vllm(name):
    theirs, ours = positional(named(name, importlib.import_module(f"{MOE}.config"))), FUNCTIONS[name]
    assert set(theirs) <= set(ours) | NEWER
    assert [argument for argument in theirs if argument in ours] == [argument for argument in ours if argument in theirs]


@needs_vllm
@pytest.mark.parametrize("name", [name for name in FIELDS if name != "ExpertTokensMetadata"])
def test_fields_against_the_installed_vllm(name):
    theirs = {field.name for field in dataclasses.fields(named(name, importlib.import_module(f"{MOE}.config")))}
    assert set(FIELDS[name]) <= theirs


@needs_vllm
def test_properties_against_the_installed_vllm():
    config = importlib.import_module(f"{MOE}.config")
    for name in ("FusedMoEQuantConfig", "FusedMoEParallelConfig", "FusedMoEConfig"):
        theirs = {key for key, value in vars(getattr(config, name)).items() if isinstance(value, property)}
        assert not theirs - NEWER - set(dir(getattr(vllm, name))), name


# Of vLLM after August 2026, or of parts that this library does not have.
NEWER = {"is_scale_transposed", "use_passthrough_all2all", "use_moonep_kernels", "use_deferred_moe_finalize", "w13_num_shards"}
