# SPDX-License-Identifier: Apache-2.0
"""The commit that results name: that of the tree itself, or "unknown"."""
import importlib.util
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CMAKE = sys.argv.pop()


class CommitTest(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.tree = pathlib.Path(made.name).resolve() / "tree"
        (self.tree / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools/gpu_tests.py", self.tree / "tools")

    def git(self, *words):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        return subprocess.run(["git", "-C", self.tree, *identity, *words], check=True, capture_output=True, text=True).stdout.strip()

    def written(self, root):
        out = self.tree / "commit.cpp"
        subprocess.run([CMAKE, "-D", f"ROOT={root}", "-D", f"OUT={out}", "-P", ROOT / "cmake/WriteCommit.cmake"], check=True)
        return out.read_text().split('return "')[1].split('"')[0]

    def named_by_gpu_tests(self):
        spec = importlib.util.spec_from_file_location("gpu_tests", self.tree / "tools/gpu_tests.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.commit_of_this_copy()

    def test_a_copy_without_history_is_unknown_whatever_was_written_before(self):
        self.git("init", "-q")
        self.git("add", "tools")
        self.git("commit", "-q", "-m", "one")
        commit = self.git("rev-parse", "--short=12", "HEAD")
        self.assertEqual(self.written(self.tree), commit)
        self.assertEqual(self.named_by_gpu_tests(), commit)
        (self.tree / "tools/gpu_tests.py").open("a").write("\n")
        self.assertEqual(self.written(self.tree), commit + " with changes")
        shutil.rmtree(self.tree / ".git")
        self.assertEqual(self.written(self.tree), "unknown")
        self.assertEqual(self.named_by_gpu_tests(), "unknown")

    def test_a_copy_inside_another_repository_is_unknown(self):
        subprocess.run(["git", "init", "-q", self.tree.parent], check=True)
        self.assertEqual(self.written(self.tree), "unknown")
        self.assertEqual(self.named_by_gpu_tests(), "unknown")


if __name__ == "__main__":
    unittest.main()
