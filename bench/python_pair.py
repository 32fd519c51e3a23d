#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Python adds to a pair (a dispatch with its combine) of one token on one rank, on CPUs.

Times the same pair through the package and, with `switchyard bench`, in C++. Prints one JSON object.

usage: bench/python_pair.py     in an environment with the installed package
"""
import json
import statistics
import sys
import time

import ml_dtypes
import numpy as np

import switchyard

SIZES = {"num_experts": 256, "num_topk": 8, "hidden": 7168, "max_tokens_per_rank": 1}
RUNS = 4000


def time_pairs(group):
    """Returns the times of pairs in us, with new numpy arrays as arguments and `out` given."""
    random = np.random.default_rng(0)
    tokens = random.normal(size=(1, SIZES["hidden"])).astype(ml_dtypes.bfloat16)
    ids, weights = np.arange(8, dtype=np.int32).reshape(1, 8) * 31, np.ones((1, 8), np.float32)
    out = np.zeros_like(tokens)
    times = []
    with switchyard.Exchange(group, **SIZES) as exchange:
        for _ in range(RUNS):
            begin = time.perf_counter_ns()
            received = exchange.dispatch(tokens, ids, weights)
            exchange.combine(received, received.rows, out)
            times.append((time.perf_counter_ns() - begin) / 1e3)
    return times[RUNS // 10:]


def main():
    """Takes the least of five medians of each, in turns."""
    python, native = [], []
    for _ in range(5):
        python.append(statistics.median(switchyard.run_local(1, time_pairs)[0]))
        report = switchyard.bench(ranks=1, engine="local", tokens=[1], scheme="none", workload="deepseek-v3", runs=501)
        native.append(report.rows[0]["p50_us"])
    result = {"command": "bench/python_pair.py", "version": switchyard.build_summary(), "python": sys.version.split()[0],
              "numpy": np.__version__, "machine": report["machine"], "sizes": SIZES, "python_us": round(min(python), 2),
              "native_us": round(min(native), 2), "added_us": round(min(python) - min(native), 2)}
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
