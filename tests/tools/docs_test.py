# SPDX-License-Identifier: Apache-2.0
"""The documentation against the source: names that must be in both, code that must be the same."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "examples").glob("*/README.md"))]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def strings(source):
    """C++ text with neighbouring string literals joined, as the compiler does."""
    return re.sub(r'"\s*\n\s*"', "", source)


def table_rows(page):
    """Cells of every table row of a page, without code marks."""
    lines = [line for line in read(page).splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


class DocsTest(unittest.TestCase):
    def test_settings_are_those_of_the_source(self):
        source = re.findall(r'\{"(SWITCHYARD_\w+)",\s*"([^"]*)",\s*"([^"]*)"\}', strings(read("src/core/settings.cpp")))
        self.assertGreaterEqual(len(source), 6)
        page = [tuple(row) for row in table_rows("docs/settings.md") if row[0].startswith("SWITCHYARD_")]
        self.assertEqual(sorted(page), sorted(source))

    def test_run_options_are_those_of_the_source(self):
        source = set(re.findall(r'add_(?:option|flag)\(\s*"(--[\w-]+)', read("cli/run.cpp")))
        self.assertGreaterEqual(len(source), 10)
        page = {row[0].split()[0] for row in table_rows("docs/run.md") if re.match("--[a-z]", row[0])}
        self.assertEqual(page, source)

    def test_names_for_people_coming_from_elsewhere_are_in_the_headers(self):
        headers = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "include").rglob("*.h"))
        known = set(re.findall(r"\w+", headers)) | set(re.findall(r"SWITCHYARD_\w+", read("src/core/settings.cpp")))
        lines = read("docs/coming_from.md").splitlines()
        rows = [line.strip("|").split("|")[-1] for line in lines if line.startswith("|")]
        ours = [re.split(r"\b(?:without|but)\b", row)[0] for row in rows]  # behind it: what of theirs is missing
        names = {name for row in ours for code in re.findall(r"`([^`]+)`", row) for name in re.findall(r"\w{3,}", code)}
        self.assertGreaterEqual(len(names), 100)
        self.assertEqual(sorted(names - known), [])

    def test_options_of_check_and_quantize_are_those_of_the_source(self):
        hidden = {"--results"}
        for verb in ("check", "quantize"):
            source = set(re.findall(r'add_(?:option|flag)\(\s*"(--[\w-]+)', read(f"cli/{verb}.cpp"))) - hidden
            self.assertGreaterEqual(len(source), 7)
            page = {row[0].split()[0] for row in table_rows(f"docs/{verb}.md") if re.match("--[a-z]", row[0])}
            self.assertEqual(page, source)

    def test_groups_and_json_of_check_are_those_of_the_source(self):
        sources = "".join(read(path) for path in sorted((ROOT / "src/conformance").glob("*_cases.cpp")))
        groups = set(re.findall(r'result\.group = (?:is_split \? )?"(\w+)"(?: : "(\w+)")?', sources))
        groups = {name for pair in groups for name in pair if name}
        text = read("docs/check.md")
        page = text.split("## Groups")[1].split("## JSON")[0]
        self.assertEqual(set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)), groups)
        source = set(re.findall(r'(?:json|one)\["(\w+)"\]', read("cli/check_report.cpp")))
        self.assertEqual(set(re.findall(r"`(\w+)`", text.split("## JSON")[1])), source)

    def test_options_and_json_of_doctor_are_those_of_the_source(self):
        text = read("docs/doctor.md")
        for option in re.findall(r'add_(?:option|flag)\(\s*"(--[\w-]+)', read("cli/doctor.cpp")):
            self.assertIn(f"| `{option}`", text)
        source = read("cli/doctor_json.cpp")
        rows = [line.split("|")[1] for line in text.split("## JSON")[1].splitlines() if line.startswith("| `")]
        self.assertEqual(set(re.findall(r"`(\w+)`", "".join(rows))), set(re.findall(r'json\["(\w+)"\]', source)))
        for heap in re.findall(r'return "(\w+)";', read("src/p2p/rank_facts.cpp").split("name_of(HeapKind")[1][:400])[:4]:
            self.assertIn(f"| `{heap}` |", text)

    def test_json_fields_are_those_of_the_source(self):
        source = set(re.findall(r'json\["(\w+)"\]', read("cli/run_report.cpp")))
        self.assertGreaterEqual(len(source), 10)
        text = read("docs/run.md").split("## JSON")[1].split("## Files")[0]
        page = set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in text.splitlines() if "|" in line)))
        self.assertEqual(page, source)

    def test_error_codes_are_those_of_the_source(self):
        enum = read("include/switchyard/error.h").split("enum class Errc {")[1].split("};")[0]
        source = re.findall(r"^\s*(k\w+),", enum, re.MULTILINE)
        page = [row[0] for row in table_rows("docs/errors.md") if re.fullmatch(r"k[A-Z]\w+", row[0])]
        self.assertEqual(page, source)

    def test_schemes_and_bounds_are_those_of_the_source(self):
        source = re.findall(r'\{"(\w+)", schemes::\w+\}', read("src/quant/scheme.cpp"))
        page = [row[0] for row in table_rows("docs/schemes.md")]
        for name in source:
            self.assertIn(name, page)
        bounds = re.findall(r'\{"(\w+)", ([\d.]+e-\d)\}', read("cli/run_report.cpp"))
        self.assertEqual([name for name, _ in bounds], source)
        page = [tuple(row[:2]) for row in table_rows("docs/schemes.md") if len(row) == 9 and row[0] in source]
        self.assertEqual(page, bounds)

    def test_builders_and_backends_are_those_of_the_source(self):
        rows = table_rows("docs/configuration.md")
        cells = {name for row in rows for name in row[0].split(", ")}
        header = read("include/switchyard/quant_config.h")
        builders = set(re.findall(r"static QuantConfig (\w+)\(", header)) - {"make"}
        self.assertGreaterEqual(len(builders), 16)
        self.assertEqual(builders - cells, set())
        backends = re.findall(r'\{"(\w+)", \{k(?:Standard|Batched)', read("src/moe/all2all_backend.cpp"))
        self.assertGreaterEqual(len(backends), 12)
        predicate = re.compile(r"use_\w+_kernels")
        self.assertEqual([row[0] for row in rows if len(row) == 6 and predicate.match(row[1])], backends)

    def test_code_of_the_readme_is_the_example(self):
        block = re.search(r"```cpp\n(.*?)```", read("README.md"), re.DOTALL)[1]
        example = read("examples/00_smallest/main.cpp").split("\n", 1)[1].lstrip("\n")
        self.assertEqual(block, example)

    def test_code_of_coming_from_is_the_example(self):
        example = read("examples/05_coming_from/main.cpp")
        blocks = re.findall(r"```cpp\n(.*?)```", read("docs/coming_from.md"), re.DOTALL)
        self.assertGreaterEqual(len(blocks), 5)
        for function in "".join(blocks).split("\n}\n")[:-1]:
            self.assertIn(function.strip("\n") + "\n}\n", example)

    def test_code_of_gpu_is_the_example(self):
        block = re.search(r"```cpp\n(.*?)```", read("docs/gpu.md"), re.DOTALL)[1]
        self.assertIn(block, read("examples/06_device_exchange/main.cpp"))

    def test_options_of_bench_are_those_of_the_source(self):
        source = set(re.findall(r'add_(?:option|flag)\(\s*"(--[\w-]+)', read("cli/bench.cpp"))) - {"--baseline-file"}
        self.assertGreaterEqual(len(source), 15)
        text = read("docs/bench.md").split("## Options")[1].split("\n\nA trace")[0]
        page = set(re.findall(r"--[a-z]+", "".join(re.findall(r"^\| (`--[^|]*)\|", text, re.MULTILINE))))
        self.assertEqual(page, source)

    def test_every_page_is_in_the_index(self):
        index = read("docs/index.md")
        for page in (ROOT / "docs").glob("*.md"):
            self.assertTrue(page.name == "index.md" or f"]({page.name})" in index, page.name)

    def test_links_lead_somewhere(self):
        for page in PAGES:
            prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            for link in re.findall(r"\]\(([^)#\s]+)", prose):
                if not link.startswith("http"):
                    self.assertTrue((page.parent / link).exists(), f"{page}: {link}")


if __name__ == "__main__":
    unittest.main()
