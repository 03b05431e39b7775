# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands in the way of a plan on one host: a pure function from what was observed to findings, all at once. Private to the collection.

A finding is an error where it makes a planned step impossible or dangerous; the same fact is a warning or a note where no step meets it.
Each says what is wrong, where, and the command that mends it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import ROCKCHIP
from ansible_collections.npu.fleet.plugins.module_utils._packages._options import DEFAULT_USER
from ansible_collections.npu.fleet.plugins.module_utils._preflight_tools import BUILD_TOOLS, TOOLS
from ansible_collections.npu.fleet.plugins.plugin_utils import _findings_rockchip, _findings_space

SEVERITIES = ("error", "warning", "note")
#: Components whose change takes the chips away from whoever uses them.
CHIP_COMPONENTS = ("driver", "firmware")
_APT = ("debian", "ubuntu", "uos", "deepin", "linuxmint")
_NO_SHELLS = ("nologin", "false")


def finding(severity, code, object_, message, hint=""):
    """One finding; ``object`` is the component, file or device that it is about."""
    return {"severity": severity, "code": code, "object": object_, "message": message, "hint": hint}


def in_order(findings):
    """Sorted by severity; among equals the order stays, which is the order of the rules."""
    return sorted(findings, key=lambda one: SEVERITIES.index(one["severity"]))


def accepted(findings, codes: Iterable[str]):
    """The findings, with errors of these codes as warnings: an operator who knows the host said so."""
    # One code given by -e is a text.
    known = set(codes.replace(",", " ").split() if isinstance(codes, str) else codes or ())

    def judged(one):
        if one["severity"] != "error" or one["code"] not in known:
            return one
        return dict(one, severity="warning", message=f"{one['message']} (accepted)")

    return [judged(one) for one in findings]


class Host:
    """What the rules look at: preflight's facts, which components change, and whether the host will reboot."""

    def __init__(self, observed, wanted, steps, *, reboots):
        self.observed = observed
        self.wanted = wanted
        self.facts = observed["preflight"]
        self.steps = [step for step in steps if step["action"] not in ("none", "refuse")]
        # A switch moves a link to what is there already: nothing is unpacked or built.
        self.changes = {step["component"] for step in self.steps if step["action"] != "switch"}
        self.chips_change = sorted(self.changes & set(CHIP_COMPONENTS))
        self.reboots = reboots
        self.kernel = observed["kernel"]
        self.apt = (observed["os"].get("id") or "").lower() in _APT

    def install(self, debian, rpm):
        """The command that installs packages of the distribution."""
        return f"apt-get install -y {' '.join(debian)}" if self.apt else f"dnf install -y {' '.join(rpm)}"

    def install_for(self, table, tools):
        """The same for tools whose packages a table knows."""
        packages = [table[tool] for tool in tools]
        return self.install(sorted({debian for debian, _rpm in packages}), sorted({rpm for _debian, rpm in packages}))

    def error_if(self, needed, otherwise="warning"):
        return "error" if needed else otherwise


def judge(observed, wanted, steps, *, reboots=False):
    """Findings about the host itself. Without preflight's facts (a look by another module) there is nothing to say."""
    if not observed.get("preflight"):
        return []
    host = Host(observed, wanted, steps, reboots=reboots)
    rules = BOARD_RULES if observed.get("backend") == ROCKCHIP else RULES
    found = [one for rule in rules for one in rule(host)]
    return in_order(accepted(found, wanted.get("accept_findings")))


# --- kernel ---------------------------------------------------------------------------------------------------------

def kernel_headers(host):
    """Without them a package that builds its modules asks two questions and waits for ever (field report A01)."""
    if "driver" not in host.changes:
        return
    build = host.facts["kernel"]["build"]
    folder = f"/lib/modules/{host.kernel}/build"
    hint = (
        host.install([f"linux-headers-{host.kernel}"], [f"kernel-devel-{host.kernel}", f"kernel-headers-{host.kernel}"])
        + "; where the package brings modules for this very kernel: npu_fleet_accept_findings: [kernel_headers_missing]."
    )
    others = f" Installed are those of {', '.join(build['others'])}." if build["others"] else ""
    if not build["makefile"]:
        message = f"The headers of the running kernel {host.kernel} are missing: there is no {folder}/Makefile.{others}"
        yield finding("error", "kernel_headers_missing", folder, message, hint)
    elif build["release"] and build["release"] != host.kernel:
        message = f"{folder} belongs to kernel {build['release']}, running is {host.kernel}.{others}"
        yield finding("error", "kernel_headers_missing", folder, message, hint)
    missing = host.facts["tools"]["build_missing"]
    if missing:
        message = f"Kernel modules cannot be built without {' and '.join(missing)}; a package that brings them ready-made needs no build."
        yield finding("warning", "build_tools_missing", missing[0], message, host.install_for(BUILD_TOOLS, missing))


def kernel_waiting(host):
    """A newer kernel that waits to be booted takes the driver away at the next reboot (A18)."""
    upcoming = host.facts["kernel"]["next"]
    if not upcoming or upcoming["release"] == host.kernel:
        return
    has_driver = host.observed["components"]["driver"]["state"] != "absent"
    if not (has_driver or "driver" in host.changes):
        return
    release = upcoming["release"]
    builds = host.facts["kernel"]["dkms"] and upcoming["build"]["makefile"] and upcoming["build"]["release"] in (None, release)
    if upcoming["npu_modules"] or builds:
        return
    message = (
        f"The next boot takes kernel {release} ({upcoming['source']}), running is {host.kernel}. There is no NPU module for {release} "
        "and no way to build one (DKMS and headers for exactly that kernel): after a reboot the node would have no driver."
    )
    hint = (
        f"Boot {release} first and run again, or keep the running one: "
        + (f"`apt-mark hold linux-image-{host.kernel}` and GRUB_DEFAULT in /etc/default/grub" if host.apt
           else f"`grubby --set-default /boot/vmlinuz-{host.kernel}`")
        + ", or " + host.install(["dkms", f"linux-headers-{release}"], ["dkms", f"kernel-devel-{release}"]) + "."
    )
    yield finding(host.error_if(host.reboots), "kernel_waiting", release, message, hint)


def secure_boot(host):
    """The package installs cleanly and the module never loads (A15)."""
    state = host.facts["secure_boot"]
    if not (state["enabled"] or state["lockdown"]):
        return
    why = "Secure Boot is on" if state["enabled"] else f"The kernel is locked down ({state['lockdown']})"
    if state["signing_key"]:
        yield finding("note", "secure_boot", "driver", f"{why}; modules must be signed with the key of this host, which must be enrolled.",
                      "mokutil --test-key /var/lib/dkms/mok.pub")
        return
    yield finding(
        host.error_if("driver" in host.changes), "secure_boot", "driver", f"{why}: the kernel refuses modules that are not signed.",
        "Enrol a key (`mokutil --import /var/lib/dkms/mok.pub`, then confirm at the next boot), or switch Secure Boot off in the setup.",
    )


# --- what packages need -----------------------------------------------------------------------------------------------

def tools(host):
    """The package prints a list of missing tools and ends (A09)."""
    missing = host.facts["tools"]["missing"]
    if missing and host.chips_change:
        message = f"The driver package needs {', '.join(missing)}."
        yield finding("error", "tools_missing", missing[0], message, host.install_for(TOOLS, missing))


def room(host):
    """Packages look late and at one place only (A10)."""
    for severity, code, path, message in _findings_space.problems(host.facts["space"], host.steps):
        yield finding(severity, code, path, message, f"df -h {path}; df -i {path}" if code != "noexec" else f"findmnt --target {path}")


def users(host):
    """The record of an earlier package decides who may own the next one (A06); a shell that logs nobody in broke older packages (A08)."""
    record = host.facts["record"]
    # An installed driver keeps its user; one that is gone leaves a record that the first install does not follow.
    kept = host.observed["components"]["driver"]["record"].get("username")
    wanted = host.wanted.get("username") or kept or DEFAULT_USER
    given = {step["component"] for step in host.steps if step["action"] in ("install", "repair")}
    if record["username"] and record["username"] != wanted and host.chips_change:
        owners = ", ".join(f"{key}={value}" for key, value in sorted(record["paths"].items())) or "no installed package"
        message = (
            f"/etc/ascend_install.info names the user {record['username']}, wanted is {wanted}. The packages refuse another user (0x0095). "
            f"What keeps the record: {owners}."
        )
        hint = f"npu_driver_username: {record['username']}, or remove what owns the record first."
        # An upgrade is called without a user and keeps the recorded one.
        yield finding(host.error_if("driver" in given), "user_differs", "/etc/ascend_install.info", message, hint)
    account = (host.facts["users"] or {}).get(wanted)
    if account and host.chips_change and account["shell"].rsplit("/", 1)[-1] in _NO_SHELLS:
        # Measured: `su -s /bin/bash`, so it works (docs/facts.md, M 7).
        message = f"{wanted} has the shell {account['shell']}. Packages of today do not mind; older ones say that a path cannot be reached."
        hint = f"`usermod --shell /bin/bash {wanted}`, and back when driver and firmware are there."
        yield finding("note", "user_shell", wanted, message, hint)


def leftovers(host):
    """Things of a past life that make a package fail in words that do not name them."""
    for path in host.facts["directories"]:
        # A container with a bind mount of a file that was not there.
        message = f"{path} is a directory, where the driver puts its tool: a container engine made it for a bind mount of a missing file."
        yield finding(host.error_if("driver" in host.changes), "npu_smi_directory", path, message, f"rmdir {path}")
    if host.facts["bundle_record"] and "driver" in host.changes:
        message = "/etc/HiAI_install.info tells of an all-in-one package; the driver package then does nothing and ends with 0."
        yield finding("error", "bundle_installed", "/etc/HiAI_install.info", message, "Remove that package with its own uninstall script.")


# --- who else is there --------------------------------------------------------------------------------------------------

def machine(host):
    """Firmware is written on bare metal only; chips that a virtual machine has are not ours."""
    if host.facts["virtual"]:
        message = f"This host is a virtual machine ({host.facts['virtual']}); firmware can only be written on the physical one."
        yield finding(host.error_if("firmware" in host.changes, "note"), "virtual_machine", "firmware", message,
                      "Leave firmware out of the pins of this host, and write it where the card is plugged in.")
    passed = [chip["pci_address"] for chip in host.observed["chips"] if chip["evidence"]["driver"] == "vfio-pci"]
    if passed:
        message = f"{len(passed)} chip(s) are bound to vfio-pci for virtual machines: {', '.join(map(str, passed[:4]))}."
        yield finding(host.error_if(bool(host.chips_change)), "passed_through", passed[0], message,
                      "Stop the virtual machines and unbind: `virsh nodedev-reattach pci_...`, or `driverctl unset-override ADDRESS`.")
    if host.observed.get("virtual_functions"):
        message = f"SR-IOV is in use: {host.observed['virtual_functions']} virtual function(s). They go with the driver."
        yield finding(host.error_if(False, "warning" if host.chips_change else "note"), "virtual_functions", "sriov", message,
                      "`cat /sys/bus/pci/devices/*/sriov_numvfs` tells whose they are.")
    if host.facts["iommu_groups"] and (passed or host.observed.get("virtual_functions")):
        yield finding("note", "iommu", "iommu", f"The IOMMU is on ({host.facts['iommu_groups']} groups).")


def foreign(host):
    """Two ways of installing or two device plugins on one host end in a mixed state (A19, E02)."""
    there = host.facts["foreign"]
    for program in there["programs"]:
        is_plugin = program["name"].endswith("device-plugin")
        message = f"The {program['product']} runs here (pid {program['pid']})."
        message += " Two plugins would offer the same chips." if is_plugin else " It opens the chips again and again."
        hint = "`kubectl get daemonset -A | grep -i -e ascend -e npu -e hami`: delete it, or take this node out of its nodeSelector."
        yield finding(host.error_if(is_plugin or bool(host.chips_change)), "foreign_program", program["name"], message, hint)
    for container in there["containers"]:
        message = f"The container {container['id']} ({container['image']}) installs a driver from inside."
        yield finding(host.error_if(bool(host.chips_change)), "driver_container", container["id"], message,
                      f"Remove what starts it, then `docker rm -f {container['id']}`.")
    for path in there["folders"]:
        message = f"{path} holds modules that a driver container has left; no record names them."
        hint = f"Look into it, then `rm -r {path}` and reboot."
        yield finding(host.error_if("driver" in host.changes), "driver_container", path, message, hint)
    if there["sockets"] and not there["programs"]:
        message = f"Kubelet's folder has sockets of another plugin that does not run: {', '.join(there['sockets'])}."
        hint = "They go at kubelet's next start: `systemctl restart kubelet`."
        yield finding("note", "foreign_socket", there["sockets"][0], message, hint)


# --- surroundings -------------------------------------------------------------------------------------------------------

def surroundings(host):
    """What breaks other parts of a run: SELinux without its Python library (H14), proxies without exceptions (H13)."""
    selinux = host.facts["selinux"]
    if selinux["mode"] and not selinux["bindings"]:
        message = f"SELinux is {selinux['mode']}, and {selinux['python']} has no bindings for it: Ansible's own file modules fail."
        hint = host.install(["python3-selinux"], ["python3-libselinux"])
        yield finding("warning", "selinux_bindings", selinux["python"], message, f"{hint}; for the distribution's own Python.")
    bare = [proxy["where"] for proxy in host.facts["proxies"] if not proxy["no_proxy"]]
    if bare:
        message = f"A proxy is set without NO_PROXY in {', '.join(bare)}: the depot, registry and API server are then asked through it."
        yield finding("note", "proxy", bare[0], message, "Set NO_PROXY there with their addresses and the networks of nodes and pods.")


def states(host):
    """Versions that differ between disk and what runs (A16)."""
    for name, component in sorted(host.observed["components"].items()):
        if component["state"] == "mismatched":
            yield finding("warning", "mismatched", name, component["reason"], "It is installed again where it is pinned.")
    if host.reboots and host.wanted.get("local"):
        # The machine that runs the playbook is never rebooted by it (H02).
        message = "This is the machine that runs the playbook: it is not rebooted from here."
        hint = "Reboot it by hand when the run says so, then run again."
        yield finding("warning", "local_reboot", host.observed["hostname"], message, hint)


def hardware_notes(host):
    """What the detector has to say about the hardware that is no fault."""
    for text in host.observed.get("notes") or []:
        yield finding("note", "hardware", host.observed["family"] or "npu", text)


def board_chips(host):
    """What keeps a Rockchip board's NPU from work. None of it is an error: no step mends a kernel, and the gates say what does not work."""
    for chip in host.observed["chips"]:
        driver = host.observed["versions"]["driver"]["running"]
        for problem in _findings_rockchip.of_chip(chip, driver) + _findings_rockchip.access(chip):
            yield finding(*problem)


#: Of a host for which the vendor has packages: they, their drivers and their tools.
RULES = (
    kernel_headers, kernel_waiting, secure_boot, tools, room, users, leftovers, machine, foreign, surroundings, states, hardware_notes,
)
#: Of a board whose driver is part of its kernel.
BOARD_RULES = (foreign, surroundings, hardware_notes, board_chips)
