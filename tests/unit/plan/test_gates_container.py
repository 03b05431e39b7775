# SPDX-License-Identifier: GPL-3.0-or-later
"""Gate L2: the truth table, the choice of the engine, the note that keeps a second run cheap, and real calls of the engines' clients."""

import itertools
import os
import shutil
from collections import namedtuple

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _gates_container as container
from ansible_collections.npu.fleet.plugins.module_utils import _gates_engines as engines
from ansible_collections.npu.fleet.plugins.module_utils._command import run as really_run
from ansible_collections.npu.fleet.plugins.module_utils._engine_pick import engine_of, runtime_path, socket_of
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


# --- the engines ------------------------------------------------------------------------------------------------------


def recorder(answers, calls):
    def run(argv, timeout, stdin=None):
        calls.append(list(argv))
        for words, (rc, out, err, hung) in answers.items():
            if words in " ".join(argv):
                return Result(argv, rc, out, err, hung, 0.1)
        return Result(argv, 0, "", "", False, 0.1)

    return run


def ls(*names):
    """What `ls -ln` prints: of GNU coreutils 9.1, and of busybox, which has more blanks."""
    lines = ["total 0", "lrwxrwxrwx 1 0 0 13 Nov 30 12:00 fd -> /proc/self/fd", "drwxr-xr-x 2 0 0   0 Nov 30 12:00 pts"]
    lines += [f"crw-rw---- 1 0 0 {236 + n},   {n} Nov 30 12:00 {name}" for n, name in enumerate(names)]
    lines.append("crw-rw-rw-    1 0        0           5,   0 Nov 30  2026 tty")
    return "\n".join(lines) + "\n"


def test_device_numbers_of_a_container():
    seen = engines.reading(Result([], 0, ls("null", "zero", "davinci0"), "", False, 1.0), 9)
    assert seen["nodes"] == {"fd": None, "pts": None, "null": "236:0", "zero": "237:1", "davinci0": "238:2", "tty": "5:0"}


def test_nodes_in_folders_carry_the_folders_name():
    told = "/dev:\n" + ls("null", "zero") + "\n/dev/dri:\n" + ls("card0", "renderD128") + "\n/dev/pts:\ntotal 0\n"
    seen = engines.reading(Result([], 0, told, "", False, 1.0), 9)
    assert (seen["nodes"]["dri/card0"], seen["nodes"]["dri/renderD128"], seen["nodes"]["zero"]) == ("236:0", "237:1", "237:1")
    assert seen["started"]


GIVEN = {
    "env": {"A": "b,c"}, "devices": [{"host_path": "/dev/zero", "container_path": "/dev/davinci7", "permissions": "rw"}],
    "mounts": [{"host_path": "/opt/x", "container_path": "/opt/y", "read_only": True}],
}


def test_docker_gives_what_a_plugin_answered_by_its_own_runtime():
    calls = []
    engines.Docker(recorder({}, calls), "docker", engines.OWN).start(0, GIVEN, 9)
    line = " ".join(calls[0])
    assert "--device /dev/zero:/dev/davinci7:rw" in line
    assert "--volume /opt/x:/opt/y:ro" in line
    assert "--env A=b,c" in line
    assert "--runtime" not in line


def test_a_spec_has_what_a_plugin_answered(tmp_path):
    made = engines.spec(str(tmp_path), "n", GIVEN, ["x"])
    assert made["linux"]["devices"][0]["path"] == "/dev/davinci7"
    assert (made["linux"]["devices"][0]["major"], made["linux"]["devices"][0]["minor"]) == (1, 5)
    assert made["linux"]["resources"]["devices"][1:] == [{"allow": True, "type": "c", "major": 1, "minor": 5, "access": "rw"}]
    assert made["mounts"][-1] == {"destination": "/opt/y", "type": "bind", "source": "/opt/x", "options": ["rbind", "ro"]}
    assert "A=b,c" in made["process"]["env"]


def test_the_engines_own_runtime_needs_no_program(tmp_path):
    calls = []
    tried = engines.engine_for(recorder({}, calls), {"name": "containerd"}, engines.OWN, "/opt/ascend", str(tmp_path / "w"))
    assert tried.prepare() is None
    tried.start(0, dict(GIVEN, devices=[]), 9)
    assert "--runc-binary" not in calls[-1]


@pytest.mark.parametrize(("result", "started", "words"), [
    ((0, ls("null", "zero", "davinci0"), "", False), True, None),
    ((125, "", "docker: Error: unknown runtime ascend.\nSee 'docker run --help'.\n", False), False, "unknown runtime ascend"),
    ((1, "", "", False), False, "ended with 1"),
    ((0, "", "", False), False, "no answer"),
    ((None, ls("null", "zero"), "", True), True, "did not end within 9 s"),
    ((1, "", "proxy http://u:canary-77@p:1 refused", False), False, "refused"),
])
def test_what_a_command_tells(result, started, words):
    rc, out, err, hung = result
    seen = engines.reading(Result([], rc, out, err, hung, 1.0), 9)
    assert seen["started"] is started
    assert seen["error"] is None if words is None else words in seen["error"]
    assert "canary-77" not in str(seen)


def test_docker_leaves_nothing(tmp_path):
    calls = []
    tried = engines.Docker(recorder({"run --rm": (125, "", "bad", False)}, calls), "docker", "ascend")
    assert tried.prepare() is None
    assert not tried.ask(0, "0,1", 9)["started"]
    tried.ask(1, None, 9)
    assert tried.clean() == []
    assert [argv[1] for argv in calls] == ["ps", "rmi", "import", "run", "run", "ps", "rmi"]
    assert "ASCEND_VISIBLE_DEVICES=0,1" in calls[3]
    assert "--env" not in calls[4]


def test_docker_says_what_it_could_not_remove():
    calls = []
    tried = engines.Docker(recorder({"ps --all": (0, "abc\ndef\n", "", False)}, calls), "docker", "ascend")
    assert tried.clean() == ["container abc", "container def"]
    assert ["docker", "rm", "--force", "--volumes", "abc", "def"] in calls


def test_an_image_that_cannot_be_made_is_the_reason():
    tried = engines.Docker(recorder({"import": (1, "", "no space left on device", False)}, []), "docker", "ascend")
    assert "no space left on device" in tried.prepare()


@pytest.mark.parametrize(("engine", "kind"), [
    ("docker", engines.Docker), ("containerd", engines.Containerd), ("k3s", engines.Containerd), ("rke2", engines.Containerd),
    ("crio", engines.Bundle), ("isulad", engines.Bundle),
])
def test_each_engine_has_its_way(engine, kind, tmp_path):
    assert type(engines.engine_for(None, {"name": engine}, "ascend", "/opt/r", str(tmp_path), root=str(tmp_path))) is kind


@pytest.mark.parametrize(("engine", "path"), [
    ({"name": "containerd"}, "/run/containerd/containerd.sock"), ({"name": "k3s"}, "/run/k3s/containerd/containerd.sock"),
    ({"name": "rke2"}, "/run/k3s/containerd/containerd.sock"), ({"name": "containerd", "socket": "unix:///run/x.sock"}, "/run/x.sock"),
])
def test_where_containerd_listens(engine, path):
    assert socket_of(engine) == path


def test_ctr_of_each_distribution(tmp_path):
    def make(path):
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("")
        target.chmod(0o755)
        return str(target)

    k3s, rke2, ctr = make("usr/local/bin/k3s"), make("var/lib/rancher/rke2/bin/ctr"), make("usr/bin/ctr")
    assert engines.client_of("k3s", str(tmp_path)) == [k3s, "ctr"]
    assert engines.client_of("rke2", str(tmp_path)) == [rke2]
    assert engines.client_of("containerd", str(tmp_path)) == [ctr]


def test_containerd_gets_a_spec_and_its_folder_goes(tmp_path):
    calls = []
    work = tmp_path / "work"
    answers = {" run ": (0, ls("null", "zero", "davinci1"), "", False)}
    tried = engines.Containerd(recorder(answers, calls), ["ctr"], "/s", "/opt/r", str(work))
    assert tried.prepare() is None
    assert tried.ask(3, "0,1", 9)["nodes"]["davinci1"] == "238:2"
    assert calls[-1] == ["ctr", "--address", "/s", "--namespace", "npu-fleet-gate", "run", "--rm", "--runc-binary", "/opt/r",
                         "--config", str(work / "3/config.json"), "npu-fleet-gate-3"]
    assert '"ASCEND_VISIBLE_DEVICES=0,1"' in (work / "3/config.json").read_text()
    assert os.path.isdir(work / "rootfs/dev")
    assert tried.clean() == []
    assert not work.exists()


def test_containers_of_a_killed_run_are_removed_first(tmp_path):
    calls = []
    listed = iter(["old-1\n", "", ""])

    def run(argv, timeout, stdin=None):
        calls.append(argv[5:])
        return Result(argv, 0, next(listed) if argv[5:7] == ["containers", "list"] else "", "", False, 0.1)

    assert engines.Containerd(run, ["ctr"], "/s", "/opt/r", str(tmp_path / "w")).prepare() is None
    assert calls[1:3] == [["tasks", "delete", "--force", "old-1"], ["containers", "delete", "old-1"]]


def test_a_runtime_that_nobody_names_is_the_reason(tmp_path):
    for path in (None, "ascend"):
        assert "which program" in engines.Containerd(recorder({}, []), ["ctr"], "/s", path, str(tmp_path / "w")).prepare()


def test_a_mount_inside_of_our_folder_is_never_removed_through(tmp_path, monkeypatch):
    work = tmp_path / "w"
    (work / "rootfs").mkdir(parents=True)
    monkeypatch.setattr(engines, "_lines", lambda path: [f"36 35 98:0 / {work}/rootfs/usr rw - ext4 /dev/sda rw"])
    assert engines.Bundle(recorder({}, []), "/opt/r", str(work)).clean() == [f"mount {work}/rootfs/usr"]
    assert (work / "rootfs").exists()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runc"), reason="needs root and runc")
def test_a_runtime_is_called_as_an_engine_does(tmp_path):
    """runc gives no chip and refuses nothing, but it is a real runtime."""
    tried = engines.Bundle(really_run, shutil.which("runc"), str(tmp_path / "w"))
    assert tried.prepare() is None
    probed = tried.ask(0, "0", 30)
    if not probed["started"]:
        tried.clean()
        pytest.skip(f"runc cannot start a container here: {probed['error']}")
    assert {"null", "zero", "tty"} <= set(probed["nodes"])
    assert (probed["timed_out"], probed["error"]) == (False, None)
    assert tried.clean() == []
    assert not (tmp_path / "w").exists()
