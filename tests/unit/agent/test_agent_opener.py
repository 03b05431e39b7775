# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether device nodes open: one that never comes back costs nothing but itself."""

import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest
from agent_rig import until
from backend_rig import Bench, living, rockchip_tree

# What the process does before it opens something: by the end of the path's name. The devices themselves are living ones.
ODD = """
import os, time
real = os.open
def odd(path, *more):
    name = os.path.basename(os.fsdecode(path))
    if name.startswith(("hang", "renderD")):
        while not os.path.exists(os.path.join(os.path.dirname(path), b"release")):
            time.sleep(0.01)
    if name.startswith("kill"):
        os.kill(os.getpid(), 9)
    if name.startswith("errno"):
        raise OSError(int(name[5:]), "odd")
    return real(path, *more)
os.open = odd
"""
SOON, LONG = 0.3, 60.0  # query_timeout


@pytest.fixture
def odd(package, monkeypatch):
    import npu_agent.opener

    monkeypatch.setattr(npu_agent.opener, "COMMAND", [sys.executable, "-I", "-S", "-c", ODD + npu_agent.opener.PROGRAM])


@pytest.fixture
def opener(package):
    import npu_agent.opener

    made = npu_agent.opener.Opener(SimpleNamespace(query_timeout=LONG))
    yield made
    made.close()


@pytest.fixture
def nodes(tmp_path):
    def make(*names):
        for name in names:
            living(tmp_path / name)
        return [str(tmp_path / name) for name in names]

    return make


def test_living_and_dead_nodes(opener, nodes, tmp_path):
    (well,) = nodes("well é\n")
    dead = str(tmp_path / "dead")
    os.mknod(dead, 0o600 | 0o020000, os.makedev(250, 250))
    assert opener.refusals([well, dead, str(tmp_path / "none")]) == {
        well: "", dead: "No such device or address", str(tmp_path / "none"): ""}
    child = opener.child
    assert opener.refusals([well]) == {well: ""} and opener.child is child
    assert opener.refusals([]) == {}


def test_no_process_without_a_question(opener):
    assert opener.refusals([]) == {} and opener.child is None


@pytest.mark.parametrize(("number", "words"), [
    (16, ""), (11, ""), (4, ""), (13, ""), (24, ""), (12, ""), (19, "No such device"), (5, "Input/output error"),
    (110, "Connection timed out"),
])
def test_which_refusals_are_of_the_device(odd, opener, nodes, number, words):
    """EBUSY, EAGAIN, EINTR: it lives, and somebody else has it."""
    (path,) = nodes(f"errno{number}")
    assert opener.refusals([path]) == {path: words}


def test_one_that_does_not_come_back(odd, opener, nodes, tmp_path):
    paths = hang, a, b = nodes("hang", "a", "b")
    opener.settings.query_timeout = SOON
    assert opener.refusals(paths) == {hang: "it does not come back from open()", a: "", b: ""}
    # It is waited for no second time, however long that would be, and tried no second time.
    opener.settings.query_timeout = LONG
    began = time.monotonic()
    assert opener.refusals(paths) == {hang: "it does not come back from open()", a: "", b: ""}
    assert time.monotonic() - began < LONG / 2 and opener.count == 5
    (tmp_path / "release").touch()
    until(lambda: opener.refusals(paths) == dict.fromkeys(paths, ""), what="the one that has come back")


def test_the_process_ends_with_the_agent_whatever_hangs(odd, opener, nodes):
    opener.settings.query_timeout = SOON
    opener.refusals(nodes("hang"))
    child = opener.child
    child.stdin.close()
    assert child.wait(60) == 0
    opener.settings.query_timeout = LONG
    (well,) = nodes("well")
    assert opener.refusals([well]) == {well: ""} and opener.child is not child


def test_a_process_that_was_killed_says_nothing_of_the_devices(opener, nodes):
    paths = nodes("a", "b")
    opener.refusals(paths)
    first = opener.child.pid
    os.kill(first, signal.SIGKILL)
    assert opener.refusals(paths) == dict.fromkeys(paths, "") and opener.child.pid != first


def test_a_device_that_kills_who_opens_it(odd, opener, nodes):
    paths = kill, a, b = nodes("kill", "a", "b")
    assert opener.refusals(paths) == {kill: "the process that tried to open it was killed, twice", a: "", b: ""}


def test_without_a_process_nobody_knows(opener, nodes, monkeypatch):
    import npu_agent.opener

    monkeypatch.setattr(npu_agent.opener, "COMMAND", ["/nonexistent"])
    paths = nodes("a")
    assert opener.refusals(paths) == {paths[0]: ""}
    monkeypatch.setattr(npu_agent.opener, "COMMAND", [sys.executable, "-c", ""])
    assert opener.refusals(paths) == {paths[0]: ""}


# --- in the backends

def test_a_device_that_hangs_blinds_nobody_for_the_others(odd, package, tmp_path):
    bench = Bench(tmp_path, backend="paths", query_timeout=SOON,
                  devices=[{"resource": "a.example/npu", "paths": ["/dev/hang[0-9]", "/dev/c[0-9]"], "open": True}])
    for number, name in enumerate(("c1", "c2", "hang3")):
        living(bench.dev / name, number)
    found = bench.chips()
    assert [bench.verdict(record)[0] for record in found.values()] == [True, True, False]
    assert bench.verdict(found["npu-3"])[1] == f"{bench.dev}/hang3 cannot be opened: it does not come back from open(); see `dmesg`"
    (bench.dev / "c2").unlink()
    assert [bench.verdict(record)[0] for record in bench.chips().values()] == [True, False, False]
    child = bench.looker.over.__self__.child
    bench.looker.close()
    assert child.poll() is not None


def test_a_board_whose_driver_hangs(odd, package, tmp_path):
    rockchip_tree.tree(tmp_path, soc="rk3588")
    bench = Bench(tmp_path, query_timeout=SOON)
    (record,) = bench.look().chips
    healthy, reason = bench.verdict(record)
    assert healthy is False and "renderD129 cannot be opened: it does not come back from open()" in reason
    bench.looker.close()


def test_what_is_not_to_be_opened_is_not(package, tmp_path):
    bench = Bench(tmp_path, backend="paths", devices=[{"resource": "a.example/npu", "paths": ["/dev/c[0-9]"]}])
    living(bench.dev / "c1")
    assert bench.chips() and bench.looker.over.__self__.child is None
