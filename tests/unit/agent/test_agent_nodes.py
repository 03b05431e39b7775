# SPDX-License-Identifier: GPL-3.0-or-later
"""Device nodes that a container could not use, or that would give it another chip than it was promised."""

import os
from types import SimpleNamespace

import boards
import pytest
from agent_rig import RESOURCE, make_node, until


@pytest.fixture
def agent(package):
    import npu_agent.allocate
    import npu_agent.nodes

    return npu_agent


@pytest.fixture
def dev(tmp_path):
    for name in ("davinci0", "davinci1", "davinci_manager", "hisi_hdc", "vdavinci100"):
        make_node(tmp_path / name)
    return tmp_path


def replace(dev, name, how):
    (dev / name).unlink()
    if how == "link":
        (dev / name).symlink_to("davinci0" if name.startswith("davinci1") else "davinci1")
    elif how == "file":
        (dev / name).touch()
    elif how == "folder":
        (dev / name).mkdir()
    elif how == "pipe":
        os.mkfifo(dev / name)
    elif how == "twin":
        os.mknod(dev / name, 0o20600, os.stat(dev / "davinci0").st_rdev)


ODD = [("link", "is a symbolic link, no device node"), ("file", "is a plain file, no device node"),
       ("folder", "is a folder, no device node"), ("pipe", "is something else, no device node"), ("twin", "is the same device as")]


@pytest.mark.parametrize(("how", "words"), ODD)
def test_what_is_no_node_of_a_chip(agent, dev, how, words):
    replace(dev, "davinci1", how)
    chips = [{"family": "a2", "device_node": f"{dev}/davinci{number}"} for number in (0, 1, 2)]
    first, second, missing = agent.nodes.troubles(chips, str(dev))
    assert words in second and missing == "" and bool(first) == (how == "twin")


@pytest.mark.parametrize("family", ["310", "310p", "310b", "910", "a2", "a3", "a5"])
def test_the_manager_is_needed_and_nothing_else(agent, dev, family):
    name = "davinci_manager_docker" if family == "310b" else "davinci_manager"
    make_node(dev / "davinci_manager_docker")
    assert agent.nodes.manager_trouble(family, str(dev)) == ""
    (dev / name).rename(dev / "real")
    assert f"there is no device node {dev}/{name}, " in agent.nodes.manager_trouble(family, str(dev))
    (dev / name).symlink_to("real")  # a runtime follows it
    assert agent.nodes.manager_trouble(family, str(dev)) == ""
    (dev / name).unlink()
    (dev / name).touch()
    assert agent.nodes.manager_trouble(family, str(dev))


@pytest.fixture
def settings(dev):
    return SimpleNamespace(backend="ascend", dev_root=str(dev), allocate_mode="both", allocate_by="nodes", allocate_mounts="never")


@pytest.mark.parametrize("mode", ["both", "env", "devices"])
@pytest.mark.parametrize("odd", ODD)
def test_none_of_them_is_given(agent, dev, settings, odd, mode):
    settings.allocate_mode, (how, words) = mode, odd
    here = boards.board([boards.chip(0), boards.chip(1)])
    replace(dev, "davinci1", how)
    with pytest.raises(agent.allocate.Refused, match=f"{words}.*npu-agent discover"):
        agent.allocate.answer(["c0", "c1"], here, settings)
    replace(dev, "vdavinci100", how)
    with pytest.raises(agent.allocate.Refused, match=words):
        agent.allocate.answer(["c0", "c-2c-100-0"], boards.board([boards.chip(0), boards.sliced(0, 100)]), settings)


def test_nothing_is_given_without_the_manager(agent, dev, settings):
    (dev / "davinci_manager").unlink()
    with pytest.raises(agent.allocate.Refused, match="there is no device node .*davinci_manager, which each container"):
        agent.allocate.answer(["c0"], boards.board([boards.chip(0)]), settings)
    make_node(dev / "davinci_manager")
    (dev / "hisi_hdc").unlink()  # SoC boards have none
    (dev / "hisi_hdc").touch()
    assert [inside for _host, inside in agent.allocate.answer(["c0"], boards.board([boards.chip(0)]), settings)["devices"]] == [
        "/dev/davinci0", "/dev/davinci_manager"]


def test_a_chip_that_is_barred_is_not_given(agent, dev, settings):
    here = boards.board([boards.chip(0, barred="its node is another chip's", healthy=False)])
    with pytest.raises(agent.allocate.Refused, match="c0 .* is given to nobody now: its node is another chip's; .* a new pod gets another"):
        agent.allocate.answer(["c0"], here, settings)


def test_kubelet_hears_of_it(rig):
    rig.kubelet()
    agent = rig.agent(poll_seconds=60)
    agent.await_state("serving")
    until(lambda: rig.numbers() == (8, 8))
    replace(rig.dev, "davinci1", "link")
    until(lambda: rig.numbers() == (7, 8), what="a link in place of a node")
    assert "davinci1 is a symbolic link" in agent.report()["reasons"][0]
    replace(rig.dev, "davinci1", "twin")
    until(lambda: rig.numbers() == (6, 8), what="two nodes of one device")
    (rig.dev / "davinci1").unlink()
    make_node(rig.dev / "davinci1")
    until(lambda: rig.numbers() == (8, 8))
    (rig.dev / "davinci_manager").unlink()
    until(lambda: rig.numbers() == (0, 8), what="no manager node")
    make_node(rig.dev / "davinci_manager")
    until(lambda: rig.numbers() == (8, 8))
    assert rig.ask("allocate", count=8, resource=RESOURCE, pod="all")["phase"] == "Running"
