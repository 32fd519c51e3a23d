#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes one SVG of the charts of a page of `switchyard plan --html`, in the page's light colours.

usage: tools/plan_picture.py PAGE.html > picture.svg"""
import pathlib
import re
import sys

WIDTH, CHART, HEADING, GAP = 800, 360, 34, 10


def main():
    page = pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    colors = dict(re.findall(r"(--[\w]+): (#[0-9a-f]{6})", style.split("@media")[0]))
    rules = re.findall(r"^(?:svg )?(\.[\w.]+(?:, (?:svg )?\.[\w.]+)*) \{ ([^}]*) \}", style, re.MULTILINE)
    rules += re.findall(r"\} (?:svg )?(\.[\w.]+(?:, (?:svg )?\.[\w.]+)*) \{ ([^}]*) \}", style)
    charts = re.findall(r"<section><h2>([^<]*)</h2>.*?<svg[^>]*>(.*?)</svg>", page, re.DOTALL)
    height = len(charts) * (HEADING + CHART + GAP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
           "<style>text { fill: " + colors["--ink"] + "; } " +
           " ".join(f"{names.replace('svg ', '')} {{ {rule} }}" for names, rule in rules) + "</style>",
           f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    for i, (title, chart) in enumerate(charts):
        top = i * (HEADING + CHART + GAP)
        out.append(f'<text x="16" y="{top + 24}" font-size="16" font-weight="600">{title}</text>')
        out.append(f'<g transform="translate(0 {top + HEADING})">{chart}</g>')
    text = "\n".join(out + ["</svg>"])
    print(re.sub(r"var\((--\w+)\)", lambda found: colors[found[1]], text))


if __name__ == "__main__":
    main()
