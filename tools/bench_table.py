#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns benchmark results into the Markdown tables of the documentation.

usage: tools/bench_table.py [--as wire | stages | budgets] RESULTS.json...

Makes one table from all files, which come from `switchyard bench` (one row per number of tokens, columns per file), quant_bench,
cuda_quant and cuda_permute, or cuda_experts_bench. A last file of bench/peers gives each peer a column beside runs of
`switchyard bench`, with the fastest of its modes. Other tables of runs of `switchyard bench`: wire, the rates that its floor tried;
stages, medians of --stages with a column per file; budgets, a row for each of --sms with a column per file. Pages name the files of a
table in a comment before it, and tests/tools/docs_test.py compares the two."""
import json
import sys

BLOCKS_AND_TOKENS = ["fp8_block", "fp8_block_deepep", "fp8_ue8m0", "fp8_ue8m0_deepep", "fp8_token", "int8_token", "int8_block", "mxfp8"]
TENSORS = ["fp8_tensor", "int8_tensor"]
FP4 = ["nvfp4", "mxfp4"]
CUDA_ROWS = [  # call, description, names of the measurements; calls of cuda_quant use bf16
    ("dequantize", "fp8 and int8 by block or token, mxfp8", [f"dequantize {s}" for s in BLOCKS_AND_TOKENS]),
    ("", "nvfp4, mxfp4", [f"dequantize {s}" for s in FP4]),
    ("", "fp8_tensor, int8_tensor, whose copy is slower", [f"dequantize {s}" for s in TENSORS]),
    ("quantize", "fp8 and int8 by block or token, mxfp8", [f"quantize {s}" for s in BLOCKS_AND_TOKENS]),
    ("", "fp8_tensor, int8_tensor (dynamic)", [f"quantize {s}" for s in TENSORS]),
    ("", "mxfp6_e3m2, mxfp6_e2m3, simulated", ["quantize mxfp6_e3m2", "quantize mxfp6_e2m3"]),
    ("", "nvfp4, mxfp4", [f"quantize {s}" for s in FP4]),
    ("fused SiLU-mul and quantize", "fp8 and int8 by block or token, mxfp8", [f"silu_mul {s}" for s in BLOCKS_AND_TOKENS]),
    ("", "fp8_tensor, int8_tensor (scale given)", [f"silu_mul {s}" for s in TENSORS]),
    ("", "nvfp4, mxfp4", [f"silu_mul {s}" for s in FP4]),
    ("scatter", "bf16 rows", ["ep_scatter bf16"]),
    ("", "e4m3 rows with f32 scales, with packed ones", ["ep_scatter e4m3 f32 scales", "ep_scatter e4m3 packed scales"]),
    ("", "bf16 rows, 1/8 of the experts owned", ["ep_scatter bf16 owns 1/8"]),
    ("unpermute and reduce", "bf16, f16, f32 rows", [f"unpermute_and_reduce {t}" for t in ("bf16", "f16", "f32")]),
    ("", "bf16 rows, 1/8 of the experts owned", ["unpermute_and_reduce bf16 1/8"]),
]
EXPERT_ROWS = {
    "batch 16 of 512, bf16": "16 in each of 32 x 512 places",
    "batch 16 of 512, fp8": "the same, fp8 rows",
    "batch 16 of 16, bf16": "16 in each of 32 x 16 places",
    "4096 rows, bf16": "4096, one expert after another",
    "65536 rows, bf16": "65,536, one expert after another",
}


def load(path):
    """Returns the file's JSON object, or a list of objects if it has one per line."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def quant_bench(results):
    lines = ["| Scheme | GB/s | of the floor |", "|---|---:|---:|"]
    for entry in results["benchmarks"]:
        operation, scheme, rows = entry["name"].split("/")[:3]
        if operation == "quantize_scheme" and rows == "rows:8192":
            lines.append(f"| `{scheme}` | {entry['GB/s']:.1f} | {100 * entry['of_floor']:.0f} % |")
    return lines


def title_of(result):
    """Describes how a run of `switchyard bench` differs from the plain pair, and the unit of its times."""
    settings = result["settings"]
    parts = [f"{result['ranks']} GPUs" if result["device"] == "cuda" else f"{result['ranks']} ranks",
             "" if settings["op"] == "pair" else settings["op"],
             "" if settings["reduce"] == "per_rank" else settings["reduce"], "PDL" if settings.get("pdl") else "",
             "" if settings["layers"] == 1 else f"{settings['layers']} in a row",
             f"room for {settings['max_tokens']}" if settings.get("max_tokens") else ""]
    return ", ".join(part for part in parts if part) + (" us" if settings["layers"] == 1 else ", us each")


def cells_of(result, row, has_baseline):
    if row is None:
        return " | |" + (" |" if has_baseline else "")
    cells = f" {row['p50_us'] / result['settings']['layers']:.1f} | {100 * row['of_floor']:.0f} % |"
    if not has_baseline:
        return cells
    return cells + (f" {row['baseline']['ratio']:.2f}x |" if row["baseline"] else " |")


def bench(results):
    """One row per number of tokens (and of SMs), one group of columns per file."""
    by_size = [{(row["tokens"], row["sms"]): row for row in result["rows"] if "p50_us" in row} for result in results]
    head, rule = "| tokens per rank |", "|---:|"
    lines = {size: f"| {size[0]} |" for rows in by_size for size in rows}
    for result, rows in zip(results, by_size):
        baseline = next((row["baseline"]["name"].upper() for row in rows.values() if row["baseline"]), None)
        head += f" {title_of(result)} | of the floor |" + (f" against {baseline} |" if baseline else "")
        rule += "---:|---:|" + ("---:|" if baseline else "")
        for size in lines:
            lines[size] += cells_of(result, rows.get(size), baseline is not None)
    return [head, rule, *lines.values()]


def best_of_peer(rows, name, operation, tokens):
    """Returns the cell of a peer: its fastest mode, and whether that was no CUDA graph; empty without one."""
    times = [(row["us"], row["mode"]) for row in rows if (row["name"], row["op"], row["tokens"]) == (name, operation, tokens)]
    if not times:
        return ""
    us, mode = min(times)
    return f"{us:.1f}" + ("" if mode.startswith("CUDA graph") else " (events)")


def beside_peers(results, peers):
    """One row per number of tokens of either, one column per file of ours, then one per peer."""
    operation = results[0]["settings"]["op"]
    ours = [{row["tokens"]: f"{row['p50_us']:.1f}" for row in result["rows"] if "p50_us" in row} for result in results]
    rows = [row for row in peers["rows"] if row["op"] == operation]
    names = list(dict.fromkeys(row["name"] for row in rows))
    sizes = sorted({row["tokens"] for row in rows}.union(*ours))
    head = ["tokens per rank", *(title_of(result) for result in results), *names]
    lines = [f"| {' | '.join(head)} |", "|" + "---:|" * len(head)]
    for size in sizes:
        cells = [one.get(size, "") for one in ours] + [best_of_peer(rows, name, operation, size) for name in names]
        lines.append(f"| {size} |" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return lines


def percents(shares):
    """Lists up to three shares; for more, gives their range."""
    if len(shares) > 3:
        return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"
    return ", ".join(f"{100 * share:.0f}" for share in shares) + " %"


def cuda_calls(entries):
    shares = {}
    for entry in entries:
        name = entry["name"] if "name" in entry else f"{entry['call']} {entry['scheme']}"
        if entry.get("dtype", "bf16") == "bf16":
            shares[name] = entry["of_copy"]
    lines = ["| Call | What | of the copy |", "|---|---|---:|"]
    for call, what, names in CUDA_ROWS:
        lines.append(f"|{f' {call} ' if call else ' '}| {what} | {percents([shares[name] for name in names])} |")
    return lines


def cuda_experts(entries):
    found = {(entry["case"], entry["experts"]): entry for entry in entries}
    names = list(dict.fromkeys(entry["experts"] for entry in entries))
    lines = ["| Rows | " + " | ".join(f"`{name}`" for name in names) + " |", "|---" + "|---:" * len(names) + "|"]
    for case, label in EXPERT_ROWS.items():
        cells = [f"{found[case, name]['us'] / 1000:.2f} ms, {found[case, name]['tflops']:.0f} TFLOP/s" for name in names]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def wire(results):
    """One row per way to store or load, one column per grid."""
    tried = results[0]["floors"][0]["wire"]["tried"]
    grids = list(dict.fromkeys(entry["ctas"] for entry in tried))
    rate = {(entry["by"], entry["ctas"]): f"{entry['gb_per_second']:.0f}" for entry in tried}
    lines = ["| CTAs | " + " | ".join(map(str, grids)) + " |", "|---|" + "---:|" * len(grids)]
    for way in dict.fromkeys(entry["by"] for entry in tried):
        lines.append(f"| {way} | " + " | ".join(rate[way, grid] for grid in grids) + " |")
    return lines


def stages(results):
    """One row per stage, one column per file, of one number of tokens each."""
    found = [{(s["kernel"], s["role"], s["stage"]): s["median_us"] for s in result["rows"][0]["stages"]} for result in results]
    tokens = [result["rows"][0]["tokens"] for result in results]
    lines = ["| Kernel | Role | Stage | " + " | ".join(f"{t} token{'' if t == 1 else 's'}" for t in tokens) + " |",
             "|---|---|---|" + "---:|" * len(tokens)]
    for key in found[0]:
        lines.append("| " + " | ".join(key) + " | " + " | ".join(f"{one[key]:.1f}" for one in found if key in one) + " |")
    return lines


def budgets(results):
    """One row per number of SMs that every file has, one column per file."""
    found = [{row["sms"]: row["p50_us"] for row in result["rows"]} for result in results]
    lines = ["| SMs | " + " | ".join(title_of(result) for result in results) + " |", "|---:|" + "---:|" * len(results)]
    for sms in sorted(set.intersection(*(set(one) for one in found))):
        lines.append(f"| {sms} | " + " | ".join(f"{one[sms]:.0f}" for one in found) + " |")
    return lines


KINDS = {"wire": wire, "stages": stages, "budgets": budgets}


def table(paths, kind=None):
    """Returns the lines of the table for these files."""
    results = [load(path) for path in paths]
    if kind is not None:
        return KINDS[kind](results)
    if isinstance(results[0], list):
        entries = [entry for result in results for entry in result]
        return cuda_experts(entries) if entries[0]["bench"] == "cuda_experts" else cuda_calls(entries)
    if "rows" in results[0]:
        return bench(results) if "settings" in results[-1] else beside_peers(results[:-1], results[-1])
    return quant_bench(results[0])


if __name__ == "__main__":
    has_kind = sys.argv[1] == "--as"
    print("\n".join(table(sys.argv[3:], sys.argv[2]) if has_kind else table(sys.argv[1:])))
