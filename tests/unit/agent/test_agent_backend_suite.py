# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds for every backend: the agent as a process with simulated devices, against the kubelet stand-in."""

import json
import signal
import time

import grpc
import pytest
from agent_rig import until
from backend_rig import WORLDS, allocate, imported, plain, run

HOLD = 1.0  # recovery_seconds


@pytest.fixture(params=WORLDS)
def world(request, tmp_path_factory, package, library):
    made = WORLDS[request.param](tmp_path_factory.mktemp("node"), package, library)
    made.rig.backend = request.param
    yield made
    made.close()


def serving(world, healthy, total):
    until(lambda: world.rig.numbers(world.resource) == (healthy, total), what=f"{healthy} of {total} at the kubelet")


def start(world, name="agent", **settings):
    agent = world.rig.agent(name=name, allocate_mounts="never", recovery_seconds=HOLD, **settings)
    agent.await_state("serving")
    return agent


def test_the_life_of_devices(world):
    rig, resource, ids, total = world.rig, world.resource, list(world.ids), len(world.ids)
    rig.kubelet()
    agent = start(world)
    serving(world, total, total)
    assert sorted(rig.ask("devices")[resource]) == ids
    report = agent.report()
    assert report["ready"] and (report["healthy"], report["total"]) == (total, total) and report["reasons"] == []

    # A container gets the nodes and variables of its devices, and nothing else.
    for chosen in (ids[:1], ids):
        (answer,) = allocate(rig, resource, chosen)
        envs, devices = plain(answer)
        assert (envs, sorted(devices)) == (world.given(chosen)[0], sorted(world.given(chosen)[1]))
        assert not answer["mounts"] and not answer["cdi_devices"]
    pod = rig.ask("allocate", count=total, resource=resource, pod="all")
    assert pod["phase"] == "Running" and sorted(pod["devices"][resource]) == ids
    rig.ask("delete", pod="all")
    with pytest.raises(grpc.RpcError) as refused:
        allocate(rig, resource, ["no-such-77"])
    assert f"no-such-77 is no id of {resource} on this node" in refused.value.details()

    # What labels are made of.
    node = json.loads(agent.get("/node")[1])
    assert (node["backend"], node["present"], node["ready"], node["healthy"]) == (world.rig.backend, True, True, total)

    # One that is lost is told at once, and comes back when it has been well for a while.
    name = ids[-1]
    world.lose(name)
    serving(world, total - 1, total)
    assert [one for one, device in rig.ask("devices")[resource].items() if not device["healthy"]] == [name]
    assert f"{name}: " in " ".join(agent.report()["reasons"]) and world.lost in " ".join(agent.report()["reasons"])
    chip = [line for line in agent.get("/metrics")[1].splitlines() if line.startswith("npu_agent_chip_healthy") and f'"{name}"' in line]
    assert [float(line.rpartition(" ")[2]) for line in chip] == [0]
    mended = time.monotonic()
    world.mend(name)
    serving(world, total, total)
    assert time.monotonic() - mended >= HOLD

    # A kubelet that starts anew hears of the same ids.
    rig.restart_kubelet()
    serving(world, total, total)
    assert sorted(rig.ask("devices")[resource]) == ids
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(60) == 0
    (stopped,) = agent.events("stopped")
    assert "cause" not in stopped  # by itself, not by the limit of 2 s


def test_shares_and_names_that_stay(world):
    rig, ids = world.rig, list(world.ids)
    rig.kubelet()
    start(world, shares=2)
    shared = [f"{name}-{share}" for name in ids for share in (0, 1)]
    serving(world, len(shared), len(shared))
    assert sorted(rig.ask("devices")[world.resource]) == shared
    (answer,) = allocate(rig, world.resource, shared[:2])  # both of one device
    envs, devices = plain(answer)
    assert (envs, sorted(devices)) == (world.given(ids[:1])[0], sorted(world.given(ids[:1])[1]))
    until((rig.folder / "state/names.json").exists)
    assert sorted(json.loads((rig.folder / "state/names.json").read_text())["names"]) == ids


def test_discover_and_check(world):
    rig = world.rig
    code, text = run(rig, "discover", "--json", allocate_mounts="never")
    found = json.loads(text)
    assert code == 0, text
    assert found["backend"] == rig.backend and found["present"] and found["complete"]
    offered = {form["id"]: form for chip in found["chips"] for form in chip["offered"]}
    assert sorted(offered) == list(world.ids) and all(form["resource"] == world.resource and form["healthy"] for form in offered.values())
    assert found["resources"] == {world.resource: {"healthy": len(world.ids), "total": len(world.ids)}}
    code, text = run(rig, "discover", allocate_mounts="never")
    assert code == 0 and f"{world.resource}: {len(world.ids)} of {len(world.ids)} healthy" in text
    assert run(rig, "check")[0] == 0
    settings, words = world.bad
    code, text = run(rig, "check", **settings)
    assert code == 2 and words in text
    if rig.backend != "ascend":
        code, text = run(rig, "cdi", "--check")
        assert code == 1 and f"the backend {rig.backend} has no CDI specification" in text


@pytest.mark.parametrize("name", WORLDS)
def test_only_the_one_in_use_is_imported(package, name):
    script = f"""
import sys, npu_agent.cli, npu_agent.serve
from npu_agent import backends
backends.by_name({name!r})
print(*sorted(one.rpartition(".")[2] for one in sys.modules if one.startswith("npu_agent.backends.")))
"""
    found = set(imported(package, script))
    assert found & set(WORLDS) == {name}
    assert ("declared" in found) == (name in ("paths", "remote"))
