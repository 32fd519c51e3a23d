#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: umbrella_test.sh INCLUDE_FOLDER   fails and names the headers that switchyard.h, or for C c.h, leaves out
set -euo pipefail
cd "$1"
includes_of() { sed -n 's/^#include "\(.*\)"$/\1/p' "$1" | sort; }
diff <(includes_of switchyard/switchyard.h) <(find switchyard -maxdepth 1 -name '*.h' ! -name switchyard.h ! -name c.h ! -name mpi.h | sort)
diff <(includes_of switchyard/c.h) <(find switchyard/c -name '*.h' | sort)
