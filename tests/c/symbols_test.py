# SPDX-License-Identifier: Apache-2.0
"""What the shared library exports as C is the committed list, the headers declare it, and c_test calls all of it.

usage: symbols_test.py LIBRARY C_COMPILER CXX_COMPILER
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAP = (ROOT / "src/capi/symbols.map").read_text(encoding="utf-8")
HEADERS = sorted((ROOT / "include/switchyard/c").glob("*.h"))
# The size of each struct on x86-64: a change that is not an addition at the end breaks callers.
SIZES = ROOT / "tests/c/struct_sizes.txt"


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stderr}")
    return done.stdout


def nodes():
    """Returns {function: version node} of the committed list."""
    found = {}
    for version, body in re.findall(r"^(SWITCHYARD_[\d.]+) \{(.*?)^\}", MAP, re.MULTILINE | re.DOTALL):
        found.update((name, version) for name in re.findall(r"^    (sy_\w+);$", body, re.MULTILINE))
    return found


def listed():
    return re.findall(r"^    (sy_\w+);$", MAP, re.MULTILINE)


def declared():
    text = "".join(path.read_text(encoding="utf-8") for path in HEADERS)
    return re.findall(r"^SY_API [^;(]*?\b(sy_\w+)\(", text, re.MULTILINE)


def functions():
    """Returns (result, name, [parameter types]) of each declaration."""
    text = "".join(path.read_text(encoding="utf-8") for path in HEADERS)
    found = []
    for result, name, rest in re.findall(r"^SY_API ([^;(]*?)\b(sy_\w+)\(([^;]*)\);", text, re.MULTILINE):
        parameters = [] if rest == "void" else re.split(r",\s*", " ".join(rest.split()))
        found.append((result.strip(), name, parameters))
    return found


def source_of_calls(handle):
    """A program that calls every function with zeros, and with `handle` for each handle; prints status and name."""
    text = "".join(path.read_text(encoding="utf-8") for path in HEADERS)
    handles = re.findall(r"^typedef struct (sy_\w+) \1;", text, re.MULTILINE)
    lines = []
    for result, name, parameters in functions():
        values = []
        for parameter in parameters:
            kind = re.sub(r"\bconst ", "", parameter).split()[0].rstrip("*")
            is_handle = kind in handles and parameter.count("*") == 1
            is_struct = kind in ("sy_dtype", "sy_device") and "*" not in parameter
            values.append(f"({kind}*){handle}" if is_handle else f"({kind}){{0}}" if is_struct else "0")
        call = f"{name}({', '.join(values)})"
        lines.append(f'  printf("%d {name}\\n", {call});' if result == "sy_status" else f"  (void){call};")
    body = "\n".join(lines)
    return f'#include <stdio.h>\n#include "switchyard/c.h"\nint main(void) {{\n{body}\n  return 0;\n}}\n'


def source_of_sizes():
    text = "".join(path.read_text(encoding="utf-8") for path in HEADERS)
    structs = sorted(set(re.findall(r"^typedef struct (sy_\w+) \{", text, re.MULTILINE)))
    lines = "".join(f'  printf("{name} %zu\\n", sizeof({name}));\n' for name in structs)
    return f'#include <stdio.h>\n#include "switchyard/c.h"\nint main(void) {{\n{lines}  return 0;\n}}\n'


def is_wanted(line, names):
    """Whether a line of nm -DC is an export that the library means to have; `names` are those of public headers."""
    kind, symbol = re.match(r"[0-9a-f]* *(\w) (.*)", line).groups()
    if kind == "A" or re.match(r"sy_\w+@@SWITCHYARD_", symbol):
        return True
    symbol = re.sub(r"^(\w+ )+for |^guard variable for ", "", symbol)
    if kind in "WVu" and re.match(r"(\S+ )*?(std|__gnu_cxx)::", symbol):
        return not re.match(r"(fmt|spdlog|hwy|nlohmann|dnnl)\w*::", symbol)
    found = re.match(r"switchyard::(on_gpu::)?(~?\w+)", symbol)
    return found is not None and (found[1] is not None or found[2] in names)  # on_gpu: for the library switchyard_compat


class SymbolsTest(unittest.TestCase):
    def test_exports_are_the_committed_list_with_its_version(self):
        symbols = re.findall(r" T (sy_\w+?)(?:@@(\S+))?$", run("nm", "-D", "--defined-only", LIBRARY), re.MULTILINE)
        self.assertGreater(len(symbols), 100)
        self.assertEqual(dict(symbols), nodes())

    def test_each_function_is_listed_once_and_declared(self):
        self.assertEqual(sorted(listed()), sorted(nodes()))
        self.assertEqual(sorted(declared()), sorted(listed()))

    def test_cxx_exports_have_no_version(self):
        names = [line.split()[-1] for line in run("nm", "-D", "--defined-only", LIBRARY).splitlines()]
        cxx = [name for name in names if name.startswith("_ZN10switchyard")]
        self.assertGreater(len(cxx), 100)
        self.assertEqual([name for name in cxx if "@" in name], [])

    def test_nothing_else_is_exported(self):
        """Beside C functions: what public headers name in namespace switchyard, and templates of the standard library."""
        names = set(re.findall(r"\w+", "".join(path.read_text(encoding="utf-8") for path in (ROOT / "include").rglob("*.h"))))
        self.assertEqual([line for line in run("nm", "-DC", "--defined-only", LIBRARY).splitlines() if not is_wanted(line, names)], [])

    def test_what_counts_as_unwanted(self):
        names = {"Exchange", "name_of"}
        for line in ("01 T sy_version@@SWITCHYARD_0.1", "0 A SWITCHYARD_0.1", "01 T switchyard::Exchange::check() const",
                     "01 T switchyard::name_of[abi:cxx11](switchyard::QuantScheme const&)", "01 V typeinfo name for switchyard::Exchange",
                     "01 W std::vector<int>::~vector()", "01 u std::piecewise_construct", "01 T switchyard::on_gpu::fill(int)",
                     "01 W int std::_Rb_tree<switchyard::Span<int> >::find(int)"):
            self.assertTrue(is_wanted(line, names), line)
        for line in ("01 T main", "01 T sy_version", "01 B counter", "01 T switchyard::PullExchange::check() const", "01 T std::exit(int)",
                     "01 W fmt::v9::format(std::string)", "01 T switchyard::capi::give(int)", "01 V typeinfo for spdlog::logger",
                     "01 W spdlog::logger std::move(int)"):
            self.assertFalse(is_wanted(line, names), line)

    def test_soname_and_version_node_follow_the_version(self):
        version = (ROOT / "include/switchyard/version.h").read_text(encoding="utf-8")
        major, minor = re.findall(r"SWITCHYARD_VERSION_(?:MAJOR|MINOR) (\d+)", version)
        self.assertRegex(run("readelf", "-d", LIBRARY), rf"SONAME.*\.so\.{major}\.{minor}\]")
        stem = f"SWITCHYARD_{major}.{minor}"
        self.assertEqual([v for v in nodes().values() if v != stem and not v.startswith(stem + ".")], [])

    def test_the_c_program_calls_every_function(self):
        text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests/c").glob("*.c")))
        called = set(re.findall(r"\b(sy_\w+)\(", text))
        self.assertEqual(sorted(set(listed()) - called), [])

    def test_structs_have_their_committed_sizes(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder, "a.c"), pathlib.Path(folder, "a")
            source.write_text(source_of_sizes(), encoding="utf-8")
            run(C_COMPILER, "-std=c11", "-I", ROOT / "include", source, "-o", program)
            self.assertEqual(run(program), SIZES.read_text(encoding="utf-8"))

    def test_flags_that_are_true_by_default_have_no_before_their_name(self):
        """Zero is the default in C. Of the structs of C++ that C has options of."""
        mirrored = ("exchange_config.h", "exchange_types.h", "quant_config_options.h", "prepare_finalize_factory.h")
        text = "".join((ROOT / "include/switchyard" / name).read_text(encoding="utf-8") for name in mirrored)
        fields = "".join(path.read_text(encoding="utf-8") for path in HEADERS)
        flags = set(re.findall(r"^  bool no_(\w+);", fields, re.MULTILINE)) - {"overlap"}  # SharedExpertsOrder::kNoOverlap
        self.assertEqual(set(re.findall(r"^  bool (\w+) = true;", text, re.MULTILINE)), flags)

    def call_all(self, handle):
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder, "a.c"), pathlib.Path(folder, "a")
            source.write_text(source_of_calls(handle), encoding="utf-8")
            run(C_COMPILER, "-std=c11", "-I", ROOT / "include", source, LIBRARY, f"-Wl,-rpath,{LIBRARY.parent}", "-o", program)
            return {name: int(status) for status, name in (line.split() for line in run(program).splitlines())}

    def test_zeros_and_handles_that_never_were_are_refused(self):
        fine = {"sy_log_to"}
        for handle in ("0", "0x1230", "-16"):
            statuses = self.call_all(handle)
            self.assertGreater(len(statuses), 95)
            accepted = {name for name, status in statuses.items() if status != 1} - fine
            self.assertEqual(accepted, {name for name in statuses if name.endswith("_destroy")} if handle == "0" else set())

    def compiles(self, compiler, standard, text):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "a.c" if standard.startswith("c1") else "a.cpp")
            source.write_text(text, encoding="utf-8")
            flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I", ROOT / "include"]
            run(compiler, f"-std={standard}", *flags, source)

    def test_every_header_compiles_alone_in_both_languages(self):
        for header in [ROOT / "include/switchyard/c.h", *HEADERS]:
            name = header.relative_to(ROOT / "include")
            self.compiles(C_COMPILER, "c11", f'#include "{name}"\n')
            self.compiles(CXX_COMPILER, "c++17", f'#include "{name}"\n')

    def test_dlpack_before_and_after(self):
        if not pathlib.Path("/usr/include/dlpack/dlpack.h").exists():
            self.skipTest("dlpack/dlpack.h is not installed (libdlpack-dev)")
        same = "sy_status f(DLTensor* t) { sy_array* a = 0; return sy_array_copy_of(t, t->device, 0, &a); }\n"
        layout = ("_Static_assert(sizeof(sy_tensor) == sizeof(DLTensor) && offsetof(sy_tensor, shape) == "
                  'offsetof(DLTensor, shape), "layout");\n')
        for compiler, standard in ((C_COMPILER, "c11"), (CXX_COMPILER, "c++17")):
            self.compiles(compiler, standard, f'#include <dlpack/dlpack.h>\n#include "switchyard/c.h"\n{same}')
            self.compiles(compiler, standard, '#include "switchyard/c.h"\n#include <dlpack/dlpack.h>\n' +
                          (layout if standard == "c11" else ""))


if __name__ == "__main__":
    LIBRARY, C_COMPILER, CXX_COMPILER = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    unittest.main(argv=sys.argv[:1])
