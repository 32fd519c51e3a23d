#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws JSON files of `switchyard bench` as one SVG: time against tokens, with the floors and the baselines of all files.

usage: tools/bench_chart.py RESULTS.json... > chart.svg"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 62, 170, 46, 52
COLORS = ["#1f6feb", "#8250df", "#bf3989"]


def joined(results, value):
    """Returns [(tokens, us)] of all files, ascending; where two have the same number of tokens the first counts."""
    points = {}
    for row in (row for result in results for row in result["rows"]):
        if value(row) is not None:
            points.setdefault(row["tokens"], value(row))
    return sorted(points.items())


def curves(results):
    """Returns [(name, color, dash, [(tokens, us)])]: the floor and the baseline first, then one curve per file."""
    found = [("floor", "#6e7781", "5 4", joined(results, lambda row: row["floor_us"]))]
    baseline = joined(results, lambda row: row["baseline"]["us"] if row.get("baseline") else None)
    if baseline:
        names = {row["baseline"]["name"].upper() for result in results for row in result["rows"] if row.get("baseline")}
        found.append((" or ".join(sorted(names)) + ", bytes only", "#bc4c00", "", baseline))
    for color, result in zip(COLORS, results):
        settings = result["settings"]
        name = f"Switchyard, {settings['layout']}" + (", PDL" if settings.get("pdl") else "")
        found.append((name, color, "", [(r["tokens"], r["p50_us"]) for r in result["rows"]]))
    return found


def main():
    results = [json.load(open(path, encoding="utf-8")) for path in sys.argv[1:]]
    drawn = curves(results)
    points = [point for *_, line in drawn for point in line]
    tokens = sorted({t for t, _ in points})
    least = min(us for _, us in points)
    decade = 10 ** math.floor(math.log10(least))
    low = max(step * decade for step in (1, 2, 5) if step * decade <= least)
    high = max(us for _, us in points) * 1.15
    span = math.log(tokens[-1] / tokens[0]) or 1.0

    def x(t):
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(t / tokens[0]) / span

    def y(us):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(us / low) / math.log(high / low)

    def text(at_x, at_y, words, extra=""):
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" {extra}>{words}</text>'

    result = results[0]
    title = (f"{result['settings']['op']}, {result['settings']['scheme']}, {result['settings']['reduce']}: us on {result['ranks']} GPUs, "
             f"hidden {result['workload']['hidden']}, top-{result['workload']['topk']} of {result['workload']['experts']}")
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="#24292f">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>', text(LEFT, 24, title, 'font-size="14"')]
    for t in tokens:
        out.append(f'<line x1="{x(t):.1f}" y1="{TOP}" x2="{x(t):.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eaeef2"/>')
        out.append(text(x(t), HEIGHT - BOTTOM + 18, t, 'text-anchor="middle"'))
    us = decade
    while us < high:
        for step in (1, 2, 5):
            if low <= us * step < high:
                out.append(f'<line x1="{LEFT}" y1="{y(us * step):.1f}" x2="{WIDTH - RIGHT}" y2="{y(us * step):.1f}" stroke="#eaeef2"/>')
                out.append(text(LEFT - 8, y(us * step) + 4, f"{us * step:g}", 'text-anchor="end"'))
        us *= 10
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "tokens per rank (log)", 'text-anchor="middle"'))
    out.append(text(LEFT - 8, TOP - 6, "us (log)", 'text-anchor="end"'))
    taken = []
    for name, color, dash, line in sorted(drawn, key=lambda curve: -curve[3][-1][1]):
        path = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2" stroke-dasharray="{dash}"/>')
        out += [f'<circle cx="{x(t):.1f}" cy="{y(v):.1f}" r="3" fill="{color}"/>' for t, v in line if not dash]
        end_x, end_y = x(line[-1][0]) + 8, y(line[-1][1]) + 4
        while any(abs(end_y - other_y) < 14 and abs(end_x - other_x) < 120 for other_x, other_y in taken):
            end_y += 14
        taken.append((end_x, end_y))
        out.append(text(end_x, end_y, name, f'fill="{color}" stroke="#ffffff" stroke-width="4" paint-order="stroke"'))
    print("\n".join(out + ["</svg>"]))


main()
