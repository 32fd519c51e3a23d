# SPDX-License-Identifier: Apache-2.0
"""Compares the documentation with the source: names that must be in both, code that must be equal."""
import ast
import json
import math
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import bench_table  # pylint: disable=wrong-import-position

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md")),
         *sorted((ROOT / "examples").glob("*/README.md"))]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def strings(source):
    """Joins adjacent C++ string literals, as the compiler does."""
    return re.sub(r'"\s*\n\s*"', "", source)


def options_of(verb):
    """Returns the options that a verb declares itself and those of common_options.cpp that it adds."""
    pattern = r'add_(?:option|flag)(?:_function<[\w:]+>)?\(\s*"(--[\w-]+)'
    functions = re.findall(r"^void (add_\w+)(\(.*?)^}", read("cli/common_options.cpp"), re.DOTALL | re.MULTILINE)
    common = {name: re.findall(pattern, body) for name, body in functions}
    source = read(f"cli/{verb}.cpp")
    own = set(re.findall(r'add_(?:option|flag)\(\s*"!?(--[\w-]+)', source))
    return own | {option for name, options in common.items() if name + "(" in source for option in options}


def table_rows(page):
    """Returns the cells of every table row of a page, without backticks."""
    lines = [line for line in read(page).splitlines() if line.startswith("|")]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


def measured_tables(page):
    """Returns (files, kind or None, whether rows may be left out, lines) of each table whose comment names its files."""
    found = []
    for comment in re.finditer(r"<!-- numbers: (.*?)-->", read(page), re.DOTALL):
        files, _, rest = " ".join(comment[1].split()).partition(" by tools/bench_table.py")
        files, _, kind = files.partition(" as ")
        after = read(page)[comment.end():].splitlines()
        first = next(i for i, line in enumerate(after) if line.startswith("|"))
        last = next(i for i in range(first, len(after) + 1) if i == len(after) or not after[i].startswith("|"))
        lines = after[first:last]
        if ", own heads" in rest:  # the page names what the files have in common otherwise
            lines = [None, *lines[1:]]
        found.append(([file.strip() for file in files.split(",")], kind or None, ", some rows" in rest, lines))
    return found


def newest(kind):
    """Returns the newest results of a kind, such as cpu-quant."""
    return bench_table.load(sorted((ROOT / "bench/results").glob(f"*-{kind}.json"))[-1])


def least_to_most(numbers):
    numbers = list(numbers)
    least, most = f"{min(numbers):.0f}", f"{max(numbers):.0f}"
    return least if least == most else f"{least} to {most}"


class DocsTest(unittest.TestCase):
    def test_settings_are_those_of_the_source(self):
        source = re.findall(r'\{"(SWITCHYARD_\w+)",\s*"([^"]*)",\s*"([^"]*)"\}', strings(read("src/core/settings.cpp")))
        self.assertGreaterEqual(len(source), 6)
        page = [tuple(row) for row in table_rows("docs/settings.md") if row[0].startswith("SWITCHYARD_")]
        self.assertEqual(sorted(page), sorted(source))

    def test_run_options_are_those_of_the_source(self):
        source = options_of("run")
        self.assertGreaterEqual(len(source), 10)
        page = {row[0].split()[0] for row in table_rows("docs/run.md") if re.match("--[a-z]", row[0])}
        self.assertEqual(page, source)

    def test_model_types_are_those_of_the_source(self):
        lists = re.findall(r"\.model_types = \{(.*?)\}", read("src/io/model_family.cpp"), re.DOTALL)
        source = {name for each in lists for name in re.findall(r'"(\w+)"', each)}
        self.assertGreaterEqual(len(source), 10)
        section = read("docs/models.md").split("## Families")[1].split("## Files")[0]
        cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        self.assertEqual({name for cell in cells for name in re.findall(r"`(\w+)`", cell)} - {"model_type"}, source)

    def test_names_for_people_coming_from_elsewhere_are_in_the_headers(self):
        headers = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "include").rglob("*.h"))
        known = set(re.findall(r"\w+", headers)) | set(re.findall(r"SWITCHYARD_\w+", read("src/core/settings.cpp")))
        lines = read("docs/coming_from.md").splitlines()
        rows = [line.strip("|").split("|")[-1] for line in lines if line.startswith("|")]
        ours = [re.split(r"\b(?:without|but)\b", row)[0] for row in rows]  # what follows is missing in Switchyard
        names = {name for row in ours for code in re.findall(r"`([^`]+)`", row) for name in re.findall(r"\w{3,}", code)}
        self.assertGreaterEqual(len(names), 80)
        self.assertEqual(sorted(names - known), [])

    def test_options_of_check_plan_and_quantize_are_those_of_the_source(self):
        hidden = {"--results"}
        for verb in ("check", "plan", "quantize"):
            source = options_of(verb) - hidden
            self.assertGreaterEqual(len(source), 7)
            page = {row[0].split()[0] for row in table_rows(f"docs/{verb}.md") if re.match("--[a-z]", row[0])}
            self.assertEqual(page, source)

    def test_groups_and_json_of_check_are_those_of_the_source(self):
        sources = "".join(read(path) for path in sorted((ROOT / "instruments/conformance").glob("*_cases.cpp")))
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
        for heap in re.findall(r'return "(\w+)";', read("src/heap/rank_facts.cpp").split("name_of(HeapKind")[1][:400])[:4]:
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
        source = re.findall(r'\{"(\w+)", schemes::\w+\}', read("src/quant/scheme.h"))
        self.assertGreaterEqual(len(source), 15)
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
        (table,) = re.findall(r'enum_table\(\s*"all2all_backend",(.*?)\);', read("src/core/enum_names.h"), re.DOTALL)
        backends = re.findall(r'"(\w+)"', table)
        self.assertGreaterEqual(len(backends), 12)
        predicate = re.compile(r"use_\w+_kernels")
        self.assertEqual([row[0] for row in rows if len(row) == 6 and predicate.match(row[1])], backends)

    def test_code_of_the_first_pages_is_the_examples(self):
        (block,) = re.findall(r"```cpp\n(.*?)```", read("docs/install.md"), re.DOTALL)
        example = read("examples/00_smallest/main.cpp").split("\n", 1)[1].lstrip("\n")
        self.assertEqual(block, example)
        (python,) = re.findall(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
        self.assertEqual(python, read("examples/10_python/smallest.py").split("\n", 1)[1])

    def test_code_of_gpu_is_the_example(self):
        block = re.search(r"```cpp\n(.*?)```", read("docs/gpu.md"), re.DOTALL)[1]
        self.assertIn(block, read("examples/06_device_exchange/main.cpp"))

    def test_options_of_bench_are_those_of_the_source(self):
        source = options_of("bench") - {"--baseline-file"}
        self.assertGreaterEqual(len(source), 15)
        text = read("docs/bench.md").split("## Options")[1].split("\n\nA trace")[0]
        page = set(re.findall(r"--[a-z-]+", "".join(re.findall(r"^\| (`--[^|]*)\|", text, re.MULTILINE))))
        self.assertEqual(page, source)

    def test_tables_of_measurements_are_those_of_the_results(self):
        for page, least in (("README.md", 1), ("docs/lab/gpus.md", 11), ("docs/lab/cpus.md", 4)):
            tables = measured_tables(page)
            self.assertGreaterEqual(len(tables), least)
            for files, kind, leaves_out, lines in tables:
                made = bench_table.table([ROOT / file for file in files], kind)
                if lines[0] is None:
                    made[0] = None
                if leaves_out:
                    made = made[:2] + [line for line in made[2:] if line in lines]
                self.assertEqual(lines, made, f"{page}: make the table again, tools/bench_table.py {' '.join(files)}")

    def test_every_table_of_numbers_names_what_made_it(self):
        makers = ("<!-- numbers: ", "<!-- switchyard plan ", "<!-- tools/bench_mpi_tcp.py ", "<!-- by tests/tools/docs_test.py ")
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            for table in re.finditer(r"^\|[^\n]*\n\|[-:|]*---:[-:|]*\|$", text, re.MULTILINE):
                before = text[:table.start()].rstrip().rsplit("\n\n", 1)[-1]
                is_named = before.endswith("-->") and any(maker in before for maker in makers)
                self.assertTrue(is_named, f"{page}: no comment names the files of the table {table[0].splitlines()[0]}")

    def test_times_of_ci_are_what_it_printed(self):
        printed = json.loads(read("bench/results/2026-11-27-ci.json"))["printed"]
        self.assertGreaterEqual(len(printed), 10)
        self.assertIn("\n".join(printed), read("CONTRIBUTING.md"))

    def test_every_picture_is_made_again_by_a_test(self):
        made = {"h200x2-pair.svg", "run.svg", "plan-deepseek-v3.svg", "plan-kimi-k2.svg"}
        shown = {pathlib.PurePath(path).name for page in PAGES
                 for path in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", page.read_text(encoding="utf-8"))}
        self.assertEqual(shown, made)
        self.assertEqual({path.name for path in (ROOT / "docs/images").iterdir()}, made)

    def test_new_results_say_of_which_commit_and_device_they_are(self):
        for path in (ROOT / "bench/results").glob("*.json"):
            if path.name < "2026-11-26" or not re.search("-(pair|dispatch|combine|layer|stress|soak|kill-trials)", path.name):
                continue
            result = bench_table.load(path)
            for one in result if isinstance(result, list) else [result]:
                self.assertTrue(one.get("commit"), path.name)
                self.assertTrue(one.get("device"), path.name)

    def test_rows_between_hosts_are_those_that_are_expected(self):
        rows = [cells for cells in table_rows("docs/placement.md") if len(cells) == 3 and re.fullmatch(r"[248]", cells[0])]
        self.assertEqual(len(rows), 3)
        for hosts, uniform, limited in ([float(cell) for cell in cells] for cells in rows):
            hosts = int(hosts)
            missed = math.comb(256 - 256 // hosts, 8) / math.comb(256, 8)  # no expert of a host among 8 of 256
            self.assertAlmostEqual(uniform, (hosts - 1) * (1 - missed), delta=0.015)
            groups = 8 // hosts  # of a host: of 4 chosen groups so many are its own
            missed = sum(math.comb(groups, own) * math.comb(8 - groups, 4 - own) / math.comb(8, 4)
                         * math.comb(128 - 32 * own, 8) / math.comb(128, 8) for own in range(min(groups, 4) + 1))
            self.assertAlmostEqual(limited, (hosts - 1) * (1 - missed), delta=0.015)

    def test_picture_of_measurements_is_that_of_the_results(self):
        (files, *_), *_ = measured_tables("README.md")
        made = subprocess.run([sys.executable, ROOT / "tools/bench_chart.py", *(ROOT / file for file in files)], check=True,
                              capture_output=True, text=True).stdout
        self.assertTrue(made == read("docs/images/h200x2-pair.svg"), f"draw it again: tools/bench_chart.py {' '.join(files)}")

    def expect_sentence(self, page, sentence):
        self.assertTrue(sentence in " ".join(read(page).split()), f"{page} has not: {sentence}")

    def test_sentences_about_stress_are_those_of_the_results(self):
        for name, is_with_pairs in (("h200x2-stress", True), ("h200x4-stress", False)):
            stress = newest(name)
            self.assertEqual((stress["ok"], stress["wrong"]), (True, 0))
            rows, pairs = f"{stress['rows'] / 1e9:.2f}e9 rows", f"{stress['pairs'] / 1e6:.1f}e6 pairs"
            if is_with_pairs:
                self.expect_sentence("docs/lab/gpus.md", f"{rows} and {pairs}")
            self.expect_sentence("docs/lab/gpus.md", f"{rows}, {pairs} and {stress['bytes'] / 1e12:.2f}e12 bytes")

    def test_sentences_about_own_memory_are_those_of_the_results(self):
        pair = newest("h200x2-pair")
        tokens, hidden, topk = 4096, pair["workload"]["hidden"], pair["workload"]["topk"]
        (us,) = [row["p50_us"] for row in pair["rows"] if row["tokens"] == tokens]
        (copy,) = [each["value"] for each in pair["floors"][0]["constants"] if each["name"] == "copy"]
        given, sent, row = (tokens * size for size in (2 * hidden, hidden + hidden // 128 * 4, hidden * topk))
        # Tokens; slots of two ranks written, read and refilled; received rows. The same for results, and the sums.
        total = given + 6 * sent + topk * sent + 2 * row + 6 * given + given
        self.expect_sentence("docs/lab/gpus.md", f"about {total / 1e9:.2f} GB a pair: in the dispatch {given / 1e6:.0f} MB of tokens, {sent / 1e6:.0f} MB "
                                              f"of slots written by either rank, read and filled with ones again, and {topk * sent / 1e6:.0f} MB of rows; "
                                              f"in the combine {2 * row / 1e6:.0f} MB of rows, {given / 1e6:.0f} MB of partial sums")
        self.expect_sentence("docs/lab/gpus.md", f"`copy`, {copy:.0f} GB/s, that takes {total / copy / 1e3:.0f} us, {total / copy / 10 / us:.0f} % of the time")

    def test_sentences_about_permute_on_cpus_are_those_of_the_results(self):
        found = [(entry["name"], 100 * entry["of_floor"]) for entry in newest("cpu-permute")["benchmarks"] if "of_floor" in entry]
        scatter, scatter_scaled, gather = (
            f"{least_to_most(share for name, share in found if name.startswith(case + '/tokens:4096/'))} %"
            for case in ("scatter/bf16", "scatter/e4m3_and_scales", "gather/bf16"))
        self.expect_sentence("docs/lab/cpus.md", f"scatter of bf16 rows {scatter} of the floor, of e4m3 rows with scales "
                                              f"{scatter_scaled}, gather (weighted sums) {gather}")

    def test_sentences_about_python_are_those_of_the_results(self):
        pair = newest("cpu-python-pair")
        self.expect_sentence("docs/python.md", f"takes {pair['python_us']:.1f} us from Python and {pair['native_us']:.1f} us in C++")
        self.expect_sentence("docs/python.md", f"Python adds {pair['added_us']:.1f} us to a pair")

    def test_table_of_messages_over_tcp_is_that_of_the_results(self):
        page = read("docs/lab/cpus.md")
        file = re.search(r"<!-- tools/bench_mpi_tcp.py (\S+) -->", page)[1]
        printed = subprocess.run([sys.executable, ROOT / "tools/bench_mpi_tcp.py", ROOT / file], capture_output=True, text=True, check=True)
        self.assertIn(f"-->\n\n{printed.stdout}\n", page)

    def test_the_readme_is_short_and_begins_with_a_measured_number(self):
        self.assertLessEqual(len(read("README.md").split()), 1200)
        (vllm,) = re.findall(r"^    (SWITCHYARD_VLLM=.*)$", read("README.md"), re.MULTILINE)
        self.assertIn(f"\n    {vllm}\n", read("docs/from_vllm.md").split("\n## ")[0])
        (us, _, ratio), *_ = [row[1:4] for row in table_rows("README.md") if row[0] == "1"]
        self.expect_sentence("README.md", f"take {us} us on 2 H200, {float(ratio.rstrip('x')):.1f} times as fast as NCCL")

    def test_tables_beside_flashinfer_are_those_of_the_results(self):
        results = "bench/results/2026-11-27-h200x4-"
        peer = {(row["ranks"], row["op"], row["tokens"]): row["us"] for row in json.loads(read(results + "flashinfer.json"))["rows"]
                if row["pdl"] and row["run"] == 1}
        page = read("docs/lab/gpus.md")
        for op, shapes in (("pair", 11), ("dispatch", 3), ("combine", 3)):
            suffix = "" if op == "pair" else f"-{op}"
            ours = {ranks: {row["tokens"]: row["p50_us"] for row in json.loads(read(f"{results}same-work-{ranks}-ranks{suffix}.json"))["rows"]}
                    for ranks in (2, 4)}
            self.assertEqual(len(ours[2]), shapes)
            for tokens in ours[2]:
                cells = [str(tokens)] if op == "pair" else [op, str(tokens)]
                for ranks, times in ours.items():
                    theirs = peer[ranks, op, tokens]
                    cells += [f"{times[tokens]:.1f}", f"{theirs:.1f}"]
                    cells += [f"{times[tokens] / theirs:.2f}"] if op == "pair" else []
                self.assertIn("| " + " | ".join(cells) + " |", page)
        of_floor = {row["tokens"]: row["of_floor"] for row in json.loads(read(results + "same-work-4-ranks.json"))["rows"]}
        self.expect_sentence("docs/lab/gpus.md", f"reaches {of_floor[128]:.2f} of the link's floor at 128 tokens and {of_floor[8192]:.2f} at 8192")

    def test_stand_ins_of_the_referee_for_vllm_are_those_of_the_script(self):
        (table,) = re.findall(r"^STAND_INS = (\{.*?^\})", read("integrations/vllm/stand_ins.py"), re.DOTALL | re.MULTILINE)
        page = read("docs/from_vllm.md")
        result = json.loads(read("bench/results/2026-11-27-vllm-referee.json"))
        for name, what in ast.literal_eval(table).items():
            self.assertIn(f"| `{name}` | {what} |", page)
        self.assertTrue(result["all_as_expected"])
        self.assertTrue(all(case["dispatch_calls"] and case["combine_calls"] for case in result["cases"]))

    def test_every_page_is_in_the_index(self):
        index = read("docs/index.md")
        for page in (ROOT / "docs").rglob("*.md"):
            self.assertTrue(page.name == "index.md" or f"]({page.relative_to(ROOT / 'docs')})" in index, page)

    def test_links_lead_somewhere(self):
        for page in PAGES:
            prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
            for link, _, anchor in (found.partition("#") for found in re.findall(r"\]\(([^)\s]+)", prose)):
                if link.startswith("http"):
                    continue
                target = page.parent / link if link else page
                self.assertTrue(target.exists(), f"{page}: {link}")
                if anchor:
                    heads = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
                    anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
                    self.assertIn(anchor, anchors, f"{page}: {link}")


if __name__ == "__main__":
    unittest.main()
