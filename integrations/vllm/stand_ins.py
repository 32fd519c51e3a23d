# SPDX-License-Identifier: Apache-2.0
"""What referee.py puts in the place of GPUs and of vLLM's compiled code."""
import importlib.metadata
import os
import pathlib
import sys
import tomllib

import torch

from formats import GLOBAL_SCALE, e4m3_blocks, e4m3_tensor, nvfp4

ROOT = pathlib.Path(__file__).resolve().parents[2]
# By name.
STAND_INS = {
    "vllm.platforms.current_platform": "a platform with the device cpu that says is_cuda_alike()",
    "torch.accelerator": "current_device_index, device_count, empty_cache, synchronize",
    "torch.cuda.stream, set_stream, torch.Event, Tensor.record_stream": "nothing; one stream for all, for micro-batches",
    "torch.ops._C": "per_token_group_fp8_quant, static_scaled_fp8_quant, scaled_fp4_quant",
    "torch.ops._moe_C": "moe_sum",
    "vllm ... mxfp8_utils._mxfp8_e4m3_quantize_torch": "vLLM's fails where there are no rows",
    "vllm ... deepep_v2._globalize_recv_topk_idx_kernel": "the Triton kernel, in torch",
    "vllm.distributed.parallel_state": "_EP, _DP, _TP: records with the group's ranks and the manager, without NCCL",
    "vllm.config": "a record with the fields of VllmConfig that are read",
    "vllm.forward_context": "a record with DPMetadata",
    "DeepEPV2All2AllManager._gin_checked": "True: the check makes an NCCL all-reduce",
    "flashinfer ... nvlink_platform_supported": "True",
}


class Stream:
    """A stream, an event and the context of a stream: CPU ranks compute in order."""

    def wait_event(self, event):
        """Nothing is behind."""

    record = wait_event

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


STREAM = Stream()


def set_platform():
    """Before anything else of vLLM is imported."""
    import vllm.platforms
    from vllm.platforms.interface import Platform, PlatformEnum

    class CpuRanks(Platform):
        _enum = PlatformEnum.UNSPECIFIED
        device_name = device_type = "cpu"
        dispatch_key = "CPU"

        def is_cuda_alike(self):
            return True

        @classmethod
        def import_kernels(cls):
            pass

        @classmethod
        def is_pin_memory_available(cls):
            return False

        @staticmethod
        def current_stream():
            return STREAM

    vllm.platforms._current_platform = CpuRanks()
    torch.Event = torch.cuda.stream = torch.cuda.set_stream = lambda *_: STREAM
    torch.Tensor.record_stream = lambda *_: None
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.device_count = lambda: 1
    torch.accelerator.empty_cache = torch.accelerator.synchronize = lambda *_: None


def set_ops(library):
    """The ops of vLLM's compiled packages that the classes call."""
    def group_quant(x, x_q, x_s, group_size, eps, fp8_min, fp8_max, use_ue8m0, column_major, tma_aligned):
        assert group_size == 128 and not use_ue8m0 and not column_major
        rows, scales = e4m3_blocks(x.view(-1, x.shape[-1]))
        x_q.copy_(rows.view(x.shape))
        x_s.copy_(scales.view(x_s.shape))

    def static_quant(result, x, scale, group_shape=None):
        result.copy_(e4m3_tensor(x, scale))

    def fp4_quant(x, scale, is_swizzled, *, output, output_scale):
        assert not is_swizzled and scale.item() == GLOBAL_SCALE
        rows, scales = nvfp4(x)
        output.copy_(rows)
        output_scale.view(torch.uint8).copy_(scales.view(torch.uint8))

    def moe_sum(x, output, topk_ids=None, expert_map=None):
        output.copy_(x.float().sum(dim=1))

    for space, name, signature, function in (
            ("_C", "per_token_group_fp8_quant", "(Tensor x, Tensor(a!) x_q, Tensor(b!) x_s, int group_size, float eps, float fp8_min, "
             "float fp8_max, bool use_ue8m0, bool column_major, bool tma_aligned) -> ()", group_quant),
            ("_C", "static_scaled_fp8_quant", "(Tensor(a!) result, Tensor x, Tensor scale, int[]? group_shape=None) -> ()", static_quant),
            ("_C", "scaled_fp4_quant.out", "(Tensor x, Tensor scale, bool is_swizzled, *, Tensor(a!) output, Tensor(b!) output_scale) -> ()",
             fp4_quant),
            ("_moe_C", "moe_sum", "(Tensor x, Tensor(a!) output, Tensor? topk_ids=None, Tensor? expert_map=None) -> ()", moe_sum)):
        ops = torch.library.Library(space, "FRAGMENT")
        ops.define(name + signature)
        ops.impl(name, function, "CPU")
        library.append(ops)


class Globalize:
    """The Triton kernel of deepep_v2: local ids to global ones, -1 for rows behind those that were received."""

    def __getitem__(self, grid):
        def run(ids, psum, num_ranks, first, num_experts, num_elements, topk, BLOCK):
            valid = (ids >= 0) & (ids + first < num_experts) & (torch.arange(len(ids)).unsqueeze(1) < psum[num_ranks - 1])
            ids.copy_(torch.where(valid, ids + first, -1))
        return run


def load_plugins(folder):
    """As vLLM's worker does. Without an installation of this library, a folder with its entry point stands on the path."""
    if not any(point.name == "switchyard" for point in importlib.metadata.entry_points(group="vllm.general_plugins")):
        points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.general_plugins"]
        info = pathlib.Path(folder) / f"of_rank_{os.getpid()}" / "switchyard_moe-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: switchyard-moe\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[vllm.general_plugins]\n" + "".join(f"{n} = {v}\n" for n, v in points.items()))
        sys.path.append(str(info.parent))
    from vllm.plugins import load_general_plugins

    load_general_plugins()
