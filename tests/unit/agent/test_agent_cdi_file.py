# SPDX-License-Identifier: GPL-3.0-or-later
"""The CDI file: when it is written, what is added and what is taken away, and the agent that keeps it."""

import json
import os
import stat
import time

import pytest
from agent_rig import RESOURCE, make_node, until
from driver_files import cdi_settings


@pytest.fixture
def agent(package):
    import npu_agent.allocate
    import npu_agent.cdi
    import npu_agent.cdi_file
    import npu_agent.config
    import npu_agent.health
    import npu_agent.look

    return npu_agent


def sight(agent, *phy_ids, dev=None, family="a2", present=True, problems=(), complete=True, slices=None):
    chips = [{"phy_id": phy_id, "family": family, "device_node_present": dev is None or os.path.exists(f"{dev}/davinci{phy_id}"),
              "slices": (slices or {}).get(phy_id, [])} for phy_id in phy_ids]
    return agent.look.Sight(present, chips, list(problems), complete, [])


@pytest.fixture
def settings(tree):
    return cdi_settings(tree)


@pytest.fixture
def keeper(agent, settings):
    events = []
    made = agent.cdi_file.Keeper(settings, lambda event, *_level, **fields: events.append((event, fields)))
    made.events, made.path = events, agent.cdi_file.path_in(settings.cdi_folder)
    return made


def kept(keeper):
    with open(keeper.path) as stream:
        return json.load(stream)


def test_the_file_has_what_exists(agent, keeper, tree):
    old = os.umask(0o077)
    try:
        seen = sight(agent, 0, 1, 2, dev=tree)
        assert keeper.keep(seen) == seen
    finally:
        os.umask(old)
    spec = kept(keeper)
    assert [device["name"] for device in spec["devices"]] == ["0", "1", "all"]
    assert [node["path"] for node in spec["containerEdits"]["deviceNodes"]] == ["/dev/davinci_manager", "/dev/hisi_hdc"]
    assert [mount["hostPath"] for mount in spec["containerEdits"]["mounts"]] == [f"{tree}/dcmi"]
    assert agent.cdi.faults(spec) == []
    assert stat.S_IMODE(os.stat(keeper.path).st_mode) == 0o644 and stat.S_IMODE(os.stat(os.path.dirname(keeper.path)).st_mode) == 0o755
    assert os.listdir(os.path.dirname(keeper.path)) == [agent.cdi.FILE]


def test_written_only_when_it_says_something_else(agent, keeper, tree):
    keeper.keep(sight(agent, 0, 1))
    before = os.stat(keeper.path)
    keeper.keep(sight(agent, 1, 0))
    after = os.stat(keeper.path)
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert [event for event, _fields in keeper.events] == ["CDI specification written"]
    (tree / "none").mkdir()  # the driver brings a folder of the list
    keeper.keep(sight(agent, 0, 1))
    assert len(kept(keeper)["containerEdits"]["mounts"]) == 2
    make_node(tree / "devmm_svm")  # and a node
    keeper.keep(sight(agent, 0, 1))
    assert len(kept(keeper)["containerEdits"]["deviceNodes"]) == 3
    keeper.keep(sight(agent, 0))
    assert [device["name"] for device in kept(keeper)["devices"]] == ["0", "all"]
    os.chmod(keeper.path, 0o600)
    keeper.keep(sight(agent, 0))
    assert stat.S_IMODE(os.stat(keeper.path).st_mode) == 0o644


def test_slices_stand_for_their_chip(agent, keeper, tree):
    make_node(tree / "vdavinci100")
    slices = [{"vdev_id": vdev_id, "template": "vir02"} for vdev_id in (100, 101)]
    keeper.keep(sight(agent, 0, 1, dev=tree, family="310p", slices={1: slices}))
    assert [device["name"] for device in kept(keeper)["devices"]] == ["0", "vdavinci100", "all"]


def test_slices_that_are_not_told_change_nothing(agent, keeper, settings, tree):
    make_node(tree / "vdavinci100")
    keeper.keep(sight(agent, 0, 1, slices={1: [{"vdev_id": 100, "template": "vir02"}]}))
    before = kept(keeper)
    unsure = sight(agent, 0, 1, slices={1: None})
    assert keeper.keep(unsure) == unsure and kept(keeper) == before
    with pytest.raises(agent.cdi_file.Trouble, match="does not tell which slices"):
        agent.cdi_file.wanted(unsure, settings)


def test_the_nodes_of_several_families_are_there_once(agent, keeper, tree):
    make_node(tree / "davinci_manager_docker")
    seen = sight(agent, 0, 1)
    seen.chips[1]["family"] = "310b"
    keeper.keep(seen)
    assert keeper.keep(seen).problems == []
    assert [node["path"] for node in kept(keeper)["containerEdits"]["deviceNodes"]] == ["/dev/davinci_manager", "/dev/hisi_hdc"]


@pytest.mark.parametrize("unsure", [{"complete": False}, {"problems": ["the driver does not know it"]}])
def test_what_is_not_known_changes_nothing(agent, keeper, unsure):
    keeper.keep(sight(agent, 0, 1))
    before = kept(keeper)
    keeper.keep(sight(agent, **unsure))
    assert kept(keeper) == before


def names_of(keeper):
    return [device["name"] for device in kept(keeper)["devices"]]


def test_an_incomplete_look_adds_and_takes_nothing_away(agent, keeper, settings, tree):
    settings.allocate_by = "cdi"
    first = keeper.keep(sight(agent, 0, complete=False, problems=["card 3 hangs"]))
    assert names_of(keeper) == ["0", "all"] and "not_described" not in first.chips[0]
    (tree / "none").mkdir()
    (tree / "base.list").write_text(f"{tree}/none\n")
    make_node(tree / "devmm_svm")
    (tree / "hisi_hdc").unlink()
    keeper.keep(sight(agent, 1, complete=False))
    assert names_of(keeper) == ["0", "1", "all"] and agent.cdi.faults(kept(keeper)) == []
    assert [node["path"][5:] for node in kept(keeper)["containerEdits"]["deviceNodes"]] == ["davinci_manager", "hisi_hdc", "devmm_svm"]
    assert [mount["hostPath"] for mount in kept(keeper)["containerEdits"]["mounts"]] == [f"{tree}/dcmi", f"{tree}/none"]
    keeper.keep(sight(agent, 1))
    assert names_of(keeper) == ["1", "all"]
    assert [mount["hostPath"] for mount in kept(keeper)["containerEdits"]["mounts"]] == [f"{tree}/none"]


def test_a_chip_that_the_file_does_not_name_takes_no_work(agent, keeper, settings, tree):
    settings.allocate_by = "cdi"
    make_node(tree / "vdavinci100")
    seen = sight(agent, 0, 1, 2, dev=tree, slices={0: [{"vdev_id": 100, "template": "vir02"}], 1: None})
    found = keeper.keep(seen)
    assert names_of(keeper) == ["vdavinci100", "all"]
    reason = f"{keeper.path} does not name it, and chips are given by it"
    assert [chip.get("not_described") for chip in found.chips] == [None, reason, reason]
    settings.allocate_by = "nodes"
    assert keeper.keep(seen) == seen


def test_a_broken_file_of_ours_is_not_added_to(agent, keeper, settings):
    os.mkdir(settings.cdi_folder)
    with open(keeper.path, "w") as stream:
        stream.write('{"kind": "npu.fleet/ascend", "devices": [{"name": "7"}]}')
    keeper.keep(sight(agent, 0, complete=False))
    assert names_of(keeper) == ["0", "all"]


@pytest.mark.parametrize(("changes", "told"), [
    ({}, False), ({"allocate_mounts": "always"}, True), ({"allocate_by": "cdi"}, True), ({"cdi_folder": ""}, False),
    ({"allocate_mounts": "always", "allocate_mode": "env"}, False), ({"allocate_mounts": "always", "cdi_folder": ""}, True),
])
def test_what_containers_lack_is_a_problem_of_the_node(agent, keeper, settings, changes, told):
    tree = settings.dev_root
    with open(settings.cdi_mounts, "w") as stream:
        stream.write(f"{tree}/dcmi\n{tree}/link\n")
    vars(settings).update(changes)
    found = keeper.keep(sight(agent, 0))
    assert bool(found.problems) == told and all("link is a symbolic link and is left out" in text for text in found.problems)
    assert keeper.keep(sight(agent, 0, complete=False)).problems == []


def test_no_npu_no_file(agent, keeper):
    keeper.keep(sight(agent, 0))
    keeper.keep(sight(agent, present=False))
    assert not os.path.exists(keeper.path)
    assert [event for event, _fields in keeper.events] == ["CDI specification written", "CDI specification removed"]
    keeper.keep(sight(agent, present=False))
    assert len(keeper.events) == 2


@pytest.mark.parametrize("content", ['{"kind": "huawei.com/ascend"}', "[]", "no json", '{"cdiVersion": "0.5.0"}'])
def test_a_file_of_somebody_else_stays(agent, keeper, content):
    os.mkdir(os.path.dirname(keeper.path))
    with open(keeper.path, "w") as stream:
        stream.write(content)
    answer = keeper.keep(sight(agent, 0))
    assert answer.problems == [f"{keeper.path} was not written by npu-agent: move it away"]
    assert "not_described" not in answer.chips[0]  # the chips are given by their nodes
    assert keeper.keep(sight(agent, present=False)).problems
    with open(keeper.path) as stream:
        assert stream.read() == content
    with pytest.raises(agent.cdi_file.Trouble):
        agent.cdi_file.remove(os.path.dirname(keeper.path))


def test_an_empty_file_is_nobodys(agent, keeper):
    os.mkdir(os.path.dirname(keeper.path))
    open(keeper.path, "w").close()
    assert keeper.keep(sight(agent, 0)).problems == [] and kept(keeper)


def test_a_link_of_that_name_is_not_followed(agent, keeper, tree):
    os.mkdir(os.path.dirname(keeper.path))
    os.symlink(tree / "npu-smi", keeper.path)
    assert "is no ordinary file" in keeper.keep(sight(agent, 0)).problems[0]
    assert (tree / "npu-smi").read_text() == "#!/bin/sh\n"


def test_chips_take_no_work_where_it_depends_on_a_file_that_cannot_be_kept(agent, keeper, settings, monkeypatch):
    settings.allocate_by = "cdi"

    def full(*_words):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(agent.cdi_file.os, "rename", full)
    answer = keeper.keep(sight(agent, 0))
    assert "No space left on device" in answer.problems[0] and os.listdir(settings.cdi_folder) == []
    record = {"health_code": 0, **answer.chips[0]}
    assert agent.health.judge(record, "major") == (False, answer.problems[0])
    monkeypatch.undo()
    assert keeper.keep(sight(agent, 0)).problems == [] and kept(keeper)


def test_a_fault_of_ours_does_not_stop_the_service(agent, keeper, monkeypatch):
    monkeypatch.setattr(agent.cdi_file, "wanted", lambda *_words: {}["x"])
    monkeypatch.setattr(agent.cdi_file.mounts, "problems", lambda *_words: {}["y"])
    problems = keeper.keep(sight(agent, 0)).problems
    assert "KeyError('y')" in problems[0] and "KeyError('x')" in problems[1]


def test_left_out_links_are_said_once(agent, keeper, tree):
    (tree / "base.list").write_text(f"{tree}/link\n")
    for _unused in range(3):
        assert keeper.keep(sight(agent, 0)).problems == []
    assert [event for event, _fields in keeper.events] == ["CDI specification written", "CDI specification"]


def test_without_a_folder_nothing_is_kept(agent, keeper, settings, tree):
    settings.cdi_folder = ""
    keeper.keep(sight(agent, 0))
    assert keeper.events == [] and not (tree / "cdi").exists()


# --- as a process

@pytest.fixture
def node(rig):
    (rig.folder / "base.list").write_text(f"{rig.folder}/dcmi\n{rig.folder}/lib64\n")
    (rig.folder / "dcmi").mkdir()
    rig.cdi = rig.folder / "cdi"
    rig.spec = rig.cdi / "npu-fleet-ascend.json"
    return rig


def names(node):
    return [device["name"] for device in json.loads(node.spec.read_text())["devices"]] if node.spec.exists() else None


def run(node, *words, **settings):
    agent = node.agent(name="cdi-" + str(time.monotonic_ns()), command=("cdi", *words), cdi_mounts=node.folder / "base.list", **settings)
    return agent.process.wait(60), agent.text()


def test_commands(node):
    rc, text = run(node)
    assert rc == 0 and [device["name"] for device in json.loads(text)["devices"]] == [*map(str, range(8)), "all"]
    assert not node.cdi.exists()
    there = ("--folder", str(node.cdi))
    rc, text = run(node, "--check", *there)
    assert rc == 1 and '+  "kind": "npu.fleet/ascend",' in text
    assert run(node, "--write", *there) == (0, f"{node.spec} written\n")
    assert run(node, "--write", cdi_folder=node.cdi) == (0, f"{node.spec} is right already\n")
    assert run(node, "--check", cdi_folder=node.cdi) == (0, f"{node.spec} is right\n")
    (node.dev / "davinci7").unlink()
    rc, text = run(node, "--check", *there)
    assert rc == 1 and '-      "name": "7",' in text
    assert run(node, "--remove", *there) == (0, f"{node.spec} removed\n")
    assert run(node, "--remove", *there) == (0, f"there is no {node.spec}\n")
    rc, text = run(node, "--write", "--check")
    assert rc == 2 and "not allowed with" in text
    assert run(node, "--write", "--folder", "cdi")[0] == 2


def test_a_driver_that_does_not_answer_changes_nothing(node):
    there = ("--folder", str(node.cdi))
    run(node, "--write", *there)
    node.change("behaviour.dcmi", "fail")
    before = node.spec.read_text()
    rc, text = run(node, "--write", *there)
    assert rc == 1 and "cannot be asked" in text and node.spec.read_text() == before
    assert run(node, "--check", *there)[0] == 1


def test_serve_keeps_it_and_answers_by_it(node):
    node.kubelet()
    agent = node.agent(cdi_folder=node.cdi, allocate_by="cdi", cdi_mounts=node.folder / "base.list")
    agent.await_state("serving")
    until(lambda: node.numbers() == (8, 8), what="8 of 8 at the kubelet")
    assert names(node) == [*map(str, range(8)), "all"]
    pod = node.ask("allocate", count=2, resource=RESOURCE, pod="one")
    numbers = sorted(int(name.rsplit("-", 1)[1]) for name in pod["devices"][RESOURCE])
    assert pod["response"]["cdi_devices"] == [{"name": f"npu.fleet/ascend={number}"} for number in numbers]
    assert pod["response"]["devices"] == [] and pod["response"]["envs"] == {}
    (node.dev / "davinci3").unlink()  # a chip goes
    until(lambda: "3" not in names(node))
    make_node(node.dev / "davinci3")
    (node.folder / "lib64").mkdir()  # and comes back with another driver
    until(lambda: "3" in names(node) and f"{node.folder}/lib64" in node.spec.read_text())
    node.spec.unlink()  # somebody removes the file
    until(node.spec.exists)
    until(lambda: node.numbers() == (8, 8))
    assert not [event for event in agent.events() if event["level"] == "error"]


def test_no_chip_without_the_drivers_files(node):
    (node.folder / "dcmi").rmdir()
    node.kubelet()
    agent = node.agent(cdi_folder=node.cdi, allocate_by="cdi", cdi_mounts=node.folder / "base.list")
    until(lambda: node.numbers() == (0, 8), what="0 of 8 at the kubelet")
    assert any("without the driver's files" in reason for reason in agent.report()["reasons"])
    (node.folder / "lib64").mkdir()
    until(lambda: node.numbers() == (8, 8))


def test_serve_says_why_chips_take_no_work(node):
    node.cdi.mkdir()
    node.spec.write_text("[]")
    node.kubelet()
    agent = node.agent(cdi_folder=node.cdi, allocate_by="cdi", cdi_mounts=node.folder / "base.list")
    until(lambda: node.numbers() == (0, 8), what="0 of 8 at the kubelet")
    assert f"{node.spec} was not written by npu-agent: move it away" in agent.report()["reasons"]
    node.spec.unlink()
    until(lambda: node.numbers() == (8, 8))
