# SPDX-License-Identifier: Apache-2.0
"""What programs import from switchyard.compat.deep_ep besides its buffers: events, hints, names, install()."""
import subprocess
import sys

import pytest
from test_compat_deep_ep import E, H, MAX, P

from switchyard import ArgumentTypeError, Group, InvalidArgumentError
from switchyard.compat import deep_ep


def test_events_and_hints():
    event = deep_ep.EventOverlap()
    with pytest.raises(InvalidArgumentError, match="no event"):
        event.current_stream_wait()
    with event, deep_ep.Buffer.capture() as captured:
        assert isinstance(captured.event, deep_ep.EventHandle)
    captured.current_stream_wait()
    # 2 * (E * max * (8 + 512) + E * max * 528 + 128), rounded up, by semantics of the original.
    rows = E * MAX
    assert deep_ep.Buffer.get_low_latency_rdma_size_hint(MAX, H, P, E) == (2 * (rows * 520 + rows * 528 + 128) + 128) // 128 * 128
    config = deep_ep.Config(num_sms=24)
    assert config.get_nvl_buffer_size_hint(H * 2, 8) % 128 == 0 and config.get_rdma_buffer_size_hint(H * 2, 8) == 0


@pytest.mark.parametrize("wrong, error", [(-1, InvalidArgumentError), (None, ArgumentTypeError), ("1", ArgumentTypeError), (1.5, ArgumentTypeError)])
def test_sizes_are_whole_numbers(wrong, error):
    with Group.from_env() as group:
        calls = [lambda name=name: deep_ep.Buffer(group, **{name: wrong}) for name in ("num_nvl_bytes", "num_rdma_bytes", "num_qps_per_rank")]
        calls += [lambda name=name: deep_ep.ElasticBuffer(group, **{"num_bytes": 0, name: wrong}) for name in (
            "num_cpu_bytes", "num_max_tokens_per_rank", "hidden", "num_topk", "num_allocated_qps", "num_cpu_timeout_secs", "num_gpu_timeout_secs")]
        calls += [lambda: deep_ep.Config(wrong), lambda: deep_ep.Config(20, wrong), lambda: deep_ep.Buffer.get_dispatch_config(wrong)]
        for call in calls:
            with pytest.raises(error, match=f"(Buffer|Config|get_dispatch_config): num_[a-z_]* is {wrong!r}, must be|hidden is"):
                call()


def test_hooks_after_a_wait():
    ran = []
    event = deep_ep.EventOverlap(deep_ep.EventHandle())
    event.register_hook_after_wait(lambda: ran.append(1))
    with pytest.raises(InvalidArgumentError, match="there is a hook already"):
        event.register_hook_after_wait(ran.clear)
    with event:
        assert not ran
    event.current_stream_wait()
    assert ran == [1] and event.event is not None
    with event(release_handle=True):
        pass
    assert event.event is None


def test_names_that_engines_import(run_program):
    code, out, errors = run_program("""
        import sys
        import switchyard.compat
        switchyard.compat.install()
        import deep_ep.utils
        from deep_ep import Buffer, Config, ElasticBuffer, EPHandle, get_logical_domain_size, get_physical_domain_size
        from deep_ep.utils import EventHandle, EventOverlap

        assert EventOverlap is deep_ep.EventOverlap and EventHandle is deep_ep.EventHandle and deep_ep.utils.EventOverlap is EventOverlap
        assert int(deep_ep.__version__.split(".")[0]) == 2
        assert "torch" not in sys.modules
        from deep_ep import topk_idx_t
        module = "torch" if "torch" in sys.modules else "numpy"
        assert topk_idx_t is sys.modules[module].int64
        try:
            deep_ep.nothing
        except AttributeError as error:
            print(error)
    """)
    assert code == 0 and "has no attribute 'nothing'" in out, errors


def test_spawned_processes_find_what_was_installed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text('''
import importlib.util
import multiprocessing
import sys


def child(queue):
    found = [importlib.util.find_spec(name) is not None for name in NAMES]
    import deep_ep, deep_gemm, flashinfer.comm.mnnvl
    from flashinfer.comm import trtllm_moe_alltoall
    queue.put((found, deep_ep.Buffer.__module__, flashinfer.comm.__name__, deep_gemm.get_m_alignment_for_contiguous_layout()))


NAMES = ("deep_ep", "deep_ep.utils", "flashinfer", "flashinfer.comm", "flashinfer.comm.mnnvl", "deep_gemm")
if __name__ == "__main__":
    from switchyard import compat
    compat.install("deep_ep", "flashinfer.comm", "deep_gemm")
    assert all(importlib.util.find_spec(name) for name in NAMES)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(*queue.get(timeout=50))
    process.join()
''')
    done = subprocess.run([sys.executable, program], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("[True, True, True, True, True, True] switchyard") and done.stdout.split()[-1] == "128", done


def test_install():
    source = ("import switchyard.compat\nswitchyard.compat.install()\nimport deep_ep\nfrom deep_ep import Buffer\n"
              "assert Buffer.__module__.startswith('switchyard')\n"
              "switchyard.compat.install()\n"
              "import sys\nsys.modules['deep_ep'] = sys\n"
              "try:\n    switchyard.compat.install()\nexcept ImportError as error:\n    print(error)\n"
              "try:\n    switchyard.compat.install('nothing')\nexcept ValueError as error:\n    print(error)\n")
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True, timeout=60)
    assert "another deep_ep" in done.stdout and "'nothing', must be one of" in done.stdout
