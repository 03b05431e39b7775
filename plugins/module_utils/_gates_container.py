# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L2: what real containers see of the chips, against what they asked for. Private to the collection.

The expectation is a pure table: the value of ASCEND_VISIBLE_DEVICES, the chips and the manager nodes of this host in; exactly these
device nodes, with the device numbers that they have on the host, or a refusal out. `probe` holds containers against it, through the
node's own engine (`_gates_engines.py`).

Facts: the vendor's runtime knows comma lists of numbers and ranges, or of names such as Ascend910-0, never mixed; an empty value, `void`
and no value at all mean no chip; `all` is an error; a container that asks for no chip gets no manager node either
(docs/facts.md, R 4 and R 5).
"""

import hashlib
import json
import os
import stat
import time

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import digest_of, locked, under
from ansible_collections.npu.fleet.plugins.module_utils._gates_limit import undisturbed
from ansible_collections.npu.fleet.plugins.module_utils._gates_note import note, noted
from ansible_collections.npu.fleet.plugins.module_utils._gates_verdict import BOARD_KINDS
from ansible_collections.npu.fleet.plugins.module_utils._hardware._health import fit
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import listed

#: What a container asks by.
VARIABLE = "ASCEND_VISIBLE_DEVICES"
#: Part of the fingerprint: another table is tried again on every node.
TABLE = 2
LISTS = "/etc/ascend-docker-runtime.d"
RUNTIME_LOG = "/var/log/ascend-docker-runtime/runtime-run.log"
#: Seconds of one container, and of all of them: npu_verify gives the whole module ten minutes.
EACH, TOTAL = 60, 400
_LONGEST_RANGE = 4
#: Rows of `board_table`, as an operator reads them.
BOARD_ROWS = {"nodes": "a container with the nodes of one NPU", "none": "a container without any"}


# --- the expectation ----------------------------------------------------------------------------------------------------

def truth_table(chips, managers, prefix):
    """What each value must give: ``[{"name", "value" (None: not set), "expected": [nodes] or None for a refusal}]``. Pure.

    ``chips``: physical ids that have a node, the one to trust first; ``managers``: names of manager nodes that containers of this host
    get; ``prefix``: how the vendor names a chip of this family (``Ascend910-``). The first row asks for one chip and must work, or
    nothing that follows means anything.
    """
    first, ids = chips[0], sorted(chips)

    def row(name, value, numbers):
        nodes = None if numbers is None else sorted(["davinci%d" % n for n in numbers] + (list(managers) if numbers else []))
        return {"name": name, "value": value, "expected": nodes}

    rows = [row("one", "%d" % first, [first]), row("unset", None, []), row("empty", "", []), row("void", "void", [])]
    rows.append(row("name", "%s%d" % (prefix, first), [first]))
    if len(ids) > 1:
        rows.append(row("two", "%d,%d" % (ids[0], ids[-1]), [ids[0], ids[-1]]))
        rows.append(row("names", "%s%d,%s%d" % (prefix, ids[0], prefix, ids[-1]), [ids[0], ids[-1]]))
    span = _span(ids)
    if len(span) > 1:
        rows.append(row("range", "%d-%d" % (span[0], span[-1]), span))
    rows += [
        row("all", "all", None),
        row("bad", "x", None),
        row("mixed", "%d,%s%d" % (first, prefix, first), None),
        row("too big", "%d" % (ids[-1] + 1), None),
    ]
    return rows


def _span(ids):
    """The first run of neighbours among ids, at most _LONGEST_RANGE long; a single one where no two are neighbours."""
    best = []
    for start in ids:
        run = [n for n in range(start, start + _LONGEST_RANGE) if n in ids]
        run = run[:next((i for i, n in enumerate(run) if n != start + i), len(run))]
        if len(run) > len(best):
            best = run
    return best


def board_table(chips):
    """``(rows, host)`` for NPUs that a container gets by their nodes alone, since their vendor has no container runtime: one container with
    the nodes of one chip, one with none. Pure but for the numbers of the nodes."""
    host = {inside(path): device_number(path) for chip in chips for path in chip["device_nodes"]}
    usable = [chip["device_nodes"] for chip in chips if chip["device_nodes"]]
    if not usable:
        return [], host
    devices = [{"host_path": path, "container_path": path, "permissions": "rw"} for path in usable[0]]
    return [
        {"name": "nodes", "value": None, "expected": sorted(map(inside, usable[0])),
         "given": {"env": {}, "devices": devices, "mounts": []}},
        {"name": "none", "value": None, "expected": [], "given": {"env": {}, "devices": [], "mounts": []}},
    ], host


def inside(path):
    """A device node as it is named below /dev."""
    return path[len("/dev/"):] if path.startswith("/dev/") else path.lstrip("/")


def npu_nodes(nodes, host):
    """Of ``{name in a /dev: number}`` the names that belong to NPUs: davinciN, the manager nodes of the family; on a board whatever is of
    a kind that its NPU's nodes are of, which then is a GPU's or a camera's."""
    kinds = [kind for kind in BOARD_KINDS if any(name.startswith(kind) for name in host)]
    return sorted(name for name, number in nodes.items() if name in host or (name.startswith("davinci") and name[len("davinci"):].isdigit())
                  or (number is not None and name.startswith(tuple(kinds))))


def judge_row(row, answer, host):
    """Hold one container against its row; ``answer`` as the engines give it, ``host`` as `wanted_of` does. Pure."""
    seen = npu_nodes(answer["nodes"], host) if answer["started"] else None
    error = answer["error"]
    if answer["timed_out"] or row["expected"] is None:
        passed = not answer["timed_out"] and not answer["started"]
    else:
        passed = seen == row["expected"]
        strange = [name for name in seen or [] if answer["nodes"][name] != host[name]] if passed else []
        if strange:
            # The name alone opens nothing: the number says which chip it is.
            passed = False
            error = "saw the right names, but " + ", ".join(
                "%s is device %s there and %s on the host" % (name, answer["nodes"][name], host[name]) for name in strange)
    row = {key: value for key, value in row.items() if key != "given"}
    return dict(row, seen=seen, passed=passed, error=error, seconds=round(answer["seconds"], 1))


def words(row):
    """One row as an operator reads it."""
    asked = "%s %s" % (VARIABLE, "not set" if row["value"] is None else "empty" if row["value"] == "" else "=%s" % row["value"])
    if row["name"] in BOARD_ROWS:
        asked = BOARD_ROWS[row["name"]]
    wanted = "a refusal" if row["expected"] is None else " ".join(row["expected"]) or "no chip"
    if row["seen"] is None or (row["error"] and row["seen"] == row["expected"]):
        got = row["error"] or "was refused"
    else:
        got = "saw %s" % (" ".join(row["seen"]) or "no chip")
    return "%s: expected %s, %s" % (asked.replace(" =", "="), wanted, got)


# --- the note -----------------------------------------------------------------------------------------------------------

def fingerprint(npu, engine, runtime, path, table, *, root="/"):
    """What the table's outcome depends on, as a sha256: engine, runtime program, mount lists, chips, driver."""
    program = under(root, path or "/nothing")
    lists = {name: digest_of(under(root, os.path.join(LISTS, name))) for name in listed(under(root, LISTS)) if name.endswith(".list")}
    parts = {
        "table": TABLE,
        "rows": [[row["name"], row["value"], row["expected"]] for row in table],
        "engine": [engine["name"], engine.get("version")],
        "runtime": [runtime, path, digest_of(program)],
        "lists": lists,
        "chips": sorted([c["phy_id"], c["pci_address"]] for c in npu["chips"] if c["phy_id"] is not None),
        "driver": npu["versions"]["driver"]["running"],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode("utf-8")).hexdigest()


# --- the probe ----------------------------------------------------------------------------------------------------------

def wanted_of(npu, family, dev_root, unhealthy_from):
    """``(chips, managers, host)``: what containers of this host can ask for and get.

    ``host``: name in a container -> device number on the host, for all chips and all manager nodes of the family (None: not there).
    """
    usable = [c for c in npu["chips"] if c["phy_id"] is not None and c["device_node"]]
    chips = [c["phy_id"] for c in sorted(usable, key=lambda c: (not fit(c["health"], unhealthy_from), c["phy_id"]))]
    host = {"davinci%d" % c["phy_id"]: device_number(c["device_node"]) for c in usable}
    managers = []
    for node in family["managers"]:
        path = os.path.join(dev_root, node["host"])
        host[node["container"]] = device_number(path)
        # Boards lack some of their family's; without a required one no container could use a chip.
        if node["required"] or os.path.exists(path):
            managers.append(node["container"])
    return chips, managers, host


def device_number(path):
    """"major:minor" of a device node, None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
        return None
    return "%d:%d" % (os.major(found.st_rdev), os.minor(found.st_rdev))


def probe(tried, table, host, known, state_folder, *, root="/"):
    """Start containers by ``tried`` (an engine of `_gates_engines.py`) and hold them against ``table``.

    ``known``: the fingerprint of this state. Is it the one noted at the last pass, one container is started, else one for each row.
    Returns ``{"rows", "whole", "error", "left", "log"}``: ``error`` where no container could be tried at all, ``left`` what could not
    be removed, ``log`` the last words of the runtime where a row did not pass.
    """
    answer = {"rows": [], "whole": noted(state_folder) != known, "error": None, "left": [], "log": None}
    try:
        with locked(os.path.join(state_folder, "gates", "container.lock"), EACH):
            try:
                answer["error"] = tried.prepare()
                if answer["error"] is None:
                    answer["rows"] = _rows(tried, table if answer["whole"] else table[:1], host)
            finally:
                with undisturbed():
                    answer["left"] = tried.clean()
            passed = answer["error"] is None and not answer["left"] and all(row["passed"] for row in answer["rows"])
            if answer["whole"] or not passed:
                # What failed is looked at as a whole the next time.
                note(state_folder, known if passed else None)
    except FleetError as error:
        return dict(answer, error=str(error))
    if not all(row["passed"] for row in answer["rows"]):
        answer["log"] = last_words(root)
    return answer


def _rows(tried, table, host):
    rows, until = [], time.monotonic() + TOTAL
    for number, row in enumerate(table):
        left = until - time.monotonic()
        if left <= 0:
            rows.append(_not_tried(row, "was not tried: all containers together took longer than %d s" % TOTAL))
            continue
        try:
            answer = _start(tried, number, row, min(EACH, left))
        except FleetError as error:
            answer = {"started": False, "nodes": {}, "timed_out": True, "seconds": 0.0, "error": str(error)}
        rows.append(judge_row(row, answer, host))
        # A refusal means nothing where not even a good request works, and after one that hangs the next would hang too.
        if answer["timed_out"] or (number == 0 and not answer["started"]):
            why = "was not tried: %s" % ("an earlier container hung" if answer["timed_out"] else "no container starts")
            return rows + [_not_tried(other, why) for other in table[number + 1:]]
    if any(row["expected"] is None and row["passed"] for row in rows):
        rows = _still_starts(tried, table, rows, max(1.0, min(EACH, until - time.monotonic())))
    return rows


def _start(tried, number, row, timeout):
    return tried.start(number, row["given"], timeout) if "given" in row else tried.ask(number, row["value"], timeout)


def _still_starts(tried, table, rows, timeout):
    """A refusal means nothing either where no container starts any more: ask the first row once more after the wrong ones."""
    try:
        again = _start(tried, len(table), table[0], timeout)
    except FleetError as error:
        again = {"started": False, "error": str(error)}
    if again["started"]:
        return rows
    why = "no container starts any more, so its refusal proves nothing: %s" % (again["error"] or "no reason given")
    return [dict(row, passed=False, error=why) if row["expected"] is None else row for row in rows]


def _not_tried(row, why):
    row = {key: value for key, value in row.items() if key != "given"}
    return dict(row, seen=None, passed=False, error=why, seconds=0.0)


def last_words(root):
    """The last lines of the runtime's own log: the engine only says that it ended with exit status 1."""
    try:
        with open(under(root, RUNTIME_LOG), "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - 4096))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    return "\n".join(line[:300] for line in lines[-3:]) or None
