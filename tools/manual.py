#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the manual page and the completions of the command for bash and zsh from what its --help says.

usage: tools/manual.py COMMAND FOLDER   writes FOLDER/switchyard.1.gz, FOLDER/switchyard.bash and FOLDER/_switchyard
"""
import gzip
import os
import pathlib
import re
import subprocess
import sys

HELP_OPTION = ("-h,--help", "", "print help and exit")


def ask(command, *words):
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run([command, *words], capture_output=True, text=True, check=True, env=environment).stdout


TEXT_COLUMN = 24  # where the command's help begins to explain an option


def entries(section):
    """Yields (head, text) of each indented entry: the text stands beside the head or on the lines after it."""
    found = []
    for line in section.splitlines():
        if re.match(r"  \S", line):
            is_beside = line[TEXT_COLUMN - 1:TEXT_COLUMN] == " "
            found.append([line[:TEXT_COLUMN].strip(), line[TEXT_COLUMN:].strip()] if is_beside else [line.strip(), ""])
        elif found and line.strip():
            found[-1][1] = (found[-1][1] + " " + line.strip()).strip()
    return [tuple(entry) for entry in found]


def parse(text):
    """Returns (summary, options as (names, value, text), footer) of the help of a verb."""
    summary, _, rest = text.partition("\n")
    options, _, footer = rest.partition("Options:\n")[2].partition("\n\n")
    found = []
    for head, about in entries(options):
        names, _, value = head.partition(" ")
        found.append((names, value, about) if names != "-h,--help" else HELP_OPTION)
    return summary, found, footer.strip()


def roff(text):
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-"), flags=re.MULTILINE)


def option_lines(options):
    for names, value, about in options:
        yield f".TP\n\\fB{roff(names.replace(',', ', '))}\\fR {roff(value)}".rstrip()
        yield roff(about)


def manual(version, summary, verbs, footer):
    lines = [f'.TH SWITCHYARD 1 "" "switchyard {version}" "User Commands"', ".ad l\n.SH NAME", f"switchyard \\- {roff(summary)}",
             ".SH SYNOPSIS", ".B switchyard\n.I VERB\n[\\fIOPTION\\fR]...", ".br\n.B switchyard help\n[\\fIVERB\\fR]",
             ".br\n.B switchyard \\-\\-version", ".SH VERBS"]
    for verb, (about, _, _) in verbs.items():
        lines += [f".TP\n.B {roff(verb)}", roff(about)]
    for verb, (about, options, notes) in verbs.items():
        lines += [f".SH {roff(verb.upper())}", roff(about) + ".", *option_lines(options)]
        if notes:
            is_laid_out = "\n  " in notes
            lines += [".PP", *([".nf", roff(notes), ".fi"] if is_laid_out else [roff(notes)])]
    lines += [".SH EXIT STATUS", roff(" ".join(re.search(r"exit codes: (.*)", footer, re.DOTALL)[1].split())) + ".", ".SH ENVIRONMENT",
              "\\fBswitchyard doctor\\fR lists every setting with its value."]
    return "\n".join(lines) + "\n"


def choices(about):
    """The values that an option's text lists."""
    found = re.search(r"\bone of ([\w.-]+(?:, [\w.-]+)*)", about)
    return found[1].replace(",", "") if found else ""


def takes_files(about):
    return not choices(about) or "folder" in about


COMPLETION = """# bash completion of switchyard
_switchyard() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]}
  local verbs="@VERBS@" options="" values="" files=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$verbs help --help --version" -- "$word")
    return
  fi
  if [ "$verb" = help ]; then
    mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$word")
    return
  fi
  case "$verb $before" in
@VALUES@
  esac
  case $verb in
@OPTIONS@
  esac
  if [ -n "$values" ]; then
    mapfile -t COMPREPLY < <(compgen $files -W "$values" -- "$word")
  elif [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -o filenames -F _switchyard switchyard
"""


def completion(verbs):
    values, lists = [], []
    for verb, (_, options, _) in verbs.items():
        names = [name for entry in options for name in entry[0].split(",") if name.startswith("--")]
        lists.append(f'    {verb}) options="{" ".join(names)}" ;;')
        values += [f'    "{verb} {names.split(",")[-1]}") values="{choices(about)}"{" files=-f" if takes_files(about) else ""} ;;'
                   for names, _, about in options if choices(about)]
    text = COMPLETION.replace("@VERBS@", " ".join(verbs))
    return text.replace("@VALUES@", "\n".join(values)).replace("@OPTIONS@", "\n".join(lists))


ZSH = """#compdef switchyard
# zsh completion of switchyard
_switchyard_name_or_file() { compadd -- "$@"; _files }
local -a verbs
verbs=(@VERBS@)
if (( CURRENT == 2 )); then
  _describe -t verbs verb verbs
  return
fi
local verb=$words[2]
shift words
(( CURRENT-- ))
case $verb in
  help) _describe -t verbs verb verbs ;;
@CASES@
esac
"""


def zsh_text(text):
    return re.sub(r"[\[\]':\\\\]", " ", text)


def zsh_option(names, value, about):
    name = names.split(",")[-1]
    if not value:
        return f"'{name}[{zsh_text(about)}]'"
    listed = choices(about)
    if not listed:
        action = "_files"
    elif takes_files(about):
        action = f" _switchyard_name_or_file {listed}"
    else:
        action = f"({listed})"
    return f"'{name}=[{zsh_text(about)}]:{zsh_text(value).strip().lower()}:{action}'"


def zsh_completion(verbs):
    names = " ".join(f"'{verb}:{zsh_text(about)}'" for verb, (about, _, _) in verbs.items())
    cases = [f"  {verb}) _arguments " + " ".join(zsh_option(*option) for option in options) + " ;;"
             for verb, (_, options, _) in verbs.items()]
    return ZSH.replace("@VERBS@", names).replace("@CASES@", "\n".join(cases))


def main(command, folder):
    text = ask(command, "help")
    summary, _, _ = text.partition("\n")
    listed, _, footer = text.partition("Subcommands:\n")[2].partition("\n\n")
    verbs = {verb: parse(ask(command, "help", verb)) for verb, _ in entries(listed)}
    if not verbs:
        sys.exit(f"manual: {command} help lists no verbs")
    version = ask(command, "--version").split()[1]
    folder.mkdir(parents=True, exist_ok=True)
    page = manual(version, summary, verbs, footer)
    (folder / "switchyard.1.gz").write_bytes(gzip.compress(page.encode(), 9, mtime=0))
    (folder / "switchyard.bash").write_text(completion(verbs), encoding="utf-8")
    (folder / "_switchyard").write_text(zsh_completion(verbs), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
