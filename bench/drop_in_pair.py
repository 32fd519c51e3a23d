#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a pair of DeepEP's low-latency calls costs through the drop-in module, beside the same pair in C++.

The original returns each expert's row by itself, which is this library's contract `per_expert`. Each rank is a process with a GPU of its own. A CUDA graph of torch has PAIRS pairs, each with ids of its own, as
the graph of `switchyard bench` has, and scales lie as DeepEP's do; a time is the median of its replays on the slowest rank, by pair. Prints one
JSON object.

usage: bench/drop_in_pair.py [TOKENS ...]     in an environment with torch and the package with its CUDA module
"""
import json
import pathlib
import statistics
import sys
import tempfile

import torch

import switchyard
from switchyard.compat import deep_ep

HIDDEN, EXPERTS, TOPK = 7168, 256, 8
PAIRS, REPLAYS = 20, 60
FORMS = {"fp8": "fp8_block_deepep", "bf16": "none"}


def record(buffer, tokens, uses_fp8, device):
    """Returns a graph of PAIRS pairs."""
    x = torch.randn(tokens, HIDDEN, device=device).to(torch.bfloat16)
    weights = torch.full((tokens, TOPK), 1 / TOPK, device=device)
    ids = [torch.stack([torch.randperm(EXPERTS, device=device)[:TOPK] for _ in range(tokens)]) for _ in range(PAIRS)]
    out = torch.empty_like(x)
    local = EXPERTS // buffer.group_size
    results = torch.zeros(local, tokens * buffer.group_size, HIDDEN, dtype=torch.bfloat16, device=device)

    def pairs(count):
        for i in range(count):
            _, _, handle, _, _ = buffer.low_latency_dispatch(x, ids[i], tokens, EXPERTS, use_fp8=uses_fp8)
            buffer.low_latency_combine(results, ids[i], weights, handle, out=out)

    pairs(2)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pairs(PAIRS)
    return graph, (x, weights, ids, out, results)


def replay(group, graph):
    """Returns the median time of a pair in us."""
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        group.barrier()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / PAIRS)
    return statistics.median(times[REPLAYS // 10:])


def run_rank(rank, size, folder, counts):
    """Leaves this rank's times in `folder`."""
    group = switchyard.Group(rank, size, str(pathlib.Path(folder) / "store"))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    times = {}
    for form in FORMS:
        for tokens in counts:
            buffer = deep_ep.Buffer(group, low_latency_mode=True)
            graph, kept = record(buffer, tokens, form == "fp8", device)
            times[f"{form} {tokens}"] = replay(group, graph)
            del graph, kept
            buffer.destroy()
    (pathlib.Path(folder) / f"{rank}.json").write_text(json.dumps(times))
    group.close()


def main():
    """Prints both times of each form and number of tokens."""
    counts = [int(argument) for argument in sys.argv[1:]] or [1, 8, 32, 128]
    size = switchyard.num_cuda_devices()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, args=(size, folder, counts), nprocs=size)
        ranks = [json.loads((pathlib.Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]
    rows = []
    for form, scheme in FORMS.items():
        report = switchyard.bench(device="cuda", ranks=size, graph=True, op="pair", layout="batched", reduce="per_expert", scheme=scheme,
                                  scales="row_major" if form == "bf16" else "column_major", tokens=counts)
        for row in report.rows:
            drop_in = max(times[f"{form} {row['tokens']}"] for times in ranks)
            rows.append({"form": form, "tokens": row["tokens"], "drop_in_us": round(drop_in, 2), "cpp_us": round(row["p50_us"], 2),
                         "ratio": round(drop_in / row["p50_us"], 3)})
    result = {"command": " ".join(["bench/drop_in_pair.py", *sys.argv[1:]]), "version": switchyard.build_summary(),
              "torch": torch.__version__, "machine": report["machine"], "ranks": size, "hidden": HIDDEN, "experts": EXPERTS,
              "topk": TOPK, "pairs_of_a_graph": PAIRS, "rows": rows}
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
