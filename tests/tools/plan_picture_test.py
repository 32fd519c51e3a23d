# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/lab/forecasts.md are what the command and tools/plan_picture.py make today.

usage: plan_picture_test.py COMMAND
"""
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]


class PlanPictureTest(unittest.TestCase):
    def test_pictures_are_made_from_today(self):
        for workload in ("deepseek-v3", "kimi-k2"):
            with tempfile.TemporaryDirectory() as folder:
                page = pathlib.Path(folder) / "page.html"
                subprocess.run([COMMAND, "plan", "--workload", workload, "--html", page], capture_output=True, check=True)
                made = subprocess.run([sys.executable, ROOT / "tools/plan_picture.py", page], capture_output=True, text=True,
                                      check=True).stdout
            picture = ROOT / f"docs/images/plan-{workload}.svg"
            self.assertEqual(made, picture.read_text(encoding="utf-8"), f"make it again: {picture.name}")
            drawn = xml.etree.ElementTree.fromstring(made)
            self.assertEqual(len(drawn.findall("{http://www.w3.org/2000/svg}g")), 3)


if __name__ == "__main__":
    COMMAND = sys.argv.pop()
    unittest.main()
