# SPDX-License-Identifier: Apache-2.0
"""Makes a root folder with copies of installed Debian packages, what they depend on, and nothing else.

usage: clean_root.py ROOT PACKAGE...   needs no network; `chroot ROOT` then has a dpkg that knows these packages
"""
import os
import pathlib
import re
import shutil
import sys

DPKG = pathlib.Path("var/lib/dpkg")
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def read_status():
    """Returns {name: paragraph} of the installed packages, and {virtual name: name}."""
    packages, provided = {}, {}
    for paragraph in pathlib.Path("/", DPKG, "status").read_text(encoding="utf-8").split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status") != "install ok installed":
            continue
        packages.setdefault(fields["Package"], (paragraph, fields))
        for name in re.findall(r"(?:^|, )([\w.+-]+)", fields.get("Provides", "")):
            provided.setdefault(name, fields["Package"])
    return packages, provided


def closure(wanted, packages, provided):
    """The packages and all that they depend on; of alternatives the first that is installed."""
    found, left = set(), list(wanted)
    while left:
        name = left.pop()
        name = name if name in packages else provided.get(name)
        if name is None:
            sys.exit("clean_root: a package is not installed here: " + " ".join(wanted))
        if name in found:
            continue
        found.add(name)
        fields = packages[name][1]
        for group in ", ".join(filter(None, (fields.get("Depends"), fields.get("Pre-Depends")))).split(", "):
            names = [re.match(r"[\w.+-]+", one.strip())[0] for one in group.split("|") if one.strip()]
            left += [one for one in names if one in packages or one in provided][:1]
    return sorted(found)


def copy(path, root):
    to = root / path.relative_to("/")
    if path.is_symlink():
        if not to.is_symlink():
            to.parent.mkdir(parents=True, exist_ok=True)
            to.symlink_to(os.readlink(path))
    elif path.is_dir():
        to.mkdir(parents=True, exist_ok=True)
    elif path.is_file() and not to.exists():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to)


def main(root, wanted):
    packages, provided = read_status()
    names = closure(wanted, packages, provided)
    root.mkdir(parents=True)
    for name in MERGED:
        if pathlib.Path("/", name).is_symlink():
            copy(pathlib.Path("/", name), root)
            (root / os.readlink(f"/{name}")).mkdir(parents=True, exist_ok=True)
    for folder in ("tmp", "etc", DPKG / "info", DPKG / "updates", DPKG / "triggers"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    skipped = re.compile(r"/usr/share/(doc|man|locale|info)/|\.pyc$")
    for name in names:
        fields = packages[name][1]
        for info in pathlib.Path("/", DPKG, "info").glob(f"{name}*.list"):
            if info.stem in (name, f"{name}:{fields['Architecture']}"):
                copy(info, root)
                for line in info.read_text(encoding="utf-8").splitlines():
                    if not skipped.search(line):
                        copy(pathlib.Path(line), root)
    status = "\n\n".join(packages[name][0].strip() for name in names) + "\n"
    (root / DPKG / "status").write_text(status, encoding="utf-8")
    shutil.copy2(pathlib.Path("/", DPKG, "info/format"), root / DPKG / "info/format")
    print(f"clean_root: {len(names)} packages in {root}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
