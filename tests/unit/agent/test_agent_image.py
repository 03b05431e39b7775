# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's image: what is built, when not, what is tried, and how it comes into an engine. No engine is started."""

import gzip
import hashlib
import subprocess
import tarfile
from collections import namedtuple
from pathlib import Path

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _agent_image as on_node
from ansible_collections.npu.fleet.plugins.module_utils import _agent_others
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.plugin_utils import _agent_archive, _agent_image

Result = namedtuple("Result", "argv rc stdout stderr timed_out seconds")


class Builder:
    """In the place of docker: keeps what it was asked and what the build saw."""

    def __init__(self, fails=None, base="sha256:0123456789ab"):
        self.asked, self.context, self.fails, self.base = [], {}, fails, base

    def __call__(self, argv, _seconds):
        self.asked.append(argv[1:])
        if self.fails and self.fails in argv:
            return subprocess.CompletedProcess(argv, 1, "", f"no {self.fails} today")
        if argv[1:3] == ["image", "inspect"] and "npu-agent" not in argv[-1]:
            return subprocess.CompletedProcess(argv, 0 if self.base else 1, f"{self.base}\n", "")
        if argv[1] == "build":
            folder = Path(argv[-1])
            self.context = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        if argv[1] == "save":
            Path(argv[3]).write_bytes(b"an image" * 1000)
        out = {"image": "sha256:abc\n", "run": f"{_agent_archive.agent_version()} kubelet_dir"}.get(argv[1], "")
        return subprocess.CompletedProcess(argv, 0, out, "")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """What pip has fetched, for all tests: it is the slow part, and test_agent_archive looks at it."""
    return tmp_path_factory.mktemp("wheels")


@pytest.fixture
def build(tmp_path, wheelhouse, wheels, monkeypatch):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/wheels").symlink_to(wheels)
    monkeypatch.setattr(_agent_image, "find_builder", lambda wanted: "docker")
    # The pins of the API's client would need an index.
    monkeypatch.setattr(_agent_archive, "requirements", lambda python, part="python", real=_agent_archive.requirements: real(python))

    def call(builder, **options):
        return _agent_image.build(str(tmp_path / "cache"), wheelhouse=str(wheelhouse), run=builder, **options)

    return call


def test_the_second_time_no_builder_is_started(build):
    first = Builder()
    image, changed = build(first)
    assert changed and [words[0] for words in first.asked] == ["image", "build", "run", "run", "run", "image", "save"]
    again = Builder()
    assert build(again) == (image, False) and [words[0] for words in again.asked] == ["image"]  # which base there is
    assert build(Builder(), rebuild=True)[1]


def test_a_base_that_was_renewed_under_its_name_makes_another_image(build):
    (first, _changed), (second, changed) = build(Builder()), build(Builder(base="sha256:ba9876543210"))
    assert changed and first.name != second.name and first.base_id != second.base_id
    assert build(Builder()) == (first, False)  # back to the one of before


def test_where_nobody_tells_the_base_the_newest_is_taken(build, monkeypatch):
    unknown = Builder(base="")
    image, changed = build(unknown)
    assert changed and image.base_id == "" and ["pull", _agent_image.BASE] in unknown.asked
    assert build(Builder(base="")) == (image, False)

    def none(wanted):
        raise FleetError("There is no builder.", "image_builder")

    monkeypatch.setattr(_agent_image, "find_builder", none)
    assert build(Builder()) == (image, False)  # the archive came from another machine


def test_the_image_has_the_packed_files_and_no_more(build):
    builder = Builder()
    build(builder)
    names = {name.partition("/")[2] for name in builder.context if name.startswith("agent/")}
    assert "Dockerfile" in builder.context and {"bin/npu-agent", "npu_agent/serve.py", "npu_agent/_hardware/_families.py"} <= names
    assert len(builder.context) == len(names) + 1


@pytest.mark.parametrize("options", [{"base": "other:1"}, {"arch": "aarch64"}])
def test_other_content_other_name(build, options):
    assert build(Builder())[0].name != build(Builder(), **options)[0].name


def test_what_was_built_is_tried_as_it_will_run(build):
    builder = Builder()
    build(builder)
    for words in builder.asked:
        if words[0] in ("run", "build"):
            assert words[words.index("--network") + 1] == "none"
        if words[0] == "run":
            assert "--read-only" in words and words[words.index("--cap-drop") + 1] == "ALL"


def test_the_archive_is_what_its_checksum_says(build):
    image, _changed = build(Builder())
    data = Path(image.path).read_bytes()
    assert hashlib.sha256(data).hexdigest() == image.sha256 and len(data) == image.size and gzip.decompress(data) == b"an image" * 1000
    for broken in (b"cut", b"x" * image.size):
        Path(image.path).write_bytes(broken)
        assert build(Builder())[1]  # it is built anew


def test_an_archive_that_was_copied_with_its_note_is_found(build, tmp_path):
    image, _changed = build(Builder())
    (tmp_path / "cache/images").rename(tmp_path / "elsewhere")
    again = _agent_image.cached(tmp_path / "elsewhere", _agent_image.NAME, image.recipe, image.arch, "")
    assert again == image._replace(path=str(tmp_path / "elsewhere" / Path(image.path).name))


@pytest.mark.parametrize(("word", "code", "hint"), [
    ("build", "image_build", "docker pull"), ("--version", "image_check", "npu_image_python_version"), ("save", "image_save", "room"),
])
def test_a_builder_that_fails_is_told_with_its_words(build, word, code, hint):
    with pytest.raises(FleetError) as caught:
        build(Builder(fails=word))
    assert caught.value.code == code and f"no {word} today" in str(caught.value) and hint in caught.value.hint
    assert build(Builder())[1]


def test_without_a_builder():
    with pytest.raises(FleetError, match="no docker and no podman"):
        _agent_image.find_builder("auto", which=lambda name: None)
    assert _agent_image.find_builder("auto", which=lambda name: "/bin/x" if name == "podman" else None) == "podman"


def test_unpacking_keeps_modes(tmp_path, archive):
    _agent_image.unpack(archive.path, tmp_path / "out")
    with tarfile.open(archive.path) as members:
        for member in members.getmembers():
            assert (tmp_path / "out" / member.name).exists()
    assert (tmp_path / "out/bin/npu-agent").stat().st_mode & 0o777 == 0o755


# --- on a node

class Node:
    """An engine's command line."""

    def __init__(self, there=(), rc=0):
        self.there, self.rc, self.asked = set(there), rc, []

    def __call__(self, argv, timeout):
        self.asked.append(argv)
        rc, out = self.rc, ""
        if "import" in argv or "load" in argv:
            self.loaded = Path(argv[-1]).read_bytes()
            self.there.add("i:1")
        elif "rm" in argv:
            self.there.discard(argv[-1])
        elif argv[0] in ("docker", "podman"):
            rc = rc or int(argv[-1] not in self.there)
        else:
            out = "\n".join(self.there)
        return Result(argv, rc, out, "cannot connect to the docker daemon" if self.rc else "", False, 0)


@pytest.fixture
def sent(tmp_path):
    path = tmp_path / "sent.tar.gz"
    path.write_bytes(gzip.compress(b"layers"))
    return {"name": "i:1", "src": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.mark.parametrize(("name", "words"), [
    ("docker", ["docker", "load"]), ("containerd", ["ctr", "--namespace", "k8s.io"]), ("crio", ["podman", "load"]),
    ("k3s", ["k3s", "ctr", "--address", "/run/k3s/containerd/containerd.sock", "--namespace", "k8s.io"]),
    ("rke2", ["/var/lib/rancher/rke2/bin/ctr", "--address", "/run/k3s/containerd/containerd.sock", "--namespace", "k8s.io"]),
])
def test_each_engine_gets_it_once_and_nothing_is_left(name, words, sent, tmp_path):
    node, engine = Node(), on_node.engine_of(name)
    assert on_node.loaded(engine, sent, node, False)["changed"] and node.loaded == b"layers"
    load = next(argv for argv in node.asked if "import" in argv or "load" in argv)
    assert load[:len(words)] == words and list(tmp_path.iterdir()) == []
    before = len(node.asked)
    assert not on_node.loaded(engine, {**sent, "src": None}, node, False)["changed"] and len(node.asked) == before + 1
    assert on_node.absent(engine, "i:1", node, False)["changed"] and not on_node.absent(engine, "i:1", node, False)["changed"]


def test_a_first_look_loads_nothing(sent):
    node = Node()
    assert on_node.loaded(on_node.engine_of("containerd"), {**sent, "src": None}, node, False) == {
        "changed": True, "name": "i:1", "needed": True}
    assert len(node.asked) == 1


@pytest.mark.parametrize(("change", "code"), [({"sha256": "0" * 64}, "image_checksum"), ({}, "image_name")])
def test_a_broken_archive_is_not_loaded(sent, tmp_path, change, code):
    node = Node()
    if code == "image_name":
        sent["name"] = "other:1"
    with pytest.raises(FleetError) as caught:
        on_node.loaded(on_node.engine_of("containerd"), {**sent, **change}, node, False)
    assert caught.value.code == code and list(tmp_path.iterdir()) == []


def test_what_is_no_archive(sent, tmp_path):
    Path(sent["src"]).write_bytes(b"no gzip")
    sent["sha256"] = hashlib.sha256(b"no gzip").hexdigest()
    with pytest.raises(FleetError) as caught:
        on_node.loaded(on_node.engine_of("containerd"), sent, Node(), False)
    assert caught.value.code == "image_unpack" and list(tmp_path.iterdir()) == []


def test_an_engine_that_does_not_answer_is_no_engine_without_the_image(sent):
    for name in ("docker", "containerd"):
        with pytest.raises(FleetError) as caught:
            on_node.loaded(on_node.engine_of(name), {**sent, "src": None}, Node(rc=1), False)
        assert caught.value.code == "image_engine"


# --- who else serves

def test_other_plugins_by_their_sockets(tmp_path):
    for name in ("Ascend910.sock", "Ascend310P-2c.sock", "npu-core.sock", "kubelet.sock", "nvidia-gpu.sock", "npu-agent-Ascend910.sock"):
        (tmp_path / name).touch()
    everybody = _agent_others.look(str(tmp_path), lambda path: 7, lambda pid: "device-plugin")
    assert [text.split()[0] for text in everybody[0]] == ["Ascend310P-2c.sock", "Ascend910.sock", "npu-core.sock"] and everybody[1]
    assert "process 7 (device-plugin)" in everybody[0][0]
    assert _agent_others.look(str(tmp_path), lambda path: None) == ([], False)  # leftovers
    assert _agent_others.look(str(tmp_path / "none")) == ([], False)


def test_a_listener_is_told_by_the_kernel(tmp_path):
    import os
    import socket

    path = str(tmp_path / "Ascend910.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert _agent_others.listener(path) is None
        server.listen(1)
        assert _agent_others.listener(path) == os.getpid()
        (text,), ours = _agent_others.look(str(tmp_path))
        assert f"process {os.getpid()}" in text and not ours
    assert _agent_others.listener(path) is None


def test_a_link_that_waits_beside_the_archive_is_not_followed(sent, tmp_path):
    (tmp_path / "victim").write_text("as it was")
    (tmp_path / "sent.tar.gz.tar").symlink_to(tmp_path / "victim")
    with pytest.raises(FleetError) as caught:
        on_node.loaded(on_node.engine_of("docker"), sent, Node(), False)
    assert caught.value.code == "image_unpack" and (tmp_path / "victim").read_text() == "as it was"
