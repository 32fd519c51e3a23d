#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# usage: umbrella_test.sh INCLUDE_FOLDER   fails and names the headers that switchyard.h leaves out
set -euo pipefail
cd "$1"
listed=$(sed -n 's/^#include "\(.*\)"$/\1/p' switchyard/switchyard.h | sort)
present=$(find switchyard -maxdepth 1 -name '*.h' ! -name switchyard.h | sort)
diff <(echo "$listed") <(echo "$present")
