# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the answer of the raw probe: which system and which Python a node has, and whether this ansible-core can use it.

Private to the collection.
"""

from __future__ import annotations

import re

#: Lowest target Python of each ansible-core minor (measured with one module; from 2.20 on it is 3.9).
LOWEST_PYTHON = {(2, 16): (3, 6), (2, 17): (3, 7), (2, 18): (3, 8), (2, 19): (3, 8)}
LOWEST_PYTHON_SINCE_2_20 = (3, 9)


def lowest_python(core_version):
    """Lowest Python on a target that an ansible-core version (text such as '2.19.14') can run modules with."""
    major, minor = (int(part) for part in core_version.split(".")[:2])
    return LOWEST_PYTHON.get((major, minor), LOWEST_PYTHON_SINCE_2_20)


def cores_for(python):
    """ansible-core minors, as text, that can manage a target with this Python (tuple)."""
    return [f"{a}.{b}" for (a, b), low in sorted(LOWEST_PYTHON.items()) if low <= python]


def python_pair(text):
    """('/path', '3.11') from the answer ``python=/path 3.11``; ('', '') for anything else."""
    match = re.search(r"^python=(\S+) (\d+\.\d+)\r?$", text, re.MULTILINE)
    return match.groups() if match else ("", "")


def read_probe(text, core_version):
    """Answer of the probe -> ``{"os", "arch", "python", "python_version", "problem"}``.

    ``problem`` is None, or a sentence for the operator. Lines that are not ``key=value`` (login banners) are ignored.
    """
    found = dict(re.findall(r"^(os|arch|uid)=(.*?)\r?$", text, re.MULTILINE))
    path, version = python_pair(text)
    answer = {
        "os": found.get("os", "unknown"),
        "arch": found.get("arch", "unknown"),
        "python": path or None,
        "python_version": version or None,
        "problem": None,
    }
    lowest = lowest_python(core_version)
    if found.get("uid", "0") != "0":
        answer["problem"] = (
            f"Ansible works on this node as uid {found['uid']}, and packages need root. Set ansible_become: true for it (and give -K where "
            "sudo asks for a password)."
        )
        return answer
    if not path:
        answer["problem"] = (
            f"No Python 3 was found on this node ({answer['os']}). Install one, for example `apt-get install python3` or "
            "`dnf install python3`, or set ansible_python_interpreter to the path of yours."
        )
        return answer
    python = tuple(int(part) for part in version.split("."))
    if python < lowest:
        usable = cores_for(python)
        advice = f"run the playbook with ansible-core {' or '.join(usable)}, or " if usable else ""
        answer["problem"] = (
            f"{path} on this node ({answer['os']}) is Python {version}; ansible-core {core_version} needs "
            f"{lowest[0]}.{lowest[1]} or newer on its targets. Either {advice}install a newer Python beside it and set "
            "ansible_python_interpreter to its path."
        )
    return answer


#: What sudo and Ansible say when nobody may become root, and what an operator does about it.
_BECOME = (
    (r"must have a tty",
     "sudo on this node wants a terminal (requiretty). `Defaults:USER !requiretty` in /etc/sudoers.d lets Ansible work."),
    (r"[Mm]issing (?:sudo|become) password|password is required|[Ii]ncorrect (?:sudo|become) password|Sorry, try again",
     "sudo on this node asks for a password. Give the right one with -K, or as ansible_become_password from a vault."),
    (r"not in the sudoers file|not allowed to (?:execute|run)",
     "This user may not become root on this node. Give it the right in /etc/sudoers.d, or set another ansible_user."),
    (r"sudo: (?:command )?not found|No such file or directory: .*sudo",
     "There is no sudo on this node. Install it, or set ansible_become_method: su, or connect as root."),
)


def explain(result):
    """A sentence for an operator, from the result of a raw probe that failed."""
    said = " ".join(str(result.get(key) or "").strip() for key in ("msg", "module_stderr", "stderr", "stdout")).strip()
    for pattern, advice in _BECOME:
        if re.search(pattern, said):
            return f"{advice} It said: {said}"
    return f"The node answers, but runs no command: {said}"
