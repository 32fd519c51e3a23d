#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The grids of DeepEP's and FlashInfer's own tests, between processes that use only the originals' names on torch tensors.

`deep_ep` and `flashinfer.comm` are this package's, by switchyard.compat.install(). Every case runs eagerly, and on GPUs
also from a CUDA graph, replayed with other rows and ids, unless its host must learn counts. Processes share GPUs where
there are fewer. Failures go to stderr as they are found; the results, one JSON object, to stdout or to a file. The exit
code is 1 when a case failed, or when a rank did not come to its end in time.

usage: drop_in_grid.py [--device cuda|cpu] [--processes N ...] [--areas AREA ...] [--small] [--timeout SECONDS] [--output FILE]
"""
import argparse
import datetime
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import switchyard
from switchyard import compat

AREAS = ("low_latency", "high_throughput", "elastic", "flashinfer")
GRACE_SECONDS = 20  # for the other ranks, when one has failed


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--areas", choices=AREAS, nargs="+", default=AREAS)
    parser.add_argument("--small", action="store_true", help="small sizes, for CPUs")
    parser.add_argument("--timeout", type=float, default=280, help="seconds for each number of processes")
    parser.add_argument("--output", type=pathlib.Path, help="where the results go instead of stdout")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def run_rank(arguments):
    """One process: every case, with the results of this rank in the folder."""
    from drop_in_rank import Rank, write_json  # pylint: disable=import-outside-toplevel

    index, size, device = arguments.rank, arguments.processes[0], "cpu"
    if arguments.device == "cuda":
        device = f"cuda:{index % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{arguments.folder}/store", rank=index, world_size=size,
                            timeout=datetime.timedelta(seconds=arguments.timeout))
    compat.install("deep_ep", "flashinfer.comm")
    rank = Rank(index, size, device, arguments.small, arguments.folder / f"cases-{index}.json")
    areas = {}
    for area in arguments.areas:
        begin = time.monotonic()
        sizes = importlib.import_module(f"drop_in_{area}").run(rank, dist.group.WORLD)
        areas[area] = {"sizes": sizes, "seconds": round(time.monotonic() - begin, 1)}
        write_json(arguments.folder / f"areas-{index}.json", areas)
        if index == 0:
            print(f"{size} processes: {area} took {areas[area]['seconds']} s", file=sys.stderr, flush=True)
    dist.barrier()
    dist.destroy_process_group()


def run_processes(arguments, size):
    """Starts the ranks, waits for them and returns what they found."""
    with tempfile.TemporaryDirectory() as name:
        folder, begin = pathlib.Path(name), time.monotonic()
        options = [*sys.argv[1:], "--processes", str(size), "--folder", name]
        environment = {"GLOO_SOCKET_IFNAME": "lo", **os.environ}
        ranks = [subprocess.Popen([sys.executable, __file__, *options, "--rank", str(rank)], env=environment) for rank in range(size)]
        try:
            failures = wait_for(ranks, begin + arguments.timeout)
        finally:
            for process in ranks:
                process.kill()
        seconds = time.monotonic() - begin
        cases = merge([read(folder / f"cases-{rank}.json", []) for rank in range(size)])
        areas = read(folder / "areas-0.json", {})
    failures += [line for case in cases for line in case.get("failures", [])] or ([] if cases else ["no case ran"])
    return {"processes": size, "seconds": round(seconds, 1), "areas": areas, "num_cases": len(cases),
            "num_captured": sum(isinstance(case["graph"], int) for case in cases),
            "num_failed_cases": sum("failures" in case for case in cases), "failures": failures, "cases": cases}


def wait_for(ranks, deadline):
    """Waits for the processes and kills those that are late. Returns a line for each that failed, and prints it."""
    failures = {}

    def fail(rank, what):
        if rank not in failures:
            failures[rank] = f"rank {rank}: {what}"
            print(failures[rank], file=sys.stderr, flush=True)

    while any(process.poll() is None for process in ranks):
        for rank, process in enumerate(ranks):
            if process.poll() and rank not in failures:
                fail(rank, f"exit code {process.returncode}")
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            for rank, process in enumerate(ranks):
                if process.poll() is None:
                    process.kill()
                    process.wait()
                    fail(rank, "did not end in time and was killed")
        time.sleep(0.05)
    for rank, process in enumerate(ranks):
        if process.returncode:
            fail(rank, f"exit code {process.returncode}")
    return list(failures.values())


def read(path, default):
    """JSON of a rank, or `default` where it did not come that far."""
    return json.loads(path.read_text()) if path.exists() else default


def merge(ranks):
    """One entry for each case: the largest values and all failures of its ranks. A case that some rank did not end has failed."""
    cases = {}
    for results in ranks:
        for result in results:
            case = cases.setdefault(result["case"], {**result, "values": {}, "failures": [], "ranks": 0})
            case["ranks"] += 1
            case["failures"] += result["failures"]
            for name, value in result["values"].items():
                case["values"][name] = max(value, case["values"].get(name, value))
    for case in cases.values():
        if case["ranks"] < len(ranks):
            case["failures"].append(f"{case['case']}: {len(ranks) - case['ranks']} of {len(ranks)} ranks did not end it")
        del case["ranks"]
        case["values"] = {name: float(f"{value:.3g}") for name, value in case["values"].items()}
        for name in ("values", "failures"):
            if not case[name]:
                del case[name]
    return list(cases.values())


def machine_of(device):
    """The processors."""
    if device == "cpu":
        return f"{os.cpu_count()} CPU cores"
    return f"{torch.cuda.device_count()}x {torch.cuda.get_device_name(0)}"


def format_result(result):
    """JSON with one line per case."""
    runs = result.pop("runs")
    blocks = []
    for run in runs:
        cases = ",\n".join("   " + json.dumps(case) for case in run.pop("cases"))
        blocks.append("  " + json.dumps(run, indent=1).replace("\n", "\n  ")[:-4] + ",\n   \"cases\": [\n" + cases + "\n   ]\n  }")
    return json.dumps(result, indent=1)[:-2] + ",\n \"runs\": [\n" + ",\n".join(blocks) + "\n ]\n}\n"


def main():
    arguments = parse_arguments()
    if arguments.rank is not None:
        run_rank(arguments)
        return 0
    if arguments.device == "cuda" and (not torch.cuda.is_available() or switchyard.num_cuda_devices() == 0):
        print("drop_in_grid: no GPU, or torch or this build of switchyard has no CUDA; pass --device cpu", file=sys.stderr)
        return 2
    result = {"what": "tests/python/drop_in_grid.py: processes that use only names of deep_ep and flashinfer.comm on torch tensors. For each case "
                      "the number of rounds, eager and replayed from one CUDA graph, and the largest differences of any rank.",
              "command": " ".join(["tests/python/drop_in_grid.py", *sys.argv[1:]]), "version": switchyard.build_summary(),
              "torch": torch.__version__, "machine": machine_of(arguments.device), "device": arguments.device}
    result["runs"] = [run_processes(arguments, size) for size in arguments.processes]
    failed = sum(len(run["failures"]) for run in result["runs"])
    for run in result["runs"]:
        print(f"{run['processes']} processes: {run['num_cases']} cases, {run['num_captured']} of them also from graphs, "
              f"{len(run['failures'])} failures, {run['seconds']} s", file=sys.stderr)
    text = format_result(result)
    if arguments.output:
        arguments.output.write_text(text)
    else:
        sys.stdout.write(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
