# Short names for the most common tasks. CMakePresets.json has the rest.
.PHONY: help demo install deb wheel test docs bench format lint clean release

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
SOURCES = $(shell find include src instruments cli tests examples bench python -name '*.h' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

help:
	@echo 'make demo     install what is missing, build the command, run one real MoE layer over 4 ranks, also on GPUs where nvcc and GPUs are'
	@echo 'make install  build and install command and library; PREFIX=/usr/local'
	@echo 'make deb      build the Debian package, into build/package; CMAKE_ARGS=-DSWITCHYARD_WITH_CUDA=ON: with the CUDA module'
	@echo 'make wheel    build the Python wheel with the CUDA module, into build/wheels; CMAKE_ARGS=-DCMAKE_CUDA_ARCHITECTURES=90-real: for one GPU'
	@echo 'make test     build everything and run every test'
	@echo 'make docs     the API reference for C++, C and Python, into build/docs'
	@echo 'make bench    build and run the developer benchmarks'
	@echo 'make format   clang-format over our files'
	@echo 'make lint     include order, file sizes, clang-tidy'
	@echo 'make clean    remove build/'

# Configures everything, tests included. The first run of demo configures less, so that there is less to install.
release:
	@scripts/install-deps all
	cmake --preset release -DSWITCHYARD_BUILD_TESTS=ON -DSWITCHYARD_BUILD_EXAMPLES=ON

# With nvcc and GPUs the module for them is built too, also in a build folder that was configured without it.
demo:
	@scripts/install-deps run
	@set -e; cuda=$$(scripts/cuda-options); \
	module=; demo=; \
	test -f build/CMakeCache.txt || demo='-DSWITCHYARD_BUILD_TESTS=OFF -DSWITCHYARD_BUILD_EXAMPLES=OFF'; \
	test -z "$$cuda" || grep -qs '^SWITCHYARD_WITH_CUDA:BOOL=ON' build/CMakeCache.txt || demo="$$demo $$cuda"; \
	test -z "$$demo" || cmake --preset release $$demo; \
	test -z "$$cuda" || grep -qs '^SWITCHYARD_CUDA_STATIC:BOOL=ON' build/CMakeCache.txt || module=switchyard_cuda; \
	cmake --build build --parallel $(JOBS) --target switchyard_cli $$module; \
	echo; \
	build/bin/switchyard run --model data/tiny-moe --ranks 4; \
	test -z "$$cuda" || { echo; build/bin/switchyard run --model data/tiny-moe --ranks 4 --device cuda; }
	@echo
	@echo 'go on with:'
	@echo '  build/bin/switchyard run --model data/tiny-moe --ranks 8 --scheme fp8_block --split uneven'
	@echo '  build/bin/switchyard run --help'
	@echo '  docs/index.md'

install:
	@scripts/install-deps run
	@test -f build/CMakeCache.txt || \
	  cmake --preset release -DSWITCHYARD_BUILD_TESTS=OFF -DSWITCHYARD_BUILD_EXAMPLES=OFF
	cmake --build build --parallel $(JOBS)
	cmake --install build --prefix $(PREFIX)

deb:
	@scripts/install-deps deb
	cmake --preset package $(CMAKE_ARGS)
	cmake --build build/package --parallel $(JOBS)
	cd build/package && cpack -G DEB
	@ls build/package/*.deb

wheel:
	@scripts/install-deps python
	@test -x build/wheel-python/bin/pip || python3 -m venv build/wheel-python
	build/wheel-python/bin/pip install -q -r python/requirements-wheel.txt
	rm -rf build/wheels/linux
	PATH=$$PATH:/usr/local/cuda/bin CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/wheel-python/bin/pip wheel --no-deps -w build/wheels/linux \
	  -C cmake.define.SWITCHYARD_WITH_CUDA=ON .
	PATH=$(CURDIR)/build/wheel-python/bin:$$PATH auditwheel repair --exclude 'libmpi*.so.*' -w build/wheels build/wheels/linux/*.whl
	@ls -l build/wheels/*.whl

test: release
	cmake --build build --parallel $(JOBS)
	ctest --preset release --parallel $$((2 * $(JOBS)))  # tests with processes wait for half of their time

# PACKAGE: a built Python package; without it the extension module is built for its signatures.
docs:
	@scripts/install-deps docs
	rm -rf build/docs && mkdir -p build/docs
	doxygen docs/Doxyfile
	@test -n "$(PACKAGE)" || { cmake --preset python -DPython_EXECUTABLE=$(CURDIR)/build/docs-python/bin/python3 && \
	  cmake --build build/python --parallel $(JOBS) --target switchyard_stub; }
	build/docs-python/bin/python3 tools/python_docs.py $(or $(PACKAGE),build/python/python/switchyard) build/docs/python
	@echo 'build/docs/cpp/index.html  build/docs/python/index.html'

bench:
	@scripts/install-deps all
	cmake --preset bench
	cmake --build build/bench --parallel $(JOBS)
	@set -e; for bench in build/bench/bin/*_bench; do echo "== $$bench"; $$bench; done

format:
	clang-format-14 -i $(SOURCES)

lint: release
	tools/layers.py
	tools/lint.sh --tidy build

clean:
	rm -rf build
