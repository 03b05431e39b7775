# SPDX-License-Identifier: GPL-3.0-or-later
"""oci_runtime against a real dockerd under systemd, over ssh.

Collected only when this file is named to pytest: it takes root and some minutes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/nodes"))

from nodes import Nodes
from npu_nodes import to_yaml

NAME = "engine-test"
CONFIG = "/etc/docker/daemon.json"
RUNTIME = "/opt/engine-test/runtime"
CANARY = "canary-90b2c4"
TOOLS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
ADMIN = '{\n    "log-driver": "journald",\n    "labels": ["rack=7"]\n}'


@pytest.fixture(scope="session")
def nodes():
    nodes = Nodes()
    nodes.prepare()
    nodes.image([], tag=NAME)
    nodes.down([NAME])
    nodes.up([NAME], tag=NAME)
    yield nodes
    nodes.down([NAME])


class Host:
    """The node, and the action run on it as a user would."""

    def __init__(self, nodes, folder):
        self.nodes = nodes
        self.folder = folder
        (folder / "inventory.yml").write_text(to_yaml(nodes.inventory([NAME])))
        (folder / "ansible_collections/npu").mkdir(parents=True)
        (folder / "ansible_collections/npu/fleet").symlink_to(ROOT)
        (folder / "ansible.cfg").touch()

    def act(self, *flags, fails=False, **options):
        """Run the action; return its result and everything that was printed."""
        clean = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        clean.update(
            PATH=TOOLS, ANSIBLE_HOME=str(self.folder / "home"), ANSIBLE_CONFIG=str(self.folder / "ansible.cfg"), ANSIBLE_NOCOLOR="1",
            ANSIBLE_COLLECTIONS_PATH=str(self.folder), ANSIBLE_PIPELINING="1",
        )  # fmt: skip
        argv = ["ansible", "-i", str(self.folder / "inventory.yml"), NAME, "-m", "npu.fleet.oci_runtime", "-a", json.dumps(options), *flags]
        done = subprocess.run(argv, env=clean, capture_output=True, text=True, timeout=180, check=False)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return json.loads(done.stdout[done.stdout.rindex("=> {") + 3 :]), done.stdout + done.stderr

    def sh(self, script):
        return self.nodes.exec(NAME, ["sh", "-c", script]).stdout.strip()

    def write(self, text):
        self.nodes.exec(NAME, ["sh", "-c", f"mkdir -p /etc/docker && printf %s '{text}' > {CONFIG}"])

    def digest(self):
        return self.sh(f"sha256sum {CONFIG}").split()[0]

    def pid(self):
        return self.sh("systemctl show -p MainPID --value docker")

    def info(self):
        return json.loads(self.sh("docker info --format '{{json .}}'"))


@pytest.fixture
def host(nodes, tmp_path):
    host = Host(nodes, tmp_path)
    host.sh(
        f"rm -rf /var/lib/npu-fleet {CONFIG} && mkdir -p /opt/engine-test && printf '#!/bin/sh\\nexec runc \"$@\"\\n' > {RUNTIME} && "
        f"chmod 755 {RUNTIME} && systemctl reset-failed docker; systemctl restart docker"
    )
    return host


def test_there_and_back_without_a_restart(host):
    host.write(ADMIN)
    host.sh("systemctl restart docker; chmod 640 " + CONFIG)
    pid, before = host.pid(), host.digest()
    host.sh("mkdir -p /tmp/t/bin && cp /bin/busybox /tmp/t/bin/ && tar -C /tmp/t -c . | docker import - tiny >/dev/null")
    host.sh("docker run -d --name stays tiny /bin/busybox sleep 1000")
    try:
        first, _printed = host.act(path=RUNTIME, set_default=True, args=["--debug"])
        assert (first["changed"], first["actions"], first["containers_running"]) == (True, ["reload"], 1)
        assert "20.10" in first["validation"] or first["validation"] == "by dockerd --validate"
        info = host.info()
        assert info["Runtimes"]["ascend"] == {"path": RUNTIME, "runtimeArgs": ["--debug"]}
        assert info["DefaultRuntime"] == "ascend"
        assert host.sh("docker run --rm tiny /bin/busybox echo inside") == "inside"
        assert host.sh(f"stat -c %a {CONFIG}") == "640"
        host.nodes.reset_calls(NAME)
        second, _printed = host.act(path=RUNTIME, set_default=True, args=["--debug"])
        assert second["changed"] is False
        assert len(host.nodes.calls(NAME)) <= 2
        last, _printed = host.act(state="absent")
        assert (last["changed"], last["actions"]) == (True, ["reload", "reload"])
        info = host.info()
        assert "ascend" not in info["Runtimes"]
        assert info["DefaultRuntime"] == "runc"
        assert host.digest() == before
        assert host.pid() == pid
        assert host.sh("docker inspect -f '{{.State.Running}}' stays") == "true"
    finally:
        host.sh("docker rm -f stays")


def test_no_file_and_no_folder(host):
    host.sh("rm -rf /etc/docker")
    predicted, printed = host.act("--check", "--diff", path=RUNTIME)
    assert predicted["changed"]
    assert '+    "ascend": {' in printed
    assert host.sh("test -e /etc/docker || echo absent") == "absent"
    host.act(path=RUNTIME)
    assert host.sh(f"stat -c '%a %U' /etc/docker {CONFIG}").split("\n") == ["755 root", "644 root"]
    assert "ascend" in host.info()["Runtimes"]
    pid = host.pid()
    host.act(path=RUNTIME, state="absent")
    assert host.sh(f"test -e {CONFIG} || echo absent") == "absent"
    assert "ascend" not in host.info()["Runtimes"]
    assert host.pid() == pid


def test_what_dockerd_refuses_comes_back_byte_for_byte(host):
    # dockerd runs; the admin has since written a key that it does not know, so each reload fails.
    host.write('{"no-such-key": 1}')
    before, pid = host.digest(), host.pid()
    result, _printed = host.act(path=RUNTIME, timeout=8, fails=True)
    assert host.digest() == before
    assert host.pid() == pid
    assert result["error"]["code"] in ("engine_rejected", "parser_refused")
    assert "no-such-key" in result["msg"]
    assert host.sh("systemctl is-active docker") == "active"


def test_a_dockerd_that_was_down_and_does_not_come_up(host):
    host.write('{"no-such-key": 1}')
    host.sh("systemctl stop docker.socket docker.service")
    before = host.digest()
    result, _printed = host.act(path=RUNTIME, timeout=20, fails=True)
    assert host.digest() == before
    assert "dockerd is DOWN" in result["msg"] or "refuses" in result["msg"]
    assert "no-such-key" in result["error"]["observed"]
    host.write("{}")
    result, _printed = host.act(path=RUNTIME, timeout=30)
    assert result["actions"] == ["start"]
    assert "ascend" in host.info()["Runtimes"]


def test_hosts_on_both_sides_is_named_and_nothing_touched(host):
    host.write('{"hosts": ["tcp://127.0.0.1:2375"]}')
    before, pid = host.digest(), host.pid()
    result, _printed = host.act(path=RUNTIME, fails=True)
    assert result["error"]["code"] == "config_conflict"
    assert '"hosts"' in result["msg"]
    assert (host.digest(), host.pid()) == (before, pid)


def test_killed_between_write_and_reload(host):
    """A systemctl on the node kills the very process that asks it to reload: the module, right after its write. The next run reloads."""
    host.write(ADMIN)
    host.sh("systemctl restart docker")
    host.sh(
        "mv /usr/bin/systemctl /usr/bin/systemctl.real && printf '#!/bin/sh\\n[ \"$1\" = reload ] && kill -9 $PPID && exit 1\\n"
        "exec /usr/bin/systemctl.real \"$@\"\\n' > /usr/bin/systemctl && chmod 755 /usr/bin/systemctl"
    )
    try:
        host.act(path=RUNTIME, timeout=30, fails=True)
    finally:
        host.sh("mv /usr/bin/systemctl.real /usr/bin/systemctl")
    assert "ascend" in host.sh(f"cat {CONFIG}")
    assert "ascend" not in host.info()["Runtimes"]
    result, _printed = host.act(path=RUNTIME)
    assert (result["changed"], result["actions"], "diff" in result) == (True, ["reload"], False)
    assert "ascend" in host.info()["Runtimes"]


def test_no_secret_in_the_loudest_output(host):
    host.write('{"registry-mirrors": ["https://me:%s@mirror.example/"], "log-opts": {"env": "PASSWORD=%s"}}' % (CANARY, CANARY))  # noqa: UP031
    printed = host.act("--check", "--diff", "-vvvv", path=RUNTIME)[1] + host.act("--diff", "-vvvv", path=RUNTIME)[1]
    assert "********" in printed
    assert CANARY not in printed
    logged = host.sh("journalctl -b --no-pager | grep ansible-; cat /var/lib/npu-fleet/engines/*.json")
    assert "ansible-npu.fleet.oci_runtime_node" in logged
    assert CANARY not in logged
    assert host.sh("stat -c '%a %a' /var/lib/npu-fleet/backups/*").split() == ["600", "600"]
