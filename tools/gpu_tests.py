#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every test program that needs a GPU, several at a time, and writes what each took as JSON.

Programs run whole, or in few shards, since a process per test would pay for a CUDA context each time. The longest
start first; one that compares the free memory of a GPU before and after runs alone, at the end.

usage: tools/gpu_tests.py [--build FOLDER] [--jobs N] [--limit SECONDS] [--python FOLDER] [--output FILE]
Exits with 1 when a program failed or did not end, with 2 without a GPU.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

FIRST = ["exchange_hosts_cuda_test", "bench_hosts_cuda_test", "cli_run_cuda_test"]  # those that take longest
ALONE = ["device_window_process_test"]
SHARDS = {"exchange_hosts_cuda_test": 3}  # programs that run as so many processes, each with a part of the tests


def programs_of(build):
    """Test programs with the label cuda, as {name: path}."""
    listing = subprocess.run(["ctest", "--test-dir", build, "-L", "^cuda$", "--show-only=json-v1"], check=True,
                             capture_output=True, text=True).stdout
    found = {}
    for test in json.loads(listing)["tests"]:
        command = test.get("command", [])
        if not any(word.startswith("--gtest_filter") for word in command):
            continue
        found[pathlib.Path(command[0]).name] = command[0]
    return found


def jobs_of(name, path):
    """(name, command, added environment) of each process of a program."""
    shards = SHARDS.get(name, 1)
    if shards == 1:
        return [(name, [path], {})]
    return [(f"{name}-{shard + 1}-of-{shards}", [path],
             {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)}) for shard in range(shards)]


def run(name, command, added, limit, folder, environment):
    began = time.monotonic()
    log = folder / f"{name}.log"
    with log.open("w") as output:
        try:
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=max(limit, 1), check=False,
                                  env=environment | added).returncode
            result = "ok" if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            result = f"did not end in {limit:.0f} s"
    return {"program": name, "result": result, "seconds": round(time.monotonic() - began, 1), **counts_of(log)}


def counts_of(log):
    text = log.read_text(errors="replace")
    if "passed" in text and "[  PASSED  ]" not in text and "[       OK ]" not in text:  # pytest's last line
        return {word: int((re.findall(rf"(\d+) {word}", text) or [0])[-1]) for word in ("passed", "skipped")} | {
            "failed": re.findall(r"^FAILED (\S+)", text, re.M)}
    return {"passed": len(re.findall(r"^\[       OK \]", text, re.M)),
            "skipped": len(set(re.findall(r"^\[  SKIPPED \] (\S+) \(", text, re.M))),
            "failed": sorted(set(re.findall(r"^\[  FAILED  \] (\S+/?\S*?)(?:, where| \(|$)", text, re.M)) - {"1"})}


def output_of(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit_of_this_copy():
    """Unknown where this tree has no history of its own, also inside another repository."""
    root = pathlib.Path(__file__).resolve().parent.parent
    if shutil.which("git") is None or output_of("git", "-C", str(root), "rev-parse", "--show-toplevel") != str(root):
        return "unknown"
    return output_of("git", "-C", str(root), "rev-parse", "--short=12", "HEAD") or "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build/device")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time")
    parser.add_argument("--limit", type=float, default=360, help="seconds for all")
    parser.add_argument("--python", help="folder with the built package: runs tests/python's GPU tests, too")
    parser.add_argument("--only", help="regular expression of program names")
    parser.add_argument("--commit", default=commit_of_this_copy())
    parser.add_argument("--output", help="file for the result; logs go beside it")
    options = parser.parse_args()
    if shutil.which("nvidia-smi") is None:
        print("gpu_tests.py: nvidia-smi is not found, so there is no GPU to test on", file=sys.stderr)
        return 2
    output = pathlib.Path(options.output or pathlib.Path(options.build) / "gpu-tests.json")
    folder = output.parent / "gpu-tests-logs"
    folder.mkdir(parents=True, exist_ok=True)

    programs = programs_of(options.build)
    if options.only:
        programs = {name: path for name, path in programs.items() if re.search(options.only, name)}
    names = sorted(programs, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    jobs = [job for name in names if name not in ALONE for job in jobs_of(name, programs[name])]
    alone = [job for name in names if name in ALONE for job in jobs_of(name, programs[name])]
    environment = dict(os.environ, CUDA_MODULE_LOADING="EAGER")
    if options.python:
        environment["PYTHONPATH"] = options.python + os.pathsep + environment.get("PYTHONPATH", "")
        jobs.insert(0, ("python", [sys.executable, "-m", "pytest", "-q", "-rf", "tests/python", "-k",
                                   "cuda or gpu or stream"], {}))
    began = time.monotonic()
    left = lambda: options.limit - (time.monotonic() - began)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda job: run(*job, left(), folder, environment), jobs))
    results += [run(*job, left(), folder, environment) for job in alone]
    report = {
        "command": "tools/gpu_tests.py " + " ".join(sys.argv[1:]),
        "commit": options.commit,
        "device": output_of("nvidia-smi", "--query-gpu=index,name", "--format=csv,noheader").replace("\n", "; "),
        "seconds": round(time.monotonic() - began, 1),
        "programs": results,
    }
    output.write_text(json.dumps(report, indent=1) + "\n")
    for result in results:
        print(f"{result['seconds']:7.1f} s  {result['passed']:5d} passed {result['skipped']:4d} skipped  {result['program']}: "
              f"{result['result']} {' '.join(result['failed'])}")
    print(f"{report['seconds']:7.1f} s  in all, {options.jobs} at a time")
    return 0 if all(result["result"] == "ok" for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
