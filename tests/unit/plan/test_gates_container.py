# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L2: the truth table, the choice of the engine, and the note that keeps a second run cheap."""

import itertools
from collections import namedtuple

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _gates_container as container
from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import engine_of, runtime_path
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._hardware._families import FAMILIES

from .observed import converged

Result = namedtuple("Result", "argv rc stdout stderr timed_out seconds")
MANAGERS = ["davinci_manager", "hisi_hdc"]
#: Names in a container and their numbers on the host.
HOST = {**{f"davinci{n}": f"236:{n}" for n in range(8)}, "davinci_manager": "237:0", "hisi_hdc": "238:0"}
BARE_DEV = "core fd null ptmx zero tty"


def nodes(*numbers):
    return sorted([f"davinci{n}" for n in numbers] + MANAGERS) if numbers else []


@pytest.mark.parametrize(("chips", "wanted"), [
    ([0, 1, 2, 3, 4, 5, 6, 7], {
        "0": nodes(0), None: [], "": [], "void": [], "Ascend910-0": nodes(0), "0,7": nodes(0, 7), "Ascend910-0,Ascend910-7": nodes(0, 7),
        "0-3": nodes(0, 1, 2, 3), "all": None, "x": None, "0,Ascend910-0": None, "8": None,
    }),
    ([0], {"0": nodes(0), None: [], "": [], "void": [], "Ascend910-0": nodes(0), "all": None, "x": None, "0,Ascend910-0": None, "1": None}),
    # The first is the one to trust; gaps are left out of the range.
    ([5, 1, 3], {
        "5": nodes(5), None: [], "": [], "void": [], "Ascend910-5": nodes(5), "1,5": nodes(1, 5), "Ascend910-1,Ascend910-5": nodes(1, 5),
        "all": None, "x": None, "5,Ascend910-5": None, "6": None,
    }),
    ([0, 2, 3, 4], {
        "0": nodes(0), None: [], "": [], "void": [], "Ascend910-0": nodes(0), "0,4": nodes(0, 4), "Ascend910-0,Ascend910-4": nodes(0, 4),
        "2-4": nodes(2, 3, 4), "all": None, "x": None, "0,Ascend910-0": None, "5": None,
    }),
])
def test_truth_table(chips, wanted):
    table = container.truth_table(chips, MANAGERS, "Ascend910-")
    assert {row["value"]: row["expected"] for row in table} == wanted
    assert table[0]["value"] == str(chips[0])
    assert len({row["name"] for row in table}) == len(table)


def answer(names=None, timed_out=False, error=None, **numbers):
    seen = {name: numbers.get(name, HOST.get(name)) for name in (names or "").split()}
    return {"started": names is not None, "nodes": seen, "timed_out": timed_out, "error": error, "seconds": 0.2}


@pytest.mark.parametrize(("expected", "given", "passed"), [
    (nodes(0), answer("null davinci0 davinci_manager hisi_hdc"), True),
    (nodes(0), answer("null davinci0 davinci_manager"), False),
    (nodes(0), answer("null davinci0 davinci1 davinci_manager hisi_hdc"), False),
    (nodes(0), answer(error="exit status 1"), False),
    ([], answer("null zero davinci"), True),
    ([], answer("null hisi_hdc"), False),
    (None, answer(error="exit status 1"), True),
    (None, answer("null"), False),
    # One that hangs has refused nothing.
    (None, answer(timed_out=True), False),
    (nodes(0), answer("null davinci0 davinci_manager hisi_hdc", timed_out=True), False),
])
def test_a_row(expected, given, passed):
    row = {"name": "n", "value": "v", "expected": expected}
    assert container.judge_row(row, given, HOST)["passed"] is passed


def test_the_right_name_with_another_chips_number_does_not_pass():
    row = {"name": "n", "value": "0", "expected": nodes(0)}
    judged = container.judge_row(row, answer("null davinci0 davinci_manager hisi_hdc", davinci0="236:3"), HOST)
    assert not judged["passed"]
    assert "davinci0 is device 236:3 there and 236:0 on the host" in container.words(judged)


@pytest.mark.parametrize(("found", "wanted", "name"), [
    ([], "auto", None),
    ([("docker", False)], "auto", "docker"),
    ([("containerd", None)], "auto", "containerd"),
    ([("containerd", False), ("docker", False)], "auto", "docker"),  # no kubelet: docker's own containerd
    ([("containerd", None), ("docker", None)], "auto", None),  # a kubelet that nobody could ask
    ([("containerd", True), ("docker", False)], "auto", "containerd"),
    ([("containerd", False), ("k3s", True)], "auto", "k3s"),
    ([("crio", False), ("docker", False)], "auto", None),
    ([("crio", False), ("docker", True)], "crio", "crio"),
    ([("docker", True)], "containerd", None),
])
def test_which_engine_counts(found, wanted, name):
    entry, why = engine_of([{"name": n, "kubelet": k} for n, k in found], wanted)
    assert (entry["name"] if entry else None) == name
    assert (why is None) is (name is not None)


def test_without_a_word_on_the_kubelet_docker_counts_as_before():
    assert engine_of([{"name": "docker"}])[0]["name"] == "docker"


def test_the_runtimes_program_by_the_engine_then_by_its_file():
    engine = converged()["engines"][0]
    assert runtime_path(engine, "ascend", "/x") == "/opt/ascend-docker-runtime"
    engine["runtimes"] = {}
    assert runtime_path(engine, "ascend", "/x") == "/opt/ascend-docker-runtime"
    assert runtime_path({"name": "crio"}, "ascend", "/x") == "/x"


def test_what_containers_of_this_host_can_get(tmp_path):
    npu = converged()
    npu["chips"][0]["health"] = "Alarm"
    npu["chips"][1]["device_node"] = None
    (tmp_path / "davinci_manager").touch()
    npu["chips"][2]["device_node"] = "/dev/null"
    (tmp_path / "hisi_hdc").symlink_to("/dev/zero")
    chips, managers, host = container.wanted_of(npu, FAMILIES["a2"], str(tmp_path), "major")
    assert chips == [2, 3, 4, 5, 6, 7, 0]  # a sick chip comes last, one without a node not at all
    assert managers == ["davinci_manager", "hisi_hdc"]
    assert (host["davinci2"], host["hisi_hdc"], host["davinci_manager"], host["devmm_svm"]) == ("1:3", "1:5", None, None)


def test_without_its_manager_no_chip_can_be_used(tmp_path):
    _chips, managers, _host = container.wanted_of(converged(), FAMILIES["310p"], str(tmp_path), "major")
    assert managers == ["davinci_manager"]  # SoC boards lack the others of the family


def test_a_board_gives_its_nodes_and_no_other():
    """No vendor's runtime is asked: one container with the nodes of one NPU, one without."""
    chips = [{"device_nodes": ["/dev/zero", "/dev/null"]}, {"device_nodes": ["/dev/full"]}]
    table, host = container.board_table(chips)
    assert host == {"zero": "1:5", "null": "1:3", "full": "1:7"}
    assert [row["expected"] for row in table] == [["null", "zero"], []]
    assert [one["host_path"] for one in table[0]["given"]["devices"]] == ["/dev/zero", "/dev/null"]
    assert table[1]["given"]["devices"] == []
    assert container.board_table([{"device_nodes": []}]) == ([], {})


@pytest.mark.parametrize("name", ["dri/card0", "dri/renderD128", "accel/accel0", "rknpu1"])
def test_in_a_boards_container_the_node_of_anything_else_is_strange(name):
    host = {"dri/renderD129": "226:129", "accel/accel1": "261:1", "rknpu": "10:1"}
    seen = {**host, name: "226:0", "dri/by-path": None}
    row = {"name": "nodes", "value": None, "expected": sorted(host)}
    judged = container.judge_row(row, {"started": True, "nodes": seen, "timed_out": False, "error": None, "seconds": 0.1}, host)
    assert not judged["passed"]
    assert judged["seen"] == sorted({*host, name})
    # A server has GPUs, and its NPUs have no such nodes.
    assert container.npu_nodes({"davinci0": "236:0", name: "226:0"}, HOST) == ["davinci0"]


def test_a_boards_rows_are_tried_and_told(tmp_path):
    table, host = container.board_table([{"device_nodes": ["/dev/full"]}])

    class Board(Tried):
        def start(self, number, given, timeout):
            nodes = {"tty": "5:0", **{one["container_path"][5:]: "1:7" for one in given["devices"]}}
            return {"started": True, "nodes": {**nodes, **self.odd.get("extra", {})}, "timed_out": False, "error": None, "seconds": 0.1}

    def seen(known, **odd):
        return container.probe(Board(table, **odd), table, host, known, str(tmp_path), root=str(tmp_path))

    good = seen("a")
    assert [row["passed"] for row in good["rows"]] == [True, True]
    assert "given" not in good["rows"][0]
    bad = seen("b", extra={"full": "1:7"})
    assert [row["passed"] for row in bad["rows"]] == [True, False]
    assert container.words(bad["rows"][1]) == "a container without any: expected no chip, saw full"


# --- the note ---------------------------------------------------------------------------------------------------------


class Tried:
    """An engine that gives what the table expects, but for what is set."""

    def __init__(self, table, **odd):
        self.by_value = {row["value"]: row["expected"] for row in table}
        self.by_value.update(odd.pop("instead", {}))
        self.odd = odd
        self.asked = []
        self.cleaned = 0

    def prepare(self):
        return self.odd.get("prepare")

    def ask(self, number, value, timeout):
        assert 0 < timeout <= container.EACH
        self.asked.append(value)
        if value == self.odd.get("hangs", 0):
            return answer(timed_out=True)
        if value == self.odd.get("raises", 0):
            raise FleetError("The command docker was not found.", "command_missing")
        wanted = self.by_value[value]
        return answer(error="exit status 1") if wanted is None else answer(" ".join(["null", "zero", *wanted]))

    def clean(self):
        self.cleaned += 1
        return self.odd.get("left", [])


TABLE = container.truth_table([0, 1], MANAGERS, "Ascend910-")


def probe(tmp_path, known="k", **odd):
    tried = Tried(TABLE, **odd)
    seen = container.probe(tried, TABLE, HOST, known, str(tmp_path), root=str(tmp_path))
    assert tried.cleaned == (0 if seen["error"] and "Another run" in seen["error"] else 1)
    return seen, tried.asked


def test_a_refusal_of_an_engine_that_starts_nothing_any_more_proves_nothing(tmp_path, monkeypatch):
    asked = Tried.ask

    def dies(self, number, value, timeout):
        wrong = [row["value"] for row in TABLE if row["expected"] is None]
        if value in wrong or number >= len(TABLE):
            return {"started": False, "nodes": {}, "timed_out": False, "seconds": 0.1, "error": "cannot connect"}
        return asked(self, number, value, timeout)

    monkeypatch.setattr(Tried, "ask", dies)
    seen, _asked = probe(tmp_path)
    assert [row["passed"] for row in seen["rows"]] == [row["expected"] is not None for row in TABLE]
    assert "cannot connect" in next(row["error"] for row in seen["rows"] if not row["passed"])
    assert not (tmp_path / "gates/container.json").exists()


def test_the_whole_table_once_then_one_container_until_something_differs(tmp_path):
    seen, asked = probe(tmp_path)
    assert (seen["whole"], len(asked)) == (True, len(TABLE) + 1)
    assert all(row["passed"] for row in seen["rows"])
    seen, asked = probe(tmp_path)
    assert (seen["whole"], asked) == (False, ["0"])
    seen, asked = probe(tmp_path, known="other")
    assert (seen["whole"], len(asked)) == (True, len(TABLE) + 1)


@pytest.mark.parametrize("odd", [
    {"instead": {"0,1": ["davinci0"]}}, {"instead": {"all": ["davinci0", "davinci1"]}}, {"left": ["container abc"]}, {"prepare": "no"},
])
def test_only_a_pass_of_the_whole_table_is_noted(tmp_path, odd):
    probe(tmp_path, **odd)
    assert container.noted(str(tmp_path)) is None
    assert len(probe(tmp_path)[1]) == len(TABLE) + 1


def test_a_failure_of_the_one_container_makes_the_next_run_look_at_everything(tmp_path):
    probe(tmp_path)
    seen, _asked = probe(tmp_path, instead={"0": []})
    assert [row["passed"] for row in seen["rows"]] == [False]
    assert len(probe(tmp_path)[1]) == len(TABLE) + 1


@pytest.mark.parametrize(("odd", "asked", "words"), [
    ({"instead": {"0": None}}, ["0"], "no container starts"),
    ({"hangs": "void"}, ["0", None, "", "void"], "an earlier container hung"),
    ({"raises": None}, ["0", None], "an earlier container hung"),
])
def test_what_cannot_be_trusted_is_not_tried(tmp_path, odd, asked, words):
    seen, really = probe(tmp_path, **odd)
    assert really == asked
    assert len(seen["rows"]) == len(TABLE)
    assert words in seen["rows"][-1]["error"]
    assert not seen["rows"][-1]["passed"]


def test_two_at_once_do_not_take_each_others_containers_away(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "EACH", 0.2)
    with container.locked(str(tmp_path / "gates" / "container.lock")):
        seen, asked = probe(tmp_path)
    assert asked == []
    assert "Another run" in seen["error"]


def test_all_together_have_a_deadline(tmp_path, monkeypatch):
    ticks = itertools.count(0, 150)
    monkeypatch.setattr(container.time, "monotonic", lambda: next(ticks))
    seen, asked = probe(tmp_path)
    assert len(asked) == 2
    assert "longer than 400 s" in seen["rows"][-1]["error"]


def test_the_runtimes_last_words_stand_beside_a_failure(tmp_path):
    log = tmp_path / container.RUNTIME_LOG.lstrip("/")
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree\nfour\n")
    assert probe(tmp_path)[0]["log"] is None
    assert probe(tmp_path, instead={"0": None})[0]["log"] == "two\nthree\nfour"


def test_the_fingerprint_follows_what_the_outcome_depends_on(tmp_path):
    (tmp_path / "opt").mkdir()
    lists = tmp_path / container.LISTS.lstrip("/")
    lists.mkdir(parents=True)

    def now(npu=None, table=TABLE, runtime="ascend", **engine):
        npu = npu or converged()
        return container.fingerprint(npu, dict(npu["engines"][0], **engine), runtime, "/opt/r", table, root=str(tmp_path))

    seen = [now()]
    assert now() == seen[0]
    (tmp_path / "opt/r").write_text("1")
    seen.append(now())
    (lists / "base.list").write_text("/usr/local/Ascend/driver/lib64\n")
    seen.append(now())
    seen += [now(version="23.0"), now(name="containerd"), now(runtime="other"), now(table=TABLE[:3])]
    for change in (lambda n: n["chips"].pop(), lambda n: n["versions"]["driver"].update(running="26")):
        npu = converged()
        change(npu)
        seen.append(now(npu))
    assert len(set(seen)) == len(seen)
    # What somebody does with the engine's other settings does not matter here.
    assert now(containers_running=7, config_sha256="y") == seen[2]
