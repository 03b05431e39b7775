# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an engine is started: its systemd unit, its process, its command line, its journal. Private to the collection."""

import os
import re
import shlex

from ansible_collections.npu.fleet.plugins.module_utils._engine_secrets import mask_text
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, under

UNIT_PROPERTIES = "LoadState,ActiveState,SubState,MainPID,KillMode,CanReload,Environment,EnvironmentFiles,ExecStart"
JOURNAL_LINES = 20
# With these lines containerd prints its whole configuration at its start: "Start cri plugin with config {...}" (1.x), and since 2.0
# 'msg="starting cri plugin" config="{...}"'.
_WHOLE_CONFIG = re.compile(r"cri plugin with config|starting cri plugin.*config=", re.IGNORECASE)


def query_unit(run, root, timeout, name):
    """Return the facts of a unit.

    ``name``, ``loaded`` (False where systemd or the unit is missing), ``state``, ``sub_state``, ``main_pid``, ``kill_mode``,
    ``can_reload``, ``command`` (the words of its ExecStart with its variables put in).
    """
    systemctl = find_program("systemctl", root)
    values = {}
    if systemctl:
        result = run([systemctl, "show", name, "--property=" + UNIT_PROPERTIES], timeout)
        if result.rc == 0 and not result.timed_out:
            values = dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
    loaded = values.get("LoadState") == "loaded"
    environment = unit_environment(values, lambda path: read_text(under(root, path))) if loaded else {}
    return {
        "name": name,
        "loaded": loaded,
        "state": values.get("ActiveState") if loaded else None,
        "sub_state": values.get("SubState") if loaded else None,
        "main_pid": int(values.get("MainPID") or 0) or None,
        "kill_mode": values.get("KillMode") if loaded else None,
        "can_reload": values.get("CanReload") == "yes",
        "command": expand(exec_start(values.get("ExecStart", "")), environment),
    }


def dependents(run, root, timeout, name):
    """Return the names of the units that systemd stops and starts along with a unit (their Requires=, BindsTo= or PartOf= names it)."""
    systemctl_path = find_program("systemctl", root)
    if systemctl_path is None:
        return []
    result = run([systemctl_path, "show", name, "--property=RequiredBy,BoundBy,ConsistsOf"], timeout)
    return sorted({word for line in result.stdout.splitlines() for word in line.partition("=")[2].split()})


def exec_start(text):
    """Return the words of ``ExecStart`` as ``systemctl show`` prints it (``{ path=... ; argv[]=... ; ignore_errors=no ; ... }``)."""
    match = re.search(r"argv\[\]=(.*?) ; ignore_errors=", text)
    return split_words(match.group(1)) if match else []


def unit_environment(values, text_of):
    """Return the variables a unit's command may use: ``Environment=``, then the files of ``EnvironmentFile=`` in their order."""
    environment = {}
    for word in split_words(values.get("Environment", "")):
        name, equals, value = word.partition("=")
        if equals:
            environment[name] = value
    for path in re.findall(r"(\S+) \(ignore_errors=", values.get("EnvironmentFiles", "")):
        for line in text_of(path).splitlines():
            if line.strip() and line.lstrip()[0] not in "#;":
                name, _equals, value = line.strip().partition("=")
                environment[name] = " ".join(split_words(value))
    return environment


def split_words(text):
    """Split as a shell does, or at blanks where the quotes do not match."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def expand(words, environment):
    """Expand ``$NAME`` (a word of its own becomes several) and ``${NAME}`` (stays one) as systemd does."""
    expanded = []
    for word in words:
        whole = re.match(r"^\$(\w+)$", word)
        if whole:
            expanded.extend(split_words(environment.get(whole.group(1), "")))
        else:
            expanded.append(re.sub(r"\$\{(\w+)\}", lambda match: environment.get(match.group(1), ""), word))
    return expanded


def parse_flags(words, short=None, boolean=()):
    """Return ``{flag: [values]}`` of a command line, long names only.

    ``short`` gives the long name of a short flag (``{"-H": "host"}``), ``boolean`` the flags that take no word after them.
    """
    flags = {}
    short = short or {}
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        if word[:2] in short and not word.startswith("--"):
            name, value = short[word[:2]], word[2:].lstrip("=") or None
        elif word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            value = value if equals else None
        else:
            continue
        if value is None:
            value = "true" if name in boolean or not rest else rest.pop(0)
        flags.setdefault(name, []).append(value)
    return flags


def read_text(path):
    """Return a file's text, "" where it can not be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def command_line(pid, root="/"):
    """Return the words of a process's command line, [] when it is gone."""
    if pid is None:
        return []
    try:
        with open(under(root, os.path.join("/proc", str(pid), "cmdline")), "rb") as stream:
            return [os.fsdecode(word) for word in stream.read().split(b"\0")[:-1]]
    except OSError:
        return []


def processes(names, root="/"):
    """Return ``[(pid, name)]`` of the processes whose name (``comm``) is one of ``names``, lowest pid first.

    Those in another pid namespace are left out: what runs in a container (a node of kind, say) is not of this host.
    """
    try:
        pids = sorted(int(name) for name in os.listdir(under(root, "/proc")) if name.isdigit())
    except OSError:
        return []
    found = []
    for pid in pids:
        name = read_text(under(root, "/proc/%d/comm" % pid)).strip()
        if name in names and _of_this_host(pid, root):
            found.append((pid, name))
    return found


def _of_this_host(pid, root):
    try:
        return os.readlink(under(root, "/proc/%d/ns/pid" % pid)) == os.readlink(under(root, "/proc/self/ns/pid"))
    except OSError:
        return True


def pid_from_files(paths, name, root="/"):
    """Return the pid in the first of these files that names a living process called ``name``, or None."""
    for path in paths:
        text = read_text(under(root, path)).strip()
        if text.isdigit() and read_text(under(root, "/proc/%s/comm" % text)).strip() == name:
            return int(text)
    return None


def alive(pid):
    """Return whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def last_line(text):
    """Return the last line of ``text`` that is not empty, without secrets."""
    # Masked as a whole: a value that the message quotes may have several lines.
    lines = [line.strip() for line in mask_text(text).splitlines() if line.strip()]
    return lines[-1] if lines else ""


def systemctl(run, root, timeout, verb, name):
    """Run ``systemctl VERB UNIT``; return what went wrong, as a text, or None."""
    program = find_program("systemctl", root)
    if program is None:
        return "there is no systemctl to %s %s with" % (verb, name)
    result = run([program, verb, name], timeout)
    if result.timed_out:
        return "'systemctl %s %s' did not end within %d s" % (verb, name, timeout)
    if result.rc != 0:
        return "'systemctl %s %s' failed: %s" % (verb, name, last_line(result.stderr) or "exit code %d" % result.rc)
    return None


def journal(run, root, timeout, unit, since):
    """Return the last lines of a unit's journal since a time (seconds since the epoch), credentials masked; "" where there is none.

    ``unit``: the dict of ``query_unit``.
    """
    journalctl = find_program("journalctl", root)
    if journalctl is None or not unit["loaded"]:
        return ""
    argv = [journalctl, "--unit", unit["name"], "--no-pager", "--output", "cat", "--lines", str(JOURNAL_LINES)]
    result = run(argv + ["--since", "@%d" % int(since)], timeout)
    lines = [line for line in result.stdout.strip().splitlines() if not _WHOLE_CONFIG.search(line)]
    return mask_text("\n".join(lines))
