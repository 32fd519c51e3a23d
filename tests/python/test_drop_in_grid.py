# SPDX-License-Identifier: Apache-2.0
"""drop_in_grid.py: with small sizes between processes on CPUs, and that its checks find what is wrong."""
import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = pathlib.Path(__file__).with_name("drop_in_grid.py")

# What the first argument names returns results that are a little too large, in a group of one rank. With a hook they are
# written later, and right.
WRONG_RESULTS = """
    import json, pathlib, sys
    sys.path.insert(0, sys.argv[3])
    from switchyard import _native, compat, run_local
    compat.install("deep_ep", "flashinfer.comm")
    import deep_ep, flashinfer.comm
    import importlib
    from drop_in_rank import Rank

    owner, _, call = sys.argv[1].rpartition(".")
    owner = {"Buffer": deep_ep.Buffer, "ElasticBuffer": deep_ep.ElasticBuffer, "MnnvlMoe": flashinfer.comm.MnnvlMoe,
             "MoeAlltoAll": flashinfer.comm.MoeAlltoAll}[owner]
    right = getattr(owner, call)
    is_static = isinstance(owner.__dict__[call], staticmethod)

    def wrong(*arguments, **options):
        result = right(*arguments, **options)
        rows = result[0] if isinstance(result, tuple) else result
        rows.mul_(1.0625)
        return result

    setattr(owner, call, staticmethod(wrong) if is_static else wrong)
    path = pathlib.Path(sys.argv[4]) / "cases.json"
    rank = Rank(0, 1, "cpu", True, path)
    run_local(1, lambda group: importlib.import_module(sys.argv[2]).run(rank, group))
    cases = json.loads(path.read_text())
    print(len(cases), sum(bool(case["failures"]) for case in cases))
"""


def run_grid(*arguments, timeout=300):
    """(exit code, results, stderr)"""
    done = subprocess.run([sys.executable, PROGRAM, "--device", "cpu", "--small", *map(str, arguments)], check=False, capture_output=True,
                          text=True, timeout=timeout)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("size", [2, 4])
def test_grids(size):
    code, result, errors = run_grid("--processes", size)
    run, = result["runs"]
    assert code == 0 and not run["failures"], errors
    assert run["processes"] == size and list(run["areas"]) == ["low_latency", "high_throughput", "elastic", "flashinfer"]
    names = [case["case"] for case in run["cases"]]
    assert len(names) == len(set(names)) == run["num_cases"] > 130
    assert run["num_captured"] == 0 and all(case["eager"] == 2 and case["graph"].startswith("not captured") for case in run["cases"])
    diffs = [case["values"]["combine diff"] for case in run["cases"] if "combine diff" in case.get("values", {})]
    assert len(diffs) == 48 and max(diffs) < 9e-4


@pytest.mark.parametrize("call, module, num_right", [
    ("Buffer.low_latency_combine", "drop_in_low_latency", 8), ("Buffer.combine", "drop_in_high_throughput", 0),
    ("ElasticBuffer.combine", "drop_in_elastic", 0), ("MoeAlltoAll.combine", "drop_in_flashinfer", 2),
    ("MnnvlMoe.mnnvl_moe_alltoallv_combine", "drop_in_flashinfer", 12)])
def test_wrong_results_are_found(call, module, num_right, run_program, tmp_path):
    code, output, errors = run_program(WRONG_RESULTS, call, module, PROGRAM.parent, tmp_path)
    assert code == 0, errors
    num_cases, num_failed = map(int, output.split())
    assert num_cases - num_failed == num_right and "must be" in errors and "rank 0: " in errors


def test_ranks_that_are_late():
    code, result, errors = run_grid("--processes", 2, "--timeout", 0.2)
    assert code == 1 and "rank 1: did not end in time and was killed" in errors
    assert result["runs"][0]["failures"][-1] == "no case ran"
