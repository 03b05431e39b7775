# SPDX-License-Identifier: GPL-3.0-or-later
"""`npu-agent access`: the device nodes of the agent's own pod, by kubelet. A real process and the kubelet stand-in."""

import os
import re
import sys
from types import SimpleNamespace

import agent_rig as rigs
import pytest

sys.path.insert(0, str(rigs.REPO / "tests/simulator/rockchip"))
import rockchip_tree

RESOURCE = "npu.fleet/agent"
MANAGERS = ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]


@pytest.fixture
def access(package):
    import npu_agent.access

    return npu_agent.access


@pytest.fixture
def served(rig):
    rig.kubelet()
    agent = rig.agent(command=("access",))
    rigs.until(lambda: rig.numbers(RESOURCE) == (1, 1), what="one of the resource at the kubelet")
    return rig, agent


def looked(dev, sysfs="/nowhere", extra=()):
    return SimpleNamespace(dev_root=str(dev), sysfs_root=str(sysfs), rockchip_extra=list(extra))


def given(rig, pod, count=1):
    return rig.ask("allocate", resource=RESOURCE, count=count, pod=pod)


def test_the_pod_gets_the_nodes_of_the_driver_and_no_more(served):
    rig, agent = served
    (rig.dev / "sda").write_text("")
    rigs.make_node(rig.dev / "vdavinci100")
    rigs.make_node(rig.dev / "davinci10")
    devices = given(rig, "npu-agent")["response"]["devices"]
    assert [(one["host_path"], one["container_path"], one["permissions"]) for one in devices] == [
        *((path, path, "rw") for path in [*MANAGERS, *(f"/dev/davinci{number}" for number in [*range(8), 10])]),
        ("/dev/vdavinci100", "/dev/vdavinci100", "r")]
    assert agent.stop() == 0
    assert not [name for name in os.listdir(rig.plugins) if "npu-agent" in name]


def test_without_a_driver_nobody_is_admitted(served):
    rig, _agent = served
    for node in rig.dev.iterdir():
        node.unlink()
    rigs.until(lambda: rig.numbers(RESOURCE) == (0, 1), what="none to give")
    rigs.make_node(rig.dev / "davinci_manager")
    rigs.until(lambda: rig.numbers(RESOURCE) == (1, 1), what="one again")
    assert [one["host_path"] for one in given(rig, "npu-agent")["response"]["devices"]] == ["/dev/davinci_manager"]


def test_it_comes_back_after_kubelet(served):
    rig, agent = served
    rig.restart_kubelet()
    rigs.until(lambda: rig.numbers(RESOURCE) == (1, 1), what="registered with the new kubelet")
    assert agent.process.poll() is None


@pytest.mark.parametrize(("command", "deleted"), [("access", True), ("serve", True), ("access", False), ("serve", False)])
def test_a_folder_that_was_replaced_under_the_mount_ends_the_container(rig, command, deleted):
    """A container has the folder by a mount, which holds on to the one of before; supervised, it comes back with the new one."""
    rig.kubelet()
    inside = rig.folder / "inside"
    inside.mkdir()
    mount = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(rig.plugins), str(inside))
    agent = rig.agent(command=(command,), prefix=mount, kubelet_dir=inside)
    wanted = {"access": RESOURCE, "serve": rigs.RESOURCE}[command]
    rigs.until(lambda: rig.numbers(wanted)[1], what="registered through the mount")
    if deleted:
        for path in rig.plugins.iterdir():
            path.unlink()
        rig.plugins.rmdir()
    else:
        rig.plugins.rename(rig.folder / "old")
    rig.plugins.mkdir()
    assert agent.process.wait(60) == 1 and "still has the old one" in agent.text()


def test_the_kernels_log_is_read_only_and_only_with_a_driver(access, tmp_path):
    rigs.make_node(tmp_path / "kmsg")
    assert access.wanted(looked(tmp_path)) == []
    rigs.make_node(tmp_path / "davinci_manager")
    assert access.wanted(looked(tmp_path))[-1] == ("/dev/kmsg", "/dev/kmsg", "r")


def test_slices_and_the_folders_of_a_bus_come_with_a_driver_only(access, tmp_path):
    """What is missing in the pod's /dev the agent takes for lost, and gives to no container."""
    for folder in ("uburma", "ummu"):
        (tmp_path / folder).mkdir()
        rigs.make_node(tmp_path / folder / "0")
    (tmp_path / "ummu/file").touch()
    for name in ("vdavinci100", "vdavinci99", "vdavinci_x"):
        rigs.make_node(tmp_path / name)
    assert access.wanted(looked(tmp_path)) == []
    rigs.make_node(tmp_path / "davinci_manager")
    wanted = [("davinci_manager", "rw"), ("uburma/0", "rw"), ("ummu/0", "rw"), ("vdavinci99", "r"), ("vdavinci100", "r")]
    assert access.wanted(looked(tmp_path)) == [(f"/dev/{name}", f"/dev/{name}", rights) for name, rights in wanted]


@pytest.mark.parametrize(("board", "seen"), [(True, ["/dev/extra0", "/dev/extra1"]), (False, [])])
def test_what_the_operator_adds_for_a_rockchip_board_is_seen_by_the_agent(access, tmp_path, board, seen):
    if board:
        rockchip_tree.tree(tmp_path, soc="rk3588", stack="rknpu-misc")
    (tmp_path / "dev").mkdir(exist_ok=True)
    for name in ("extra0", "extra1"):
        rigs.make_node(tmp_path / "dev" / name)
    (tmp_path / "dev/extra2").touch()
    found = access.wanted(looked(tmp_path / "dev", tmp_path / "sys", ["/dev/extra*", "/dev/none"]))
    assert [host for host, _inside, rights in found if rights == "r"] == seen


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_node_is_left_out(access, tmp_path, kind):
    """A link to a disk under the name of a chip must not become a way to the disk."""
    rigs.make_node(tmp_path / "davinci_manager")
    if kind == "link":
        (tmp_path / "davinci0").symlink_to("/dev/null")
    else:
        (tmp_path / "davinci0").write_text("")
    assert [host for host, _inside, _rights in access.wanted(looked(tmp_path))] == ["/dev/davinci_manager"]


def test_every_manager_of_every_family_is_known(access, package, tmp_path):
    from npu_agent._hardware._families import FAMILIES

    names = {node["host"] for family in FAMILIES.values() for node in family["managers"]}
    for name in names:
        rigs.make_node(tmp_path / name)
    assert {re.sub("^/dev/", "", host) for host, _inside, _rights in access.wanted(looked(tmp_path))} == names


@pytest.mark.parametrize("stack", ["rknpu-drm", "rknpu-misc"])
def test_a_rockchip_board_gives_the_nodes_of_its_driver(access, tmp_path, stack):
    """Of DRM both nodes, by the driver that has them and not by their numbers."""
    rockchip_tree.tree(tmp_path, soc="rk3588", stack=stack)
    rigs.make_node(tmp_path / "dev/sda")
    given = [host for host, _inside, _rights in access.wanted(looked(tmp_path / "dev", tmp_path / "sys"))]
    from npu_agent._hardware import _rknpu

    (npu,) = _rknpu.find(str(tmp_path / "sys"), str(tmp_path / "dev"), str(tmp_path / "proc"))
    assert given == ["/dev" + path[len(str(tmp_path / "dev")):] for path in npu["device_nodes"]] and len(given) >= 1
    assert len(given) == (2 if stack == "rknpu-drm" else 1)


def test_an_unknown_id_is_refused_in_words(access):
    said = []

    class Context:
        async def abort(self, code, text):
            said.append((code.name, text))
            raise RuntimeError

    import asyncio
    import collections

    nowhere = looked("/nowhere")
    plugin = access.AccessPlugin(access.Access(), nowhere, lambda *_args, **_fields: None, collections.Counter(), None)
    for ids, text in ((["other"], "other is no id of npu.fleet/agent"), (["node"], "there is no device node of an NPU driver")):
        request = SimpleNamespace(container_requests=[SimpleNamespace(devices_ids=ids)])
        with pytest.raises(RuntimeError):
            asyncio.run(plugin.allocate(request, Context()))
        assert said[-1][0] == "FAILED_PRECONDITION" and said[-1][1].startswith(text)
