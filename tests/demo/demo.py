# SPDX-License-Identifier: GPL-3.0-or-later
"""The demo: `ansible-playbook npu.fleet.site` twice against one simulated NPU server, then a table of what is measured there.

No task, variable or path of the collection exists for it: it works in a user's folder (.build/lab/demo) with a user's files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
import lab
from kubernetes import client, config

NAME = "demo"


def play(folder, title):
    """One run of the site playbook, its output as the user sees it. Returns seconds."""
    command = ["ansible-playbook", "npu.fleet.site"]
    lab.say(f"{title}: {' '.join(command)}   (in {folder.relative_to(lab.REPO)})")
    start = time.monotonic()
    done = subprocess.run(command, cwd=folder, env=lab.environment(folder), check=False)
    seconds = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"The {title} failed. The node is still there: look with `python3 tests/nodes/nodes.py exec {NAME}-1 -- bash`.")
    return seconds


def ask(folder, node, module, args):
    """Run one module of the collection on a node, as a user does with `ansible -m`, and return its result."""
    command = ["ansible", node, "--module-name", f"npu.fleet.{module}", "--args", json.dumps(args)]
    command += ["--extra-vars", "ansible_python_interpreter=/usr/bin/python3"]
    done = subprocess.run(command, cwd=folder, env=lab.environment(folder), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.partition(" => ")[2])


def on_node(node, *argv):
    """Output of a command on a node, straight through its container engine: not through the product."""
    return lab.nodes("exec", node, "--", *argv, capture=True).strip()


def rows(folder, node, npu, gates, seconds):
    """(what, value) pairs of the table, each from a look at the machine."""
    versions, components, pins = npu["versions"], npu["components"], lab.RELEASE

    def triple(pin, component, running=True):
        on_disk = components[component]["version"]
        parts = [pin, on_disk] + ([versions[component]["running"]] if running else [])
        mark = " = ".join(parts) if len(set(parts)) == 1 else " != ".join(map(str, parts))
        return f"{mark}   (pinned, on disk{', running' if running else ''})"

    docker = json.loads(on_node(node, "docker", "info", "--format", "{{json .}}"))
    config.load_kube_config(str(folder / "kubeconfig"))
    live = client.CoreV1Api().read_node(node)
    labels = {k: v for k, v in live.metadata.labels.items() if "npu" in k or k == "accelerator"}
    kubelet = json.loads(on_node(node, "kubelet-ctl", "allocatable"))
    unhealthy = [c for c in npu["chips"] if c["health"] != "OK"]
    return [
        ("node", node),
        ("product", npu["product"]),
        ("chips", f"{len(npu['chips'])} x {npu['chips'][0]['name']}, {len(npu['chips']) - len(unhealthy)} OK"),
        ("firmware", triple(pins["firmware"], "firmware")),
        ("driver", triple(pins["driver"], "driver")),
        ("CANN toolkit", triple(pins["cann"], "cann_toolkit", running=False)),
        ("CANN operators", triple(pins["cann"], "cann_kernels", running=False)),
        ("docker runtime", triple(pins["docker_runtime"], "docker_runtime", running=False)),
        ("engine", f"docker {docker['ServerVersion']}: ascend -> {docker['Runtimes']['ascend']['path']}"),
        ("engine default", docker["DefaultRuntime"]),
        *[("label", f"{k}={v}") for k, v in sorted(labels.items())],
        ("kubelet sees", ", ".join(f"{k}: {v}" for k, v in kubelet.items())),
        ("API server says", ", ".join(f"{k}: {v}" for k, v in (live.status.allocatable or {}).items() if "huawei" in k)),
        ("gates passed", ", ".join(f"{g['gate']} {g['name']}" for g in gates if g["passed"]) + f" (of {len(gates)})"),
        ("wall time", f"first run {seconds[0]:.1f} s, second run {seconds[1]:.1f} s"),
    ]


def table(pairs):
    """Two columns with a frame."""
    width = max(len(name) for name, _value in pairs)
    right = max(len(value) for _name, value in pairs)
    line = f"+-{'-' * width}-+-{'-' * right}-+"
    return "\n".join([line, *[f"| {name:<{width}} | {value:<{right}} |" for name, value in pairs], line])


def main():
    lab.build()
    lab.say("one server with eight NPUs, nothing installed on it")
    folder = lab.up(NAME)
    seconds = [play(folder, "first run"), play(folder, "second run")]
    node = f"{NAME}-1"
    lab.say("what is measured on the node now")
    pins = {
        "driver": lab.RELEASE["driver"],
        "firmware": lab.RELEASE["firmware"],
        "cann_toolkit": lab.RELEASE["cann"],
        "cann_kernels": lab.RELEASE["cann"],
        "docker_runtime": lab.RELEASE["docker_runtime"],
    }
    answer = ask(folder, node, "npu_gates", {"versions": pins, "runtime": "ascend"})
    print(table(rows(folder, node, answer["npu"], answer["gates"], seconds)))
    print(
        "\nThe NPU, its packages, the kubelet and the API server are simulated (tests/); systemd, docker, gRPC and ssh are real."
        "\nLook around: python3 tests/nodes/nodes.py exec demo-1 -- npu-smi info     Take it away: make demo-down"
    )


if __name__ == "__main__":
    main()
