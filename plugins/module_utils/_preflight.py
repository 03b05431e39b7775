# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts about a host that decide whether vendor packages can work there. Private to the collection.

Facts only: what they mean for a planned step, and which command mends it, is judged on the controller (plugin_utils/_findings.py).
Everything is read from files; a program is asked only where no file tells. Nothing here may fail a look: what cannot be read is None.
"""

import json
import os
import re
import sys

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program
from ansible_collections.npu.fleet.plugins.module_utils._hardware._host import listed, read, under
from ansible_collections.npu.fleet.plugins.module_utils._packages._good import CACHE_DIR
from ansible_collections.npu.fleet.plugins.module_utils._packages._options import DEFAULT_PATH
from ansible_collections.npu.fleet.plugins.module_utils._packages._records import parse_values
from ansible_collections.npu.fleet.plugins.module_utils._packages._state import INSTALL_INFO
from ansible_collections.npu.fleet.plugins.module_utils._preflight_engine import engine_facts
from ansible_collections.npu.fleet.plugins.module_utils._preflight_foreign import foreign
from ansible_collections.npu.fleet.plugins.module_utils._preflight_kernel import boots_next, modules_for, sources
from ansible_collections.npu.fleet.plugins.module_utils._preflight_tools import BUILD_TOOLS, TOOLS

# Where packages are kept, unpacked and logged.
_USES = (("cache", CACHE_DIR), ("extraction", CACHE_DIR + "/work"), ("log", "/var/log"), ("modules", "/lib/modules"))
_ST_RDONLY, _ST_NOEXEC = 1, 8
_MIB = 1 << 20
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
# As systemd-detect-virt knows machines by their firmware's words (its table of DMI vendors, shortened to what sells virtual machines).
_VIRTUAL = re.compile(
    r"KVM|OpenStack|KubeVirt|Amazon EC2|QEMU|VMware|VMW|innotek GmbH|VirtualBox|Xen|Bochs|Parallels|BHYVE|Hyper-V|Google Compute Engine|"
    r"Virtual Machine"
)
_SECURE_BOOT = "firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SIGNING_KEYS = ("/var/lib/dkms/mok.pub", "/var/lib/dkms/mok.key", "/var/lib/shim-signed/mok/MOK.der")


def look(params, npu):
    """Everything that preflight has to know of the host that ``npu`` (what _observe.observe returned) describes."""
    root, sysfs = params["root"], params["sysfs_root"]
    release = npu["kernel"]
    upcoming = boots_next(root)
    record = npu["components"]["driver"]["record"]
    return {
        "kernel": {
            "build": sources(root, release),
            "dkms": find_program("dkms", root) is not None,
            "npu_modules": modules_for(root, release),
            "next": dict(upcoming, build=sources(root, upcoming["release"]), npu_modules=modules_for(root, upcoming["release"]))
            if upcoming["release"] else None,
        },
        "tools": {"missing": missing_tools(root), "build_missing": [name for name in BUILD_TOOLS if not find_program(name, root)]},
        "space": space(root, record.get("install_path") or DEFAULT_PATH),
        "users": {name: account(name, root) for name in npu["users"]},
        "record": install_record(root),
        "secure_boot": secure_boot(root, sysfs),
        "virtual": virtual(sysfs),
        "iommu_groups": len(listed(os.path.join(sysfs, "kernel/iommu_groups"))),
        "containers": containers(root, sorted({holder["container"] for holder in npu["holders"] if holder["container"]})),
        "foreign": foreign(root, params["proc_root"], release),
        "container": engine_facts(npu, root, run),
        "proxies": proxies(root),
        "selinux": selinux(sysfs),
        "directories": [path for path in ("/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi") if os.path.isdir(under(root, path))],
        "bundle_record": os.path.exists(under(root, "/etc/HiAI_install.info")),
    }


def missing_tools(root):
    """Programs that the driver package asks for and this host does not have; of alternatives (``a|b``) one is enough."""
    return [name for name in sorted(TOOLS) if not any(find_program(one, root) for one in name.split("|"))]


def space(root, install_path):
    """Room where packages write. A folder that is not there yet is made by them: then its nearest parent counts."""
    places = []
    for use, path in (("target", install_path),) + _USES:
        real = under(root, path)
        while not os.path.isdir(real) and os.path.dirname(real) != real:
            real = os.path.dirname(real)
        try:
            seen, device = os.statvfs(real), os.stat(real).st_dev
        except OSError:
            continue
        places.append({
            "use": use, "path": path, "filesystem": device, "free_mib": seen.f_bavail * seen.f_frsize // _MIB,
            # Filesystems like btrfs have no fixed number of inodes and say 0.
            "inodes_free": seen.f_favail if seen.f_files else None,
            "noexec": bool(seen.f_flag & _ST_NOEXEC), "read_only": bool(seen.f_flag & _ST_RDONLY),
        })
    return places


def install_record(root):
    """Who the vendor's record names, also one that no driver stands behind any more, and the entries that keep the record alive."""
    values = parse_values(read(under(root, INSTALL_INFO)) or "")
    paths = {key: values[key] for key in values if key.endswith("Install_Path_Param")}
    return {"username": values.get("UserName"), "usergroup": values.get("UserGroup"), "paths": paths}


def account(name, root):
    """Shell of a user of the machine's own password file, None when it is not in there."""
    for line in (read(under(root, "/etc/passwd")) or "").splitlines():
        fields = line.split(":")
        if fields[0] == name and len(fields) == 7:
            return {"shell": fields[6]}
    return None


def secure_boot(root, sysfs):
    """Does the firmware or the kernel refuse unsigned modules, and is there a key to sign them with? ``enabled`` None: nobody could say."""
    lockdown = re.search(r"\[(\w+)\]", read(os.path.join(sysfs, "kernel/security/lockdown")) or "")
    return {
        "enabled": _secure_boot_state(root, sysfs),
        "lockdown": lockdown.group(1) if lockdown and lockdown.group(1) != "none" else None,
        "signing_key": any(os.path.exists(under(root, path)) for path in _SIGNING_KEYS),
    }


def _secure_boot_state(root, sysfs):
    if not os.path.isdir(os.path.join(sysfs, "firmware/efi")):
        return False
    try:
        with open(os.path.join(sysfs, _SECURE_BOOT), "rb") as stream:
            # Four bytes of attributes, then the value.
            return stream.read(5)[4:] == b"\x01"
    except OSError:
        pass
    mokutil = find_program("mokutil", root)
    if not mokutil:
        return None
    said = run([mokutil, "--sb-state"], 5)
    text = said.stdout + said.stderr
    return "SecureBoot enabled" in text if said.rc == 0 or "SecureBoot" in text else None


def virtual(sysfs):
    """What the machine's firmware calls itself when it is a virtual one, else None."""
    kind = (read(os.path.join(sysfs, "hypervisor/type")) or "").strip()
    for name in ("sys_vendor", "product_name", "board_vendor", "bios_vendor"):
        text = (read(os.path.join(sysfs, "class/dmi/id", name)) or "").strip()
        if _VIRTUAL.match(text):
            return text
    return kind or None


def containers(root, ids):
    """{id: name, image, pod, namespace} of containers, from the files that the engines themselves keep. Unknown ones are left out."""
    found = {}
    for identity in ids:
        docker = _json(under(root, "/var/lib/docker/containers/%s/config.v2.json" % identity))
        spec = _json(under(root, "/run/containerd/io.containerd.runtime.v2.task/k8s.io/%s/config.json" % identity)) or _json(
            under(root, "/run/containers/storage/overlay-containers/%s/userdata/config.json" % identity))
        if docker:
            config = docker.get("Config") or {}
            told, name, image = config.get("Labels") or {}, (docker.get("Name") or "").lstrip("/"), config.get("Image")
        elif spec:
            told = spec.get("annotations") or {}
            name = _first(told, "io.kubernetes.cri.container-name", "io.kubernetes.container.name")
            image = _first(told, "io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName")
        else:
            continue
        found[identity] = {
            "name": name or None, "image": image,
            "pod": _first(told, "io.kubernetes.pod.name", "io.kubernetes.cri.sandbox-name"),
            "namespace": _first(told, "io.kubernetes.pod.namespace", "io.kubernetes.cri.sandbox-namespace"),
        }
    return found


def _first(values, *names):
    return next((values[name] for name in names if values.get(name)), None)


def _json(path):
    try:
        value = json.loads(read(path) or "null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def proxies(root):
    """Where proxies are set, by which names, and whether NO_PROXY stands beside them. Never their values, which may hold passwords."""
    texts = {"environment of this login": "\n".join("%s=%s" % pair for pair in os.environ.items()) if os.path.realpath(root) == "/" else ""}
    files = ["/etc/environment", "/etc/default/docker"]
    for unit in ("docker", "containerd", "kubelet"):
        folder = "/etc/systemd/system/%s.service.d" % unit
        files += [folder + "/" + name for name in listed(under(root, folder)) if name.endswith(".conf")]
    texts.update({path: read(under(root, path)) or "" for path in files})
    found = []
    for place in sorted(texts):
        names = sorted({name.lower() for name in re.findall(r"(?<![A-Za-z_])([A-Za-z]+_(?:proxy|PROXY))\s*=\s*\S", texts[place])})
        if set(names) & set(_PROXIES):
            found.append({"where": place, "variables": [name for name in names if name in _PROXIES], "no_proxy": "no_proxy" in names})
    return found


def selinux(sysfs):
    """Mode of SELinux, None where it is off, and whether this interpreter can work with it (Ansible's own file modules then need it)."""
    enforce = read(os.path.join(sysfs, "fs/selinux/enforce"))
    if enforce is None:
        return {"mode": None, "bindings": None, "python": sys.executable}
    try:
        __import__("selinux")
        bindings = True
    except ImportError:
        bindings = False
    return {"mode": "enforcing" if enforce.strip() == "1" else "permissive", "bindings": bindings, "python": sys.executable}
