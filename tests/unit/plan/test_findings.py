# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings of preflight: each field case with its smallest input, as error where a step meets it and as less where none does."""

import copy

import pytest

from ansible_collections.npu.fleet.plugins.plugin_utils import _findings, _findings_space, _plan

from .observed import bare, component, converged
from .test_plan import READY

KERNEL = "5.10.0-60.18.0.50.oe2203.aarch64"
GOOD_BUILD = {"makefile": True, "release": KERNEL, "others": []}
USES = {
    "target": "/usr/local/Ascend", "cache": "/var/cache/npu-fleet", "extraction": "/var/cache/npu-fleet/work", "log": "/var/log",
    "modules": "/lib/modules",
}
GOOD = {
    "kernel": {"build": GOOD_BUILD, "dkms": True, "npu_modules": False, "next": None},
    "tools": {"missing": [], "build_missing": []},
    "space": [
        {"use": use, "path": path, "filesystem": 1, "free_mib": 100_000, "inodes_free": 1_000_000, "noexec": False, "read_only": False}
        for use, path in USES.items()
    ],
    "users": {"HwHiAiUser": {"shell": "/bin/bash"}},
    "record": {"username": None, "usergroup": None, "paths": {}},
    "secure_boot": {"enabled": False, "lockdown": None, "signing_key": False},
    "virtual": None,
    "iommu_groups": 0,
    "containers": {},
    "foreign": {"programs": [], "containers": [], "sockets": [], "folders": []},
    "proxies": [],
    "selinux": {"mode": None, "bindings": None, "python": "/usr/bin/python3"},
    "directories": [],
    "bundle_record": False,
}


def step(name, action="install", **changes):
    return dict({"component": name, "action": action, "from": None, "to": "1", "reason": "", "reboot": name == "firmware"}, **changes)


ALL = [step(name) for name in ("driver", "firmware", "cann_toolkit", "docker_runtime")]


def host(os_id="openEuler", present=False, **changes):
    npu = converged() if present else bare()
    facts = copy.deepcopy(GOOD)
    for path, value in changes.items():
        *way, last = path.split("__")
        place = facts
        for key in way:
            place = place[key]
        place[last] = value
    npu.update(kernel=KERNEL, preflight=facts, os={"id": os_id, "version_id": "22.03", "pretty_name": None})
    return npu


def judged(npu, steps, reboots=False, **wanted):
    return [(one["severity"], one["code"]) for one in _findings.judge(npu, wanted, steps, reboots=reboots)]


@pytest.mark.parametrize("steps", [[], ALL])
def test_a_good_host_has_no_findings(steps):
    assert judged(host(), steps, reboots=True) == []


def test_without_facts_there_is_nothing_to_say():
    npu = host()
    npu["preflight"] = None
    assert judged(npu, ALL) == []


NO_BUILD = {"makefile": False, "release": None, "others": ["5.10.0-153.12.0.92.oe2203.aarch64"]}
OTHER_BUILD = {"makefile": True, "release": "5.10.0-153.12.0.92.oe2203.aarch64", "others": []}
NEXT = {"release": "5.15.0-101", "source": "/boot/grub2/grub.cfg", "build": NO_BUILD, "npu_modules": False}
PLUGIN = {"pid": 9, "name": "device-plugin", "product": "MindCluster device plugin"}
EXPORTER = {"pid": 8, "name": "npu-exporter", "product": "MindCluster exporter"}
CONTAINER = {"id": "abc", "image": "npu-driver-installer:1"}
SVC1 = {"username": "svc1", "usergroup": "svc1", "paths": {"Aicpu_Install_Path_Param": "/usr/local/Ascend"}}
BARE_PROXY = {"where": "/etc/environment", "variables": ["http_proxy"], "no_proxy": False}
NO_BINDINGS = {"mode": "enforcing", "bindings": False, "python": "/opt/venv/bin/python"}

# case, facts, severity and code with every step, with no step at all (None: nothing to say).
CASES = [
    ("A01", {"kernel__build": NO_BUILD}, ("error", "kernel_headers_missing"), None),
    ("A01", {"kernel__build": OTHER_BUILD}, ("error", "kernel_headers_missing"), None),
    ("A01", {"tools__build_missing": ["gcc", "make"]}, ("warning", "build_tools_missing"), None),
    ("A06", {"record": SVC1}, ("error", "user_differs"), None),
    ("A08", {"users": {"HwHiAiUser": {"shell": "/sbin/nologin"}}}, ("note", "user_shell"), None),
    ("A08", {"users": {"HwHiAiUser": {"shell": "/bin/false"}}}, ("note", "user_shell"), None),
    ("A09", {"tools__missing": ["ifconfig", "lspci"]}, ("error", "tools_missing"), None),
    ("A15", {"secure_boot__enabled": True}, ("error", "secure_boot"), ("warning", "secure_boot")),
    ("A15", {"secure_boot__lockdown": "integrity"}, ("error", "secure_boot"), ("warning", "secure_boot")),
    ("A15", {"secure_boot": {"enabled": True, "lockdown": None, "signing_key": True}}, ("note", "secure_boot"), ("note", "secure_boot")),
    ("A18", {"kernel__next": NEXT}, ("error", "kernel_waiting"), None),
    ("A18", {"kernel__next": dict(NEXT, npu_modules=True)}, None, None),
    ("A18", {"kernel__next": dict(NEXT, build=dict(OTHER_BUILD, release="5.15.0-101"))}, None, None),
    ("A18", {"kernel__next": dict(NEXT, build=dict(OTHER_BUILD, release="5.15.0-25"))}, ("error", "kernel_waiting"), None),
    ("A18", {"kernel__next": dict(NEXT, release=KERNEL)}, None, None),
    ("A19", {"foreign__containers": [CONTAINER]}, ("error", "driver_container"), ("warning", "driver_container")),
    ("A19", {"foreign__folders": ["/lib/modules/k/npu_driver"]}, ("error", "driver_container"), ("warning", "driver_container")),
    ("E02", {"foreign__programs": [PLUGIN]}, ("error", "foreign_program"), ("error", "foreign_program")),
    ("E02", {"foreign__programs": [EXPORTER]}, ("error", "foreign_program"), ("warning", "foreign_program")),
    ("E02", {"foreign__sockets": ["Ascend910.sock"]}, ("note", "foreign_socket"), ("note", "foreign_socket")),
    ("H13", {"proxies": [BARE_PROXY]}, ("note", "proxy"), ("note", "proxy")),
    ("H13", {"proxies": [dict(BARE_PROXY, no_proxy=True)]}, None, None),
    ("H14", {"selinux": NO_BINDINGS}, ("warning", "selinux_bindings"), ("warning", "selinux_bindings")),
    ("H14", {"selinux": dict(NO_BINDINGS, bindings=True)}, None, None),
    ("P16", {"virtual": "QEMU"}, ("error", "virtual_machine"), ("note", "virtual_machine")),
    ("P21", {"directories": ["/usr/local/sbin/npu-smi"]}, ("error", "npu_smi_directory"), ("warning", "npu_smi_directory")),
    ("S3", {"bundle_record": True}, ("error", "bundle_installed"), None),
]


@pytest.mark.parametrize(("case", "facts", "with_steps", "without"), CASES)
def test_field_cases(case, facts, with_steps, without):
    npu = host(**facts)
    found = _findings.judge(npu, {}, ALL, reboots=True)
    assert [(one["severity"], one["code"]) for one in found] == ([with_steps] if with_steps else []), case
    assert all(one["message"] and one["object"] and (one["hint"] or one["severity"] == "note") for one in found)
    assert judged(npu, []) == ([without] if without else []), case


@pytest.mark.parametrize(("facts", "os_id", "words"), [
    ({"kernel__build": NO_BUILD}, "openEuler", f"dnf install -y kernel-devel-{KERNEL}"),
    ({"kernel__build": NO_BUILD}, "ubuntu", f"apt-get install -y linux-headers-{KERNEL}"),
    ({"kernel__build": OTHER_BUILD}, "openEuler", "belongs to kernel 5.10.0-153.12.0.92.oe2203.aarch64, running is " + KERNEL),
    ({"kernel__build": NO_BUILD}, "openEuler", "Installed are those of 5.10.0-153.12.0.92.oe2203.aarch64"),
    ({"tools__missing": ["ifconfig", "lspci"]}, "debian", "apt-get install -y net-tools pciutils"),
    ({"tools__missing": ["rev"]}, "debian", "apt-get install -y bsdextrautils"),
    ({"tools__missing": ["rev"]}, "kylin", "dnf install -y util-linux"),
    ({"record": SVC1}, "kylin", "Aicpu_Install_Path_Param=/usr/local/Ascend"),
    ({"record": SVC1}, "kylin", "npu_driver_username: svc1"),
    ({"kernel__next": NEXT}, "openEuler", f"grubby --set-default /boot/vmlinuz-{KERNEL}"),
])
def test_the_command_that_mends_it_is_the_distributions_own(facts, os_id, words):
    (found,) = _findings.judge(host(os_id, **facts), {}, ALL, reboots=True)
    assert words in f"{found['message']} {found['hint']}"


def test_a_waiting_kernel_matters_where_the_node_reboots_or_has_a_driver():
    assert judged(host(present=True, kernel__next=NEXT), []) == [("warning", "kernel_waiting")]
    assert judged(host(kernel__next=NEXT), [step("driver")]) == [("warning", "kernel_waiting")]
    assert judged(host(present=True, kernel__next=NEXT), [], reboots=True) == [("error", "kernel_waiting")]


def test_an_upgrade_keeps_the_recorded_user():
    npu = host(present=True, record=SVC1)
    npu["components"]["driver"]["record"] = {"username": "svc1"}
    assert judged(npu, [step("driver", "upgrade")], username="HwHiAiUser") == [("warning", "user_differs")]
    assert judged(npu, [step("driver", "upgrade")]) == []  # nobody asked for another one
    assert judged(npu, [step("driver")], username="svc1") == []


def test_firmware_alone_is_refused_in_a_virtual_machine_and_the_driver_is_not():
    npu = host(virtual="QEMU")
    assert judged(npu, [step("driver")]) == [("note", "virtual_machine")]
    assert judged(npu, [step("firmware")]) == [("error", "virtual_machine")]


def test_chips_of_a_virtual_machine_and_virtual_functions():
    npu = host(iommu_groups=4)
    npu["chips"][0]["evidence"]["driver"] = "vfio-pci"
    assert judged(npu, [step("driver")]) == [("error", "passed_through"), ("note", "iommu")]
    assert judged(npu, []) == [("warning", "passed_through"), ("note", "iommu")]
    npu = host()
    npu["virtual_functions"] = 2
    assert judged(npu, [step("driver")]) == [("warning", "virtual_functions")]
    assert judged(npu, []) == [("note", "virtual_functions")]


def test_versions_that_differ_and_the_machine_of_the_playbook():
    npu = host(present=True)
    npu["components"]["driver"].update(state="mismatched", reason="Driver 2 is on disk, 1 is loaded.")
    assert judged(npu, [], reboots=True, local=True) == [("warning", "mismatched"), ("warning", "local_reboot")]
    assert judged(host(present=True), [], reboots=False, local=True) == []


def test_what_an_operator_accepts_is_a_warning_and_nothing_else_is():
    npu = host(kernel__build=NO_BUILD, bundle_record=True)
    found = judged(npu, ALL, accept_findings=["kernel_headers_missing"])
    assert found == [("error", "bundle_installed"), ("warning", "kernel_headers_missing")]


def test_all_at_once_and_the_worst_first():
    npu = host(kernel__build=NO_BUILD, proxies=[BARE_PROXY], selinux=NO_BINDINGS, tools__missing=["lspci"])
    severities = [severity for severity, _code in judged(npu, ALL)]
    assert severities == ["error", "error", "warning", "note"]


def test_errors_of_the_host_refuse_the_plan_and_all_are_named():
    npu = host(kernel__build=NO_BUILD, tools__missing=["lspci"])
    plan = _plan.make_plan(npu, READY)
    assert plan["packages"] == []
    assert [one["code"] for one in plan["refused"]] == ["kernel_headers_missing", "tools_missing"]
    lines = "\n".join(_plan.render(plan))
    assert "refused    The driver package needs lspci. dnf install -y pciutils" in lines


def test_a_switch_of_cann_asks_nothing_of_the_host():
    npu = host(present=True, kernel__build=NO_BUILD, tools__missing=["lspci"])
    assert judged(npu, [step("cann_toolkit", "switch")]) == []


def test_what_needs_no_driver_is_not_held_up_by_it():
    npu = host(present=True, kernel__build=NO_BUILD, tools__missing=["lspci"], bundle_record=True)
    npu["components"]["docker_runtime"] = component(None, "absent")
    plan = _plan.make_plan(npu, READY)
    assert (plan["refused"], [one["component"] for one in plan["packages"]]) == ([], ["docker_runtime"])


# --- space (A10) ------------------------------------------------------------------------------------------------------

MIB = 1 << 20


def places(**changes):
    """Each place on a filesystem of its own, with so much free."""
    free = dict(dict.fromkeys(USES, 100_000), **changes)
    return [dict(GOOD["space"][0], use=use, path=path, filesystem=use, free_mib=free[use]) for use, path in USES.items()]


@pytest.mark.parametrize(("steps", "free", "found"), [
    # The packages' own least: 300 MB for the driver, 32 MB for firmware (docs/facts.md, P 2).
    ([step("driver")], {"target": 299}, [("error", "/usr/local/Ascend")]),
    ([step("driver")], {"target": 300}, []),
    ([step("driver"), step("firmware")], {"target": 331}, [("error", "/usr/local/Ascend")]),
    # A size that the lock knows counts 2.5 times; A10's package has 1.6 GB.
    ([step("cann_toolkit", size=1600 * MIB)], {"target": 3999}, [("error", "/usr/local/Ascend")]),
    ([step("cann_toolkit", size=1600 * MIB)], {"target": 4000}, []),
    ([step("cann_toolkit", size=1600 * MIB)], {"extraction": 512}, [("error", "/var/cache/npu-fleet/work")]),
    ([step("cann_toolkit", size=1600 * MIB)], {"cache": 1599}, [("error", "/var/cache/npu-fleet")]),
    # Without a size only the vendor's deployer has a figure: 10 GB, as a warning.
    ([step("cann_toolkit")], {"target": 5000}, [("warning", "/usr/local/Ascend")]),
    ([step("driver")], {"cache": 100}, [("warning", "/var/cache/npu-fleet")]),
    # A full disk there ends with exit code 0.
    ([step("driver")], {"modules": 100}, [("error", "/lib/modules")]),
    ([step("docker_runtime")], {"modules": 0}, []),
    ([step("driver")], {"log": 10}, [("warning", "/var/log")]),
    ([step("driver", "none"), step("cann_toolkit", "switch")], dict.fromkeys(USES, 0), []),
])
def test_room(steps, free, found):
    seen = _findings_space.problems(places(**free), steps)
    assert [(severity, path) for severity, _code, path, _message in seen] == found


def test_places_on_one_filesystem_share_its_room():
    space = [dict(place, filesystem=1, free_mib=500) for place in places()]
    steps = [step("driver", size=120 * MIB)]
    ((severity, code, path, message),) = _findings_space.problems(space, steps)
    # 300 at the target, 120 in the cache, 300 unpacked, 120 modules: more than 500.
    assert (severity, code, path) == ("error", "space_short", "/usr/local/Ascend")
    for part in ("500 MiB are free", "300 MiB for /usr/local/Ascend", "120 MiB for /var/cache/npu-fleet (cache)", "120 MiB for /lib"):
        assert part in message


@pytest.mark.parametrize(("use", "change", "code"), [
    ("extraction", {"noexec": True}, "noexec"), ("target", {"read_only": True}, "read_only"), ("log", {"inodes_free": 10}, "inodes_short"),
])
def test_mount_options_and_inodes(use, change, code):
    space = [dict(place, **change) if place["use"] == use else place for place in places()]
    (found,) = _findings_space.problems(space, [step("driver")])
    assert found[:2] == ("error", code)
    assert found[2] == USES[use]


def test_noexec_elsewhere_and_filesystems_without_inodes_are_fine():
    space = [dict(place, noexec=place["use"] != "extraction", inodes_free=None) for place in places()]
    assert _findings_space.problems(space, [step("driver")]) == []


def test_the_estimate_names_each_place():
    assert _findings_space.by_path(places(), [step("driver", size=120 * MIB)]) == {
        "/usr/local/Ascend": 300, "/var/cache/npu-fleet": 120, "/var/cache/npu-fleet/work": 300, "/var/log": 50, "/lib/modules": 120,
    }


@pytest.mark.parametrize("codes", ["kernel_headers_missing", "x, kernel_headers_missing", ["kernel_headers_missing"]])
def test_codes_that_are_accepted_may_be_a_text(codes):
    """As -e npu_fleet_accept_findings=kernel_headers_missing gives it."""
    (one,) = _findings.accepted([_findings.finding("error", "kernel_headers_missing", "x", "No headers.")], codes)
    assert one["severity"] == "warning"
