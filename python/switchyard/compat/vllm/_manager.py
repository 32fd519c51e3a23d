# SPDX-License-Identifier: Apache-2.0
"""The ranks of a layer and the exchanges that its classes share, made when a call first needs them."""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy

from switchyard import (
    Experts,
    Group,
    InvalidArgumentError,
    MoEConfig,
    NotSupportedError,
    ParallelConfig,
    PrepareFinalize,
    QuantConfig,
    choose_prepare_finalize,
    make_prepare_finalize,
)
from switchyard.compat._arrays import group_of, is_torch
from switchyard.compat._gather import Gather
from switchyard.compat.vllm._interface import HAS_VLLM, name_of_dtype

_vllm_managers: dict[int, tuple[Any, All2AllManager]] = {}


class All2AllManager:
    """Ranks that hold the experts. Classes made over one manager, such as those of a model's layers, share windows where their sizes
    and formats agree; layers with different static scales take windows of their own.

    group: a switchyard.Group, a torch process group or an mpi4py communicator. None: a class that needs no ranks.
    """

    def __init__(self, group: Any = None):
        self.group: Group | None = None
        self._owns_group = False
        if group is not None:
            self.group, self._owns_group = group_of(group)
        self.rank = 0 if self.group is None else self.group.rank
        self.world_size = self.dp_world_size = 1 if self.group is None else self.group.size
        self._objects: dict[Need, PrepareFinalize] = {}
        self._gather: Gather | None = None

    def object_for(self, need: Need) -> PrepareFinalize:
        """The prepare/finalize object for a call. Collective the first time."""
        found = self._objects.get(need)
        if found is None:
            found = self._objects[need] = need.make(self)
        return found

    def largest(self, number: int) -> int:
        """The largest number that any rank passes. Collective."""
        if self.group is None or self.world_size == 1:
            return number
        if self._gather is None:
            self._gather = Gather(self.group)
        return self._gather.largest(number)

    def close(self) -> None:
        """Frees the windows; what was received stays. Every rank calls it, or none."""
        self.__exit__()

    def __enter__(self) -> All2AllManager:
        return self

    def __exit__(self, *exception: object) -> None:
        """As close(); a rank that leaves a `with` block by an exception waits for nobody."""
        for one in self._objects.values():
            one.__exit__(*exception)
        self._objects.clear()
        if self._gather is not None:
            self._gather.close()
            self._gather = None
        if self._owns_group and self.group is not None:
            self.group.close()


def manager_of(given: Any) -> All2AllManager:
    """A manager from what stands in the place of vLLM's `buffer` or `all2all_manager`."""
    if isinstance(given, All2AllManager):
        return given
    if given is None:
        return _manager_of_vllm()
    group = getattr(given, "_group", given)  # a Buffer of switchyard.compat.deep_ep
    if group is given:
        return All2AllManager(group)
    if getattr(given, "vllm_manager", None) is None:
        given.vllm_manager = All2AllManager(group)
    return given.vllm_manager


def _manager_of_vllm() -> All2AllManager:
    if not HAS_VLLM:
        raise InvalidArgumentError("all2all_manager: it is absent, must be All2AllManager(group), or the ranks, without vLLM")
    from vllm.distributed import get_ep_group  # pylint: disable=import-error,import-outside-toplevel

    ranks = get_ep_group()
    found = _vllm_managers.get(id(ranks))
    if found is None:
        found = _vllm_managers[id(ranks)] = (ranks, All2AllManager(ranks.cpu_group))
    return found[1]


@dataclasses.dataclass(frozen=True)
class Activations:
    """What a FusedMoEQuantConfig of ours or of vLLM's says of activations, by value."""

    dtype: str | None = None
    per_act_token: bool = False
    block: tuple[int, int] | None = None
    scales: tuple[tuple[str, tuple[float, ...]], ...] = ()
    is_scale_swizzled: bool = True
    mx_alignment: int = 0

    @staticmethod
    def of(quant_config: Any) -> Activations:
        """Reads the scales, which waits for a GPU that has them."""
        dtype = None if quant_config is None else quant_config.quant_dtype
        if dtype is None:
            return Activations()
        if getattr(quant_config, "is_scale_transposed", False):
            raise NotSupportedError("prepare: quant_config.is_scale_transposed is set, must not be: scales come with rows first")
        if not isinstance(dtype, str):
            name = name_of_dtype(dtype)
            dtype = {"e4m3": "fp8_e4m3", "i8": "int8"}.get(name, name)
        block = quant_config.block_shape
        scales = ((name, getattr(quant_config, name)) for name in ("a1_scale", "a2_scale", "a1_gscale", "a2_gscale"))
        return Activations(dtype, quant_config.per_act_token_quant, None if block is None else tuple(block),
                           tuple((name, _numbers(scale)) for name, scale in scales if scale is not None),
                           getattr(quant_config, "is_scale_swizzled", True), getattr(quant_config, "mx_alignment", 0))

    @property
    def is_deepep_block(self) -> bool:
        """Whether DeepEP's low-latency kernels quantize to this format."""
        return self.dtype == "fp8_e4m3" and self.block == (128, 128)

    def config(self) -> QuantConfig:
        """The library's configuration of them."""
        scales = {name: numpy.array(values, numpy.float32) for name, values in self.scales}
        if self.dtype is None:
            return QuantConfig()
        if self.dtype == "mxfp8":
            return QuantConfig.mxfp4_mxfp8(is_scale_swizzled=self.is_scale_swizzled, mx_alignment=self.mx_alignment)
        if self.dtype == "fp8":
            return QuantConfig.mxfp4_w4a8(**{name: value for name, value in scales.items() if not name.endswith("gscale")})
        return QuantConfig.make(quant_dtype=self.dtype, per_act_token_quant=self.per_act_token, block_shape=self.block,
                                is_scale_swizzled=self.is_scale_swizzled, **scales)


def _numbers(scale: Any) -> tuple[float, ...]:
    host = scale.detach().cpu() if is_torch(scale) else scale
    return tuple(numpy.asarray(host, dtype=numpy.float32).ravel().tolist())


@dataclasses.dataclass(frozen=True)
class Need:
    """Everything that the exchange of a call depends on; equal on every rank."""

    backend: str
    num_experts: int
    num_topk: int
    hidden: int
    max_tokens: int
    dtype: str
    device: str
    activations: Activations
    use_cudagraph: bool = True
    slices_experts: bool = False
    nvfp4_dispatch: bool = False
    wire_scheme: str | None = None
    packs_scales: bool = False
    num_micro_batches: int = 0
    global_to_physical: tuple[int, ...] = ()

    def make(self, manager: All2AllManager) -> PrepareFinalize:
        """Collective, but for backend "local"."""
        # Two ranks stand for one, whose tokens would not travel: the class is chosen already.
        ranks = {} if self.backend == "local" else {
            "dp_size": max(manager.world_size, 2), "dp_rank": manager.rank, "enable_expert_parallel": not self.slices_experts,
            "all2all_backend": self.backend}
        moe = MoEConfig.make(num_experts=self.num_experts, num_topk=self.num_topk, hidden=self.hidden, in_dtype=self.dtype,
                             max_num_tokens=self.max_tokens, parallel=ParallelConfig.make(**ranks))
        kind, config = choose_prepare_finalize(moe, self.activations.config(), use_cudagraph=self.use_cudagraph,
                                               nvfp4_dispatch=self.nvfp4_dispatch, global_to_physical=self.global_to_physical,
                                               num_micro_batches=self.num_micro_batches)
        if self.wire_scheme is not None:
            config = config.replace(wire_scheme=self.wire_scheme)
        made = make_prepare_finalize(kind, manager.group, config, device=self.device)
        if self.packs_scales:
            made.post_init_setup(Experts.from_function(_never, device=self.device, supports_packed_ue8m0_act_scales=True))
        return made


def _never(rows: Any, output: Any) -> None:
    raise AssertionError("experts that only state what they accept were called")
