# SPDX-License-Identifier: Apache-2.0
"""The plug-in of vLLM: what its processes find with SWITCHYARD_VLLM and without. vLLM and FlashInfer are small packages made here."""
import os
import pathlib
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint, entry_points

import pytest

GROUP = "vllm.general_plugins"
FILES = {
    "vllm/__init__.py": "",
    "vllm/utils/__init__.py": "",
    "vllm/utils/import_utils.py": '''
import functools
import importlib.util

DEEPEP_V2_MIN_NCCL_VERSION_RAW = 23004


@functools.cache
def _has_module(name):
    return importlib.util.find_spec(name) is not None


def _get_runtime_nccl_version():
    return 22809


def has_deep_ep_v2():
    import deep_ep
    return _has_module("deep_ep") and hasattr(deep_ep, "ElasticBuffer") and _get_runtime_nccl_version() >= DEEPEP_V2_MIN_NCCL_VERSION_RAW
''',
    "flashinfer/__init__.py": "norm = 1",
    "flashinfer/comm/__init__.py": "from .trtllm_moe_alltoall import MoeAlltoAll\nfrom .mnnvl import MnnvlMemory\nallreduce_fusion = 2",
    "flashinfer/comm/trtllm_moe_alltoall.py": "class MoeAlltoAll: pass",
    "flashinfer/comm/trtllm_alltoall.py": "class MnnvlMoe: pass\nmoe_comm = 3",
    "flashinfer/comm/mnnvl.py": "class MnnvlMemory: pass",
    # As vLLM: plug-ins are loaded first in each process, and each is called twice.
    "program.py": '''
import importlib.util
import logging
import multiprocessing
import os
import sys

import vllm.utils.import_utils as utils


def load(queue):
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    utils._has_module("deep_ep")
    module, function = os.environ["ENTRY_POINT"].split(":")
    register = getattr(importlib.import_module(module), function)
    register()
    register()
    queue.put(found())


def found():
    names = ("deep_ep", "deep_ep.utils", "flashinfer", "flashinfer.comm", "flashinfer.comm.trtllm_alltoall")
    specs = [name for name in names if _is_there(name)]
    owners = []
    if "deep_ep" in specs:
        import deep_ep
        owners += [deep_ep.Buffer.__module__, utils.has_deep_ep_v2()]
    if "flashinfer" in specs:
        from flashinfer.comm import MnnvlMemory, MoeAlltoAll, trtllm_alltoall
        import flashinfer.comm
        owners += [MoeAlltoAll.__module__, trtllm_alltoall.MnnvlMoe.__module__, MnnvlMemory.__module__,
                   getattr(flashinfer.comm, "allreduce_fusion", None)]
    return specs, owners, os.environ.get("EP_DISABLE_GIN"), "switchyard" in sys.modules


def _is_there(name):
    try:
        return importlib.util.find_spec(name).name is not None
    except (AttributeError, ImportError):
        return False


if __name__ == "__main__":
    if "early" in sys.argv:
        import flashinfer.comm.trtllm_alltoall
    if "here" in sys.argv:
        from queue import SimpleQueue
        queue = SimpleQueue()
        load(queue)
        print(queue.get())
    else:
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=load, args=(queue,))
        process.start()
        print(queue.get(timeout=50))
        process.join()
''',
}
OURS = ["switchyard.compat._deep_ep_buffer", True]
CALLS = ["switchyard.compat._flashinfer_one_sided", "switchyard.compat._flashinfer_two_sided"]


@pytest.fixture
def run_vllm(tmp_path):
    """Runs the program with a value of SWITCHYARD_VLLM and returns what it found, and stderr."""

    def run(value, *arguments, has_flashinfer=True):
        for name, text in FILES.items():
            if has_flashinfer or not name.startswith("flashinfer"):
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        points = [point for point in entry_points(group=GROUP) if point.name == "switchyard"]
        assert [point.value for point in points] in ([], [entry_of_this_distribution().value])
        environment = os.environ | {"ENTRY_POINT": entry_of_this_distribution().value}
        environment.pop("SWITCHYARD_VLLM", None)
        if value is not None:
            environment["SWITCHYARD_VLLM"] = value
        return subprocess.run([sys.executable, tmp_path / "program.py", *arguments], check=False, capture_output=True, text=True, timeout=60,
                              env=environment)

    return run


def entry_of_this_distribution():
    project = tomllib.loads((pathlib.Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (item,) = project["entry-points"][GROUP].items()
    return EntryPoint(*item, GROUP)


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nothing_happens_without_the_variable(run_vllm, value):
    done = run_vllm(value)
    assert done.stdout == str((["flashinfer", "flashinfer.comm", "flashinfer.comm.trtllm_alltoall"], [
        "flashinfer.comm.trtllm_moe_alltoall", "flashinfer.comm.trtllm_alltoall", "flashinfer.comm.mnnvl", 2], None, False)) + "\n", done
    assert not done.stderr


@pytest.mark.parametrize("where", [(), ("here",), ("here", "early")])
def test_modules_are_ours_and_one_line_says_so(run_vllm, where):
    done = run_vllm("1", *where)
    specs = ["deep_ep", "deep_ep.utils", "flashinfer", "flashinfer.comm", "flashinfer.comm.trtllm_alltoall"]
    assert done.stdout == str((specs, [*OURS, *CALLS, "flashinfer.comm.mnnvl", 2], "1", True)) + "\n", done
    (line,) = done.stderr.splitlines()
    assert line.startswith("Switchyard ") and line.endswith(" is deep_ep and flashinfer.comm (SWITCHYARD_VLLM=1)")


def test_without_flashinfer(run_vllm):
    done = run_vllm("1", has_flashinfer=False)
    assert done.stdout == str((["deep_ep", "deep_ep.utils"], OURS, "1", True)) + "\n", done
    assert done.stderr.endswith(" is deep_ep (SWITCHYARD_VLLM=1)\n")


def test_named_modules(run_vllm):
    done = run_vllm("flashinfer.comm", has_flashinfer=False)
    assert str([*CALLS, "switchyard.compat._flashinfer_functions", None]) in done.stdout and "deep_ep" not in done.stdout, done
    done = run_vllm("deep_ep", "here")
    assert str([*OURS, "flashinfer.comm.trtllm_moe_alltoall", "flashinfer.comm.trtllm_alltoall", "flashinfer.comm.mnnvl", 2]) in done.stdout, done
    done = run_vllm("yes", "here")
    assert done.returncode == 1 and "SWITCHYARD_VLLM is 'yes', must be 0, 1, or of deep_ep, flashinfer.comm" in done.stderr


def test_too_late(run_program):
    code, _, errors = run_program("""
        import os, sys
        os.environ["SWITCHYARD_VLLM"] = "1"
        sys.modules["vllm.model_executor.layers.fused_moe.all2all_utils"] = sys
        import switchyard_vllm
        switchyard_vllm.register()
    """)
    assert code == 0 and "vLLM looked for deep_ep before its plug-ins were loaded" in errors
