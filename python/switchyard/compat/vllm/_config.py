# SPDX-License-Identifier: Apache-2.0
"""How ranks share a layer and its sizes: the other records of vLLM's fused_moe/config.py."""
from __future__ import annotations

import dataclasses
import enum
import importlib.util
from typing import Any

from switchyard import InvalidArgumentError, MoEConfig, ParallelConfig
from switchyard.compat.vllm._interface import HAS_VLLM, name_of_dtype


class RoutingMethodType(enum.IntEnum):
    """How a router turns logits into ids and weights; numbers as in FlashInfer."""

    Default = 0  # softmax, then top-k
    Renormalize = 1  # top-k, then softmax
    DeepSeekV3 = 2  # sigmoid and bias, top-k within the best groups
    Llama4 = 3  # top-1, then sigmoid
    RenormalizeNaive = 4  # softmax, top-k, divided by their sum
    TopK = 5  # top-k of the logits
    SigmoidRenorm = 6  # sigmoid, top-k, divided by their sum
    MiniMax2 = 7  # sigmoid and bias, top-k, divided by their sum
    Sigmoid = 8  # sigmoid, then top-k
    Unspecified = 9
    DeepseekV4 = 100  # square root of softplus and bias, divided by their sum
    Custom = 101
    Simulated = 102


def get_routing_method_type(scoring_func: str, top_k: int, renormalize: bool, num_expert_group: int | None,
                            has_e_score_bias: bool) -> RoutingMethodType:
    """The method of a model's router settings; Unspecified where none has them."""
    del top_k
    names = {("sqrtsoftplus", True, True): "DeepseekV4", ("sqrtsoftplus", True, False): "DeepseekV4",
             ("sigmoid", True, True): "DeepSeekV3" if num_expert_group else "MiniMax2", ("sigmoid", True, False): "SigmoidRenorm",
             ("sigmoid", False, False): "Sigmoid", ("softmax", True, False): "RenormalizeNaive", ("softmax", False, False): "Default"}
    return RoutingMethodType[names.get((scoring_func, bool(renormalize), bool(has_e_score_bias)), "Unspecified")]


def _kernels(doc: str, *names: str) -> property:
    return property(lambda self: self.use_all2all_kernels and self.all2all_backend in names, doc=doc)


@dataclasses.dataclass(kw_only=True)
class FusedMoEParallelConfig:
    """Sizes and ranks of tensor, data, expert, context (pcp) and sequence (sp) parallelism. Keywords alone: versions of vLLM disagree
    about the order."""

    tp_size: int
    pcp_size: int
    dp_size: int
    ep_size: int
    tp_rank: int
    pcp_rank: int
    dp_rank: int
    ep_rank: int
    sp_size: int
    use_ep: bool
    all2all_backend: str
    enable_eplb: bool

    @property
    def is_sequence_parallel(self) -> bool:
        """sp_size above 1."""
        return self.sp_size > 1

    @property
    def use_all2all_kernels(self) -> bool:
        """Whether experts are spread and ranks have different tokens."""
        return self.use_ep and (self.dp_size > 1 or self.pcp_size > 1 or self.is_sequence_parallel)

    use_deepep_ht_kernels = _kernels("DeepEP high throughput.", "deepep_high_throughput")
    use_deepep_ll_kernels = _kernels("DeepEP low latency.", "deepep_low_latency")
    use_deepep_v2_kernels = _kernels("DeepEP's ElasticBuffer.", "deepep_v2")
    use_fi_nvl_two_sided_kernels = _kernels("FlashInfer two-sided.", "flashinfer_all2allv", "flashinfer_nvlink_two_sided")
    use_fi_nvl_one_sided_kernels = _kernels("FlashInfer one-sided.", "flashinfer_nvlink_one_sided")
    use_ag_rs_all2all_kernels = _kernels("All-gather and reduce-scatter.", "allgather_reducescatter")
    use_naive_all2all_kernels = _kernels("All-gather and reduce-scatter under the older name.", "naive")
    use_mori_kernels = _kernels("MoRI.", "mori_high_throughput", "mori_low_latency")
    use_nixl_ep_kernels = _kernels("NIXL-EP.", "nixl_ep")
    use_pplx_kernels = _kernels("pplx, of vLLM in 2025.", "pplx")
    use_batched_activation_format = _kernels("Whether rows come as [L, C, H].", "deepep_low_latency", "nixl_ep")
    needs_round_robin_routing_tables = _kernels("Whether round-robin placement needs tables of ids.", "deepep_low_latency", "nixl_ep")

    @staticmethod
    def flatten_tp_across_dp_and_pcp(tp_size: int, dp_size: int, dp_rank: int, pcp_size: int, pcp_rank: int, *,
                                     tp_rank: int | None = None) -> tuple[int, int]:
        """Size and number of this rank in the flat order of data, context and tensor parallelism."""
        tp_rank = _rank("tp_rank", tp_size, tp_rank)
        return dp_size * pcp_size * tp_size, (dp_rank * pcp_size + pcp_rank) * tp_size + tp_rank

    @staticmethod
    def make(tp_size_: int, pcp_size_: Any = None, dp_size_: Any = None, sp_size_: Any = 1, vllm_parallel_config: Any = None, *,
             tp_rank: int | None = None, pcp_rank: int | None = None, dp_rank: int | None = None) -> FusedMoEParallelConfig:
        """vllm_parallel_config: anything with enable_expert_parallel and all2all_backend, and maybe enable_eplb. By position it also comes
        after three sizes or two, as in vLLM before it had sp_size_, and pcp_size_. The three ranks are this library's own; None: vLLM's
        groups know them, and 0 where the size is 1."""
        if vllm_parallel_config is None and dp_size_ is not None and not isinstance(dp_size_, int):
            pcp_size_, dp_size_, vllm_parallel_config = 1, pcp_size_, dp_size_
        elif vllm_parallel_config is None and not isinstance(sp_size_, int):
            sp_size_, vllm_parallel_config = 1, sp_size_
        if vllm_parallel_config is None:
            raise InvalidArgumentError("make: vllm_parallel_config is absent, must be given behind the sizes")
        if dp_size_ is None:
            raise InvalidArgumentError("make: dp_size_ is absent, must be given by name where vllm_parallel_config is: of two sizes by "
                                       "position the second may be dp_size_ or pcp_size_")
        pcp_size_ = 1 if pcp_size_ is None else pcp_size_
        made = ParallelConfig.make(
            tp_size=tp_size_, tp_rank=_rank("tp_rank", tp_size_, tp_rank), pcp_size=pcp_size_,
            pcp_rank=_rank("pcp_rank", pcp_size_, pcp_rank), dp_size=dp_size_, dp_rank=_rank("dp_rank", dp_size_, dp_rank),
            sp_size=sp_size_, enable_expert_parallel=vllm_parallel_config.enable_expert_parallel,
            enable_eplb=getattr(vllm_parallel_config, "enable_eplb", False), all2all_backend=vllm_parallel_config.all2all_backend)
        return FusedMoEParallelConfig(**{field.name: getattr(made, field.name) for field in dataclasses.fields(FusedMoEParallelConfig)})

    @classmethod
    def make_no_parallel(cls) -> FusedMoEParallelConfig:
        """One rank."""
        return cls(tp_size=1, pcp_size=1, dp_size=1, ep_size=1, tp_rank=0, pcp_rank=0, dp_rank=0, ep_rank=0, sp_size=1, use_ep=False,
                   all2all_backend="allgather_reducescatter", enable_eplb=False)


def _rank(name: str, size: int, rank: int | None) -> int:
    if rank is not None:
        return rank
    if size == 1:
        return 0
    if not HAS_VLLM:
        raise InvalidArgumentError(f"make: {name} is absent, must be given where {name[:-5]}_size is {size} and vLLM is not installed")
    from vllm import distributed  # pylint: disable=import-error,import-outside-toplevel

    if name == "tp_rank":
        return distributed.get_tensor_model_parallel_rank()
    return (distributed.get_dp_group() if name == "dp_rank" else distributed.get_pcp_group()).rank_in_group


def _shared(name: str) -> property:
    return property(lambda self: getattr(self.moe_parallel_config, name), doc=f"moe_parallel_config.{name}.")


@dataclasses.dataclass(kw_only=True)
class FusedMoEConfig:
    """Sizes of a layer, by keywords alone: versions of vLLM disagree about the order. activation: a word or an enum with `value`; device, routing_method and moe_backend are kept, and not read here."""

    num_experts: int
    experts_per_token: int
    hidden_dim: int
    intermediate_size: int
    num_local_experts: int
    num_logical_experts: int
    activation: Any
    device: Any
    routing_method: RoutingMethodType
    moe_parallel_config: FusedMoEParallelConfig
    in_dtype: Any
    router_logits_dtype: Any = None
    hidden_dim_unpadded: int | None = None
    intermediate_size_per_partition_unpadded: int | None = None
    intermediate_pad: int | None = None
    moe_backend: str = "auto"
    max_num_tokens: int = 256
    has_bias: bool = False
    is_lora_enabled: bool = False
    skip_final_all_reduce: bool = False
    swiglu_limit: float | None = None
    swiglu_alpha: float | None = None
    swiglu_beta: float | None = None
    max_capture_size: int = 0
    intermediate_size_per_partition: int = -1

    def __post_init__(self) -> None:
        self._checked()
        self.intermediate_size_per_partition = self.intermediate_size // self.moe_parallel_config.tp_size
        if self.router_logits_dtype is None:
            self.router_logits_dtype = self.in_dtype
        if self.hidden_dim_unpadded is None:
            self.hidden_dim_unpadded = self.hidden_dim
        if self.intermediate_size_per_partition_unpadded is None:
            self.intermediate_size_per_partition_unpadded = self.intermediate_size_per_partition

    def _checked(self) -> MoEConfig:
        """The library checks what can be checked."""
        return MoEConfig.make(num_experts=self.num_experts, num_topk=self.experts_per_token, hidden=self.hidden_dim,
                              in_dtype=name_of_dtype(self.in_dtype), max_num_tokens=self.max_num_tokens,
                              intermediate=self.intermediate_size, num_local_experts=self.num_local_experts,
                              num_logical_experts=self.num_logical_experts, has_bias=self.has_bias,
                              parallel=_native(self.moe_parallel_config))

    @property
    def is_act_and_mul(self) -> bool:
        """Whether the activation is gated, and w1 holds gate and up."""
        return not str(getattr(self.activation, "value", self.activation)).endswith("_no_mul")

    @property
    def use_flashinfer_cutlass_kernels(self) -> bool:
        """Of vLLM in 2025: whether FlashInfer has its CUTLASS experts, SWITCHYARD_USE_FLASHINFER_MOE_FP4 is 1 and
        SWITCHYARD_FLASHINFER_MOE_BACKEND "throughput"."""
        return self._checked().use_flashinfer_cutlass_kernels(_has_flashinfer_experts())


for _name in ("tp_size", "dp_size", "pcp_size", "ep_size", "sp_size", "tp_rank", "dp_rank", "pcp_rank", "ep_rank", "use_ep",
              "is_sequence_parallel", "needs_round_robin_routing_tables", "use_deepep_ht_kernels", "use_deepep_ll_kernels",
              "use_deepep_v2_kernels", "use_mori_kernels", "use_fi_nvl_two_sided_kernels", "use_fi_nvl_one_sided_kernels",
              "use_ag_rs_all2all_kernels", "use_nixl_ep_kernels", "use_pplx_kernels"):
    setattr(FusedMoEConfig, _name, _shared(_name))


def _has_flashinfer_experts() -> bool:
    try:
        return importlib.util.find_spec("flashinfer.fused_moe") is not None
    except (ImportError, ValueError):  # no flashinfer, or that of switchyard.compat.install()
        return False


def _native(parallel: Any) -> ParallelConfig:
    names = (field.name for field in dataclasses.fields(FusedMoEParallelConfig))
    return ParallelConfig(**{name: getattr(parallel, name) for name in names})
