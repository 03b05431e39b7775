# SPDX-License-Identifier: GPL-3.0-or-later
"""Every mode of the simulated packages, on one node: npu_package calls nothing right that is not.

    NPU_TEST_NODE=NAME pytest tests/crash/test_modes.py        (boots a fresh node of that name and takes it away)

Right means: the pinned version on disk, the same one running, and every chip with the pinned firmware; where a reboot is asked for,
after it. From what a failure leaves behind, one run with the good package must lead out.
"""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import sweep

NODE = os.environ.get("NPU_TEST_NODE")
if not NODE:
    pytest.skip("NPU_TEST_NODE names no node", allow_module_level=True)

NEW, OLD = sweep.NEW, sweep.OLD
#: What the node has before, component, options of the package, what npu_package must say (None: it is right), whether to mend it after.
CASES = (
    (None, "driver", (), None, False),
    (None, "driver", ("--mode", "nothing"), "nothing_installed", False),
    (None, "driver", ("--mode", "error-text"), "nothing_installed", False),
    (None, "driver", ("--mode", "truncated"), "package_truncated", False),
    (None, "driver", ("--mode", "altered"), "package_damaged", False),
    (None, "driver", ("--mode", "wrong-family"), "wrong_family", False),
    (None, "driver", ("--mode", "hang"), "deadline", True),
    (None, "driver", ("--mode", "hang", "--hang-at", "after-payload"), "deadline", True),
    (None, "driver", ("--mode", "reboot"), None, False),
    (None, "driver", ("--mode", "dead-after-boot"), "driver_silent", False),
    (None, "driver", ("--mode", "dead-after-boot", "--driver-rc", "0"), None, False),
    (None, "driver", ("--mode", "copy-fails"), "package_failed", True),
    (None, "driver", ("--mode", "modprobe-fails"), "module_refused", True),
    # Whether the package sees it depends on whether the kernel takes an empty file.
    (None, "driver", ("--mode", "modules-cut"), "nothing_installed module_refused", True),
    (OLD, "driver", ("--mode", "nothing"), "nothing_installed", False),
    (OLD, "driver", ("--mode", "hang", "--hang-at", "after-payload"), "deadline", True),
    (OLD, "driver", ("--mode", "reboot"), None, False),
    (OLD, "firmware", (), None, False),
    (OLD, "firmware", ("--firmware-rc", "2"), None, False),
    (OLD, "firmware", ("--mode", "nothing"), "nothing_installed", False),
    (OLD, "firmware", ("--mode", "truncated"), "package_truncated", False),
    (OLD, "firmware", ("--mode", "altered"), "package_damaged", False),
    (OLD, "firmware", ("--mode", "wrong-family"), "wrong_family", False),
    (OLD, "firmware", ("--mode", "flash-fails"), "package_failed", True),
    (OLD, "firmware", ("--mode", "hang", "--hang-at", "after-payload"), "running", False),
    (None, "firmware", (), "driver_missing", False),
)  # fmt: skip


@pytest.fixture(scope="module")
def bench():
    depot = sweep.Depot()
    depot.build()
    nodes = sweep.Nodes()
    nodes.image([sweep.BUILD / "simulator/rootfs"], tag="crash")
    bench = sweep.Sweep(NODE, depot, None)
    bench.prepare()
    yield bench
    nodes.down([NODE])
    depot.remove()


def package(bench, component, options):
    """Build one package in a mode and bring it to the node; what to want of it."""
    folder = sweep.BUILD / "modes" / "-".join([component, *options]).replace("--", "")
    words = ["--out", folder, "--payload", sweep.BUILD / "simulator/payload", "--release", NEW, "--component", component, *options]
    sweep.tool("tests/simulator/packages/build.py", *words)
    sha256, name = (folder / "SHA256SUMS").read_text().split()
    bench.nodes.exec(NODE, ["mkdir", "-p", "/srv/modes"])
    bench.nodes.engine.docker("cp", str(folder / name), f"{NODE}:/srv/modes/{name}")
    return {component: {"version": bench.depot.versions(NEW)[component], "src": f"/srv/modes/{name}", "sha256": sha256}}


def wrong(seen, component, version):
    entry = seen["components"][component]
    found = [entry] if (entry["state"], entry["version"], entry["running"]) != ("present", version, version) else []
    if component == "firmware" and set(seen["chips"]) != {version}:
        found.append(seen["chips"])
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join([case[0] or "bare", case[1], *case[2]]).replace("--", ""))
def test_mode(bench, case):
    before, component, options, code, mend = case
    bench.on_node("restore", str(before))
    wanted = package(bench, component, options)
    version = wanted[component]["version"]
    settings = {"wanted": wanted, "timeout": 25 if "hang" in options else 120, "call_always": True}
    answer = bench.on_node("run", settings)
    if not answer["error"] and answer["reboot"]:
        bench.reboot()
        answer = bench.on_node("run", settings)
    seen = bench.on_node("status")
    said = answer["error"] and answer["error"].split(": ")[0 if code != "driver_missing" else 1]
    assert said in (code.split() if code else [None]), json.dumps([answer, seen])
    assert bool(wrong(seen, component, version)) is (code is not None)
    if mend:
        answer = bench.on_node("run", {"wanted": {component: bench.depot.wanted(NEW)[component]}})
        if answer["reboot"]:
            bench.reboot()
        assert answer["error"] is None
        assert wrong(bench.on_node("status"), component, version) == []


def test_the_guard_of_the_installed_driver(bench):
    """It kills the package of an older one with SIGKILL; the driver that is there is untouched."""
    bench.on_node("restore", NEW)
    # A flash that asks for 24.1.rc4 at least (version_cap.map of the vendor).
    bench.nodes.exec(NODE, ["npu-sim", "set", "hw_base_version", "237"])
    wanted = package(bench, "driver", ("--driver", "24.1.rc3"))
    wanted["driver"]["version"] = "24.1.rc3"
    answer = bench.on_node("run", {"wanted": wanted})
    assert answer["error"].startswith("flash_newer: ")
    assert wrong(bench.on_node("status"), "driver", bench.depot.versions(NEW)["driver"]) == []


def test_devices_that_never_appear(bench):
    """The package ends with 2 after its wait, everything is on disk, and no device answers."""
    bench.on_node("restore", "None")
    bench.nodes.exec(NODE, ["npu-sim", "set", "kernel.npu_nodes_appear", "false"])
    settings = {"wanted": {"driver": bench.depot.wanted(NEW)["driver"]}, "call_always": True}
    answer = bench.on_node("run", settings)
    assert answer["reboot"]
    bench.reboot()
    assert bench.on_node("run", settings)["error"].startswith("driver_silent: ")
