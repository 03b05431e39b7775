# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which engine kubelet uses, from how it is started. Private to the collection.

Facts: kubelet's flags win over the file of ``--config``, and files of ``--config-dir`` over that (kubernetes.io, "Set Kubelet Parameters
Via A Configuration File"); ``containerRuntimeEndpoint`` stands in the file from 1.27 on and has a default there
(pkg/kubelet/apis/config/v1beta1/defaults.go); 1.24 took dockershim out and wants the flag (cmd/kubelet/app/options); before that,
dockershim is the default. k3s and rke2 hide their flags from the list of processes, so those are read from their unit and their
configuration file.
"""

import json
import os
import re

from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils._files import find_program, under

KUBELET_UNIT = "kubelet.service"
DOCKERSHIM = "unix:///var/run/dockershim.sock"
CONTAINERD = "unix:///run/containerd/containerd.sock"
EMBEDDED = "unix:///run/k3s/containerd/containerd.sock"  # of k3s and of rke2
EMBEDDED_DOCKER = "unix:///run/k3s/cri-dockerd/cri-dockerd.sock"  # k3s --docker

# Distributions with a kubelet of their own: names of their processes, and their units.
EMBEDDING = {
    "k3s": (("k3s", "k3s-server", "k3s-agent"), ("k3s.service", "k3s-agent.service")),
    "rke2": (("rke2", "rke2-server", "rke2-agent"), ("rke2-server.service", "rke2-agent.service")),
}
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")


def endpoint(run, root="/", timeout=20):
    """Return how kubelet reaches its engine.

    ``installed``, ``running``, ``endpoint`` (``unix:///...`` or None where it is not known), ``source`` (where that stands, or why it is
    not known), ``version`` (``1.28.3``; None where nothing depended on it), ``kind`` (``kubelet``, ``k3s``, ``rke2``, ``microk8s`` or
    None).
    """
    embedding = _embedding(run, root, timeout)
    for pid, _name in units.processes(("kubelet",), root):
        found = _of_kubelet(units.command_line(pid, root), "kubelet's command line (process %d)" % pid, run, root, timeout)
        found["running"] = True
        if embedding and (found["endpoint"] or "").startswith("unix:///run/k3s/"):
            found["kind"] = embedding[0]
        return found
    if embedding:
        return _of_embedding(embedding, run, root, timeout)
    if units.processes(("kubelite",), root):
        return _answer("microk8s", True, "unix:///var/snap/microk8s/common/run/containerd.sock", "the process kubelite of microk8s", None)
    if find_program("kubelet", root) is None:
        return dict(_answer(None, False, None, "there is no kubelet", None), installed=False)
    unit = units.query_unit(run, root, timeout, KUBELET_UNIT)
    return _of_kubelet(unit["command"], "the unit " + KUBELET_UNIT, run, root, timeout)


def _answer(kind, running, found, source, version):
    return {"installed": True, "running": running, "endpoint": found, "source": source, "version": version, "kind": kind}


# --- kubelet itself ---


def _of_kubelet(words, source, run, root, timeout):
    version = None

    def look():
        return kubelet_endpoint(words, lambda path: units.read_text(under(root, path)), lambda path: _listed(path, root), version)

    found, where = look()
    if words and found is None:
        # Only its default depends on the version, and kubelet is slow to tell it.
        version = _version(run, root, timeout)
        found, where = look()
    if not words:
        where = "how kubelet is started is not known"
    return _answer("kubelet", False, found, where.replace("COMMAND", source), version)


def kubelet_endpoint(words, text_of, names_in, version):
    """Return the endpoint that a kubelet with this command line uses (None: not known) and where that stands. Pure.

    ``text_of(path)`` gives a file's text, "" where there is none, ``names_in(path)`` the names in a folder. COMMAND in the answer stands
    for the command line.
    """
    if not words:
        return None, "COMMAND"
    flag = flag_value(words, "container-runtime-endpoint")
    if flag:
        return address(flag), "COMMAND"
    if flag_value(words, "container-runtime") == "docker":
        return DOCKERSHIM, "--container-runtime=docker in COMMAND"
    configs = [flag_value(words, "config")]
    folder = flag_value(words, "config-dir")
    if folder:
        configs += [os.path.join(folder, name) for name in sorted(names_in(folder)) if name.endswith(".conf")]
    for path in reversed([path for path in configs if path]):
        value = config_value(text_of(path), "containerRuntimeEndpoint")
        if value:
            return address(value), path
    if any(path and not text_of(path) for path in configs):
        return None, "a file that COMMAND names can not be read"
    return _default(version, flag_value(words, "container-runtime"))


def _default(version, runtime):
    numbers = tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])
    if numbers and numbers < (1, 24) and runtime in (None, "docker"):
        return DOCKERSHIM, "the default of kubelet %s" % version
    if numbers >= (1, 27):
        return CONTAINERD, "the default of kubelet %s" % version
    return None, "neither COMMAND nor its configuration names an endpoint"


def address(text):
    """Return an endpoint as an address: kubelet takes a bare path, too."""
    return text if "://" in text else "unix://" + text


def flag_value(words, name):
    """Return the last value of ``--name=value`` or ``--name value`` among ``words``, or None."""
    value = None
    for position, word in enumerate(words):
        if word.startswith("--%s=" % name):
            value = word[len(name) + 3:]
        elif word == "--" + name and position + 1 < len(words):
            value = words[position + 1]
    return value


def config_value(text, key):
    """Return the text of a key at the top level of a YAML or JSON file, None where it is not there. No YAML library: a node has none."""
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text).get(key)
        except ValueError:
            return None
        return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    found = None
    for line in text.splitlines():
        match = re.match(r"""^(["']?)%s\1\s*:\s*(.*)$""" % re.escape(key), line)
        if match:
            found = _scalar(match.group(2))
    return found


def _scalar(text):
    if text[:1] in ("'", '"') and text[0] in text[1:]:
        return text[1:text.index(text[0], 1)]
    text = re.sub(r"(^|\s)#.*", "", text).strip()
    return None if text in ("", "~", "null") else text


def cdi_by_plugins(version):
    """Return whether a kubelet hands CDI names of device plugins on: the gate DevicePluginCDIDevices is on by default from 1.29. Pure.

    None where the version is not known. An older one drops the names, and the pod runs without its devices.
    """
    numbers = tuple(int(part) for part in re.findall(r"\d+", version or "")[:2])
    return numbers >= (1, 29) if len(numbers) == 2 else None


def version_of(kubelet, run, root="/", timeout=20):
    """Return the version of kubelet (``kubelet``: of ``endpoint``), or of the distribution that has it inside; None where not known."""
    return kubelet["version"] or _version(run, root, timeout, kubelet["kind"] or "kubelet")


def _version(run, root, timeout, name="kubelet"):
    program = find_program(name, root)
    if program is None:
        return None
    result = run([program, "--version"], timeout)
    match = re.search(r"v(\d+\.\d+\.\d+\S*)", result.stdout)
    return match.group(1) if match and result.rc == 0 and not result.timed_out else None


def _listed(folder, root):
    try:
        return os.listdir(under(root, folder))
    except OSError:
        return []


# --- k3s and rke2 ---


def _embedding(run, root, timeout):
    """Return (name, running, words of its unit) of the distribution that brings its own kubelet and engine, or None."""
    dormant = None
    for name in sorted(EMBEDDING):
        processes, unit_names = EMBEDDING[name]
        running = bool(units.processes(processes, root))
        for unit_name in unit_names:
            if not any(os.path.lexists(under(root, os.path.join(folder, unit_name))) for folder in UNIT_FOLDERS):
                continue
            unit = units.query_unit(run, root, timeout, unit_name)
            if running and unit["state"] in ("active", "activating", "reloading"):
                return name, True, unit["command"]
            if unit["loaded"] and dormant is None:
                dormant = (name, running, unit["command"])
        if running:
            return dormant if dormant and dormant[0] == name else (name, True, [])
    return dormant


def _of_embedding(embedding, run, root, timeout):
    name, running, words = embedding
    path = flag_value(words, "config") or "/etc/rancher/%s/config.yaml" % name
    parts = [os.path.join(path + ".d", part) for part in sorted(_listed(path + ".d", root)) if part.endswith((".yaml", ".yml"))]
    texts = [units.read_text(under(root, part)) for part in [path] + parts]
    found, source = embedded_endpoint(name, words, texts)
    return _answer(name, running, found, source, None)


def embedded_endpoint(name, words, texts):
    """Return the endpoint of k3s or rke2 and where that stands. Pure.

    ``words``: its unit's command; ``texts``: of config.yaml and of config.yaml.d in their order.
    """
    configured = {}
    for text in texts:
        for key in ("container-runtime-endpoint", "docker"):
            value = config_value(text, key)
            if value is not None:
                configured[key] = value
    flag = flag_value(words, "container-runtime-endpoint") or configured.get("container-runtime-endpoint")
    if flag:
        return address(flag), "container-runtime-endpoint of %s" % name
    if name == "k3s" and ("--docker" in words or "--docker=true" in words or configured.get("docker") == "true"):
        return EMBEDDED_DOCKER, "docker of k3s"
    return EMBEDDED, "the engine that %s brings" % name


# --- which engine is behind an endpoint ---


def engine_of(kubelet):
    """Return the name of the engine that answers at the endpoint of ``kubelet`` (the dict above): one of npu.fleet's engines, ``k0s``,
    ``microk8s``, or None where the endpoint is not known or not one that we know. Pure.
    """
    path = (kubelet["endpoint"] or "").replace("unix://", "")
    if path.startswith("/var/run/"):
        path = path[len("/var"):]
    base = os.path.basename(path)
    if "dockerd" in base or base in ("dockershim.sock", "docker.sock"):
        return "docker"
    if path.startswith("/run/k3s/"):
        return kubelet["kind"] if kubelet["kind"] in EMBEDDING else None
    for name in ("k0s", "microk8s"):
        if "/%s/" % name in path:
            return name
    for part, name in (("crio", "crio"), ("isulad", "isulad"), ("containerd", "containerd")):
        if base.startswith(part):
            return name
    return None
