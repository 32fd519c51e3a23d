# SPDX-License-Identifier: Apache-2.0
"""The manual page and the completions that the build made have every verb and option of the command, and work.

usage: manual_test.py COMMAND FOLDER   FOLDER has the built switchyard.1.gz, switchyard.bash and _switchyard
"""
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def complete(*words):
    """Returns what bash offers for the last word."""
    script = (f'source "{FOLDER}/switchyard.bash"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _switchyard; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    return run("bash", "-c", script, "bash", "switchyard", *words).split()


class ManualTest(unittest.TestCase):
    def setUp(self):
        self.page = gzip.decompress((FOLDER / "switchyard.1.gz").read_bytes()).decode()
        self.verbs = re.findall(r"^  (\w+)  ", run(COMMAND, "help").partition("Subcommands:")[2], re.MULTILINE)

    def options(self, verb):
        return re.findall(r"^  (?:-\w,)?(--[\w-]+)", run(COMMAND, "help", verb), re.MULTILINE)

    def test_the_built_files_are_those_of_the_command(self):
        with tempfile.TemporaryDirectory() as folder:
            run(sys.executable, ROOT / "tools/manual.py", COMMAND, folder)
            for name in ("switchyard.1.gz", "switchyard.bash", "_switchyard"):
                self.assertEqual(pathlib.Path(folder, name).read_bytes(), (FOLDER / name).read_bytes(), name)

    def test_the_page_has_every_verb_and_option(self):
        self.assertGreaterEqual(len(self.verbs), 5)
        sections = re.split(r"^\.SH ", self.page.replace("\\-", "-"), flags=re.MULTILINE)
        for verb in self.verbs:
            section = [text for text in sections if text.startswith(verb.upper() + "\n")]
            self.assertEqual(len(section), 1, verb)
            listed = re.findall(r"^\\fB(?:-\w, )?(--[\w-]+)\\fR", section[0], re.MULTILINE)
            self.assertEqual(listed, self.options(verb))
            self.assertEqual([line for line in section[0].splitlines() if line.strip() == ""], [])

    def test_the_page_is_valid(self):
        if shutil.which("groff") is None:
            self.skipTest("groff is not installed (groff-base)")
        done = subprocess.run(["groff", "-man", "-ww", "-Tutf8"], input=self.page, capture_output=True, text=True, check=True)
        self.assertEqual(done.stderr, "")
        self.assertIn("EXIT STATUS", re.sub(".\x08", "", done.stdout))

    def test_completion_of_verbs_options_and_values(self):
        self.assertEqual(complete("ru"), ["run"])
        self.assertEqual(sorted(complete("help", "")), sorted(self.verbs))
        for verb in self.verbs:
            self.assertEqual(sorted(complete(verb, "--")), sorted(self.options(verb)))
        self.assertEqual(complete("run", "--engine", "sh"), ["shm"])
        self.assertIn("nvfp4", complete("bench", "--scheme", ""))
        self.assertEqual(complete("run", "--device", "x"), [])
        for verb in ("bench", "plan"):
            self.assertEqual(complete(verb, "--workload", "kimi"), ["kimi-k2"])
            self.assertEqual(complete(verb, "--workload", str(ROOT / "READ")), [str(ROOT / "README.md")])

    def test_zsh_completion_has_verbs_options_and_values(self):
        text = (FOLDER / "_switchyard").read_text(encoding="utf-8")
        self.assertTrue(text.startswith("#compdef switchyard\n"))
        for verb in self.verbs:
            self.assertIn(f"'{verb}:", text)
            line = re.search(rf"^  {verb}\) _arguments (.*) ;;$", text, re.MULTILINE)[1]
            self.assertEqual(re.findall(r"'(--[\w-]+)=?\[[^\[\]':]*\]", line), self.options(verb))
        self.assertIn("(auto local shm mpi)'", text)
        self.assertIn(" kimi-k2 ", text)
        if shutil.which("zsh") is not None:
            run("zsh", "-n", FOLDER / "_switchyard")

    def test_help_wraps_to_the_terminal_and_has_no_noise(self):
        for verb in ["", *self.verbs]:
            for width in (60, 80, 110):
                text = run(COMMAND, "help", *verb.split(), env={**os.environ, "COLUMNS": str(width)})
                # Examples are to be copied, and a path or a list may be one long word.
                long = [line for line in text.splitlines() if len(line) > width and not re.match(r"  (switchyard|mpirun) ", line)]
                self.assertEqual(long, [], verb)
                for noise in ("{", "INT:", "TEXT:", "1099511627776", " in ["):
                    self.assertNotIn(noise, text)


if __name__ == "__main__":
    COMMAND, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
