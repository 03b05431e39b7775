#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's half of the crash sweep: brings a node from one set of versions to another, dies where it is told to, tells what is there.

    on_node.py run SETTINGS        one run: what the role npu_driver does with npu_package, without the controller
    on_node.py crash SETTINGS      the same, and kill something when the package stands still at a stage
    on_node.py prove VERSIONS      note these versions as good, as the gates do
    on_node.py status              disk, running and record, as JSON
    on_node.py snapshot|restore NAME

SETTINGS is JSON: wanted {component: {version, src, sha256}}, and for a crash: stop {"at": number or text of the journal line,
"how": "kill" or "wait"} or stage {"at": "driver:40", "kill": "module", "group", "outer" or "power"}. The product is used as it is; where
it should die, its journal and os.rename are wrapped here.
"""

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAUSED = Path("/run/npu-sim/paused")
APPLIED = Path("/run/npu-sim/applied")
STATE = Path("/var/lib/npu-sim/state.json")
SNAPSHOTS = HERE / "snapshots"
CACHE = "/var/cache/npu-fleet"
SHOWN = ("state", "version", "running", "reason")
#: All that packages, our record and the simulated hardware write.
TOUCHED = (
    "etc/ascend_install.info", "etc/ascend_filelist.info", "etc/ascend_driver.conf", "etc/hccn.conf", "etc/hccn_weak_dict.conf",
    "etc/hdcBasic.cfg", "etc/dms_events_conf.lst", "etc/vnpu.cfg", "etc/d-pcivnic.conf", "etc/custom_process.cfg", "etc/ld.so.conf.d",
    "etc/init.d/host_sys_init.sh", "etc/rc3.d/S90host_sys_init.sh", "etc/rc5.d/S90host_sys_init.sh", "etc/logrotate.d",
    "etc/udev/rules.d/70-persistent-net.rules", "etc/passwd", "etc/group", "etc/shadow", "etc/gshadow", "home", "lib/davinci.conf",
    "lib/systemd/system/ascend-kmsagent.service", "usr/local/Ascend", "usr/local/dcmi", "usr/local/bin", "usr/local/sbin",
    "usr/bin/device_boot_init.sh", "usr/bin/hccn_tool", "usr/bin/msnpureport", "root/ascend_check", "var/lib/npu-fleet",
    "var/cache/npu-fleet", f"lib/modules/{os.uname().release}/updates",
)  # fmt: skip


# --- one run --------------------------------------------------------------------------------------------------------

def product():
    sys.path.insert(0, str(HERE))
    from ansible_collections.npu.fleet.plugins.module_utils import _detached
    from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
    from ansible_collections.npu.fleet.plugins.module_utils._packages import _decide, _good, _install, _journal, _node

    return _detached, FleetError, _decide, _good, _install, _journal, _node


def observe(node):
    facts, hardware, components = node.see(dict(node.HERE))
    return {"arch": facts["arch"], "family": hardware["family"], "families": hardware["families"], "components": components}


def run(settings):
    """Observe, decide, act: returns what a role would know afterwards."""
    detached, FleetError, decide, _good, install, journal, node = product()
    arm(journal, settings.get("stop"))
    wanted = settings["wanted"]
    answer = {"steps": [], "reboot": False, "error": None}
    try:
        for step in decide.decide(observe(node), wanted, allow_downgrade=True):
            if step["action"] == "refuse":
                answer["error"] = f"{step['component']}: {step['code']}: {step['reason']}"
                break
            if step["action"] == "none" and not settings.get("call_always"):
                continue
            wish = dict.fromkeys(install.Wish._fields)
            wish.update(
                component=step["component"], version=step["to"], src=wanted[step["component"]]["src"], state="present",
                timeout=settings.get("timeout", 120), sha256=wanted[step["component"]]["sha256"],
                allow_downgrade=step["action"] == "downgrade", install_for_all=True, install_path="/usr/local/Ascend", remote_src=True,
            )
            places = install.Places(CACHE, journal.STATE_DIR, "/var/log/npu-fleet", detached.STATE_DIR)
            done = install.Installer(install.Wish(**wish), lambda name=step["component"]: node.observe(name), places).ensure(False)
            answer["steps"].append(f"{step['component']} {done['step']['action']}")
            answer["reboot"] |= done["reboot_required"]
            if done["running"]:
                answer["error"] = f"running: the package of {step['component']} still runs"
                return answer
        # Whether a reboot is needed is observed: a run may have ended only after the first look.
        answer["reboot"] |= any(now["state"] == "reboot_pending" for now in observe(node)["components"].values())
    except FleetError as error:
        answer["error"] = f"{error.code}: {error}"
    return answer


def arm(journal, stop):
    """Count journal lines and renames; print them, or die (or stand still for a power cut) right after one, or right before a rename."""
    count = [0]

    def point(label):
        count[0] += 1
        if stop and stop["at"] == 0:
            print(json.dumps({"point": count[0], "label": label}), flush=True)
        elif stop and (stop["at"] in label if isinstance(stop["at"], str) else stop["at"] == count[0]):
            if stop["how"] == "wait":
                print(json.dumps({"here": label}), flush=True)
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)

    note, rename = journal.note, os.rename

    def noted(state_dir, event, **fields):
        note(state_dir, event, **fields)
        point(f"after the line {fields.get('component')} {event}")

    def renamed(source, target, **kwargs):
        point(f"before {os.path.basename(target)[-40:]} gets its name")
        rename(source, target, **kwargs)

    journal.note, os.rename = noted, renamed


# --- what is there --------------------------------------------------------------------------------------------------

def status():
    _detached, _error, _decide, good, _install, _journal, node = product()
    facts, hardware, components = node.see(dict(node.HERE))
    return {
        "components": {name: {key: components[name][key] for key in SHOWN} for name in ("driver", "firmware")},
        "chips": [chip["firmware_version"] for chip in hardware["chips"]],
        "nodes": sum(chip["device_node"] is not None for chip in hardware["chips"]),
        "installed": {name: entry.get("version") for name, entry in good.read()["installed"].items()},
        "boot": facts["boot_id"],
        "left": [*glob.glob(f"{CACHE}/work/*"), *glob.glob(f"{CACHE}/*/*.part"), *glob.glob(f"{CACHE}/*/*.link")],
    }


def prove(versions):
    """What the role npu_verify leaves behind after the gates have passed."""
    good = product()[3]
    good.promote("/var/lib/npu-fleet", versions, CACHE)
    return {}


# --- killing --------------------------------------------------------------------------------------------------------

def members(component):
    """Processes of a package's unit, eldest first."""
    unit = f"/npu-fleet-{component}.service"
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if unit in (folder / "cgroup").read_text():
                    found.append(int(folder.name))
            except OSError:
                continue
    return sorted(found)


def outer(component):
    """The process of the package file itself."""
    for pid in members(component):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if any(word.endswith(".run") for word in words[:2]):
            return [pid]
    return []


def kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the short sleeps of a package that stands still come and go
            os.kill(pid, signal.SIGKILL)


def crash(settings):
    """Run until the package stands still, kill what is to be killed, let the rest go on."""
    stage = settings["stage"]
    component = stage["at"].split(":")[0]
    PAUSED.unlink(missing_ok=True)
    simulate("set", "package.pause_at", stage["at"])
    words = [sys.executable, __file__, "run", json.dumps({"wanted": settings["wanted"]})]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not PAUSED.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if not PAUSED.exists():
        simulate("set", "package.pause_at", "null")
        # Either the flow does not pass here, and the run was good, or something is wrong with the sweep.
        output = child.communicate(timeout=120)[0].splitlines()
        return {"reached": False, "output": json.loads(output[-1]) if output else None}
    if stage["kill"] == "power":
        print(json.dumps({"here": stage["at"]}), flush=True)
        time.sleep(600)
    victims = {"module": [child.pid], "group": members(component), "outer": outer(component)}[stage["kill"]]
    kill(victims)
    simulate("set", "package.pause_at", "null")
    PAUSED.unlink(missing_ok=True)
    return {"reached": True, "killed": len(victims), "output": child.communicate(timeout=120)[0]}


def simulate(*words):
    subprocess.run(["npu-sim", *words], check=True, stdout=subprocess.DEVNULL)


# --- to and fro -----------------------------------------------------------------------------------------------------

def snapshot(name):
    SNAPSHOTS.mkdir(exist_ok=True)
    unlock()
    there = [path for path in TOUCHED if os.path.lexists("/" + path)]
    subprocess.run(["tar", "-C", "/", "-cf", str(SNAPSHOTS / f"{name}.tar"), *there], check=True)
    shutil.copy(STATE, SNAPSHOTS / f"{name}.json")
    return {}


def restore(name):
    """Files, kernel and hardware as they were; whatever runs of a package is ended."""
    for component in ("driver", "firmware"):
        kill(members(component))
    quiet("systemctl", "stop", "npu-fleet-*.service")
    quiet("systemctl", "reset-failed")
    shutil.rmtree("/run/npu-fleet", ignore_errors=True)
    PAUSED.unlink(missing_ok=True)
    unlock()
    for path in TOUCHED:
        real = Path("/" + path)
        if real.is_dir() and not real.is_symlink():
            shutil.rmtree(real, ignore_errors=True)
        else:
            real.unlink(missing_ok=True)
    subprocess.run(["tar", "-C", "/", "-xpf", str(SNAPSHOTS / f"{name}.tar")], check=True)
    quiet("ldconfig")
    now = json.loads(STATE.read_text())
    state = json.loads((SNAPSHOTS / f"{name}.json").read_text())
    # The same boot as now, and newer than everything: the simulator takes it for a change made just now.
    state["kernel"]["boot_id"] = now["kernel"]["boot_id"]
    state["generation"] = now["generation"] + 1
    fresh = STATE.with_suffix(".crash")
    fresh.write_text(json.dumps(state))
    fresh.rename(STATE)
    deadline = time.monotonic() + 20
    while APPLIED.read_text().strip() != str(state["generation"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return {}


def unlock():
    quiet("chattr", "-R", "-f", "-i", "/usr/local/Ascend", "/usr/bin/device_boot_init.sh")


def quiet(*words):
    subprocess.run(words, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    verb, rest = sys.argv[1], sys.argv[2:]
    verbs = {"prove": prove, "run": run, "crash": crash, "status": status, "snapshot": snapshot, "restore": restore}
    given = [json.loads(rest[0])] if verb in ("run", "crash", "prove") else rest
    print(json.dumps(verbs[verb](*given)), flush=True)


if __name__ == "__main__":
    main()
