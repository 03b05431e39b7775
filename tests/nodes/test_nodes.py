# SPDX-License-Identifier: GPL-3.0-or-later
"""A node is what tests take it for: boots one, then reboots it, runs a nested engine, counts calls. `pytest tests/nodes`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cri")]

import cri
from nodes import Nodes, NodesError
from npu_nodes import to_yaml

NAME = f"node-test-{os.getpid()}"  # runs at the same time stay out of each other's way
TOOLS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture(scope="session")
def nodes():
    nodes = Nodes()
    nodes.prepare()
    nodes.image([], tag="node-test")
    nodes.up([NAME], tag="node-test")
    yield nodes
    nodes.down([NAME])


@pytest.fixture
def ansible(nodes, tmp_path):
    """ansible(module, arguments) -> finished process; the printed inventory, Ansible's defaults, no ssh master left from before."""
    if not shutil.which("ansible", path=TOOLS):
        pytest.fail("no ansible on PATH or beside this Python: install ansible-core")
    (tmp_path / "inventory.yml").write_text(to_yaml(nodes.inventory([NAME])))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    config = tmp_path / "ansible.cfg"
    config.touch()
    clean |= {"PATH": TOOLS, "ANSIBLE_HOME": str(tmp_path / "home"), "ANSIBLE_CONFIG": str(config), "ANSIBLE_NOCOLOR": "1"}
    clean["ANSIBLE_SSH_CONTROL_PATH_DIR"] = str(tmp_path / "cp")  # not below ANSIBLE_HOME by itself

    def call(module, arguments=""):
        argv = ["ansible", "-i", str(tmp_path / "inventory.yml"), "npu_nodes", "-m", f"ansible.builtin.{module}", "-a", arguments]
        return subprocess.run(argv, env=clean, capture_output=True, text=True, timeout=180, check=False)

    return call


@pytest.fixture
def ssh(nodes):
    def call(*words, tool="ssh", stdin=""):
        flags = [*nodes.ssh_args(), "-i", str(nodes.key), "-o", "BatchMode=yes"]
        target = f"root@{nodes.ip(NAME)}"
        return subprocess.run([tool, *flags, target, *words], input=stdin, capture_output=True, text=True, timeout=60, check=False)

    return call


def on(nodes, script):
    return nodes.exec(NAME, ["sh", "-c", script]).stdout.strip()


def test_systemd_runs_with_stock_engines(nodes):
    assert on(nodes, "systemctl is-system-running") == "running"
    assert on(nodes, "systemctl is-active docker containerd ssh").split() == ["active"] * 3
    unit = on(nodes, "systemctl show docker -p FragmentPath -p DropInPaths").splitlines()
    assert unit == ["FragmentPath=/lib/systemd/system/docker.service", "DropInPaths="]
    assert on(nodes, "test -e /etc/docker/daemon.json || echo absent") == "absent"
    assert on(nodes, "docker info -f '{{.Driver}} {{.CgroupVersion}}'") == "overlay2 2"


@pytest.mark.parametrize("flags", ["", "--privileged"])
def test_nested_container(nodes, flags):
    on(nodes, "mkdir -p /tmp/tiny/bin && cp /bin/busybox /tmp/tiny/bin/ && tar -C /tmp/tiny -c . | docker import - tiny")
    assert on(nodes, f"docker run --rm {flags} tiny /bin/busybox echo inside") == "inside"


def test_nested_pod(nodes):
    cri.prepare(nodes, NAME)
    with cri.connect(nodes, NAME) as client:
        pod, container = client.run("runc", {"SEEN": "inside"})
        code, out, _ = client.exec(container, ["/bin/env"])
        client.remove(pod)
        assert code == 0 and "SEEN=inside" in out.split() and client.pods() == []
        with pytest.raises(cri.Refused, match='no runtime for "ascend" is configured'):
            client.run("ascend")


def test_two_reboots_by_ansible(nodes, ansible):
    on(nodes, "echo kept | tee /etc/kept /usr/kept /var/lib/kept; touch /run/gone; mknod /dev/gone c 1 3")
    edited = ansible("lineinfile", "path=/etc/hosts line='192.0.2.1 written-by-test'")
    assert edited.returncode == 0, edited.stdout
    boots = [nodes.boot_id(NAME)]
    for _ in range(2):
        done = ansible("reboot")
        assert done.returncode == 0, done.stdout + done.stderr
        boots.append(nodes.boot_id(NAME))
    assert len(set(boots)) == 3
    assert on(nodes, "cat /etc/kept /usr/kept /var/lib/kept; grep -c written-by-test /etc/hosts").split() == ["kept"] * 3 + ["1"]
    assert on(nodes, "ls /run/gone /dev/gone 2>/dev/null | wc -l") == "0"
    nodes.up([NAME], tag="node-test")
    assert on(nodes, "docker run --rm tiny /bin/busybox echo again") == "again"
    assert len(on(nodes, "journalctl --list-boots -q").splitlines()) == 3


def test_reboot_by_the_tool(nodes):
    before = nodes.boot_id(NAME)
    nodes.reboot(NAME)
    assert nodes.boot_id(NAME) != before


def test_commands_and_sftp_are_counted_and_work(nodes, ssh, tmp_path):
    nodes.reset_calls(NAME)
    assert nodes.calls(NAME) == []
    assert ssh("exit 7").returncode == 7
    assert ssh("cat; printf '%s' \"$0\"", stdin="through").stdout.startswith("through")
    (tmp_path / "file").write_text("by sftp\n")
    done = ssh(tool="sftp", stdin=f"put {tmp_path}/file /root/by-sftp\n")
    assert done.returncode == 0, done.stderr
    on(nodes, "true")
    assert on(nodes, "cat /root/by-sftp") == "by sftp"
    assert [(call.user, call.kind) for call in nodes.calls(NAME)] == [("root", "exec"), ("root", "exec"), ("root", "sftp")]
    assert nodes.calls(NAME)[0].command == "exit 7"


def test_a_command_of_several_lines_is_one_call(nodes, ssh):
    nodes.reset_calls(NAME)
    assert ssh("echo one\necho two").stdout.split() == ["one", "two"]
    assert [call.command for call in nodes.calls(NAME)] == ["echo one echo two"]


def test_another_host_key_is_refused(nodes, ansible):
    key = "/etc/ssh/ssh_host_ed25519_key"
    on(nodes, f"mkdir /root/true-key && mv {key}* /root/true-key/ && ssh-keygen -q -t ed25519 -N '' -f {key} && systemctl restart ssh")
    try:
        done = ansible("ping")
    finally:
        on(nodes, "mv -f /root/true-key/* /etc/ssh/ && rmdir /root/true-key && systemctl reset-failed ssh && systemctl restart ssh")
    assert done.returncode != 0
    assert "Host key verification failed" in done.stdout + done.stderr
    assert ansible("ping").returncode == 0


def test_unknown_node_is_named(nodes):
    with pytest.raises(NodesError, match=f"no node stranger; nodes here: .*{NAME}"):
        nodes.ip("stranger")
