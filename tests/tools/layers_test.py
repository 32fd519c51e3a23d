# SPDX-License-Identifier: Apache-2.0
"""Runs tools/layers.py on small trees: what it accepts, and its messages for what it rejects."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def check(files):
    """Returns the exit code and output of layers.py for a tree of {path: text}."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            file = pathlib.Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        command = [sys.executable, ROOT / "tools" / "layers.py", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


class LayersTest(unittest.TestCase):
    def test_the_project_itself_passes(self):
        done = subprocess.run([sys.executable, ROOT / "tools" / "layers.py"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_downward_includes_pass(self):
        code, text = check({
            "include/switchyard/a.h": '#include <vector>\n#include "switchyard/b.h"\n',
            "src/engine/a.cpp": '#include <fmt/format.h>\n#include "switchyard/a.h"\n#include "core/b.h"\n#include "engine/c.h"\n',
            "instruments/reference/a.cpp": '#include "quant/exp.h"\n',
            "cli/a.cpp": '#include "run.h"\n#include "moe/b.h"\n',
            "examples/a/main.cpp": "#include <cuda_runtime_api.h>\n#include <switchyard/a.h>\n",
        })
        self.assertEqual((code, text), (0, "layers: 5 files, every include points down\n"))

    def test_an_upward_include_is_named_with_file_and_line(self):
        code, text = check({"src/plan/a.h": '#pragma once\n\n#include "engine/engine.h"\n'})
        self.assertEqual(code, 1)
        self.assertIn('src/plan/a.h:3: plan (layer 2) includes upwards: "engine/engine.h" (layer 5)', text)

    def test_folders_of_one_layer_do_not_see_each_other(self):
        code, text = check({"src/transport/a.cpp": '#  include "plan/routing.h"\n'})
        self.assertEqual(code, 1)
        self.assertIn('src/transport/a.cpp:1: transport (layer 2) includes sideways', text)

    def test_instruments_see_of_the_library_what_they_are_granted(self):
        code, text = check({"instruments/reference/a.cpp": '#include "quant/fp8.h"\n#include "quant/rows.h"\n'})
        self.assertEqual(code, 1)
        self.assertIn('instruments/reference/a.cpp:2: reference is not granted "quant/rows.h"', text)
        self.assertNotIn("instruments/reference/a.cpp:1:", text)

    def test_public_headers_see_no_library_and_nothing_private(self):
        code, text = check({"include/switchyard/a.h": '#include <fmt/format.h>\n#include "core/fail.h"\n#include <cuda_runtime_api.h>\n'})
        self.assertEqual(code, 1)
        self.assertIn("include/switchyard/a.h:3:", text)
        self.assertIn('include/switchyard/a.h:1: include/ includes only the standard library', text)
        self.assertIn('include/switchyard/a.h:2:', text)

    def test_a_new_folder_must_be_placed(self):
        code, text = check({"src/extra/a.cpp": ""})
        self.assertEqual(code, 1)
        self.assertIn("src/extra is in no layer", text)

    def test_an_empty_tree_is_a_mistake(self):
        self.assertEqual(check({"readme": ""})[0], 1)


if __name__ == "__main__":
    unittest.main()
