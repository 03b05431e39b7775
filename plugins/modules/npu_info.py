#!/usr/bin/python
# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""See everything about the NPUs of a node in one call."""

DOCUMENTATION = r"""
---
module: npu_info
short_description: See the NPUs of a node and everything installed for them
version_added: 0.1.0
description:
  - Returns chips with their evidence (PCI function, bound driver, device node), family and product, versions on disk and running, the state
    of every component, container engines, the agent, processes that hold a chip, and whether a reboot is needed. Changes nothing.
  - A host without NPU is an answer (RV(npu.present) is false), not an error. A query that fails, hangs or cannot be made is told in
    RV(npu.query) with its cause, and the chips known from PCI stay listed.
extends_documentation_fragment:
  - npu.fleet._attributes
  - npu.fleet._look
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    platforms: linux
    support: full
seealso:
  - module: npu.fleet.npu_package
author:
  - npu.fleet contributors (@npu-fleet)
"""

EXAMPLES = r"""
- name: See the NPUs of each node
  npu.fleet.npu_info:
  register: node

- name: Stop where the driver does not answer
  ansible.builtin.assert:
    that: node.npu.query.ok
    fail_msg: "{{ node.npu.query.error.message }}"
  when: node.npu.present
"""

RETURN = r"""
npu:
  description: What was seen.
  returned: always
  type: dict
  contains:
    hostname:
      description: Name of the node.
      type: str
      sample: node-1
    os:
      description: C(id), C(version_id) and C(pretty_name) of os-release.
      type: dict
      sample: {"id": "debian", "version_id": "12", "pretty_name": "Debian GNU/Linux 12 (bookworm)"}
    arch:
      description: Machine name of the kernel.
      type: str
      sample: x86_64
    kernel:
      description: Release of the running kernel.
      type: str
      sample: 6.1.0-18-amd64
    boot_id:
      description: Id of this boot.
      type: str
      sample: 6263c610-a21e-45a3-bb48-cc367c370f76
    python:
      description: Version of the interpreter that ran this module.
      type: str
      sample: 3.11.2
    present:
      description: Is there an NPU, or an accelerator of the vendor that no table names?
      type: bool
      sample: true
    backend:
      description:
        - Kind of the chips, V(ascend) or V(rockchip); V(none) when there are none.
        - A card wins over the NPU of the board that it is plugged in; RV(npu.notes) then tells of the other one.
      type: str
      sample: ascend
    family:
      description: Family key of all chips, of a Rockchip board its SoC; V(none) when there are none, several, or an unknown one.
      type: str
      sample: a2
    families:
      description: Family keys found.
      type: list
      elements: str
      sample: ["a2"]
    product:
      description: Server or board model, when it is known for certain.
      type: str
      sample: Atlas 800T A2
    chips:
      description: One entry for each chip. Before a driver runs, one for each PCI function.
      type: list
      elements: dict
      contains:
        logic_id:
          description: Number in the driver's order.
          type: int
          sample: 0
        phy_id:
          description: Physical id, the N of C(/dev/davinciN).
          type: int
          sample: 0
        card_id:
          description: Id of the card, which C(npu-smi) calls NPU id.
          type: int
          sample: 0
        device_id:
          description: Number of the chip on its card.
          type: int
          sample: 0
        pci_address:
          description: Address of the PCI function; V(none) on boards without one.
          type: str
          sample: "0000:c1:00.0"
        pci_device:
          description: PCI device id.
          type: str
          sample: d802
        numa_node:
          description: NUMA node, V(none) when the kernel does not know it.
          type: int
          sample: 0
        name:
          description: Name of the chip.
          type: str
          sample: 910B3
        family:
          description: Family key of this chip.
          type: str
          sample: a2
        health:
          description:
            - V(OK), V(Warning), V(Alarm) or V(Critical); V(none) when unknown.
            - The NPU of a Rockchip SoC is V(OK) when its node can be opened and V(Critical) when the kernel refuses that.
          type: str
          sample: OK
        error_codes:
          description: Fault codes of the driver; V(none) when unknown.
          type: list
          elements: str
          sample: []
        device_node:
          description: Device node of the chip, V(none) when there is none.
          type: str
          sample: /dev/davinci0
        device_nodes:
          description: All device nodes of this chip alone. A Rockchip NPU may have two, of which a container needs both.
          type: list
          elements: str
          sample: ["/dev/davinci0"]
        device_groups:
          description:
            - Numbers of the groups that may read and write these nodes.
            - A pod that does not run as root gets in by one of them in C(supplementalGroups), where the group is not root's.
          type: list
          elements: int
          sample: [1000]
        stack:
          description: Driver stack of a Rockchip NPU, V(rknpu-drm), V(rknpu-misc) or V(rocket); V(none) for other chips.
          type: str
          sample: null
        cores:
          description: Number of cores of a Rockchip NPU; V(none) when unknown, and for other chips.
          type: int
          sample: null
        firmware_version:
          description: Firmware that the chip runs.
          type: str
          sample: 7.8.0.5.216
        serial:
          description: Serial number.
          type: str
          sample: "0123456789"
        vdie:
          description: Unique id of the die.
          type: str
          sample: 2D66A3E8-20E04C98-5B3D1E11-A4C10463-10300003
        error:
          description: Why the driver could not tell all about this chip.
          type: dict
          sample: null
        evidence:
          description:
            - C(pci) is there a function on the bus, C(driver) the name of the bound driver, C(device_node) does its node exist.
            - V(none) for what a chip cannot have, such as a place on the PCI bus in a SoC, and for what is not known.
          type: dict
          sample: {"pci": true, "driver": "devdrv_device_driver", "device_node": true}
    unknown:
      description: Accelerators of the vendor that no table names. Nothing may be installed for them.
      type: list
      elements: dict
      sample: []
    virtual_functions:
      description: Number of PCI virtual functions, which are not chips.
      type: int
      sample: 0
    device_nodes:
      description: All C(/dev/davinciN), and those of a Rockchip NPU.
      type: list
      elements: str
      sample: ["/dev/davinci0"]
    query:
      description:
        - C(ok) is false when C(npu-smi) or DCMI is missing, fails or hangs; C(error) then has C(source), C(code) and C(message).
        - C(errors) has all of them, C(source) names who answered.
      type: dict
      sample: {"ok": true, "source": "dcmi,npu-smi", "error": null, "errors": []}
    notes:
      description: What there is to say about the hardware that is no fault.
      type: list
      elements: str
      sample: []
    versions:
      description: Versions on disk, and for driver and firmware running; C(per_chip) lists the firmware of each chip.
      type: dict
      sample:
        driver: {"on_disk": "25.5.0", "running": "25.5.0"}
        firmware: {"on_disk": "7.8.0.5.216", "running": "7.8.0.5.216", "per_chip": ["7.8.0.5.216"]}
        cann_toolkit: {"on_disk": "8.5.0"}
        cann_kernels: {"on_disk": "8.5.0"}
        docker_runtime: {"on_disk": "7.3.0"}
    components:
      description: State (V(absent), V(present), V(half_installed), V(reboot_pending), V(mismatched), V(foreign)) and record of each.
      type: dict
      sample: {"firmware": {"state": "absent", "version": null, "running": null, "path": null, "reason": null, "record": {}}}
    engines:
      description:
        - Container engines on the node, C(docker), C(containerd), C(k3s), C(rke2), C(crio) or C(isulad). C(runtimes) and
          C(default_runtime) are what the engine has in effect.
        - C(configured) is what its configuration file says, and so what it would have after its next start; for a file that is broken
          C(error) there has the line.
        - C(kubelet) tells whether the kubelet of this node uses the engine, V(none) where there is a kubelet and nobody could tell.
        - C(cdi) tells whether the engine is known to take CDI devices and that is switched on; V(none) when it is not known.
      type: list
      elements: dict
      sample:
        - name: docker
          version: 20.10.24
          active: true
          config_path: /etc/docker/daemon.json
          config_sha256: ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356
          runtimes: {"runc": "runc", "ascend": "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"}
          default_runtime: runc
          live_restore: false
          containers_running: 0
          configured:
            runtimes: {"ascend": "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"}
            default_runtime: null
            error: null
          kubelet: true
          cdi: false
          error: null
    agent:
      description: The agent as it is on the node.
      type: dict
      sample: {"version": null, "archive_sha256": null, "config_sha256": null, "unit_sha256": null, "active": false, "enabled": false,
               "started_after_files": null, "others": [], "pod": false}
    holders:
      description: Processes that have an NPU's node open, with id of the container, uid of the pod and name of the systemd unit.
      type: list
      elements: dict
      sample: [{"pid": 4242, "comm": "python3", "device": "/dev/davinci2", "container": null, "pod_uid": null, "unit": "training.service"}]
    device_group:
      description:
        - Number of the group that a rule of M(npu.fleet.npu_device_group) gives a Rockchip NPU's nodes to; V(0) without such a rule,
          V(none) when it was changed by hand.
      type: int
      sample: 0
    users:
      description: Does the driver's user exist?
      type: dict
      sample: {"HwHiAiUser": true}
    running_packages:
      description:
        - Components whose package still runs on the node, also when the run that started it lost its connection. Only root sees them.
        - Do not reboot or power off the node meanwhile.
      type: list
      elements: str
      sample: []
    reboot_required:
      description: Is what runs another version than what is on disk? Never true while a package runs (RV(npu.running_packages)).
      type: bool
      sample: false
    reboot_reasons:
      description: Why.
      type: list
      elements: str
      sample: []
    record:
      description:
        - What runs of this collection have noted on the node. C(installed) has file and checksum of each package, C(good) the last two sets
          of versions that passed the gates and whether their packages lie in the cache, C(failed) the sets that did not work here,
          C(unlisted_reason) why versions are installed that no release has.
      type: dict
      sample:
        installed: {}
        good: {"current": null, "previous": null}
        failed: []
        unlisted_reason: null
    preflight:
      description:
        - Facts that decide whether vendor packages can work on this host; the filter P(npu.fleet.plan#filter) judges them.
        - C(kernel) has the headers of the running kernel and the one that boots next, C(tools) what is missing of what packages call,
          C(space) room, inodes and mount options where they write, C(users) and C(record) who may own a driver, C(secure_boot),
          C(virtual) and C(iommu_groups) the machine, C(containers) names and pods of the holders' containers, C(foreign) device plugins
          and driver containers of others, C(proxies) where proxies are set (never their values), C(selinux), and remains that make a
          package fail (C(directories), C(bundle_record)).
        - C(container) has how kubelet reaches its engine, and for each engine its C(unit), what of its C(file) would keep it from starting
          (names of keys, never values), its C(cri) part and its C(cgroup_driver).
      type: dict
      sample:
        kernel:
          build: {"makefile": true, "release": "6.1.0-18-amd64", "others": []}
          dkms: true
          npu_modules: true
          next: {"release": "6.1.0-21-amd64", "source": "/boot/grub/grub.cfg", "build": {"makefile": false, "release": null, "others": []},
                 "npu_modules": false}
        tools: {"missing": ["ifconfig"], "build_missing": []}
        space: [{"use": "target", "path": "/usr/local/Ascend", "filesystem": 65024, "free_mib": 79858, "inodes_free": 16330683,
                 "noexec": false, "read_only": false}]
        users: {"HwHiAiUser": {"shell": "/bin/bash"}}
        record: {"username": "HwHiAiUser", "usergroup": "HwHiAiUser", "paths": {"Driver_Install_Path_Param": "/usr/local/Ascend"}}
        secure_boot: {"enabled": false, "lockdown": null, "signing_key": false}
        virtual: null
        iommu_groups: 0
        containers: {}
        foreign: {"programs": [], "containers": [], "sockets": [], "folders": []}
        container:
          kubelet: {"installed": true, "endpoint": "unix:///run/containerd/containerd.sock", "source": "/var/lib/kubelet/config.yaml",
                    "cgroup_driver": "systemd", "cgroup_source": "/var/lib/kubelet/config.yaml"}
          engines:
            containerd:
              unit: {"name": "containerd.service", "load": "loaded", "active": "active", "kill_mode": "process"}
              file: null
              cri: {"loaded": true, "error": null, "disabled": false}
              cgroup_driver: systemd
        proxies: []
        selinux: {"mode": null, "bindings": null, "python": "/usr/bin/python3"}
        directories: []
        bundle_record: false
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError, fail
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import under
from ansible_collections.npu.fleet.plugins.module_utils._observe import look_options
from ansible_collections.npu.fleet.plugins.module_utils._observe import observe as observe_node
from ansible_collections.npu.fleet.plugins.module_utils._packages import _good, _journal
from ansible_collections.npu.fleet.plugins.module_utils._preflight import look


def argument_spec():
    return look_options()


def observe(params):
    """What is returned as npu. The gates need neither preflight nor the record of former runs, so they are not part of their look."""
    npu = observe_node(params)
    proved = _good.read(under(params["root"], _journal.STATE_DIR), under(params["root"], _good.CACHE_DIR))
    return dict(npu, preflight=look(params, npu), record=proved)


def main():
    module = AnsibleModule(argument_spec=argument_spec(), supports_check_mode=True)
    try:
        module.exit_json(changed=False, npu=observe(module.params))
    except FleetError as error:
        fail(module, error)


if __name__ == "__main__":
    main()
