#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command and draws what it prints as a terminal window in SVG.

usage: tools/terminal_svg.py OUT.svg COMMAND...        The command line is shown as its first line.

Bars of block characters are drawn as rectangles, because fonts disagree about their height and width.
"""
import html
import os
import re
import shlex
import subprocess
import sys

CELL_WIDTH, LINE_HEIGHT, MARGIN, TITLE_HEIGHT = 8.4, 19, 18, 34
LEVELS = {chr(0x2580 + eighths): eighths / 8 for eighths in range(1, 9)}  # lower block characters, 1/8 to 8/8
BACKGROUND, FRAME, TEXT, DIM, ACCENT, GOOD = "#11151c", "#1c222c", "#d7dce4", "#8b95a5", "#5fa8d3", "#7bc47f"


def colour_of(line):
    if line.startswith("$ "):
        return ACCENT
    if line.startswith(("check:", "accuracy:")) and line.endswith(": ok"):
        return GOOD
    heading = re.match(r"(stage, us|rows received|expert load|switchyard )", line)
    return DIM if heading else TEXT


def draw_line(line, top):
    """Returns the SVG of one line: runs of text, each pinned to its column, and rectangles for blocks."""
    parts = []
    for run in re.finditer(r"█{2,}|[▁▂▃▄▅▆▇█]|[^\s▁▂▃▄▅▆▇█]+(?: [^\s▁▂▃▄▅▆▇█]+)*", line):
        x, width = MARGIN + run.start() * CELL_WIDTH, len(run[0]) * CELL_WIDTH
        level = LEVELS.get(run[0][0])
        if level is None:
            parts.append(f'<text x="{x:.1f}" y="{top + 14}" textLength="{width:.1f}" fill="{colour_of(line)}">'
                         f'{html.escape(run[0])}</text>')
            continue
        is_bar = len(run[0]) > 1
        height = (LINE_HEIGHT - (6 if is_bar else 3)) * level
        parts.append(f'<rect x="{x:.1f}" y="{top + LINE_HEIGHT - 3 - height:.1f}" '
                     f'width="{width - (0 if is_bar else 1):.1f}" height="{height:.1f}" fill="{ACCENT}"/>')
    return "".join(parts)


def draw(lines):
    width = 2 * MARGIN + max(len(line) for line in lines) * CELL_WIDTH
    height = TITLE_HEIGHT + 2 * MARGIN + len(lines) * LINE_HEIGHT
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
           f'height="{height}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14" '
           f'xml:space="preserve">',
           f'<rect width="100%" height="100%" rx="9" fill="{BACKGROUND}"/>',
           f'<path d="M0 {TITLE_HEIGHT}V9a9 9 0 0 1 9-9H{width - 9:.0f}a9 9 0 0 1 9 9V{TITLE_HEIGHT}z" fill="{FRAME}"/>']
    for i, colour in enumerate(("#e0655f", "#e0b35f", "#7bc47f")):
        out.append(f'<circle cx="{20 + 20 * i}" cy="{TITLE_HEIGHT / 2}" r="6" fill="{colour}"/>')
    for number, line in enumerate(lines):
        out.append(draw_line(line, TITLE_HEIGHT + MARGIN + number * LINE_HEIGHT))
    return "\n".join(part for part in [*out, "</svg>"] if part) + "\n"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    output, command = sys.argv[1], sys.argv[2:]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"}, check=True)
    shown = [os.path.basename(command[0]), *command[1:]]
    lines = ["$ " + shlex.join(shown), *done.stdout.rstrip("\n").split("\n")]
    with open(output, "w", encoding="utf-8") as file:
        file.write(draw(lines))


if __name__ == "__main__":
    main()
