# SPDX-License-Identifier: GPL-3.0-or-later
"""Devices that a pod has by an id, a resource or a backend of before, and those whose nodes or address are other ones now."""

import json
import shutil
import time

import pytest
from backend_rig import Bench, living, rockchip_tree
from node_rig import told

SURE = 1000.0  # a moment at which kubelet has told of all pods for certain, see claims.py


class Life:
    """A node in a folder; each `start` is an agent that starts anew with other settings, and finds the names that the last one has left."""

    def __init__(self, folder):
        self.folder, self.bench, self.node = folder, None, None

    def start(self, **settings):
        import npu_agent.faults
        import npu_agent.node

        self.stop()
        self.bench = Bench(self.folder, state_dir=self.folder / "state", recovery_seconds=0, **settings)
        self.node = npu_agent.node.Node(self.bench.settings, lambda *_words, **_more: None, repr_of, npu_agent.faults.load())
        return self.look()

    def look(self):
        """{id: why nobody may get it, "" where somebody may} of what kubelet would hear."""
        until_tried(self.bench)
        self.node.update(self.bench.look(), time.monotonic())
        return self.offered()

    def offered(self):
        found = {name: chip for board in self.node.boards.values() for name, chip in board.units.items()}
        assert all(chip.healthy is not bool(chip.barred) for chip in found.values())
        return {name: chip.barred for name, chip in found.items()}

    def told(self, *held):
        """Kubelet tells, long after everything changed, which pods have what: [(resource, id, pod)]."""
        told(self.node, time.monotonic() + SURE, held)
        return self.offered()

    def keep(self):
        """Have the table of names written."""
        for _unused in range(2):
            if self.node.names.file.writer is not None:
                self.node.names.file.writer.join(60)
            self.node.names.save()

    def stop(self):
        if self.node is not None:
            self.keep()
            self.node.names.close()
            self.node.kept.close()
            if self.bench.looker is not None:
                self.bench.looker.close()
            self.node = None


def repr_of(units):
    return repr([(name, chip.healthy) for name, chip in units]).encode()


def until_tried(bench):
    """Endpoints are tried beside the look."""
    end = time.monotonic() + 30
    while any(record["error"] for record in bench.look().chips) and time.monotonic() < end:
        time.sleep(0.01)


@pytest.fixture
def life(package, tmp_path):
    (tmp_path / "dev").mkdir()
    made = Life(tmp_path)
    yield made
    made.stop()


def paths(resource, *patterns):
    return {"backend": "paths", "devices": [{"resource": resource, "paths": list(patterns)}]}


def test_a_resource_that_has_another_name(life):
    """The new ids are unknown to the pods that have the devices: by whatever name, a device stays the pod's."""
    for number in range(2):
        living(life.folder / f"dev/card{number}", number)
    assert life.start(**paths("old.example/mlu", "/dev/card[0-9]*")) == {"mlu-0": "", "mlu-1": ""}
    found = life.start(**paths("new.example/npu", "/dev/card[0-9]*"))
    assert all("waiting for kubelet to tell" in why for why in found.values())
    found = life.told(("old.example/mlu", "mlu-0", "ns/training"))
    assert found["npu-1"] == ""
    assert found["npu-0"] == ("kubelet may give its node /dev/card0 to a container of a pod that has mlu-0: "
                              "delete pod ns/training, which has mlu-0")
    # It holds for an agent that starts anew once more, and ends with the pod.
    life.start(**paths("new.example/npu", "/dev/card[0-9]*"))
    assert "delete pod ns/training" in life.told(("old.example/mlu", "mlu-0", "ns/training"))["npu-0"]
    assert life.told() == {"npu-0": "", "npu-1": ""}


def test_shares_of_a_resource_that_has_another_name(life):
    living(life.folder / "dev/card0")
    life.start(**paths("old.example/mlu", "/dev/card[0-9]*"), shares=2)
    life.start(**paths("new.example/npu", "/dev/card[0-9]*"))
    assert "delete pod ns/one, which has mlu-0-1" in life.told(("old.example/mlu", "mlu-0-1", "ns/one"))["npu-0"]


def test_a_resource_of_another_domain(life):
    living(life.folder / "dev/card0")
    life.start(**paths("old.example/mlu", "/dev/card[0-9]*"))
    life.start(**paths("new.example/mlu", "/dev/card[0-9]*"))
    assert "pod ns/one still has mlu-0 of old.example/mlu" in life.told(("old.example/mlu", "mlu-0", "ns/one"))["mlu-0"]
    assert life.told() == {"mlu-0": ""}


def test_another_path_under_the_same_id(life):
    """The pod has the node that was mlu-0 when it came, and gets it again when its container starts anew."""
    living(life.folder / "dev/a0", 0)
    living(life.folder / "dev/b0", 1)
    life.start(**paths("x.example/mlu", "/dev/a0"))
    life.start(**paths("x.example/mlu", "/dev/b0"))
    assert "it was /dev/a0 and is /dev/b0 now" in life.told(("x.example/mlu", "mlu-0", "ns/one"))["mlu-0"]
    assert life.told() == {"mlu-0": ""}


def test_a_backend_that_took_over_from_another(life):
    rockchip_tree.tree(life.folder, soc="rk3566", stack="rknpu-misc")
    assert life.start(backend="rockchip") == {"npu-rk3566-0": ""}
    life.start(**paths("x.example/npu", "/dev/rknpu"))
    assert "delete pod ns/one" in life.told(("rockchip.com/rknpu", "npu-rk3566-0", "ns/one"))["npu-0"]
    assert life.told() == {"npu-0": ""}


def leave(life, name, **given):
    """What an agent with the backend ascend has left of one chip."""
    (life.folder / "state").mkdir()
    known = {"vdie": "die", "serial": None, "device_id": 0, "pci_address": "0000:01:00.0", "phy_id": 3}
    names = {name: {**known, "given": {"phy_id": 3, "form": "whole huawei.com/Ascend910", **given}}}
    (life.folder / "state/names.json").write_text(json.dumps({"schema": 1, "names": names}))


def test_chips_of_the_backend_ascend_served_by_their_paths(life):
    leave(life, "Ascend910-3")
    for number in (3, 4):
        living(life.folder / f"dev/davinci{number}", number - 3)
    life.start(**paths("x.example/npu", "/dev/davinci[0-9]*"))
    found = life.told(("huawei.com/Ascend910", "Ascend910-3", "ns/one"))
    assert "delete pod ns/one, which has Ascend910-3" in found["npu-3"] and found["npu-4"] == ""
    assert life.told() == {"npu-3": "", "npu-4": ""}


def test_slices_of_the_backend_ascend_bar_all_while_a_pod_has_one(life):
    """Nothing tells which node of today that is."""
    leave(life, "Ascend310P-3", phy_id=-1, form="sliced huawei.com/Ascend310P")
    living(life.folder / "dev/vdavinci100")
    life.start(**paths("x.example/npu", "/dev/vdavinci[0-9]*"))
    for resource, unit in (("huawei.com/Ascend310P", "Ascend310P-3"), ("huawei.com/Ascend310P-2c", "Ascend310P-2c-100-3")):
        found = life.told((resource, unit, "ns/one"))["npu-100"]
        assert found.startswith(f"pod ns/one still has {unit} of {resource}, and nobody knows which device that is")
    assert life.told() == {"npu-100": ""}


def test_an_id_that_nobody_knows_under_a_resource_of_ours(life):
    """Of a plugin of before, or of an agent whose names are lost: it may be any of these devices."""
    for number in range(2):
        living(life.folder / f"dev/card{number}", number)
    life.start(**paths("x.example/mlu", "/dev/card[0-9]*"))
    for unit in ("MLU-7f3a", "mlu-77"):
        found = life.told(("x.example/mlu", unit, "ns/one"))
        assert all(f"pod ns/one still has {unit} of x.example/mlu, and nobody knows which device that is" in why for why in found.values())
    assert life.told() == {"mlu-0": "", "mlu-1": ""}
    life.start(**paths("y.example/npu", "/dev/card[0-9]*"))
    assert "nobody knows which device" in life.told(("x.example/mlu", "MLU-7f3a", "ns/one"))["npu-1"]


def test_what_other_plugins_have_is_none_of_ours(life):
    """Their ids may look like ours."""
    living(life.folder / "dev/card0")
    life.start(**paths("x.example/gpu", "/dev/card[0-9]*"))
    assert life.told(("other.example/gpu", "gpu-0", "ns/one"), ("other.example/gpu", "GPU-0", "ns/two")) == {"gpu-0": ""}


def endpoint(name, port, **more):
    return {"resource": "x.example/npu", "name": name, "address": f"127.0.0.1:{port}", **more}


@pytest.fixture
def ports():
    from backend_rig import listener

    made = [listener(), listener()]
    yield [one.getsockname()[1] for one in made]
    for one in made:
        one.close()


def test_an_endpoint_that_has_another_name(life, ports):
    assert life.start(backend="remote", endpoints=[endpoint("old-0", ports[0])]) == {"old-0": ""}
    life.start(backend="remote", endpoints=[endpoint("new-0", ports[0]), endpoint("new-1", ports[1])])
    found = life.told(("x.example/npu", "old-0", "ns/one"))
    why = f"its address 127.0.0.1:{ports[0]} to a container of a pod that has old-0: delete pod ns/one"
    assert found["new-1"] == "" and why in found["new-0"]
    assert life.told() == {"new-0": "", "new-1": ""}


def test_names_of_endpoints_that_were_exchanged(life, ports):
    life.start(backend="remote", endpoints=[endpoint("a-0", ports[0]), endpoint("a-1", ports[1])])
    life.start(backend="remote", endpoints=[endpoint("a-0", ports[1]), endpoint("a-1", ports[0])])
    found = life.told(("x.example/npu", "a-0", "ns/one"))
    assert f"it was 127.0.0.1:{ports[0]} and is 127.0.0.1:{ports[1]} now" in found["a-0"] and "delete pod ns/one" in found["a-1"]
    assert life.told() == {"a-0": "", "a-1": ""}


# --- Rockchip: numbers of DRM nodes

def board(life, **more):
    for name in ("dev", "sys", "proc"):
        shutil.rmtree(life.folder / name, ignore_errors=True)
    rockchip_tree.tree(life.folder, soc="rk3588", **more)


def test_drm_nodes_that_have_other_numbers_after_a_boot(life):
    """Without the GPU's driver the NPU has its numbers: what a container that is started again gets may be the GPU now."""
    board(life)
    assert life.start(backend="rockchip") == {"npu-rk3588-0": ""}
    life.keep()
    assert json.loads((life.folder / "state/names.json").read_text())["names"]["npu-rk3588-0"]["given"] == {
        "phy_id": -1, "form": "whole rockchip.com/rknpu", "places": ["/dev/dri/card1", "/dev/dri/renderD129"]}
    board(life, gpu=False)
    life.start(backend="rockchip")
    found = life.told(("rockchip.com/rknpu", "npu-rk3588-0", "ns/one"))["npu-rk3588-0"]
    assert found == ("it was /dev/dri/card1, /dev/dri/renderD129 and is /dev/dri/card0, /dev/dri/renderD128 now, but kubelet gives a "
                     "container that it restarts what it got before: delete pod ns/one, which has npu-rk3588-0")
    assert life.told() == {"npu-rk3588-0": ""}
    life.start(backend="rockchip")
    assert life.told(("rockchip.com/rknpu", "npu-rk3588-0", "ns/two")) == {"npu-rk3588-0": ""}


def test_a_node_that_is_missing_for_a_while_is_no_other_one(life):
    board(life)
    life.start(backend="rockchip")
    (life.folder / "dev/dri/renderD129").unlink()
    life.node.update(life.bench.look(), time.monotonic())
    (chip,) = life.node.boards["rockchip.com/rknpu"].units.values()
    assert not chip.healthy and "renderD129 is missing" in chip.reason and "it was" not in chip.reason
    living(life.folder / "dev/dri/renderD129", 1)
    assert life.look() == {"npu-rk3588-0": ""}
