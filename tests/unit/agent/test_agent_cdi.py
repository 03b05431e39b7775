# SPDX-License-Identifier: GPL-3.0-or-later
"""The CDI specification: what it says, what it may say, the file, and the agent that keeps it and answers by it."""

import json
import os

import boards
import pytest
from agent_rig import make_node
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


def example(agent, **changes):
    managers = [("/dev/davinci_manager_docker", "/dev/davinci_manager"), ("/dev/hisi_hdc", "/dev/hisi_hdc")]
    arguments = {"phy_ids": {1, 0}, "slices": (), "managers": managers, "mounts": [("/usr/local/dcmi", "/usr/local/dcmi")],
                 "dev_root": "/dev", **changes}
    return agent.cdi.document(**arguments)


# --- what it says

def test_document(agent):
    node = {number: {"path": f"/dev/davinci{number}", "permissions": "rw"} for number in (0, 1)}
    assert example(agent) == {
        "cdiVersion": "0.5.0", "kind": "npu.fleet/ascend",
        "devices": [
            {"name": "0", "containerEdits": {"deviceNodes": [node[0]]}},
            {"name": "1", "containerEdits": {"deviceNodes": [node[1]]}},
            {"name": "all", "containerEdits": {"deviceNodes": [node[0], node[1]]}},
        ],
        "containerEdits": {
            "env": ["ASCEND_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/davinci_manager", "hostPath": "/dev/davinci_manager_docker", "permissions": "rw"},
                            {"path": "/dev/hisi_hdc", "permissions": "rw"}],
            "mounts": [{"hostPath": "/usr/local/dcmi", "containerPath": "/usr/local/dcmi",
                        "options": ["ro", "nosuid", "rbind", "rprivate"]}],
        },
    }


def test_the_order_is_that_of_the_numbers(agent):
    """Whatever order a set has: another order would be another file."""
    assert [device["name"] for device in example(agent, phy_ids={8, 1, 16})["devices"]] == ["1", "8", "16", "all"]


def test_slices_are_named_after_their_nodes(agent):
    """Inside, the node has a chip's name: that is what the driver's libraries open."""
    spec = example(agent, phy_ids={3}, slices={101, 100})
    assert [device["name"] for device in spec["devices"]] == ["3", "vdavinci100", "vdavinci101", "all"]
    assert spec["devices"][1]["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/davinci100", "hostPath": "/dev/vdavinci100", "permissions": "rw"}
    ]
    assert agent.cdi.faults(spec) == []


def test_every_document_is_right_by_the_rules(agent):
    assert agent.cdi.faults(example(agent)) == []
    assert agent.cdi.faults(example(agent, managers=[], mounts=[])) == []
    assert agent.cdi.faults(example(agent, dev_root="/elsewhere/dev")) == []
    assert agent.cdi.faults(example(agent, phy_ids=set())) == ["devices[0]: containerEdits is empty"]


@pytest.mark.parametrize(("path", "value", "words"), [
    (["cdiVersion"], "9.9.0", "cdiVersion is '9.9.0'"),
    (["cdiVersion"], 5, "cdiVersion must be text"),
    (["cdiVersion"], None, "cdiVersion is missing"),
    (["annotations"], {}, "there is no key 'annotations' in CDI 0.5.0"),
    (["kind"], "ascend", "the class ''"),
    (["kind"], "1npu/ascend", "the vendor '1npu'"),
    (["kind"], "npu.fleet-/ascend", "the vendor 'npu.fleet-'"),
    (["kind"], "npu.fleet/as.cend", "the class 'as.cend'"),
    (["kind"], "npu.fleet/as/cend", "the class 'as/cend'"),
    (["devices"], [], "there is none"),
    (["devices", 0, "name"], "-0", "the name '-0'"),
    (["devices", 0, "name"], "", "the name ''"),
    (["devices", 0, "name"], "0=1", "the name '0=1'"),
    (["devices", 0, "name"], "0\n", "the name '0\\n'"),
    (["devices", 0, "name"], "1", "devices[1]: the name '1' is there twice"),
    (["devices", 0, "name"], 0, "devices[0]: name must be text"),
    (["devices", 0, "containerEdits"], {}, "devices[0]: containerEdits is empty"),
    (["devices", 0], "0", "devices[0]: must be a mapping"),
    (["devices", 0, "containerEdits", "deviceNodes", 0, "path"], "dev/davinci0", "path 'dev/davinci0' is no absolute path"),
    (["devices", 0, "containerEdits", "deviceNodes", 0, "path"], "/dev/../davinci0", "is no absolute path"),
    (["devices", 0, "containerEdits", "deviceNodes", 0, "permissions"], "rx", "permissions 'rx'"),
    (["devices", 0, "containerEdits", "deviceNodes", 0, "type"], "char", "type 'char'"),
    (["devices", 0, "containerEdits", "deviceNodes", 0, "major"], "1", "major must be a number"),
    (["devices", 2, "containerEdits", "deviceNodes", 1, "path"], "/dev/davinci0", "path /dev/davinci0 is there twice"),
    (["containerEdits", "netDevices"], [], "there is no key 'netDevices'"),
    (["containerEdits", "env", 0], "=void", "is not NAME=VALUE"),
    (["containerEdits", "env", 0], "NAME", "is not NAME=VALUE"),
    (["containerEdits", "env"], {}, "env must be a list"),
    (["containerEdits", "mounts", 0, "hostPath"], "dcmi", "hostPath 'dcmi' is no absolute path"),
    (["containerEdits", "mounts", 0, "containerPath"], None, "mounts[0]: containerPath is missing"),
    (["containerEdits", "mounts", 0, "options"], [1], "options must be a list of texts"),
    (["containerEdits", "mounts", 0, "readOnly"], True, "there is no key 'readOnly'"),
    (["containerEdits", "hooks"], [{"hookName": "before", "path": "/x"}], "hookName 'before'"),
    (["containerEdits", "hooks"], [{"hookName": "prestart", "path": "x"}], "path 'x' is no absolute path"),
    (["containerEdits", "hooks"], [{"hookName": "prestart", "path": "/x", "env": ["x"]}], "is not NAME=VALUE"),
])
def test_faults_are_seen(agent, path, value, words):
    spec = json.loads(agent.cdi.text(example(agent)))
    *parents, last = path
    place = spec
    for part in parents:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    found = agent.cdi.faults(spec)
    assert len(found) == 1 and words in found[0]


def test_what_is_no_specification(agent):
    assert agent.cdi.faults([]) == ["the specification is no mapping"]
    assert len(agent.cdi.faults({})) == 3


# --- the answer to kubelet

@pytest.fixture
def settings(tree):
    return cdi_settings(tree)


def test_answer_by_name(agent, settings, tree):
    settings.allocate_by, settings.allocate_mode = "cdi", "both"
    here = boards.board([boards.chip(number) for number in range(3)])
    with pytest.raises(agent.allocate.Refused, match="there is no .*npu-fleet-ascend.json on this node.*npu-agent cdi --check"):
        agent.allocate.answer(["c1"], here, settings)
    os.mkdir(settings.cdi_folder)
    path = agent.cdi_file.path_in(settings.cdi_folder)
    open(path, "w").close()
    with pytest.raises(agent.allocate.Refused, match="npu-fleet-ascend.json on this node cannot be used"):
        agent.allocate.answer(["c1"], here, settings)
    with open(path, "w") as stream:
        stream.write(agent.cdi.text(example(agent, slices=(100,))))
    given = agent.allocate.answer(["c1", "c0"], here, settings)
    assert given == {"envs": {}, "devices": [], "mounts": [], "cdi": ["npu.fleet/ascend=0", "npu.fleet/ascend=1"]}
    with pytest.raises(agent.allocate.Refused, match="davinci2 of c2"):
        agent.allocate.answer(["c2"], here, settings)
    make_node(tree / "davinci2")
    with pytest.raises(agent.allocate.Refused, match="does not name c2 .* as '2', .* a new pod gets another chip"):
        agent.allocate.answer(["c1", "c2"], here, settings)
    make_node(tree / "vdavinci100")
    given = agent.allocate.answer(["c-2c-100-0"], boards.board([boards.sliced(0, 100)]), settings)
    assert given == {"envs": {}, "devices": [], "mounts": [], "cdi": ["npu.fleet/ascend=vdavinci100"]}


@pytest.mark.parametrize(("text", "words"), [
    ("allocate_by: cdi\n", "line 1: allocate_by is 'cdi', so cdi_folder must be set"),
    ("allocate_by: cdi\ncdi_folder: ''\n", "line 1: allocate_by is 'cdi', so cdi_folder must be set"),
    ("allocate_by: env\n", "allowed: nodes, cdi"),
    ("cdi_folder: etc/cdi\n", "allowed: an absolute path"),
    ("cdi_links: maybe\n", "allowed: family, allow, refuse"),
])
def test_bad_configuration(agent, tmp_path, text, words):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(agent.config.ConfigError) as error:
        agent.config.load(str(tmp_path / "config.yaml"), {})
    assert words in str(error.value) and len(error.value.faults) == 1


def test_good_configuration(agent, tmp_path):
    (tmp_path / "config.yaml").write_text("allocate_by: cdi\ncdi_folder: /etc/cdi/\n")
    found = agent.config.load(str(tmp_path / "config.yaml"), {})
    assert (found.allocate_by, found.cdi_folder) == ("cdi", "/etc/cdi")
    found = agent.config.load(None, {})
    assert (found.allocate_by, found.cdi_folder) == ("nodes", "")
