# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd as an engine: a host in a temporary root whose CRI is a real gRPC server in this process."""

import json
import os

import pytest
from cri_host import EXPECT, GONE, WRAPPER, Host, config
from cri_server import pod, version

from ansible_collections.npu.fleet.plugins.module_utils import _engine_containerd as containerd
from ansible_collections.npu.fleet.plugins.module_utils import _engine_cri as cri
from ansible_collections.npu.fleet.plugins.module_utils._command import Result
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

PLANTED = "hunter2-planted"


# --- a host ---


@pytest.fixture()
def host(tmp_path):
    return Host(tmp_path)


def test_the_process_at_the_socket_decides(host, serve):
    """Two of them: kubelet's is not the one in PATH, and reads another file."""
    host.write("opt/k/bin/containerd", "").chmod(0o755)
    host.write("etc/k/config.toml", "version = 2\n")
    host.process(os.getpid(), words=["/opt/k/bin/containerd", "-config", "/etc/k/config.toml"], exe="/opt/k/bin/containerd")
    serve(config())
    engine = host.engine()
    assert engine.pid == os.getpid()
    assert engine.config_path == "/etc/k/config.toml"
    assert engine.binary() == str(host.root / "opt/k/bin/containerd")
    assert engine.unit["name"] == "containerd.service"
    assert engine.unit["loaded"]
    engine.require()
    assert engine.read()["files"][0]["path"] == "/etc/k/config.toml"


def test_a_program_that_was_replaced_while_it_runs(host, serve):
    host.process(os.getpid(), exe="/usr/bin/containerd (deleted)")
    serve(config())
    assert host.engine().binary() == str(host.root / "usr/bin/containerd")


def test_kubelets_endpoint_is_the_socket(host, serve):
    words = ["kubelet", "--container-runtime-endpoint=unix:///run/other/containerd.sock"]
    host.process(9, words=words, comm="kubelet", unit="kubelet.service")
    host.process(os.getpid(), unit="other.service")
    serve(config(), path=host.root / "run/other/containerd.sock")
    engine = host.engine()
    assert engine.socket_path == "/run/other/containerd.sock"
    assert engine.unit["name"] == "other.service"
    assert engine.facts()["active"]


@pytest.mark.parametrize(
    ("command", "text", "path"),
    [
        ("/usr/bin/containerd", "version = 2\n", "/run/containerd/containerd.sock"),
        ("/usr/bin/containerd", "[grpc]\naddress = '/run/mine.sock'\n", "/run/mine.sock"),
        ("/usr/bin/containerd -a /run/flag.sock", "[grpc]\naddress = '/run/mine.sock'\n", "/run/flag.sock"),
        ("/usr/bin/containerd --address=/run/flag.sock", "", "/run/flag.sock"),
    ],
)
def test_the_socket_where_no_kubelet_is(host, command, text, path):
    host.command = command
    host.write("etc/containerd/config.toml", text)
    assert host.engine().socket_path == path


def test_a_containerd_that_is_down(host):
    host.unit["ActiveState"] = "inactive"
    host.command = "/usr/bin/containerd --config /etc/c.toml"
    engine = host.engine()
    facts = engine.facts()
    assert (engine.pid, engine.config_path) == (None, "/etc/c.toml")
    assert facts["active"] is False
    assert facts["containers_running"] is None
    assert "No such file" in facts["error"]
    assert engine.unmet(facts, EXPECT).startswith("containerd does not answer")
    assert engine.restart_kills(facts) == []
    assert not engine.running()
    assert engine.failed()


def test_a_socket_that_systemd_holds(host, serve, monkeypatch):
    host.unit["MainPID"] = "77"
    host.process(77, words=["/usr/bin/containerd", "--config", "/etc/x.toml"])
    serve(config())
    monkeypatch.setattr(cri, "listener", lambda _path: 1)
    engine = host.engine()
    assert (engine.pid, engine.config_path) == (77, "/etc/x.toml")


def test_a_containerd_started_by_hand_is_not_ours_to_restart(host, serve):
    host.process(os.getpid(), unit=None)
    serve(config())
    engine = host.engine()
    assert engine.facts()["active"]
    with pytest.raises(FleetError) as caught:
        engine.require()
    assert caught.value.code == "engine_unmanaged"


def test_another_file_than_the_engine_reads(host, serve):
    host.process(os.getpid(), words=["containerd", "--config", "/etc/real.toml"])
    serve(config())
    assert host.engine("/etc//real.toml").config_path == "/etc/real.toml"
    with pytest.raises(FleetError) as caught:
        host.engine("/etc/wrong.toml")
    assert caught.value.code == "config_path_mismatch"


# --- what it says ---


def test_facts(host, serve):
    pods = pod("b", "ascend") + pod("a", "") + pod("old", "ascend", ready=False)
    host.process(os.getpid())
    serve(config(enableCDI=True, registry={"auth": {"password": PLANTED}}), pods=pods)
    engine = host.engine()
    facts = engine.facts()
    assert facts == {
        "active": True, "version": "1.6.20~ds1", "error": None,
        "runtimes": {"runc": {"path": "", "args": [], "type": "io.containerd.runc.v2"},
                     "ascend": {"path": WRAPPER, "args": [], "type": "io.containerd.runc.v2"}},
        "default_runtime": "runc", "live_restore": None, "containers_running": 2, "handlers": ["ascend", "runc"], "cdi": True,
    }
    assert engine.unmet(facts, EXPECT) is None
    assert engine.unmet(facts, GONE) == "it still has the runtime ascend"
    assert engine.unmet(facts, dict(EXPECT, default="ascend")) == "its default runtime is runc"
    assert engine.users("ascend", facts) == ["space/b", "space/old"]
    assert engine.users("nvidia", facts) == []
    assert not engine.failed()


def test_cdi_of_an_engine_that_does_not_know_it(host, serve):
    serve(config())
    assert host.engine().facts()["cdi"] is False


def test_a_containerd_that_does_not_tell_options(host, serve):
    told = config()
    for runtime in told["containerd"]["runtimes"].values():
        runtime["options"] = {}
    serve(told, number="1.4.13", services=("runtime.v1alpha2.RuntimeService",))
    engine = host.engine()
    facts = engine.facts()
    assert {name: runtime["path"] for name, runtime in facts["runtimes"].items()} == {"runc": "", "ascend": WRAPPER}
    assert engine.unmet(facts, EXPECT) is None


def test_a_handler_that_cri_does_not_list(host, serve):
    """Its record of the configuration is not what it serves."""
    serve(config(), handlers=["", "runc"])
    engine = host.engine()
    assert engine.unmet(engine.facts(), EXPECT) == "CRI does not list the handler ascend"


def test_an_engine_without_cri_is_down_for_good(host, serve):
    """The unit is active, the socket answers, and kubelet can not use it: containerd 1.7 whose file names only our runtime."""
    host.process(os.getpid())
    serve(answers={"Version": version()}, services=("containerd.services.version.v1.Version",))
    engine = host.engine()
    facts = engine.facts()
    assert facts["active"] is False
    assert "unknown service" in facts["error"] or "not found" in facts["error"].lower()
    assert engine.running()
    assert engine.failed()


def test_an_engine_that_is_not_ready(host, serve):
    serve(config(), ready=False)
    facts = host.engine().facts()
    assert facts["active"] is False
    assert facts["error"] == "it is not ready: not yet"


def test_the_entry_of_npu_info(host, serve):
    host.process(os.getpid())
    serve(config())
    entry = containerd.observe(host.run, str(host.root), 5)
    assert entry["name"] == "containerd"
    assert entry["runtimes"] == {"runc": "io.containerd.runc.v2", "ascend": WRAPPER}
    assert entry["configured"]["runtimes"]["ascend"] == WRAPPER
    assert entry["socket"] == "/run/containerd/containerd.sock"
    assert len(entry["config_sha256"]) == 64
    assert (entry["kubelet"], entry["error"], entry["cdi"]) == (None, None, False)


def test_the_entry_of_one_whose_file_is_broken(host):
    host.dump = (1, "", f"containerd: failed to load TOML: /etc/x: (3, 2): password={PLANTED}\n")
    entry = containerd.observe(host.run, str(host.root), 5)
    assert entry["active"] is False
    assert "(3, 2)" in entry["configured"]["error"]
    assert PLANTED not in str(entry)


# --- what a restart ends ---


ENDED = ["moby/0123456789ab", "space/b"]


@pytest.mark.parametrize(("mode", "kills"), [("control-group", ENDED), ("mixed", ENDED), ("process", []), ("none", [])])
def test_what_a_restart_ends(host, serve, mode, kills):
    host.unit["KillMode"] = mode
    host.process(os.getpid())
    shim = "/usr/bin/containerd-shim-runc-v2"
    host.process(101, words=[shim, "-namespace", "k8s.io", "-id", "id-b-a"], comm="containerd-shim-runc-v2")
    host.process(102, words=[shim, "-namespace", "moby", "-id", "0123456789abcdef"], comm="containerd-shim-runc-v2")
    host.process(103, words=[shim, "-namespace", "k8s.io", "-id", "id-a-a"], comm="containerd-shim-runc-v2", unit="other.service")
    host.process(104, words=["sleep"], comm="sleep")
    serve(config(), pods=pod("b", "ascend") + pod("a", ""))
    engine = host.engine()
    assert engine.restart_kills(engine.facts()) == kills


INFO = {"ServerVersion": "19.03.15", "Runtimes": {}, "LiveRestoreEnabled": False, "ContainersRunning": 2}
BOUND = {"BoundBy": "docker.service other.service"}
NAMES = ["train-0", "web"]


@pytest.mark.parametrize(
    ("depends", "state", "told", "kills"),
    [
        (BOUND, "active", (INFO, NAMES), NAMES),
        ({"RequiredBy": "docker.service"}, "active", (INFO, NAMES), NAMES),
        ({"ConsistsOf": "docker.service"}, "active", (INFO, NAMES), NAMES),
        (BOUND, "active", (INFO, []), []),
        (BOUND, "active", (dict(INFO, LiveRestoreEnabled=True), NAMES), []),
        (BOUND, "inactive", (INFO, NAMES), []),
        ({"BoundBy": "other.service", "RequiredBy": "", "ConsistsOf": ""}, "active", (INFO, NAMES), []),
        ({}, "active", (INFO, NAMES), []),
        (BOUND, "active", None, ["docker.service (bound to containerd.service)"]),
    ],
)
def test_a_restart_ends_the_containers_of_a_docker_that_is_bound_to_it(host, depends, state, told, kills):
    """docker-ce has BindsTo=containerd.service: systemd restarts docker along, and without live-restore its containers end."""
    if told is not None:
        host.write("usr/bin/docker", "").chmod(0o755)
    answers = {
        ("systemctl", "show", "containerd.service", "--property=RequiredBy,BoundBy,ConsistsOf"):
            "".join(f"{key}={value}\n" for key, value in depends.items()),
        ("docker", "info"): json.dumps((told or [None])[0]),
        ("docker", "ps"): "".join(name + "\n" for name in told[1]) if told else "",
    }

    def run(argv, timeout, cwd=None, **more):
        words = (os.path.basename(argv[0]), *argv[1:])
        for known, stdout in answers.items():
            if words[:len(known)] == known:
                return Result(argv, 0, stdout, "", False, 0.1)
        result = host.run(argv, timeout, cwd, **more)
        if words[:3] == ("systemctl", "show", "docker.service"):
            return result._replace(stdout=f"LoadState=loaded\nActiveState={state}\n")
        return result

    engine = containerd.Engine(run, str(host.root), 5, 5)
    assert engine.restart_kills(engine.facts()) == kills
