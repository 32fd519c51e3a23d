# SPDX-License-Identifier: Apache-2.0
"""Runs `make demo` with stand-ins for cmake, nvcc and nvidia-smi: what it configures, builds and runs on which machine."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = "make sh bash env echo grep sed cat mkdir chmod nproc".split()

# Writes down its arguments, keeps -D options in a cache as CMake does, and "builds" a command that does the same.
CMAKE = r"""#!/bin/bash
echo "cmake $*" >> log
mkdir -p build/bin
for argument in "$@"; do
  [[ $argument == -D*=* ]] || continue
  name=${argument#-D}
  echo "${name%%=*}:BOOL=${name#*=}" >> build/CMakeCache.txt
done
printf '#!/bin/bash\necho "switchyard $*" >> log\n' > build/bin/switchyard
chmod +x build/bin/switchyard
"""
NVCC = "echo 'Cuda compilation tools, release {}, V{}.88'"
RUN = "switchyard run --model data/tiny-moe --ranks 4"


class Machine:
    """A folder with our Makefile, and the only programs that `make demo` finds."""

    def __init__(self, test, nvidia_smi=None, nvcc_release=None):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.bin = self.root / "programs"
        self.bin.mkdir()
        (self.root / "scripts").mkdir()
        shutil.copy(ROOT / "Makefile", self.root)
        shutil.copy(ROOT / "scripts" / "cuda-options", self.root / "scripts")
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.program("scripts/install-deps", "true")
        (self.bin / "cmake").write_text(CMAKE, encoding="utf-8")
        (self.bin / "cmake").chmod(0o755)
        if nvidia_smi is not None:
            self.program("programs/nvidia-smi", nvidia_smi)
        if nvcc_release is not None:
            self.program("programs/some-nvcc", NVCC.format(nvcc_release, nvcc_release))

    def program(self, path, text):
        file = self.root / path
        file.write_text("#!/bin/bash\n" + text + "\n", encoding="utf-8")
        file.chmod(0o755)

    def demo(self):
        """Returns what `make demo` ran, and all that it said."""
        log = self.root / "log"
        log.unlink(missing_ok=True)
        # CUDACXX, because /usr/local/cuda/bin may have an nvcc.
        environment = {**os.environ, "PATH": str(self.bin), "CUDACXX": "some-nvcc", "MAKEFLAGS": ""}
        done = subprocess.run(["make", "-C", self.root, "JOBS=2", "demo"], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        return log.read_text(encoding="utf-8").splitlines(), done.stdout + done.stderr


class DemoTest(unittest.TestCase):
    def check_without_cuda(self, machine, reason):
        ran, text = machine.demo()
        self.assertEqual(ran, ["cmake --preset release -DSWITCHYARD_BUILD_TESTS=OFF -DSWITCHYARD_BUILD_EXAMPLES=OFF",
                               "cmake --build build --parallel 2 --target switchyard_cli", RUN])
        self.assertRegex(text, "\ncuda-options: no CUDA module: .*" + re.escape(reason))

    def test_gpus_and_nvcc_give_the_module_and_a_run_there(self):
        machine = Machine(self, "echo '9.0, NVIDIA H100 80GB HBM3'; echo '9.0, NVIDIA H100 80GB HBM3'", "13.0")
        ran, _ = machine.demo()
        self.assertEqual(ran, ["cmake --preset release -DSWITCHYARD_BUILD_TESTS=OFF -DSWITCHYARD_BUILD_EXAMPLES=OFF "
                               "-DSWITCHYARD_WITH_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90-real",
                               "cmake --build build --parallel 2 --target switchyard_cli switchyard_cuda", RUN, RUN + " --device cuda"])
        self.assertEqual(machine.demo()[0], ran[1:])  # configured once

    def test_each_kind_of_gpu_is_built_for(self):
        ran, _ = Machine(self, "echo '8.0, A'; echo '10.0, B'; echo '8.0, A'", "12.4").demo()
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=80-real;100-real", ran[0])

    def test_a_build_without_cuda_is_configured_again(self):
        machine = Machine(self, "echo '9.0, NVIDIA H100'")
        self.check_without_cuda(machine, "there is no some-nvcc on PATH or in /usr/local/cuda/bin; install the CUDA toolkit")
        machine.program("programs/some-nvcc", NVCC.format("13.0", "13.0"))
        self.assertEqual(machine.demo()[0][0], "cmake --preset release -DSWITCHYARD_WITH_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90-real")

    def test_a_build_with_the_module_linked_in_has_no_target_for_it(self):
        machine = Machine(self, "echo '9.0, NVIDIA H100'", "13.0")
        (machine.root / "build").mkdir()
        cache = "SWITCHYARD_WITH_CUDA:BOOL=ON\nSWITCHYARD_CUDA_STATIC:BOOL=ON\n"
        (machine.root / "build" / "CMakeCache.txt").write_text(cache, encoding="utf-8")
        self.assertEqual(machine.demo()[0], ["cmake --build build --parallel 2 --target switchyard_cli", RUN, RUN + " --device cuda"])

    def test_without_a_gpu_the_reason_is_said(self):
        self.check_without_cuda(Machine(self, None, "13.0"), "there is no nvidia-smi on PATH")
        self.check_without_cuda(Machine(self, "echo 'No devices were found'; exit 6", "13.0"), "nvidia-smi says: No devices were found")
        self.check_without_cuda(Machine(self, "echo 'No devices were found'", "13.0"), "nvidia-smi says: No devices were found")
        self.check_without_cuda(Machine(self, "echo '7.5, Tesla T4'", "13.0"), "a GPU has compute capability 7.5, must be 8.0 or newer")
        self.check_without_cuda(Machine(self, "echo '9.0, NVIDIA H100'", "12.3"), "is of CUDA 12.3, must be 12.4 or newer")


if __name__ == "__main__":
    unittest.main()
