# SPDX-License-Identifier: GPL-3.0-or-later
"""Declared endpoints: how they are, what a container gets, and that nobody tells their secrets."""

import json
import os
import socket
import time
from types import SimpleNamespace

import pytest
from agent_rig import until
from backend_rig import Bench, RemoteWorld, listener, living

ONE = {"resource": "example.com/npu", "name": "rack-0", "address": "127.0.0.1:1"}


@pytest.fixture
def bench(package, tmp_path):
    made = []

    def make(*entries, **settings):
        made.append(Bench(tmp_path, backend="remote", endpoints=list(entries), **settings))
        return made[-1]

    yield make
    for one in made:
        if one.looker is not None:
            one.looker.close()


@pytest.fixture
def remote(package):
    from npu_agent.backends import remote

    return remote


@pytest.fixture
def open_port():
    made = listener()
    yield made.getsockname()[1]
    made.close()


@pytest.fixture
def silent():
    """A port that answers nothing: its queue is full, so that the kernel drops each further connection."""
    server, waiting = socket.socket(), []
    server.bind(("127.0.0.1", 0))
    server.listen(0)
    for _unused in range(4):
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex(server.getsockname())
    yield server.getsockname()[1]
    for one in (server, *waiting):
        one.close()


def test_what_a_try_says(remote, open_port, silent):
    assert remote.knock("127.0.0.1", open_port, 30) == ""
    with listener() as closed:
        port = closed.getsockname()[1]
    assert remote.knock("127.0.0.1", port, 30) == "no connection: Connection refused"
    assert remote.knock("127.0.0.1", silent, 0.2) == "no connection within 0.2 s"


def named(*ports):
    """What the resolver says of a name with several addresses."""
    return lambda *_words, **_more: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]


def test_a_name_with_several_addresses(remote, open_port, silent, monkeypatch):
    """One that answers is enough, wherever it stands, and the time is for all of them."""
    with listener() as closed:
        refused = closed.getsockname()[1]
    monkeypatch.setattr(socket, "getaddrinfo", named(silent, refused, open_port))
    began = time.monotonic()
    assert remote.knock("npu.example", 80, 60) == "" and time.monotonic() - began < 30
    monkeypatch.setattr(socket, "getaddrinfo", named(refused, *[silent] * 6))
    began = time.monotonic()
    assert remote.knock("npu.example", 80, 2) == "no connection within 2 s" and time.monotonic() - began < 10  # one after the other: 12
    monkeypatch.setattr(socket, "getaddrinfo", named(refused, refused))
    assert remote.knock("npu.example", 80, 60) == "no connection: Connection refused"


def test_the_first_verdict_of_a_try_counts(remote, monkeypatch):
    """A connection that came about too late was told as none in between."""
    now, told = [100.0], []

    def slow(*_words):
        now[0] += 2
        return ""

    monkeypatch.setattr(remote, "knock", slow)
    knocker = remote.Knocker(ONE, SimpleNamespace(query_timeout=1), lambda: told.append(1), lambda: now[0])
    for _unused in range(3):
        knocker.turn()
        assert knocker.told[1] == "no connection within 1 s"
    assert len(told) == 1


def test_a_resolver_that_takes_all_the_time(remote, open_port, monkeypatch):
    now = [0.0]

    def slow(*_words, **_more):
        now[0] += 9
        return named(open_port)()

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    assert remote.knock("npu.example", 80, 5, lambda: now[0]) == "no connection within 5 s"


def test_a_name_that_nobody_knows(remote, monkeypatch):
    def refuse(*_words, **_more):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert remote.knock("npu.example", 80, 30) == "the name npu.example cannot be resolved: Name or service not known"


def test_our_own_want_of_descriptors_says_nothing(remote, monkeypatch):
    def refuse(*_words):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(remote.socket, "socket", refuse)
    knocker = remote.Knocker(ONE, SimpleNamespace(query_timeout=1), lambda: None, time.monotonic)
    knocker.told = (1.0, "")
    knocker.turn()
    assert knocker.told == (1.0, "") and knocker.began is None


def test_no_proxy_is_asked(remote, open_port, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert remote.knock("127.0.0.1", open_port, 30) == ""


def test_one_that_hangs_holds_up_no_other(bench, open_port, silent):
    from npu_agent import signals

    other = {**ONE, "name": "rack-1", "address": f"127.0.0.1:{open_port}"}
    one = bench({**ONE, "address": f"127.0.0.1:{silent}"}, other, query_timeout=60)
    looker = one.looker = one.backend.looker(one.settings, signals.Watch())
    until(lambda: one.verdict(one.chips()["rack-1"])[0], what="the one that answers")
    assert one.verdict(one.chips()["rack-0"]) == (None, "it has not been tried yet")
    # A try that runs for longer than it may, for what the resolver does, counts as none.
    looker.knockers[0].began -= 61
    assert one.verdict(one.chips()["rack-0"]) == (False, f"127.0.0.1:{silent}: no connection within 60 s")


def test_a_fault_of_ours_ends_no_thread(bench, remote, monkeypatch):
    def fail(*_words):
        raise KeyError("odd")

    monkeypatch.setattr(remote, "knock", fail)
    one = bench(ONE)
    until(lambda: one.look().chips[0]["unfit"], what="the fault")
    assert "KeyError" in one.look().chips[0]["unfit"] and one.looker.knockers[0].thread.is_alive()


def test_what_a_container_gets(bench, tmp_path):
    entries = [{**ONE, "name": "a", "address": "[fd00::7]:8500", "nodes": ["/dev/link0"],
                "envs": {"URL": "grpc://{address}/{host}/{port}/{name}/{x}", "SAME": "1", "N": 5}},
               {**ONE, "name": "b-7", "address": "npu.example:1", "envs": {"URL": "two", "SAME": "1"}}]
    (tmp_path / "dev").mkdir(exist_ok=True)
    living(tmp_path / "dev/link0")
    one = bench(*entries, query_timeout=0.1)
    found = one.chips()
    assert list(found) == ["a-0", "b-7"]
    given = one.give(*found.values())
    assert given["envs"] == {
        "NPU_FLEET_ENDPOINTS": "a=[fd00::7]:8500,b-7=npu.example:1", "URL": "grpc://[fd00::7]:8500/fd00::7/8500/a/{x},two", "SAME": "1",
        "N": "5",
    }
    assert given["devices"] == [(f"{tmp_path}/dev/link0", "/dev/link0")]
    os.unlink(tmp_path / "dev/link0")
    assert "link0, which its `nodes` names" in one.chips()["a-0"]["node_trouble"]
    from npu_agent.backends.base import Refused

    with pytest.raises(Refused, match="a-0 cannot be given: there is no device node"):
        one.give(found["a-0"])


BAD = [
    ([{**ONE, "name": "-x"}], "entry 1: name must begin and end with a letter or digit"),
    ([{**ONE, "name": "a b"}], "entry 1: name must begin"),
    ([{**ONE, "address": "10.0.0.1"}], "entry 1: address must be HOST:PORT"),
    ([{**ONE, "address": "http://10.0.0.1:80"}], "entry 1: address must be HOST:PORT"),
    ([{**ONE, "address": "user:s3cr3t@h:80"}], "entry 1: address must be HOST:PORT"),
    ([{**ONE, "address": "h:65536"}], "a port from 1 to 65535"),
    ([{**ONE, "address": "h:080"}], "no number in it begins with 0"),
    ([{**ONE, "address": "010.0.0.7:80"}], "entry 1: address must be HOST:PORT"),
    ([{**ONE, "address": "10.7:80"}], "entry 1: address must be HOST:PORT"),
    ([{**ONE, "address": "0x7f000001:80"}], "entry 1: address must be HOST:PORT"),
    ([{**ONE, "address": "2130706433:80"}], "entry 1: address must be HOST:PORT"),
    ([{**ONE, "address": "[::1::]:80"}], "entry 1: address must be HOST:PORT"),
    ([{**ONE, "address": "[::1]:85"}, {**ONE, "name": "b", "address": "[0:0::1]:85"}], "[::1]:85 is there 2 times"),
    ([{**ONE, "address": "[::ffff:10.0.0.7]:85"}, {**ONE, "name": "b", "address": "10.0.0.7:85"}], "10.0.0.7:85 is there 2 times"),
    ([{**ONE, "address": "Host.example:85"}, {**ONE, "name": "b", "address": "host.Example:85"}], "host.example:85 is there 2 times"),
    ([{**ONE, "nodes": ["/dev/x"]}, {**ONE, "name": "b", "address": "h:2", "nodes": ["/dev/x"]}], "/dev/x is there 2 times: a node is one"),
    ([{**ONE, "name": "npu-1"}, {**ONE, "name": "npu-1-0", "address": "h:2"}], "npu-1-0 can be a share of npu-1"),
    ([{**ONE, "nodes": [f"/dev/x{number}" for number in range(200)]},
      {**ONE, "name": "b", "address": "h:2", "nodes": [f"/dev/y{number}" for number in range(57)]}], "it has 257 paths in all"),
    ([ONE, {**ONE, "name": "other"}], "127.0.0.1:1 is there 2 times: `shares` offers one several times"),
    ([ONE, {**ONE, "address": "h:2"}], "rack-0 is there 2 times: each needs a name of its own"),
    ([{**ONE, "name": "rack"}, {**ONE, "address": "h:2"}], "rack-0 is there 2 times"),
    ([{**ONE, "nodes": ["/dev/x*"]}], "'/dev/x*' must be a path, no pattern"),
    ([{**ONE, "resource": "x"}], "entry 1: resource: "),
    ([{**ONE, "token": "s3cr3t"}], "entry 1: there is no key 'token'"),
]


@pytest.mark.parametrize(("entries", "words"), BAD)
def test_what_is_refused(bench, entries, words):
    from npu_agent.config import ConfigError

    with pytest.raises(ConfigError) as refused:
        bench(*entries)
    assert words in str(refused.value) and "s3cr3t" not in str(refused.value)


def test_nobody_tells_the_secrets(tmp_path_factory, package, library):
    """Not the log, at its most talkative and over a change of the settings; not /readyz, /metrics, discover, nor a refusal."""
    world = RemoteWorld(tmp_path_factory.mktemp("node"), package, library)
    try:
        rig = world.rig
        text = json.dumps(world.settings["endpoints"])
        rig.config.write_text(f"backend: remote\nendpoints: {text}\n")
        rig.settings = {"proc_root": rig.proc}
        rig.kubelet()
        agent = rig.agent(log_level="debug")
        agent.await_state("serving")
        until(lambda: rig.numbers(world.resource) == (2, 2), what="both at the kubelet")
        assert rig.ask("allocate", count=1, resource=world.resource, pod="one")["response"]["envs"]["NPU_TOKEN"] == world.secret
        told = [agent.get(path)[1] for path in ("/readyz", "/metrics")]
        rig.config.write_text(f"backend: remote\nendpoints: {text.replace(world.secret, world.secret + '-new')}\n")
        agent.process.send_signal(1)
        until(lambda: len(agent.events("registered")) == 2, what="a start anew")
        assert agent.events("configuration changed, starting anew")
        rig.config.write_text(f"backend: remote\nendpoints: {text.replace('rack-7', '-')}\n")
        agent.process.send_signal(1)
        until(lambda: agent.events("the new configuration is refused, the old one stays"), what="a refusal")
        rig.config.write_text(f"backend: remote\nendpoints: {text}\n")
        shown = rig.agent(name="shown", command=("discover", "--json"))
        assert shown.process.wait(60) == 0
        told += [agent.text(), shown.text(), agent.get("/readyz")[1]]
        assert "rack-7" in shown.text()
        assert not [text for text in told if world.secret in text]
    finally:
        world.close()
