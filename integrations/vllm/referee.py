# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM's own prepare/finalize classes, unchanged, over this library's deep_ep and flashinfer.comm, with ranks on CPUs.

    pip download vllm==0.33.0 flashinfer-python==0.7.2.post1 --no-deps -d peers
    unzip -q peers/vllm-*.whl -d peers/vllm -x '*.so'; unzip -q peers/flashinfer_python-*.whl 'flashinfer/*.py' -d peers/flashinfer
    python3 -m venv peers/venv && peers/venv/bin/pip install torch numpy ml_dtypes
    peers/venv/bin/pip install --no-deps -r integrations/vllm/requirements.txt
    PYTHONPATH=build/python/python peers/venv/bin/python integrations/vllm/referee.py --peers peers --output result.json

Each rank is a process of multiprocessing's spawn. It loads vLLM's plug-ins, among them ours, as a worker does, makes the objects
of a layer with vLLM's maybe_make_prepare_finalize and its all-to-all managers, and runs three layers through vLLM's FusedMoEKernel,
also two micro-batches in threads that vLLM's UBatchContext switches between.
Experts are written here. Their results are multiples of 1/4, at most 2, and router weights are powers of two, so that every sum is
exact in bf16 in any order: the output must equal that of a dense layer without ranks, bit for bit.

The files of vLLM that count are compared with the wheel's list of hashes. A case fails when no dispatch or combine of ours ran.
`--sabotage bit` changes one bit of one result, `--sabotage row` exchanges two received rows, both on rank 0 in the second layer:
then every case must fail, else the program does. The default runs all three.
"""
import argparse
import base64
import contextlib
import csv
import dataclasses
import datetime
import functools
import importlib.metadata
import hashlib
import json
import multiprocessing
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import threading
import types
from collections import Counter

import torch

from formats import GLOBAL_SCALE, dequantized, e4m3_blocks, e4m3_blocks_of_deep_ep, e4m3_blocks_ue8m0, e4m3_tensor, mxfp8, nvfp4, plain_scales
from stand_ins import Globalize, STAND_INS, STREAM, load_plugins, set_ops, set_platform

ROOT = pathlib.Path(__file__).resolve().parents[2]
E, K, H, I, LAYERS, MAX = 16, 4, 2048, 32, 3, 16  # MAX: tokens per rank
BATCHES = {2: [[5, 3], [0, 9], [1, 1]], 4: [[4, 0, 7, 1], [2, 2, 2, 2], [0, 0, 3, 0]]}  # tokens of each rank
ON_ONE_RANK = 2  # the batch whose tokens all go to experts of rank 0
SCHEMES = {
    "deepep_low_latency": ("bf16", "fp8_block", "fp8_block_ue8m0", "fp8_tensor", "mxfp8", "nvfp4_in_dispatch"),
    "deepep_low_latency in micro-batches": ("bf16", "fp8_block"),
    "deepep_high_throughput": ("bf16", "fp8_block", "fp8_tensor", "mxfp8", "nvfp4"),
    "deepep_high_throughput in micro-batches": ("bf16", "fp8_block"),
    "deepep_v2": ("bf16", "fp8_block", "fp8_tensor", "mxfp8", "nvfp4"),
    "deepep_v2 for graphs": ("bf16", "fp8_block", "fp8_tensor", "mxfp8", "nvfp4"),
    "flashinfer_nvlink_one_sided": ("bf16", "fp8_block", "mxfp8", "nvfp4"),
    "flashinfer_nvlink_two_sided": ("bf16", "fp8_block", "mxfp8", "nvfp4"),
}
MICRO_BATCHES = (0, 1), (1, 0)  # two batches at once, each with its own thread


class Sabotage:
    """Counts calls of ours, and spoils one of them when asked."""

    def __init__(self, kind, rank):
        self.kind, self.rank, self.calls, self.layer, self.done = kind, rank, Counter(), 0, False

    def _is_now(self, kind):
        return self.kind == kind and self.rank == 0 and self.layer == 1 and not self.done

    def bit(self, output):
        """Changes the last bit of the first element."""
        if self._is_now("bit") and output.numel():
            output.view(torch.int16).view(-1)[0] ^= 1
            self.done = True

    def row(self, rows, *others):
        """Exchanges the first two rows [n, H] that differ; what belongs to them, such as scales, goes along."""
        if not self._is_now("row"):
            return
        for other in range(1, len(rows)):
            if not torch.equal(rows[0].view(torch.uint8), rows[other].view(torch.uint8)):
                for array in (rows, *others):
                    array[[0, other]] = array[[other, 0]]
                self.done = True
                return


def watch(cls, name, sabotage, after):
    """Replaces a call by one that counts and then calls after(result, arguments)."""
    call = getattr(cls, name)
    is_static = isinstance(cls.__dict__[name], staticmethod)

    @functools.wraps(call)
    def watched(*args, **kwargs):
        result = call(*args, **kwargs)
        sabotage.calls[f"{cls.__name__}.{name}"] += 1
        return after(result, args, kwargs)

    setattr(cls, name, staticmethod(watched) if is_static else watched)


def watch_drop_ins(sabotage):
    """Every dispatch and combine of the two drop-ins."""
    import deep_ep
    from flashinfer.comm.trtllm_alltoall import MnnvlMoe
    from flashinfer.comm.trtllm_moe_alltoall import MoeAlltoAll

    for cls in (deep_ep.Buffer, deep_ep.ElasticBuffer, MoeAlltoAll, MnnvlMoe):
        assert cls.__module__.startswith("switchyard.compat"), cls

    def pair(rows):
        return rows if isinstance(rows, tuple) else (rows,)

    def low_latency_dispatch(result, _args, _kwargs):
        rows, counts, handle, event, hook = result

        def receive():
            hook()
            expert = int(counts.argmax())
            sabotage.row(*(array[expert, :int(counts[expert])] for array in pair(rows)))

        return rows, counts, handle, event, receive

    def low_latency_combine(result, _args, _kwargs):
        output, event, hook = result

        def receive():
            hook()
            sabotage.bit(output)

        return output, event, receive

    def dispatch(result, _args, _kwargs):
        sabotage.row(*pair(result[0]))
        return result

    def elastic_dispatch(result, _args, kwargs):
        count = int(result[3].psum_num_recv_tokens_per_scaleup_rank[-1]) if not kwargs["do_expand"] else None
        sabotage.row(*(array[:count] for array in pair(result[0])))
        return result

    def combine(result, _args, _kwargs):
        sabotage.bit(result[0] if isinstance(result, tuple) else result)
        return result

    def one_sided_dispatch(result, args, kwargs):
        ids = result[kwargs["expert_id_payload_index"]].flatten(0, 1)
        here = ((ids >= 0) & (ids // (E // args[0].ep_size) == args[0].ep_rank)).any(dim=1)
        at = torch.nonzero(here).flatten()
        spoiled = [array.flatten(0, 1)[at] for array in result[:kwargs["expert_id_payload_index"]]]
        sabotage.row(*spoiled)
        for array, rows in zip(result, spoiled):
            array.flatten(0, 1)[at] = rows
        return result

    def alltoallv(result, _args, _kwargs):
        at = torch.nonzero(result.view(torch.uint8).any(dim=1)).flatten()
        rows = result[at]
        sabotage.row(rows)
        result[at] = rows
        return result

    watch(deep_ep.Buffer, "low_latency_dispatch", sabotage, low_latency_dispatch)
    watch(deep_ep.Buffer, "low_latency_combine", sabotage, low_latency_combine)
    watch(deep_ep.Buffer, "dispatch", sabotage, dispatch)
    watch(deep_ep.Buffer, "combine", sabotage, combine)
    watch(deep_ep.ElasticBuffer, "dispatch", sabotage, elastic_dispatch)
    watch(deep_ep.ElasticBuffer, "combine", sabotage, combine)
    watch(MoeAlltoAll, "dispatch", sabotage, one_sided_dispatch)
    watch(MoeAlltoAll, "combine", sabotage, combine)
    watch(MnnvlMoe, "mnnvl_moe_alltoallv", sabotage, alltoallv)
    watch(MnnvlMoe, "mnnvl_moe_alltoallv_combine", sabotage, combine)


# Experts.


def weights_of(layer):
    """f64 [E, 2 * I, H] and [E, H, I] of a layer, the same on every rank."""
    random = torch.Generator().manual_seed(1000 + layer)
    w1 = torch.randn(E, 2 * I, H, generator=random, dtype=torch.float64) / H**0.5
    w2 = 3 * torch.randn(E, H, I, generator=random, dtype=torch.float64) / I**0.5
    return w1, w2


def mlp(x, w1, w2):
    """f64 [n, H], multiples of 1/4 up to 2."""
    gate, up = (x @ w1.T).chunk(2, dim=-1)
    return ((torch.nn.functional.silu(gate) * up @ w2.T * 4).round() / 4).clamp(-2, 2)


def dense(x, ids, weights, layer, quantize):
    """bf16 [T, H]: the layer without ranks."""
    w1, w2 = weights_of(layer)
    rows = dequantized(*quantize(x))
    output = torch.zeros(x.shape, dtype=torch.float64)
    for expert in range(E):
        token, k = torch.nonzero(ids == expert, as_tuple=True)
        output.index_add_(0, token, mlp(rows[token], w1[expert], w2[expert]) * weights[token, k].double().unsqueeze(1))
    return output.to(torch.bfloat16)


def batch_of(rank, num_ranks, batch):
    """bf16 rows, ids and weights of a rank; each layer has other ids."""
    random = torch.Generator().manual_seed(100 * batch + rank)
    num_tokens = BATCHES[num_ranks][batch][rank]
    num_experts = E // num_ranks if batch == ON_ONE_RANK else E
    x = torch.randn(num_tokens, H, generator=random).to(torch.bfloat16)
    routes = []
    for _ in range(LAYERS):
        ids = torch.stack([torch.randperm(num_experts, generator=random)[:K] for _ in range(num_tokens)] or [torch.zeros(K)])[:num_tokens]
        places = torch.stack([torch.randperm(K, generator=random) for _ in range(num_tokens)] or [torch.zeros(K)])[:num_tokens].long()
        routes.append((ids.long(), torch.tensor([0.5, 0.25, 0.125, 0.125])[places]))
    return x, routes


def make_experts(config, quant, quantize, is_batched, reduces, num_ranks):
    """An expert class of vLLM's interface for the rows of one class."""
    import vllm.model_executor.layers.fused_moe.modular_kernel as mk
    from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceDelegate, TopKWeightAndReduceNoOP

    class Experts(mk.FusedMoEExpertsModular):
        layer = 0

        @staticmethod
        def activation_format():
            return mk.FusedMoEActivationFormat.BatchedExperts if is_batched else mk.FusedMoEActivationFormat.Standard

        def moe_problem_size(self, a1, w1, w2, topk_ids):
            return w1.shape[0], a1.shape[-2], w1.shape[1], H, topk_ids.shape[1]  # rows of nvfp4 have H / 2 bytes

        def supports_packed_ue8m0_act_scales(self):
            return quantize is e4m3_blocks_ue8m0

        def workspace_shapes(self, M, N, K, topk, global_num_experts, local_num_experts, expert_tokens_meta, activation):
            shape = (local_num_experts, M, K) if is_batched else (M, K) if reduces else (M, topk, K)
            return (0,), (0,), shape

        def finalize_weight_and_reduce_impl(self):
            return TopKWeightAndReduceNoOP() if reduces else TopKWeightAndReduceDelegate()

        def apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map, a1q_scale,
                  a2_scale, workspace13, workspace2, expert_tokens_meta, apply_router_weight_on_input):
            first = config.moe_parallel_config.ep_rank * config.num_local_experts
            if is_batched:
                for local, count in enumerate(expert_tokens_meta.expert_num_tokens.tolist()):
                    rows = dequantized(hidden_states[local, :count], plain_scales(a1q_scale, local, count))
                    output[local, :count] = mlp(rows, w1[local], w2[local]).to(output.dtype)
                return
            results = torch.zeros(*topk_ids.shape, output.shape[-1], dtype=torch.float64)
            for local in range(config.num_local_experts):
                row, k = torch.nonzero(topk_ids == first + local, as_tuple=True)
                scales = a1q_scale if a1q_scale is None or a1q_scale.numel() == 1 else a1q_scale[row]
                results[row, k] = mlp(dequantized(hidden_states[row], scales), w1[local], w2[local])
            if reduces:
                own = torch.where((topk_ids >= first) & (topk_ids < first + config.num_local_experts), topk_weights, 0)
                results = (results * own.unsqueeze(-1)).sum(dim=1)
            output.copy_(results)

    for name in ("_supports_current_device", "_supports_no_act_and_mul", "_supports_quant_scheme", "_supports_activation",
                 "_supports_parallel_config"):
        setattr(Experts, name, staticmethod(lambda *_: True))
    Experts.__abstractmethods__ = frozenset()
    return Experts(config, quant, **({"max_num_tokens": MAX, "num_dispatchers": num_ranks} if is_batched else {}))


# One rank.


@dataclasses.dataclass
class Case:
    backend: str
    schemes: tuple[str, ...]
    num_ranks: int
    sabotage: str | None


def run_rank(rank, case, folder, queue):
    """Sends (rank, by scheme the failures and the calls of ours)."""
    results = []
    try:
        for result in check(rank, case, folder):
            results.append(result)
    except BaseException as error:  # pylint: disable=broad-except
        import traceback

        traceback.print_exc()
        results += [([f"{type(error).__name__}: {error}"], {})] * (len(case.schemes) - len(results))
    queue.put((rank, results))


def check(rank, case, folder):
    """By scheme: where the outputs of this rank differ from the dense layer, and the calls of ours."""
    torch.set_num_threads(1)
    os.environ |= {"SWITCHYARD_VLLM": "1", "VLLM_PLUGINS": "switchyard", "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
                   "VLLM_HAS_FLASHINFER_CUBIN": "1"}
    set_platform()
    load_plugins(folder)
    sabotage = Sabotage(case.sabotage, rank)
    watch_drop_ins(sabotage)

    import vllm.config.vllm
    from vllm.distributed import parallel_state
    from vllm.distributed.device_communicators import all2all
    from vllm.forward_context import DPMetadata, override_forward_context
    from vllm.model_executor.layers.fused_moe import all2all_utils, modular_kernel
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import (FUSED_MOE_UNQUANTIZED_CONFIG, FusedMoEConfig, FusedMoEParallelConfig,
                                                             FusedMoEQuantConfig, RoutingMethodType, fp8_w8a8_moe_quant_config)
    from vllm.v1.worker import ubatching
    from vllm.v1.worker.workspace import init_workspace_manager

    libraries = []
    set_ops(libraries)
    if "mxfp8" in case.schemes:
        from vllm.model_executor.layers.quantization.utils import mxfp8_utils

        mxfp8_utils._mxfp8_e4m3_quantize_torch = lambda x, is_swizzled: mxfp8(x)
    if case.backend.startswith("deepep_v2"):
        from vllm.model_executor.layers.fused_moe.prepare_finalize import deepep_v2

        deepep_v2._globalize_recv_topk_idx_kernel = Globalize()
    if case.backend.endswith("one_sided"):
        import flashinfer.moe_ep.backends.split.comm.nvlink_common as nvlink
        import flashinfer.moe_ep.backends.split.comm.nvlink_one_sided.communication as one_sided

        nvlink.nvlink_platform_supported = one_sided.nvlink_platform_supported = lambda: True

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=case.num_ranks)
    world = torch.distributed.group.WORLD
    alone = [torch.distributed.new_group([other]) for other in range(case.num_ranks)][rank]
    backend = case.backend.partition(" ")[0]
    config = types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(enable_fault_tolerance=False, all2all_backend=backend, enable_elastic_ep=False),
        model_config=types.SimpleNamespace(enforce_eager="graphs" not in case.backend),
        scheduler_config=types.SimpleNamespace(max_num_batched_tokens=MAX), compilation_config=types.SimpleNamespace())
    vllm.config.vllm._current_vllm_config = config

    def record(group, communicator=None):
        return types.SimpleNamespace(cpu_group=group, device_group=group, rank_in_group=group.rank(), world_size=group.size(),
                                     device_communicator=communicator)

    parallel_state._DP, parallel_state._TP = record(world), record(alone)
    manager_class = {"deepep_low_latency": all2all.DeepEPLLAll2AllManager, "deepep_high_throughput": all2all.DeepEPHTAll2AllManager,
                     "deepep_v2": all2all.DeepEPV2All2AllManager, "flashinfer_nvlink_one_sided": all2all.FlashInferNVLinkOneSidedManager,
                     "flashinfer_nvlink_two_sided": all2all.FlashInferNVLinkTwoSidedManager}[backend]
    manager = manager_class(world)
    manager._gin_checked = True
    parallel_state._EP = record(world, types.SimpleNamespace(all2all_manager=manager))
    init_workspace_manager(torch.device("cpu"), num_ubatches=2)

    parallel = FusedMoEParallelConfig(tp_size=1, pcp_size=1, dp_size=case.num_ranks, ep_size=case.num_ranks, tp_rank=0, pcp_rank=0, dp_rank=rank,
                                      ep_rank=rank, sp_size=1, use_ep=True, all2all_backend=backend, enable_eplb=False)
    moe = FusedMoEConfig(num_experts=E, experts_per_token=K, hidden_dim=H, intermediate_size=I, num_local_experts=E // case.num_ranks,
                         num_logical_experts=E, activation=MoEActivation.SILU, device="cpu", routing_method=RoutingMethodType.Default,
                         moe_parallel_config=parallel, in_dtype=torch.bfloat16, max_num_tokens=MAX)
    scale = torch.tensor([1 / 64])

    def formats(scheme):
        """vLLM's configuration, and what the reference does."""
        if scheme == "bf16":
            return FUSED_MOE_UNQUANTIZED_CONFIG, lambda x: (x, None)
        if scheme.startswith("fp8_block"):
            return fp8_w8a8_moe_quant_config(None, None, block_shape=[128, 128]), (
                e4m3_blocks_ue8m0 if scheme.endswith("ue8m0") else e4m3_blocks_of_deep_ep if is_batched else e4m3_blocks)
        if scheme == "fp8_tensor":
            return fp8_w8a8_moe_quant_config(None, None, a1_scale=scale), lambda x: (e4m3_tensor(x, scale), scale)
        if scheme == "mxfp8":
            return FusedMoEQuantConfig.make("mxfp8", is_scale_swizzled=False), mxfp8
        return FusedMoEQuantConfig.make("nvfp4", a1_gscale=torch.tensor([GLOBAL_SCALE]), is_scale_swizzled=False), nvfp4

    is_batched, reduces = backend == "deepep_low_latency", backend.startswith("flashinfer")
    first, count = rank * moe.num_local_experts, moe.num_local_experts
    expert_map = torch.full((E,), -1, dtype=torch.int32)
    expert_map[first:first + count] = torch.arange(count, dtype=torch.int32)
    for scheme in case.schemes:
        os.environ["VLLM_DEEPEPLL_NVFP4_DISPATCH"] = str(int(scheme == "nvfp4_in_dispatch"))
        quant, quantize = formats(scheme)
        sabotage.calls, sabotage.done, failures, kernels = Counter(), False, [], []
        for _ in range(LAYERS):
            made = all2all_utils.maybe_make_prepare_finalize(moe, quant, allow_new_interface=True)
            kernels.append(modular_kernel.FusedMoEKernel(made, make_experts(moe, quant, quantize, is_batched, reduces, case.num_ranks)))

        def run_layers(batch):
            x, routes = batch_of(rank, case.num_ranks, batch)
            for layer, (ids, weights) in enumerate(routes):
                sabotage.layer = layer
                w1, w2 = (w[first:first + count] for w in weights_of(layer))
                output = kernels[layer].apply(x.clone(), w1, w2, weights.clone(), ids.to(made.topk_indices_dtype() or torch.int32),
                                              MoEActivation.SILU, E, expert_map, False)
                expected = dense(x, ids, weights, layer, quantize)
                differ = int((output.view(torch.int16) != expected.view(torch.int16)).sum())
                if differ:
                    failures.append(f"batch {batch}, layer {layer}, rank {rank}: {differ} of {output.numel()} elements differ")
                x = (expected.float() + x.float() / 2).to(torch.bfloat16)

        def forward_context(batch):
            metadata = DPMetadata(torch.tensor(BATCHES[case.num_ranks][batch], dtype=torch.int32))
            metadata.local_sizes = BATCHES[case.num_ranks][batch]
            return types.SimpleNamespace(dp_metadata=metadata)

        if case.backend.endswith("in micro-batches"):
            for batches in MICRO_BATCHES:
                run_micro_batches(ubatching, run_layers, batches, [forward_context(batch) for batch in batches], failures)
        else:
            for batch in range(len(BATCHES[case.num_ranks])):
                with override_forward_context(forward_context(batch)):
                    run_layers(batch)
        if case.sabotage and rank == 0 and not sabotage.done:
            failures = ["nothing was spoiled"]
        yield failures, dict(sabotage.calls) | {"class": f"{type(made).__name__} of {pathlib.Path(sys.modules[type(made).__module__].__file__).name}"}
    torch.distributed.barrier()
    with contextlib.suppress(Exception):
        manager.destroy()
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def run_micro_batches(ubatching, run_layers, batches, forward_contexts, failures):
    """Two threads that give way to one another where vLLM's classes say so, as its UBatchWrapper runs them."""
    barrier = threading.Barrier(len(batches) + 1)
    contexts = ubatching.make_ubatch_contexts(len(batches), STREAM, STREAM, forward_contexts, barrier)

    def run(context, batch):
        try:
            with context:
                run_layers(batch)
        except BaseException as error:  # pylint: disable=broad-except
            failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run, args=arguments) for arguments in zip(contexts, batches)]
    for thread in threads:
        thread.start()
    barrier.wait()
    contexts[0].cpu_wait_event.set()
    for thread in threads:
        thread.join()


# All ranks.


def run_case(case):
    """A record per scheme."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        queue = context.Queue()
        ranks = [context.Process(target=run_rank, args=(rank, case, folder, queue)) for rank in range(case.num_ranks)]
        for process in ranks:
            process.start()
        results = dict(queue.get(timeout=300) for _ in ranks)
        for process in ranks:
            process.join(timeout=60)
    for index, scheme in enumerate(case.schemes):
        of_ranks = [results[rank][index] for rank in range(case.num_ranks)]
        failures = [failure for of_rank, _ in of_ranks for failure in of_rank]
        totals = Counter()
        for _, calls in of_ranks:
            totals.update({name: count for name, count in calls.items() if name != "class"})
        dispatches, combines = (sum(n for name, n in totals.items() if name.endswith(kind)) for kind in (("dispatch", "alltoallv"), "combine"))
        if not (dispatches and combines) and not failures:
            failures = ["no call of ours ran"]
        yield {"class": of_ranks[0][1].get("class"), "backend": case.backend, "scheme": scheme, "ranks": case.num_ranks, "layers": LAYERS,
               "dispatch_calls": dispatches, "combine_calls": combines, "calls": dict(totals), "sabotage": case.sabotage, "failures": failures}


def changed_files(vllm):
    """Files of vLLM's fused_moe and communicators that are not those of its wheel."""
    (record,) = vllm.glob("vllm-*.dist-info/RECORD")
    changed, count = [], 0
    for name, digest, _ in csv.reader(record.read_text().splitlines()):
        if name.startswith(("vllm/model_executor/layers/fused_moe/", "vllm/distributed/", "vllm/v1/worker/ubatching.py")) and name.endswith(".py"):
            found = base64.urlsafe_b64encode(hashlib.sha256((vllm / name).read_bytes()).digest()).rstrip(b"=").decode()
            changed += [name] if digest != f"sha256={found}" else []
            count += 1
    assert count > 100, count
    return changed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=pathlib.Path, required=True, help="folder with vllm/ and flashinfer/, unpacked")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=sorted(BATCHES))
    parser.add_argument("--backends", nargs="+", default=list(SCHEMES), choices=list(SCHEMES))
    parser.add_argument("--schemes", nargs="+", help="only these")
    parser.add_argument("--sabotage", choices=("none", "bit", "row"), help="only this; default: all three")
    parser.add_argument("--output", type=pathlib.Path, help="JSON")
    args = parser.parse_args()
    sys.path[:0] = [str(args.peers / name) for name in ("vllm", "flashinfer")]
    if changed := changed_files(args.peers / "vllm"):
        parser.error(f"not as in vLLM's wheel: {', '.join(changed)}")
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=True)
    is_right = True
    cases = []
    for kind in [args.sabotage] if args.sabotage else ["none", "bit", "row"]:
        spoiled = None if kind == "none" else kind
        for num_ranks in args.ranks if not spoiled else args.ranks[:1]:
            for backend in args.backends:
                schemes = tuple(scheme for scheme in SCHEMES[backend] if not args.schemes or scheme in args.schemes)
                for result in run_case(Case(backend, schemes[:1] if spoiled else schemes, num_ranks, spoiled)) if schemes else ():
                    differs = [failure for failure in result["failures"] if failure.endswith("elements differ")]
                    good = bool(differs) and len(differs) == len(result["failures"]) if spoiled else not result["failures"]
                    is_right &= good
                    cases.append(result | {"as_expected": good})
                    print("ok  " if good else "BAD ", f"{backend}, {result['scheme']}, {num_ranks} ranks, sabotage {kind}:",
                          f"{result['dispatch_calls']} dispatches, {result['combine_calls']} combines,",
                          result["failures"][:2] or "every bit right", flush=True)
    if args.output:
        version = importlib.metadata.version
        record = {"command": " ".join(["integrations/vllm/referee.py", *sys.argv[1:]]), "commit": commit.stdout.strip(),
                  "date": datetime.date.today().isoformat(), "machine": platform.processor() or platform.machine(),
                  "vllm": version("vllm"), "torch": torch.__version__,
                  "tokens_of_batches": {str(ranks): tokens for ranks, tokens in BATCHES.items()}, "stand_ins": STAND_INS,
                  "all_as_expected": is_right, "cases": cases}
        args.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if is_right and cases else 1


if __name__ == "__main__":
    sys.exit(main())
