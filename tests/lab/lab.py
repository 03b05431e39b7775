# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet on one machine: simulated NPU servers, a depot, an API server stand-in, and the inventory and variables of a user.

    lab.py build [--suite S]     build simulator, packages, kubelet stand-in and node image (cached)
    lab.py up NAME [--count N] [--depot DIR] [--suite S] [--engine E]
                                 boot N fresh nodes NAME-1 .. NAME-N whose kubelet uses that engine, and write .build/lab/NAME/
    lab.py board NODE [OPTION ...]
                                 make a node of it a Rockchip board, as `rockchip-board lay OPTION ...` says
    lab.py down NAME             take them away
    lab.py destroy               take every node, image and the container engine away

Everything it writes lies in .build/ and in the folder of tests/nodes. The product is not touched by it and knows nothing of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import yaml

REPO = Path(__file__).resolve().parents[2]
BUILD = REPO / ".build"
GATEWAY = "172.30.0.1"
#: The one release that is simulated: a row of the public matrix (HDK 25.5.0, CANN 8.5.0, MindCluster 7.3.0).
RELEASE = {"driver": "25.5.0", "firmware": "7.8.0.5.216", "cann": "8.5.0", "docker_runtime": "7.3.0"}

#: Debian releases that the nodes may be, with the Python of each.
SUITES = {"bookworm": "3.11", "trixie": "3.13", "sid": "3.14"}
#: Where a kubelet reaches its engine; docker is what the stand-in says by itself.
ENDPOINTS = {"docker": None, "containerd": "unix:///run/containerd/containerd.sock"}

sys.path[:0] = [str(REPO / "tests" / "nodes"), str(REPO / "tests" / "simulator" / "rockchip")]

import rockchip_board


def say(text):
    """One line of progress."""
    print(f"== {text}", flush=True)


def tool(*argv, **kwargs):
    """Run one of the project's own tools; its output is the progress."""
    return subprocess.run([sys.executable, *map(str, argv)], check=True, cwd=REPO, **kwargs)


def nodes(*argv, capture=False):
    """Call the node tool; with capture, return what it printed."""
    done = tool(REPO / "tests/nodes/nodes.py", *argv, stdout=subprocess.PIPE if capture else None, text=True)
    return done.stdout if capture else None


def collections_path():
    """A collections folder in which npu.fleet is this checkout."""
    path = BUILD / "collections"
    link = path / "ansible_collections" / "npu" / "fleet"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(REPO)
    return path


def build(suite="bookworm"):
    """Everything a node is made of. Each part is cached by its own tool. NPU_LAB_BUILT=SUITE: the caller has seen to it."""
    if os.environ.get("NPU_LAB_BUILT") == suite:
        say(f"what a node of {suite} is made of is there already")
        return
    if os.geteuid() != 0:
        sys.exit("This starts a container engine of its own: run it as root, or with sudo.")
    say("container engine and base system for the nodes")
    nodes("prepare", "--suite", suite)
    say("simulated NPU hardware: libdcmi, npu-smi, devices")
    tool("tests/simulator/build.py", "--out", BUILD / "simulator")
    say("simulated vendor packages (makeself .run files)")
    tool("tests/simulator/packages/build.py", "--out", BUILD / "depot", "--payload", BUILD / "simulator/payload")
    say("kubelet stand-in")
    kubelet = BUILD / ("kubelet" if suite == "bookworm" else f"kubelet-{suite}")
    tool("tests/kubelet/build.py", "--out", kubelet, "--python-version", SUITES[suite], "--arch", "x86_64")
    say("node image")
    nodes("image", "--suite", suite, "--overlay", BUILD / "simulator/rootfs", "--overlay", kubelet / "rootfs")
    collections_path()


def checksums(folder):
    """{file name: sha256} from a depot's SHA256SUMS."""
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name.lstrip("* "): digest for digest, name in (line.split(None, 1) for line in lines)}


def _free_port():
    with socket.socket() as probe:
        probe.bind((GATEWAY, 0))
        return probe.getsockname()[1]


def _background(lab, name, argv, port, writes=None):
    """Start one service of the lab and wait until it listens, and has written the file that others need."""
    log = (lab / f"{name}.log").open("w")
    process = subprocess.Popen(
        [sys.executable, *map(str, argv)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=REPO, start_new_session=True
    )
    (lab / f"{name}.pid").write_text(str(process.pid))
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((GATEWAY, port)) == 0 and (writes is None or writes.exists()):
                return
        time.sleep(0.1)
    sys.exit(f"{name} did not start; see {log.name}")


def _stop_background(lab):
    for pid_file in lab.glob("*.pid"):
        try:
            os.killpg(int(pid_file.read_text()), signal.SIGTERM)
        except (OSError, ValueError):
            pass
        pid_file.unlink()


def node_names(name, count):
    """Names of the nodes of one lab."""
    return [f"{name}-{i}" for i in range(1, count + 1)]


def up(name, count=1, depot=None, suite="bookworm", engine="docker"):
    """Boot fresh nodes and write what a user would write. Returns the lab's folder."""
    lab = BUILD / "lab" / name
    down(name)
    lab.mkdir(parents=True)
    names = node_names(name, count)
    (lab / "nodes.json").write_text(json.dumps(names))
    for node in names:
        nodes("up", node, "--suite", suite)
        if ENDPOINTS[engine]:
            _use_engine(node, ENDPOINTS[engine])
    depot = Path(depot or BUILD / "depot")
    depot_port, api_port = _free_port(), _free_port()
    kubeconfig = lab / "kubeconfig"
    _background(lab, "depot", ["-m", "http.server", "--bind", GATEWAY, "--directory", depot, depot_port], depot_port)
    names_given = [arg for node in names for arg in ("--node", node)]
    api = ["tests/kube/api_server.py", "--listen", f"{GATEWAY}:{api_port}", "--kubeconfig", kubeconfig, *names_given]
    _background(lab, "api", api, api_port, writes=kubeconfig)
    token = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
    for node in names:
        nodes("exec", node, "--", "kubelet-ctl", "join", "--server", f"http://{GATEWAY}:{api_port}", "--token", token)
    _write_user_files(lab, names, depot, depot_port, kubeconfig)
    return lab


def board(node, *options):
    """Make this node a board with a Rockchip SoC instead of a server, as `rockchip-board lay` says; again to change it."""
    if "no" in nodes("exec", node, "--", "sh", "-c", "test -x /usr/local/sbin/rockchip-board || echo no", capture=True):
        overlay = BUILD / "rockchip-board"
        shutil.rmtree(overlay, ignore_errors=True)
        rockchip_board.install(overlay)
        nodes("docker", "--", "cp", f"{overlay}/.", f"{node}:/")
        nodes("exec", node, "--", "npu-sim", "set", "chips", "[]")
        nodes("exec", node, "--", "systemctl", "enable", "--quiet", "rockchip-board")
    nodes("exec", node, "--", "rockchip-board", "lay", *options)


def _use_engine(node, endpoint):
    """What an admin does who wants kubelet to use another engine than the one its package names."""
    line = f"KUBELET_EXTRA_ARGS=--container-runtime-endpoint={endpoint}"
    nodes("exec", node, "--", "sh", "-c", f"echo '{line}' > /etc/default/kubelet && systemctl restart kubelet")


def _write_user_files(lab, names, depot, depot_port, kubeconfig):
    inventory = yaml.safe_load(nodes("inventory", capture=True))
    hosts = inventory["npu_nodes"]["hosts"]
    inventory["npu_nodes"]["hosts"] = {node: hosts[node] for node in names}
    (lab / "inventory.yml").write_text(yaml.safe_dump(inventory, sort_keys=False))
    group_vars = lab / "group_vars"
    group_vars.mkdir()
    (group_vars / "npu_nodes.yml").write_text(
        yaml.safe_dump(
            {
                "npu_fleet_versions": RELEASE,
                "npu_fleet_depot": f"http://{GATEWAY}:{depot_port}",
                "npu_fleet_checksums": checksums(depot),
                "npu_fleet_accept_licence": True,
                "npu_fleet_kubeconfig": str(kubeconfig),
            },
            sort_keys=False,
        )
    )
    # Ansible would look a thousand times a second whether a task has ended, beside the nodes on the same processors.
    (lab / "ansible.cfg").write_text("[defaults]\ninventory = inventory.yml\nforks = 20\ninternal_poll_interval = 0.01\n\n"
                                     "[connection]\npipelining = true\n")


def environment(lab):
    """Environment of an ansible command in this lab: the user's folder and the collections path, nothing else."""
    return dict(
        os.environ,
        ANSIBLE_CONFIG=str(lab / "ansible.cfg"),
        ANSIBLE_COLLECTIONS_PATH=str(collections_path()),
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )


def down(name):
    """Take one lab's nodes and services away."""
    lab = BUILD / "lab" / name
    if not lab.exists():
        return
    _stop_background(lab)
    names = json.loads((lab / "nodes.json").read_text()) if (lab / "nodes.json").exists() else []
    for node in names:
        nodes("down", node)
    shutil.rmtree(lab)


def destroy():
    """Take everything away that runs or fills the disk outside this checkout."""
    for lab in sorted((BUILD / "lab").glob("*")) if (BUILD / "lab").exists() else []:
        _stop_background(lab)
        shutil.rmtree(lab)
    nodes("destroy")
    say("nodes, images and the container engine are gone. Installed Debian packages and .venv stay.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    suite = argparse.ArgumentParser(add_help=False)
    suite.add_argument("--suite", choices=list(SUITES), default="bookworm", help="Debian release of the nodes (default %(default)s)")
    verbs.add_parser("build", parents=[suite])
    verb = verbs.add_parser("up", parents=[suite])
    verb.add_argument("name")
    verb.add_argument("--count", type=int, default=1)
    verb.add_argument("--depot", type=Path, help="folder with packages, instead of the one that build makes")
    verb.add_argument("--engine", choices=list(ENDPOINTS), default="docker", help="what kubelet uses (default %(default)s)")
    verb = verbs.add_parser("board", prefix_chars="+")
    verb.add_argument("node")
    verb.add_argument("options", nargs="*")
    verb = verbs.add_parser("down")
    verb.add_argument("name")
    verbs.add_parser("destroy")
    args = parser.parse_args()
    if args.verb == "build":
        build(args.suite)
    elif args.verb == "up":
        say(f"lab {args.name} in {up(args.name, args.count, args.depot, args.suite, args.engine)}")
    elif args.verb == "board":
        board(args.node, *args.options)
    elif args.verb == "down":
        down(args.name)
    else:
        destroy()


if __name__ == "__main__":
    main()
