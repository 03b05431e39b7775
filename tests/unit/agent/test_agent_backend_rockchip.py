# SPDX-License-Identifier: GPL-3.0-or-later
"""The NPU of a Rockchip board: what is seen of it, and what a container gets."""

import json
import os
import re
import shutil

import pytest
from agent_rig import until
from backend_rig import Bench, RockchipWorld, living, rockchip_tree, run


@pytest.fixture
def board(package, tmp_path):
    def make(settings=None, **board):
        rockchip_tree.tree(tmp_path, **board)
        return Bench(tmp_path, **(settings or {}))

    return make


def only(bench):
    (record,) = bench.look().chips
    return record


STACKS = [
    ({"soc": "rk3588"}, "rockchip.com/rknpu", "npu-rk3588-0", ["dri/card1", "dri/renderD129"]),
    ({"soc": "rk3588", "gpu": False}, "rockchip.com/rknpu", "npu-rk3588-0", ["dri/card0", "dri/renderD128"]),
    ({"soc": "rk3583"}, "rockchip.com/rknpu", "npu-rk3583-0", ["dri/card1", "dri/renderD129"]),
    ({"soc": "rk3566", "stack": "rknpu-misc"}, "rockchip.com/rknpu", "npu-rk3566-0", ["rknpu"]),
    ({"soc": "rk3588", "stack": "rocket"}, "rockchip.com/rocket", "npu-rk3588-0", ["accel/accel0"]),
]


@pytest.mark.parametrize("case", STACKS, ids=lambda case: "-".join(case[0].values() if "gpu" not in case[0] else ["headless"]))
def test_each_stack_has_its_nodes_and_its_resource(board, case):
    shown, resource, name, nodes = case
    bench = board(**shown)
    record = only(bench)
    assert bench.backend.name == "rockchip" and "has a Rockchip NPU and no Ascend one" in bench.why
    assert (bench.backend.resource(record), record["natural"], record["family"]) == (resource, name, shown["soc"])
    assert bench.verdict(record) == (True, "")
    given = bench.give(record)
    assert given["devices"] == [(f"{bench.dev}/{node}", f"/dev/{node}") for node in nodes]
    assert given["envs"]["NPU_FLEET_SOC"] == shown["soc"] and given["mounts"] == given["cdi"] == []


def test_cores_and_driver_as_far_as_they_are_known(board):
    bench = board(soc="rk3576", debugfs=False)
    assert bench.give(only(bench))["envs"] == {
        "NPU_FLEET_SOC": "rk3576", "NPU_FLEET_NPU_STACK": "rknpu-drm", "NPU_FLEET_NPU_CORES": "2", "NPU_FLEET_NPU_CORE_MASK": "0x3"}


def test_an_ascend_card_in_the_board_wins(board):
    bench = board(soc="rk3588")
    living(bench.dev / "davinci0")
    again = Bench(bench.folder)
    assert again.backend.name == "ascend" and "beside the one of its Rockchip SoC" in again.why
    assert Bench(bench.folder, backend="rockchip").backend.name == "rockchip"


def test_a_node_that_has_had_ascend_chips_stays_with_them(board, tmp_path):
    """A card that fell off the bus is no reason to serve something else."""
    settings = {"state_dir": tmp_path / "state"}
    (tmp_path / "state").mkdir()
    known = {"vdie": "a", "serial": None, "device_id": 0, "pci_address": None, "phy_id": 5}
    file = tmp_path / "state/names.json"
    for names, backend in (({"Ascend310P-0": known}, "ascend"), ({"npu-rk3588-0": known}, "rockchip"), ({}, "rockchip"), (5, "rockchip")):
        file.write_text(json.dumps({"schema": 1, "names": names}))
        bench = board(settings, soc="rk3588")
        assert bench.settings.backend == backend
        if backend == "ascend":
            assert bench.why.startswith("this node has had Ascend NPUs (Ascend310P-0), and none is seen now; ") and "rockchip`" in bench.why
    file.write_text(json.dumps({"schema": 1, "names": {"Ascend310P-0": known}}))
    assert board({**settings, "backend": "rockchip"}, soc="rk3588").settings.backend == "rockchip"
    file.unlink()
    assert board(settings, soc="rk3588").settings.backend == "rockchip"


def test_a_board_has_no_cdi_specification(world):
    """By `auto` that is known only on the node."""
    code, text = run(world.rig, "check", backend="auto", allocate_by="cdi", cdi_folder="/etc/cdi")
    assert code == 2 and "allocate_by is 'cdi', but this node has a Rockchip NPU and no Ascend one, and the backend rockchip has no" in text
    code, text = run(world.rig, "check", backend="auto", cdi_folder="/etc/cdi")
    assert code == 0 and "cdi_folder is set, but the backend rockchip has no CDI specification: none is kept" in text


def test_nothing_there_is_ascend(package, tmp_path):
    bench = Bench(tmp_path)
    assert (bench.backend.name, bench.why) == ("ascend", "this node has no Rockchip NPU")


def broken(bench):
    """A node that exists and has no living driver behind it."""
    path = bench.dev / "dri/renderD129"
    path.unlink()
    os.mknod(path, 0o600 | 0o020000, os.makedev(226, 129))


def link(bench):
    (bench.dev / "dri/card1").unlink()
    (bench.dev / "dri/card1").symlink_to("renderD129")


@pytest.mark.parametrize(("harm", "words"), [
    (broken, "its driver is broken: .*renderD129 cannot be opened: No such device or address"),
    (link, "card1 is a symbolic link"),
    (lambda bench: (bench.dev / "dri/card1").unlink(), "card1 is missing"),
    (lambda bench: (bench.dev / "dri/card1").rename(bench.dev / "dri/card7"), "card1 is missing"),
    (lambda bench: (bench.dev / "rknpu").symlink_to("dri/renderD129"), "/rknpu is a symbolic link"),
])
def test_what_makes_it_unhealthy(board, harm, words):
    bench = board(soc="rk3588")
    harm(bench)
    healthy, reason = bench.verdict(only(bench))
    assert healthy is False and re.search(words, reason)


def test_no_driver_is_told_as_such(board):
    bench = board(soc="rk3588", bound=False)
    healthy, reason = bench.verdict(only(bench))
    assert healthy is False and "fdab0000.npu has no driver" in reason and "PCI" not in reason
    from npu_agent.backends.base import Refused

    with pytest.raises(Refused, match=r"npu-rk3588-0 \(fdab0000.npu\) cannot be given: .*has no driver"):
        bench.give(only(bench))


def test_the_card_is_not_opened(board, monkeypatch):
    """Who opens a DRM card first becomes its master; the render node has none. Nothing is opened here, but by a process of its own."""
    from npu_agent.opener import Opener

    bench, tried, opened, real = board(soc="rk3588"), [], [], os.open
    monkeypatch.setattr(Opener, "refusals", lambda _self, paths: dict.fromkeys(map(str, tried.extend(paths) or tried), ""))
    monkeypatch.setattr(os, "open", lambda path, *more: opened.append(str(path)) or real(path, *more))
    assert bench.look().chips
    assert tried == [f"{bench.dev}/dri/renderD129"] and not [path for path in opened if path.startswith(f"{bench.dev}/")]


def test_nodes_are_those_of_now(board):
    """A driver that came back may have other numbers; the id stays."""
    bench = board(soc="rk3588")
    record = only(bench)
    for path in [*bench.sys.glob("class/drm/*"), *bench.dev.glob("dri/*D1*"), *bench.dev.glob("dri/card*")]:
        path.unlink()
    rockchip_tree.tree(bench.folder, soc="rk3588", gpu=False)
    assert [inside for _host, inside in bench.give(record)["devices"]] == ["/dev/dri/card0", "/dev/dri/renderD128"]
    assert only(bench)["natural"] == record["natural"]


def test_further_nodes_where_they_exist_and_never_by_a_link(board):
    bench = board({"rockchip_extra": ["/dev/rga", "/dev/mpp_*", "/dev/dma_heap/cma", "/dev/video-enc0"]}, soc="rk3588")
    (bench.dev / "video-enc0").symlink_to("rga")
    devices = [inside for _host, inside in bench.give(only(bench))["devices"]]
    assert devices == ["/dev/dri/card1", "/dev/dri/renderD129", "/dev/rga", "/dev/mpp_service"]


@pytest.mark.parametrize(("path", "words"), [
    ("/dev/dri/card0", "can be a node of the GPU and the display"), ("/dev/dri/by-path/x", "can be a node of the GPU"),
    ("/dev/accel/accel*", "can be a node of other accelerators"), ("/dev/*/card0", "can be a node of"), ("/dev/[a-z]r?/x", "the GPU"),
])
def test_no_further_node_is_one_of_the_gpu(board, path, words):
    from npu_agent.config import ConfigError

    board({"rockchip_extra": ["/dev/dri", "/dev/drive/x", "/dev/dma_heap/*", "/dev/mpp_*", "/dev/accel-x"]}, soc="rk3588")
    with pytest.raises(ConfigError, match=words):
        board({"rockchip_extra": [path]}, soc="rk3588")


def test_a_link_with_the_name_of_the_other_build_is_never_given(board):
    bench = board({"rockchip_extra": ["/dev/rknpu"]}, soc="rk3588")
    (bench.dev / "rknpu").symlink_to("dri/renderD129")
    from npu_agent.backends.base import Refused

    with pytest.raises(Refused, match="rknpu is a symbolic link, no device node: remove it"):
        bench.give(only(bench))


def test_what_can_be_read_without_waking_it(board):
    bench = board(soc="rk3588", load=(0, 21, 5))
    zone = bench.sys / "class/thermal/thermal_zone5"
    zone.mkdir(parents=True)
    (zone / "type").write_text("npu-thermal\n")
    (zone / "temp").write_text("48230\n")
    record = only(bench)
    assert record["telemetry"] == {"temperature_c": 48.23, "temperature_limit_c": None, "ecc": None, "load": [0, 21, 5], "power": False}
    assert (record["driver_version"], record["cores"], record["serial"], record["pci_address"]) == (
        "0.9.8", 3, "c3d9b8674f4b94f6", "fdab0000.npu")
    (zone / "temp").write_text("")
    assert only(bench)["telemetry"]["temperature_c"] is None


def test_a_blind_look_is_no_board_without_npu(board, monkeypatch):
    from npu_agent.backends import base

    bench = board(soc="rk3588")
    bench.look()

    def refuse(path):
        raise OSError(24, "Too many open files", path)

    monkeypatch.setattr(base.os, "listdir", refuse)
    sight = bench.look()
    assert sight.present and not sight.complete and "Too many open files" in sight.problems[0]


@pytest.fixture
def world(tmp_path_factory, package, library):
    made = RockchipWorld(tmp_path_factory.mktemp("node"), package, library)
    yield made
    made.close()


def test_a_node_that_goes_is_told_at_once_and_a_reload_keeps_the_backend(world):
    """The next look would be in ten minutes: it is the folder below /dev that tells."""
    rig = world.rig
    rig.kubelet()
    agent = rig.agent(poll_seconds=600)
    agent.await_state("serving")
    until(lambda: rig.numbers(world.resource) == (1, 1), what="the NPU at the kubelet")
    world.lose(None)
    until(lambda: rig.numbers(world.resource) == (0, 1), what="the lost node at the kubelet")
    world.mend(None)
    until(lambda: rig.numbers(world.resource) == (1, 1), what="the node that is back at the kubelet")
    (said,) = agent.events("backend")
    assert said["backend"] == "rockchip" and "no Ascend one" in said["cause"]
    rig.config.write_text("# nothing else\n")
    agent.process.send_signal(1)
    (read,) = until(lambda: agent.events("configuration read again"), what="a reload in place")
    assert read["changed"] == {}


def test_a_driver_that_comes_later(world):
    """/dev/dri is not there yet when the agent starts."""
    rig = world.rig
    shutil.rmtree(world.dev / "dri")
    rig.kubelet()
    agent = rig.agent(poll_seconds=600)
    agent.await_state("serving")
    until(lambda: rig.numbers(world.resource) == (0, 1), what="an NPU that cannot be used yet at the kubelet")
    rockchip_tree.tree(rig.folder, soc="rk3588")
    until(lambda: rig.numbers(world.resource) == (1, 1), what="the NPU at the kubelet")
