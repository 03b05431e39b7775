# SPDX-License-Identifier: GPL-3.0-or-later
"""Preflight's facts, from made hosts."""

import json

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _preflight
from ansible_collections.npu.fleet.plugins.module_utils._preflight_foreign import foreign
from ansible_collections.npu.fleet.plugins.module_utils._preflight_tools import TOOLS

BOX, OTHER = "a" * 64, "b" * 64


def test_an_empty_host_has_an_answer_for_everything(place, npu):
    facts = _preflight.look(place.params, npu)
    assert facts["kernel"]["next"] is None
    assert facts["kernel"]["build"] == {"makefile": False, "release": None, "others": []}
    assert facts["tools"] == {"missing": sorted(TOOLS), "build_missing": ["gcc", "make"]}
    assert facts["users"] == {"HwHiAiUser": None}
    assert facts["secure_boot"] == {"enabled": False, "lockdown": None, "signing_key": False}
    assert (facts["virtual"], facts["iommu_groups"], facts["proxies"], facts["directories"]) == (None, 0, [], [])
    assert facts["selinux"]["mode"] is None
    assert facts["foreign"] == {"programs": [], "containers": [], "sockets": [], "folders": []}
    json.dumps(facts)


def test_space_is_that_of_the_nearest_folder_that_exists(place, npu):
    places = {one["use"]: one for one in _preflight.space(str(place.root), "/opt/vendor/Ascend")}
    assert {use: one["path"] for use, one in places.items()} == {
        "target": "/opt/vendor/Ascend", "cache": "/var/cache/npu-fleet", "extraction": "/var/cache/npu-fleet/work", "log": "/var/log",
        "modules": "/lib/modules",
    }
    assert len({one["filesystem"] for one in places.values()}) == 1
    assert all(one["free_mib"] > 0 and not one["read_only"] for one in places.values())


def test_one_of_two_alternative_tools_is_enough(place):
    place.tool(*(name for name in TOOLS if "|" not in name))
    assert _preflight.missing_tools(str(place.root)) == ["update-rc.d|chkconfig"]
    place.tool("chkconfig")
    assert _preflight.missing_tools(str(place.root)) == []
    (place.root / "usr/bin/lspci").chmod(0o644)
    assert _preflight.missing_tools(str(place.root)) == ["lspci"]


def test_users_shell_and_the_record_that_outlived_its_driver(place, npu):
    place.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\nHwHiAiUser:x:1000:1000::/home/HwHiAiUser:/sbin/nologin\nHwHiAiUserX:broken\n")
    place.write("/etc/ascend_install.info", "UserName=svc1\nUserGroup=svc1\nAicpu_Kernels_Install_Path_Param=/usr/local/Ascend\n")
    facts = _preflight.look(place.params, npu)
    assert facts["users"] == {"HwHiAiUser": {"shell": "/sbin/nologin"}}
    paths = {"Aicpu_Kernels_Install_Path_Param": "/usr/local/Ascend"}
    assert facts["record"] == {"username": "svc1", "usergroup": "svc1", "paths": paths}


@pytest.mark.parametrize(("value", "enabled"), [(b"\x06\0\0\0\x01", True), (b"\x06\0\0\0\0", False), (None, None)])
def test_secure_boot_is_read_from_the_variable_of_the_firmware(place, value, enabled):
    (place.sys / "firmware/efi/efivars").mkdir(parents=True)
    if value:
        (place.sys / _preflight._SECURE_BOOT).write_bytes(value)
    assert _preflight.secure_boot(str(place.root), str(place.sys))["enabled"] is enabled


@pytest.mark.parametrize(("said", "enabled"), [
    ("echo 'SecureBoot enabled'", True), ("echo 'SecureBoot disabled'", False),
    ("echo 'EFI variables are not supported' >&2; exit 255", None),
])
def test_mokutil_is_asked_where_the_variable_cannot_be_read(place, said, enabled):
    (place.sys / "firmware/efi").mkdir(parents=True)
    place.tool("mokutil")
    place.write("/usr/bin/mokutil", f"#!/bin/sh\n{said}\n")
    assert _preflight.secure_boot(str(place.root), str(place.sys))["enabled"] is enabled


def test_a_locked_down_kernel_and_a_signing_key(place):
    place.see("kernel/security/lockdown", "none [integrity] confidentiality\n")
    place.write("/var/lib/dkms/mok.pub")
    assert _preflight.secure_boot(str(place.root), str(place.sys)) == {"enabled": False, "lockdown": "integrity", "signing_key": True}
    place.see("kernel/security/lockdown", "[none] integrity confidentiality\n")
    assert _preflight.secure_boot(str(place.root), str(place.sys))["lockdown"] is None


@pytest.mark.parametrize(("files", "name"), [
    ({}, None), ({"sys_vendor": "Huawei", "product_name": "Atlas 800T A2"}, None), ({"sys_vendor": "QEMU"}, "QEMU"),
    ({"sys_vendor": "Red Hat", "product_name": "KVM"}, "KVM"), ({"product_name": "KVM Virtual Machine"}, "KVM Virtual Machine"),
    ({"sys_vendor": "VMware, Inc."}, "VMware, Inc."),
    ({"sys_vendor": "Microsoft Corporation", "product_name": "Virtual Machine"}, "Virtual Machine"),
])
def test_virtual_machines_by_the_words_of_their_firmware(place, files, name):
    for key, value in files.items():
        place.see(f"class/dmi/id/{key}", value + "\n")
    assert _preflight.virtual(str(place.sys)) == name


def test_names_of_containers_come_from_the_engines_own_files(place):
    place.write(f"/var/lib/docker/containers/{BOX}/config.v2.json", json.dumps({
        "Name": "/k8s_worker",
        "Config": {"Image": "train:1", "Labels": {"io.kubernetes.pod.name": "t-0", "io.kubernetes.pod.namespace": "ml"}},
    }))
    place.write(f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{OTHER}/config.json", json.dumps({"annotations": {
        "io.kubernetes.cri.container-name": "infer", "io.kubernetes.cri.sandbox-name": "i-1", "io.kubernetes.cri.sandbox-namespace": "prod",
    }}))
    place.write(f"/var/lib/docker/containers/{'c' * 64}/config.v2.json", "{cut")
    assert _preflight.containers(str(place.root), [BOX, OTHER, "c" * 64, "d" * 64]) == {
        BOX: {"name": "k8s_worker", "image": "train:1", "pod": "t-0", "namespace": "ml"},
        OTHER: {"name": "infer", "image": None, "pod": "i-1", "namespace": "prod"},
    }


def test_proxies_are_told_by_place_and_name_and_never_by_value(place):
    place.write("/etc/environment", 'PATH="/bin"\nhttps_proxy=http://user:canary-77@proxy:3128\nNO_PROXY=\n')
    place.write("/etc/systemd/system/docker.service.d/p.conf", '[Service]\nEnvironment="HTTP_PROXY=http://p" "NO_PROXY=192.0.2.7"\n')
    place.write("/etc/systemd/system/kubelet.service.d/off", "HTTP_PROXY=http://p\n")
    found = _preflight.proxies(str(place.root))
    assert found == [
        {"where": "/etc/environment", "variables": ["https_proxy"], "no_proxy": False},
        {"where": "/etc/systemd/system/docker.service.d/p.conf", "variables": ["http_proxy"], "no_proxy": True},
    ]
    assert "canary-77" not in str(found)


@pytest.mark.parametrize(("enforce", "mode"), [(None, None), ("1", "enforcing"), ("0", "permissive")])
def test_selinux(place, monkeypatch, enforce, mode):
    monkeypatch.setitem(__import__("sys").modules, "selinux", None)  # this interpreter has no bindings
    if enforce is not None:
        place.see("fs/selinux/enforce", enforce)
    seen = _preflight.selinux(str(place.sys))
    assert (seen["mode"], seen["bindings"]) == (mode, None if mode is None else False)


def test_remains_that_make_a_package_fail(place, npu):
    (place.root / "usr/local/sbin/npu-smi").mkdir(parents=True)
    place.write("/usr/local/bin/npu-smi")
    place.write("/etc/HiAI_install.info")
    facts = _preflight.look(place.params, npu)
    assert (facts["directories"], facts["bundle_record"]) == (["/usr/local/sbin/npu-smi"], True)


def program(place, pid, *words):
    folder = place.proc / str(pid)
    folder.mkdir()
    (folder / "cmdline").write_text("\0".join(words) + "\0")


def test_others_that_use_or_bring_npus(place, npu):
    program(place, 30, "/usr/local/bin/device-plugin", "-useAscendDocker=true")
    program(place, 4, "/bin/bash", "/usr/local/bin/npu-exporter")
    program(place, 5, "ascend-device-plugin")
    program(place, 8, "/rknpu-device-plugin")
    program(place, 6, "vim", "notes", "device-plugin")
    program(place, 7, "/usr/bin/my-device-plugin")
    for name in ("Ascend910.sock", "npu-agent-Ascend910.sock", ".npu-agent-7.sock", "kubelet.sock", "nvidia.sock"):
        place.write(f"/var/lib/kubelet/device-plugins/{name}")
    place.write(f"/var/lib/docker/containers/{BOX}/config.v2.json",
                '{"State":{"Running":true},"Config":{"Hostname":"h","Image":"registry/npu-driver-installer:24.1","Labels":{}}}')
    place.write(f"/var/lib/docker/containers/{OTHER}/config.v2.json",
                '{"State":{"Running":false},"Config":{"Image":"registry/npu-driver-installer:24.1"}}')
    (place.root / f"lib/modules/{npu['kernel']}/npu_driver").mkdir(parents=True)
    assert foreign(str(place.root), str(place.proc), npu["kernel"]) == {
        "programs": [
            {"pid": 4, "name": "npu-exporter", "product": "MindCluster exporter"},
            {"pid": 5, "name": "ascend-device-plugin", "product": "HAMi device plugin"},
            {"pid": 8, "name": "rknpu-device-plugin", "product": "rknpu device plugin"},
            {"pid": 30, "name": "device-plugin", "product": "MindCluster device plugin"},
        ],
        "containers": [{"id": BOX[:12], "image": "registry/npu-driver-installer:24.1"}],
        "sockets": ["Ascend910.sock"],
        "folders": [f"/lib/modules/{npu['kernel']}/npu_driver"],
    }


def test_who_only_names_a_file_is_no_plugin(place):
    """Somebody who looks at a log must not have a node refused."""
    program(place, 10, "grep", "device-plugin")
    program(place, 11, "/usr/bin/vim", "/etc/npu-exporter")
    program(place, 12, "/bin/bash", "/usr/local/bin/npu-exporter")
    assert [one["pid"] for one in foreign(str(place.root), str(place.proc), "k")["programs"]] == [12]


@pytest.mark.parametrize(("image", "found"), [
    ("lab/input-driver:1", False), ("lab/driver-input:1", False), ("lab/npu-driver:1", True), ("lab/ascend-driver:1", True),
    ("lab/driver-npu:1", True),
])
def test_an_input_driver_is_none_of_an_npu(place, image, found):
    place.write(f"/var/lib/docker/containers/{BOX}/config.v2.json", json.dumps(
        {"State": {"Running": True}, "Config": {"Image": image}}, separators=(",", ":")))
    assert bool(foreign(str(place.root), str(place.proc), "k")["containers"]) is found
