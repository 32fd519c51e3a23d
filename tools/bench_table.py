#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the JSON of exchange_bench into the Markdown table of the README: dispatch and combine of one shape in a row.

usage: tools/bench_table.py RESULTS.json"""
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


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        results = json.load(file)
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


main()
