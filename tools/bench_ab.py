#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two builds by the JSON files that their `switchyard bench --json` wrote, run by turns.

usage: tools/bench_ab.py --json OUT BEFORE... -- AFTER...

Prints, for each layout and number of tokens, the median over the files of the median time of a run, and the ratio
after / before. OUT gets that table and all files, so that nothing is lost.
"""
import json
import pathlib
import statistics
import sys


def medians(files):
    times = {}
    for file in files:
        for row in file["rows"]:
            key = (file["ranks"], file["settings"]["layout"], row["tokens"])
            times.setdefault(key, []).append(row["p50_us"])
    return {key: statistics.median(values) for key, values in times.items()}


def main():
    arguments = sys.argv[1:]
    if len(arguments) < 5 or arguments[0] != "--json" or "--" not in arguments:
        sys.exit(__doc__)
    split = arguments.index("--")
    read = [[json.loads(pathlib.Path(name).read_text(encoding="utf-8")) for name in names]
            for names in (arguments[2:split], arguments[split + 1:])]
    before, after = (medians(files) for files in read)
    table = []
    print("ranks  layout      tokens   before us    after us   after / before")
    for key in sorted(before.keys() & after.keys()):
        ranks, layout, tokens = key
        ratio = after[key] / before[key]
        print(f"{ranks:5}  {layout:10} {tokens:7} {before[key]:11.1f} {after[key]:11.1f}   {ratio:14.3f}")
        table.append({"ranks": ranks, "layout": layout, "tokens": tokens, "before_us": before[key], "after_us": after[key],
                      "after_over_before": ratio})
    result = {"table": table, "before": read[0], "after": read[1]}
    pathlib.Path(arguments[1]).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
