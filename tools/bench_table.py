#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns JSON of exchange_bench, or of `switchyard bench`, into the Markdown tables of the documents.

usage: tools/bench_table.py RESULTS.json..."""
import json
import sys


def shapes(results):
    """(engine, layout, scheme, reduce, ranks, tokens) -> {operation: counters}, in the file's order."""
    rows = {}
    for entry in results["benchmarks"]:
        if "error_occurred" in entry:
            continue
        operation, engine, layout, scheme, reduce, ranks, tokens = entry["name"].split("/")[:7]
        key = (engine, layout, scheme, reduce, int(ranks.split(":")[1]), int(tokens.split(":")[1]))
        rows.setdefault(key, {})[operation] = entry
    return rows


def print_exchange_bench(results):
    print("| engine, layout | wire, sums | ranks | tokens a rank | dispatch us (min-max) | combine us (min-max) "
          "| of the copy floor | against Open MPI |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for (engine, layout, scheme, reduce, ranks, tokens), row in shapes(results).items():
        both = [row["dispatch"], row["combine"]]
        cells = ["{median_us:.0f} ({min_us:.0f}-{max_us:.0f})".format(**entry) for entry in both]
        total = sum(entry["median_us"] for entry in both)
        floor = sum(entry["floor_us"] for entry in both) / total
        mpi = "" if "mpi_us" not in both[0] else f"{sum(entry['mpi_us'] for entry in both) / total:.2f}x"
        wire = "bf16" if scheme == "none" else scheme
        print(f"| {engine}, {layout} | {wire}, {reduce} | {ranks} | {tokens} | {cells[0]} | {cells[1]} "
              f"| {100 * floor:.0f} % | {mpi} |")


def print_bench(files):
    """A row for each number of tokens, a group of columns for each file."""
    print("| tokens a rank |" + "".join(f" {name} us | of the floor | against {row['baseline']['name'].upper()} |"
                                      for name, (row, *_) in files))
    print("|---:|" + "---:|---:|---:|" * len(files))
    for i, row in enumerate(files[0][1]):
        cells = ""
        for _, rows in files:
            if i < len(rows):
                entry = rows[i]
                cells += (f" {entry['p50_us']:.1f} | {100 * entry['of_floor']:.0f} % "
                          f"| {entry['baseline']['ratio']:.2f}x |")
            else:
                cells += " | | |"
        print(f"| {row['tokens']} |{cells}")


def main():
    results = [json.load(open(path, encoding="utf-8")) for path in sys.argv[1:]]
    if "rows" in results[0]:
        print_bench([(f"{r['ranks']} GPUs{', PDL' if r['settings'].get('pdl') else ''}", r["rows"]) for r in results])
    else:
        print_exchange_bench(results[0])


main()
