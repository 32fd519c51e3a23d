#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the Debian package of a build, installs it in a root that has a compiler and nothing of this project, builds and runs a
# C program there, and removes the package again. Needs root; without it the test skips.
#
# usage: deb_test.sh BUILD_FOLDER WORK_FOLDER PYTHON
set -euo pipefail
build=$1 work=$2 python=$3
here=$(cd "$(dirname "$0")" && pwd)
if ! chroot / true 2> /dev/null; then
  echo "deb_test: no right to chroot here, skipped"
  exit 77
fi

rm -rf "$work"
mkdir -p "$work"
cpack -G DEB -B "$work/packages" --config "$build/CPackConfig.cmake" > "$work/cpack.log"
package=$(echo "$work"/packages/*.deb)
depends=$(dpkg-deb -f "$package" Depends | sed 's/([^)]*)//g; s/|[^,]*//g; s/,/ /g')
echo "$(basename "$package") depends on $depends"

root=$work/root
# shellcheck disable=SC2086
"$python" "$here/clean_root.py" "$root" bash dash coreutils libc-bin dpkg diffutils gcc libc6-dev pkg-config $depends
if find "$root" -name '*switchyard*' | grep .; then
  echo "deb_test: the root is not clean" >&2
  exit 1
fi
cp "$package" "$here/../../examples/08_c/main.c" "$root/tmp"
run() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C "$@"; }

run dpkg -i "/tmp/$(basename "$package")"
run switchyard --version
run switchyard doctor > "$work/doctor.txt"
for file in share/man/man1/switchyard.1.gz share/bash-completion/completions/switchyard share/zsh/vendor-completions/_switchyard share/doc/switchyard/copyright; do
  test -s "$root/usr/$file"
done
# shellcheck disable=SC2016
run sh -c 'gcc -std=c11 -Wall -Wextra -Werror /tmp/main.c $(pkg-config --cflags --libs switchyard) -o /tmp/layer && /tmp/layer' |
  tee "$work/layer.txt"
grep -q '4 ranks: same bits' "$work/layer.txt"
cmake -S "$here/consumer" -B "$work/consumer" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$root/usr" \
      > "$work/configure.log"
grep "Switchyard_DIR:PATH=$root" "$work/consumer/CMakeCache.txt"

run dpkg -r switchyard
rm "$root/tmp"/*
if find "$root" -name '*switchyard*' ! -path '*/var/lib/dpkg/*' | grep .; then
  echo "deb_test: the package left files behind" >&2
  exit 1
fi
rm -rf "$root"
