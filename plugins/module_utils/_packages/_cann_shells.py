# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writing CANN's environment for login shells and for systemd units: two files of ours, computed once. Private to the collection.

The vendor's set_env.sh is bash, reads unset variables and puts its folders in front whenever it is sourced. So login shells get it
behind guards, other shells and units get what it sets: it is run here, in an empty environment, when a version comes into force.
"""

import os

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import make_folder, replace, snapshot
from ansible_collections.npu.fleet.plugins.module_utils._packages import _cann_environment as environment

# What systemd gives to its units.
UNIT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_SECONDS = 60
_NOT_OURS = ("HOME", "LC_ALL", "PWD", "OLDPWD", "SHLVL", "_")
_PROBE = "/npu-fleet-probe"
# What a sourced script returns says nothing: often it is that of a last test. ATB's script reads the arguments of its caller.
_SOURCE = 'files=("$@"); set --; set +eu; for file in "${files[@]}"; do . "$file" >/dev/null 2>&1 </dev/null; done; exec env -0'


def write(files, found, run):
    """Bring both files in line with the versions in force; return whether anything changed. Without any version they go."""
    wanted = environment.sources(files, found)
    texts = {environment.PROFILE: None, environment.UNIT_FILE: None}
    if wanted:
        if not environment.problems(files, wanted):
            return False
        variables = compute([files.real(script) for _name, _version, script in wanted], run)
        scripts = [script for _name, _version, script in wanted]
        line = environment.title(wanted)
        texts = {environment.PROFILE: profile_text(line, scripts, variables), environment.UNIT_FILE: unit_text(line, variables)}
    changed = False
    for path, text in sorted(texts.items()):
        before = snapshot(files.real(path))
        data = None if text is None else text.encode("utf-8")
        if before.data != data:
            make_folder(os.path.dirname(before.target), 0o755)
            replace(before, data, 0o644)
            changed = True
    return changed


def compute(scripts, run):
    """Return [(name, value, entries)] as the scripts set them; ``entries`` of a list that they put in front of what is there, else None.

    A second run shows which variables are such lists: what was in them before is still there behind.
    """
    plain = _environment_after(scripts, {}, run)
    probed = _environment_after(scripts, {name: _PROBE for name in plain if name != "PATH"}, run)
    variables: list = []
    for name in sorted(plain):
        entries = [entry for entry in probed.get(name, "").split(":") if entry]
        if name == "PATH":
            added = [entry for entry in plain[name].split(":") if entry and entry not in UNIT_PATH.split(":")]
            variables.append((name, ":".join(added + [UNIT_PATH]), added))
        elif _PROBE in entries and len(entries) > 1:
            entries = [entry for entry in entries if entry != _PROBE]
            variables.append((name, ":".join(entries), entries))
        else:
            variables.append((name, plain[name], None))
    return variables


def _environment_after(scripts, given, run):
    words = ["env", "-i", "HOME=/", "LC_ALL=C", "PATH=" + UNIT_PATH] + ["%s=%s" % item for item in sorted(given.items())]
    result = run(words + ["bash", "--noprofile", "--norc", "-c", _SOURCE, "npu-fleet"] + list(scripts), _SECONDS)
    pairs = dict(entry.split("=", 1) for entry in result.stdout.split("\0") if "=" in entry)
    pairs = {name: value for name, value in pairs.items()
             if name not in _NOT_OURS and "\n" not in value and name.replace("_", "a").isalnum()}
    if result.rc != 0 or result.timed_out or "PATH" not in pairs:
        message = "The environment of CANN could not be read from %s." % ", ".join(scripts)
        hint = "Try it on the node: `bash -c '. %s; env'`." % scripts[0]
        raise FleetError(message, "environment_unknown", "apply", object=scripts[0], observed=result.stderr[-500:], hint=hint)
    return pairs


def unit_text(line, variables):
    """Return the EnvironmentFile: full values, for systemd puts nothing in place of $NAME there."""
    lines = ["# Written by npu.fleet. In a unit: EnvironmentFile=-%s" % environment.UNIT_FILE, line]
    for name, value, _entries in variables:
        lines.append('%s="%s"' % (name, value.replace("\\", "\\\\").replace('"', '\\"')))
    return "\n".join(lines) + "\n"


def profile_text(line, scripts, variables):
    """Return the file for login shells. Nothing in it may stop a shell, print, or let a list grow each time."""
    lists = [name for name, _value, entries in variables if entries is not None]
    entry = next((entries[0] for name, _value, entries in variables if name == "PATH" and entries), "")
    given = []
    for name, value, entries in variables:
        if entries is None:
            given.append("export %s=%s" % (name, quote(value)))
        elif entries:
            given.append("export %s=%s${%s:+:$%s}" % (name, quote(":".join(entries)), name, name))
    return _PROFILE % {
        "line": line,
        "mark": quote(line[2:]),
        "entry": quote(entry),
        "readable": " && ".join("[ -r %s ]" % quote(script) for script in scripts),
        "source": "\n".join("        __npu_fleet_source %s >/dev/null 2>&1" % quote(script) for script in scripts),
        "given": "\n".join("        " + text for text in given),
        "unique": "\n".join('    %s=$(__npu_fleet_unique "${%s-}") && export %s' % (name, name, name) for name in lists),
    }


def quote(text):
    """Return ``text`` as one word of a shell."""
    return "'%s'" % text.replace("'", "'\\''")


_PROFILE = """\
# Written by npu.fleet: the environment of CANN for login shells.
%(line)s
__npu_fleet_options=$-
set +eu
__npu_fleet_source() { __npu_fleet_script=$1; shift; . "$__npu_fleet_script"; }
__npu_fleet_unique() {
    __npu_fleet_rest=$1: __npu_fleet_kept=
    while [ -n "$__npu_fleet_rest" ]; do
        __npu_fleet_one=${__npu_fleet_rest%%%%:*} __npu_fleet_rest=${__npu_fleet_rest#*:}
        case ":$__npu_fleet_kept::" in
            # Also an empty one, which means the current folder: the vendor's script leaves it at the end of an empty list.
            *":$__npu_fleet_one:"*) ;;
            *) __npu_fleet_kept=${__npu_fleet_kept:+$__npu_fleet_kept:}$__npu_fleet_one ;;
        esac
    done
    printf %%s "$__npu_fleet_kept"
}
case "$NPU_FLEET_ASCEND:$PATH:" in
    %(mark)s:*%(entry)s:*) __npu_fleet_done=y ;;
    *) __npu_fleet_done=n ;;
esac
if [ $__npu_fleet_done = n ] && %(readable)s; then
    if [ -n "$BASH_VERSION" ]; then
        # The vendor's script is bash only.
%(source)s
    else
%(given)s
    fi
%(unique)s
    export NPU_FLEET_ASCEND=%(mark)s
fi
unset -f __npu_fleet_source __npu_fleet_unique
unset __npu_fleet_script __npu_fleet_rest __npu_fleet_kept __npu_fleet_one __npu_fleet_done
case $__npu_fleet_options in *e*) set -e ;; esac
case $__npu_fleet_options in *u*) set -u ;; esac
unset __npu_fleet_options
"""
