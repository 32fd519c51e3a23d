#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the library, moves the folder (nothing in it may depend on the old path), and builds an
# external program against it, first with find_package, then with pkg-config, and one in C.
#
# usage: run_test.sh BUILD_FOLDER WORK_FOLDER CXX_COMPILER C_COMPILER
set -euo pipefail
build=$1 work=$2 compiler=$3 c_compiler=$4
consumer=$(cd "$(dirname "$0")" && pwd)/consumer

rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$work/installed" > "$work/install.log"
mv "$work/installed" "$work/moved"
prefix=$work/moved
"$prefix/bin/switchyard" --version
if [ -e "$build/bin/libswitchyard_cuda.so" ] && "$prefix/bin/switchyard" doctor | grep 'the CUDA module is'; then
  echo "run_test: the command does not find the installed CUDA module" >&2
  exit 1
fi

echo "== find_package"
cmake -S "$consumer" -B "$work/consumer" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_PREFIX_PATH="$prefix" > "$work/configure.log"
cmake --build "$work/consumer"
"$work/consumer/consumer"

echo "== pkg-config"
pc_folder=$(dirname "$(find "$prefix" -name switchyard.pc)")
export PKG_CONFIG_PATH=$pc_folder${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
pkg-config --modversion switchyard
if pkg-config --cflags switchyard | grep -e ' -D'; then
  echo "run_test: pkg-config gives macros of libraries that only this library uses" >&2
  exit 1
fi
# shellcheck disable=SC2046
"$compiler" -std=c++20 -O1 $(pkg-config --cflags switchyard) "$consumer/main.cpp" -o "$work/by_pkg_config" \
            $(pkg-config --libs switchyard)
LD_LIBRARY_PATH=$(dirname "$pc_folder") "$work/by_pkg_config"

echo "== FetchContent, configured only"
root=$(cd "$consumer/../../.." && pwd)
mkdir -p "$work/part"
cat > "$work/part/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(part LANGUAGES CXX)
include(FetchContent)
set(SWITCHYARD_BUILD_CLI OFF)
FetchContent_Declare(switchyard SOURCE_DIR $root)
FetchContent_MakeAvailable(switchyard)
add_executable(app $consumer/main.cpp)
target_link_libraries(app PRIVATE switchyard::switchyard)
END
cmake -S "$work/part" -B "$work/part/build" -G Ninja -DCMAKE_CXX_COMPILER="$compiler" > "$work/part/configure.log"

echo "== C"
# shellcheck disable=SC2046
"$c_compiler" -std=c11 -Wall -Wextra -Werror $(pkg-config --cflags switchyard) "$consumer/../../../examples/08_c/main.c" \
              -o "$work/c_layer" $(pkg-config --libs switchyard)
LD_LIBRARY_PATH=$(dirname "$pc_folder") "$work/c_layer"
