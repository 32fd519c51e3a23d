# SPDX-License-Identifier: Apache-2.0
"""What pages show of the command is what it prints today: tables of predictions and of accuracy, and the picture of a run.

usage: shown_test.py COMMAND
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import terminal_svg  # pylint: disable=wrong-import-position

CLASSES = ["low_latency", "elastic_decode", "elastic_prefill", "all_gather", "all_to_all", "all_to_all_one_sided", "local"]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def run(*words, folder=ROOT):
    return subprocess.run([COMMAND, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def texts(svg):
    """The words of each run of text, numbers masked: times differ from run to run."""
    return [re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "#", found) for found in re.findall(r"<text[^>]*>([^<]*)<", svg)]


def tables_of(text):
    return re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)


class ShownTest(unittest.TestCase):
    def test_predictions_are_those_of_the_command(self):
        page = read("docs/lab/forecasts.md")
        comments = list(re.finditer(r"<!-- switchyard (plan .*?) -->\n\n((?:\|.*\n)+)", page))
        self.assertEqual(len(comments), 3)
        for comment in comments:
            made = tables_of(run(*comment[1].split(), folder=ROOT / "bench/results"))[0]
            self.assertEqual(comment[2], made, comment[1][:80])

    def test_the_picture_of_a_run_has_every_line_of_a_run(self):
        picture = read("docs/images/run.svg")
        shown = re.search(r">\$ (switchyard run [^<]*)<", picture)[1]
        lines = ["$ " + shown, *run(*shlex.split(shown)[1:]).rstrip("\n").split("\n")]
        made = texts(terminal_svg.draw([line.replace("#", "\u2588") for line in lines]))
        # Each line of a run begins as in the picture; the machine and the widths of columns may differ.
        self.assertEqual([words for words in made if "cores" not in words and "processor" not in words],
                         [words for words in texts(picture) if "cores" not in words and "processor" not in words])

    def test_accuracy_is_that_of_runs(self):
        rows = {cells[0].strip(" `"): [cell.strip() for cell in cells[2:]] for cells in
                (line.strip("|").split("|") for line in read("docs/schemes.md").split("## Accuracy")[1].splitlines() if line.startswith("| `"))}
        self.assertEqual(len(rows), 15)
        wanted = [("nvfp4", name) for name in CLASSES] + [(scheme, "low_latency") for scheme in rows]
        for scheme, name in wanted:
            result = json.loads(run("run", "--model", "data/tiny-moe", "--ranks", "4", "--engine", "local", "--scheme", scheme,
                                    "--prepare", name, "--json"))
            mantissa, exponent = f"{result['rel_l2']:.2e}".split("e")
            self.assertEqual(f"{mantissa}e{int(exponent)}", rows[scheme][CLASSES.index(name)], (scheme, name))


if __name__ == "__main__":
    COMMAND = str(pathlib.Path(sys.argv.pop()).resolve())
    unittest.main()
