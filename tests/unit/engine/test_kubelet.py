# SPDX-License-Identifier: GPL-3.0-or-later
"""Which engine kubelet uses, from how it is started, and which engine is chosen: never a guess between two."""

import os

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _engine
from ansible_collections.npu.fleet.plugins.module_utils import _engine_kubelet as kubelet
from ansible_collections.npu.fleet.plugins.module_utils import _engine_units as units
from ansible_collections.npu.fleet.plugins.module_utils._command import Result, run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

CONTAINERD = "unix:///run/containerd/containerd.sock"
YAML = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  containerRuntimeEndpoint: "unix:///not/this/one"
containerRuntimeEndpoint: "unix:///run/crio/crio.sock"   # ours
"""


# --- the command line and its files ---


@pytest.mark.parametrize(
    ("words", "files", "version", "endpoint", "where"),
    [
        ("--container-runtime-endpoint=unix:///run/crio/crio.sock", {}, "1.28.3", "unix:///run/crio/crio.sock", "COMMAND"),
        ("--container-runtime=remote --container-runtime-endpoint /run/x.sock", {}, "1.22.1", "unix:///run/x.sock", "COMMAND"),
        ("--container-runtime-endpoint=unix:///a --container-runtime-endpoint=unix:///b", {}, None, "unix:///b", "COMMAND"),
        ("--fail-swap-on --container-runtime-endpoint=unix:///a.sock", {}, None, "unix:///a.sock", "COMMAND"),
        ("--container-runtime=docker --network-plugin=cni", {}, "1.23.0", kubelet.DOCKERSHIM, "--container-runtime=docker in COMMAND"),
        ("--config=/c.yaml", {"/c.yaml": YAML}, "1.30.0", "unix:///run/crio/crio.sock", "/c.yaml"),
        ("--config /c.json", {"/c.json": '{"containerRuntimeEndpoint": "unix:///j.sock"}'}, "1.30.0", "unix:///j.sock", "/c.json"),
        ("--config=/c.yaml --container-runtime-endpoint=unix:///flag", {"/c.yaml": YAML}, "1.30.0", "unix:///flag", "COMMAND"),
        ("--config=/c.yaml --config-dir=/d", {"/c.yaml": YAML, "/d/2.conf": "containerRuntimeEndpoint: unix:///d\n", "/d/1.conf": "a: 1\n"},
         "1.30.0", "unix:///d", "/d/2.conf"),
        ("--config=/c.yaml", {"/c.yaml": "kind: KubeletConfiguration\n"}, "1.27.0", CONTAINERD, "the default of kubelet 1.27.0"),
        ("--config=/c.yaml", {"/c.yaml": "kind: KubeletConfiguration\n"}, "1.33.1", CONTAINERD, "the default of kubelet 1.33.1"),
        ("--v=2", {}, "1.22.17", kubelet.DOCKERSHIM, "the default of kubelet 1.22.17"),
        ("--container-runtime=remote", {}, "1.22.17", None, "neither COMMAND nor its configuration names an endpoint"),
        ("--v=2", {}, "1.25.0", None, "neither COMMAND nor its configuration names an endpoint"),
        ("--v=2", {}, None, None, "neither COMMAND nor its configuration names an endpoint"),
        ("--config=/gone.yaml", {}, "1.30.0", None, "a file that COMMAND names can not be read"),
    ],
)  # fmt: skip
def test_the_endpoint_of_kubelet(words, files, version, endpoint, where):
    names = [os.path.basename(path) for path in files if path.startswith("/d/")]
    found = kubelet.kubelet_endpoint(["/usr/bin/kubelet"] + words.split(), lambda path: files.get(path, ""), lambda _path: names, version)
    assert found == (endpoint, where)


def test_an_unknown_command_line_has_no_default():
    assert kubelet.kubelet_endpoint([], lambda _path: "", lambda _path: [], "1.30.0")[0] is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("key: plain", "plain"),
        ("key: 'quoted # no comment' # comment", "quoted # no comment"),
        ('"key": "x"', "x"),
        ("key: a#b", "a#b"),
        ("key:   # nothing", None),
        ("key: null", None),
        ("key: ~", None),
        ('key: ""', ""),
        (" key: nested", None),
        ("# key: comment", None),
        ("keys: other", None),
        ("key: first\nkey: last", "last"),
        ('{"key": true}', "true"),
        ('{"key": null}', None),
        ("{broken", None),
        ("", None),
    ],
)
def test_a_key_at_the_top_of_a_file(text, value):
    assert kubelet.config_value(text, "key") == value


@pytest.mark.parametrize(
    ("name", "words", "texts", "endpoint"),
    [
        ("k3s", "server", [], kubelet.EMBEDDED),
        ("rke2", "server", [""], kubelet.EMBEDDED),
        ("k3s", "server --docker", [], kubelet.EMBEDDED_DOCKER),
        ("k3s", "agent", ["docker: true\n"], kubelet.EMBEDDED_DOCKER),
        ("k3s", "agent", ["docker: true\n", "docker: false\n"], kubelet.EMBEDDED),
        ("rke2", "server --docker", [], kubelet.EMBEDDED),
        ("k3s", "server --container-runtime-endpoint unix:///run/containerd/containerd.sock", [], CONTAINERD),
        ("rke2", "agent", ["container-runtime-endpoint: /run/crio/crio.sock\n"], "unix:///run/crio/crio.sock"),
        ("k3s", "server --container-runtime-endpoint=unix:///flag", ["container-runtime-endpoint: unix:///file\n"], "unix:///flag"),
    ],
)
def test_the_endpoint_of_k3s_and_rke2(name, words, texts, endpoint):
    assert kubelet.embedded_endpoint(name, ["/usr/local/bin/" + name] + words.split(), texts)[0] == endpoint


@pytest.mark.parametrize(
    ("endpoint", "kind", "engine"),
    [
        ("unix:///run/containerd/containerd.sock", "kubelet", "containerd"),
        ("unix:///var/run/containerd/containerd.sock", "kubelet", "containerd"),
        ("unix:///run/containerd-kube/containerd.sock", "kubelet", "containerd"),
        ("unix:///var/run/crio/crio.sock", "kubelet", "crio"),
        ("unix:///var/run/isulad.sock", "kubelet", "isulad"),
        ("unix:///run/cri-dockerd.sock", "kubelet", "docker"),
        ("unix:///var/run/dockershim.sock", "kubelet", "docker"),
        ("unix:///run/k3s/cri-dockerd/cri-dockerd.sock", "k3s", "docker"),
        ("unix:///run/k3s/containerd/containerd.sock", "k3s", "k3s"),
        ("unix:///run/k3s/containerd/containerd.sock", "rke2", "rke2"),
        ("unix:///run/k3s/containerd/containerd.sock", "kubelet", None),
        ("unix:///run/k0s/containerd.sock", "kubelet", "k0s"),
        ("unix:///var/snap/microk8s/common/run/containerd.sock", "microk8s", "microk8s"),
        ("unix:///run/own.sock", "kubelet", None),
        ("tcp://192.0.2.1:99", "kubelet", None),
        (None, "kubelet", None),
    ],
)
def test_the_engine_behind_an_endpoint(endpoint, kind, engine):
    assert kubelet.engine_of({"endpoint": endpoint, "kind": kind}) == engine


# --- on a host ---


class Root:
    """A root with processes and units."""

    def __init__(self, root):
        self.root = root
        self.units = {}
        self.version = "1.28.3"
        (root / "usr/bin").mkdir(parents=True)
        (root / "proc").mkdir()
        self.program("systemctl")

    def program(self, name):
        path = self.root / "usr/bin" / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)

    def process(self, pid, name, *words, namespace=None):
        folder = self.root / "proc" / str(pid)
        folder.mkdir()
        (folder / "comm").write_text(name + "\n")
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
        if namespace:
            (folder / "ns").mkdir()
            (folder / "ns/pid").symlink_to(namespace)

    def unit(self, name, command, state="active", environment=""):
        path = self.root / "etc/systemd/system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[Service]\n")
        self.units[name] = (
            f"LoadState=loaded\nActiveState={state}\nMainPID=0\nEnvironmentFiles={environment}\n"
            f"ExecStart={{ path=/x ; argv[]={command} ; ignore_errors=no ; start_time=[n/a] }}\n"
        )

    def run(self, argv, _timeout, **_options):
        if argv[1] == "--version":
            return Result(argv, 0, f"Kubernetes v{self.version}\n", "", False, 0.1)
        return Result(argv, 0, self.units.get(argv[2], "LoadState=not-found\n"), "", False, 0.1)

    def endpoint(self):
        return kubelet.endpoint(self.run, str(self.root), 5)


@pytest.fixture()
def root(tmp_path):
    return Root(tmp_path)


def test_no_kubelet(root):
    found = root.endpoint()
    assert (found["installed"], found["running"], found["endpoint"], found["kind"]) == (False, False, None, None)


def test_the_running_kubelet_wins_over_its_unit(root):
    root.program("kubelet")
    root.unit("kubelet.service", "/usr/bin/kubelet --container-runtime-endpoint=unix:///run/crio/crio.sock")
    root.process(50, "kubelet", "/usr/bin/kubelet", "--container-runtime-endpoint=" + CONTAINERD)
    found = root.endpoint()
    assert found == {
        "installed": True, "running": True, "endpoint": CONTAINERD, "source": "kubelet's command line (process 50)", "version": None,
        "kind": "kubelet",
    }  # fmt: skip


def test_a_kubelet_that_is_down_is_read_from_its_unit_and_kubeadms_flags(root):
    root.program("kubelet")
    flags = root.root / "var/lib/kubelet/kubeadm-flags.env"
    flags.parent.mkdir(parents=True)
    flags.write_text('KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///var/run/cri-dockerd.sock --v=2"\n')
    command = "/usr/bin/kubelet $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS"
    root.unit("kubelet.service", command, "inactive", "/var/lib/kubelet/kubeadm-flags.env (ignore_errors=yes)")
    found = root.endpoint()
    assert (found["running"], found["endpoint"], found["source"]) == (False, "unix:///var/run/cri-dockerd.sock", "the unit kubelet.service")
    assert kubelet.engine_of(found) == "docker"


def test_a_kubelet_without_a_unit_is_not_known(root):
    root.program("kubelet")
    found = root.endpoint()
    assert (found["installed"], found["endpoint"], found["source"]) == (True, None, "how kubelet is started is not known")


def test_a_kubelet_in_a_container_of_this_host_does_not_count(root):
    (root.root / "proc/self/ns").mkdir(parents=True)
    (root.root / "proc/self/ns/pid").symlink_to("pid:[1]")
    root.process(50, "kubelet", "/usr/bin/kubelet", "--container-runtime-endpoint=" + CONTAINERD, namespace="pid:[2]")
    assert root.endpoint()["installed"] is False
    root.process(60, "kubelet", "/usr/bin/kubelet", "--container-runtime-endpoint=" + CONTAINERD, namespace="pid:[1]")
    assert root.endpoint()["endpoint"] == CONTAINERD


@pytest.mark.parametrize(
    ("unit", "process", "engine"),
    [("k3s.service", "k3s-server", "k3s"), ("k3s-agent.service", "k3s-agent", "k3s"), ("rke2-server.service", "rke2", "rke2")],
)
def test_k3s_and_rke2_are_their_own_kubelet(root, unit, process, engine):
    root.unit(unit, f"/usr/local/bin/{engine} server")
    root.process(70, process, f"/usr/local/bin/{engine} server")
    found = root.endpoint()
    assert (found["installed"], found["running"], found["endpoint"], kubelet.engine_of(found)) == (True, True, kubelet.EMBEDDED, engine)


def test_k3s_that_is_down_and_its_configuration_folder(root):
    root.unit("k3s.service", "/usr/local/bin/k3s server", "inactive")
    folder = root.root / "etc/rancher/k3s/config.yaml.d"
    folder.mkdir(parents=True)
    (folder / "10.yaml").write_text("docker: true\n")
    found = root.endpoint()
    assert (found["running"], kubelet.engine_of(found)) == (False, "docker")


def test_the_kubelet_that_rke2_starts(root):
    root.unit("rke2-agent.service", "/usr/local/bin/rke2 agent")
    root.process(70, "rke2", "/usr/local/bin/rke2 agent")
    root.process(71, "kubelet", "kubelet", "--container-runtime-endpoint=" + kubelet.EMBEDDED)
    found = root.endpoint()
    assert (found["running"], kubelet.engine_of(found), found["kind"]) == (True, "rke2", "rke2")


def test_microk8s(root):
    root.process(70, "kubelite", "/snap/microk8s/1/kubelite")
    assert kubelet.engine_of(root.endpoint()) == "microk8s"


# --- which engine ---


def of_kubelet(endpoint=None, running=True, installed=True, kind="kubelet"):
    return {"installed": installed, "running": running, "endpoint": endpoint, "source": "SOURCE", "version": "1.28.3", "kind": kind}


NONE = of_kubelet(running=False, installed=False)
UNKNOWN = of_kubelet()


@pytest.mark.parametrize(
    ("wanted", "installed", "seen", "chosen"),
    [
        ("auto", ["docker"], NONE, "docker"),
        ("auto", ["containerd"], NONE, "containerd"),
        ("auto", ["containerd", "docker"], NONE, "docker"),
        ("auto", ["containerd", "docker"], of_kubelet(CONTAINERD), "containerd"),
        ("auto", ["containerd", "docker"], of_kubelet("unix:///run/cri-dockerd.sock"), "docker"),
        ("auto", ["containerd", "crio", "docker"], of_kubelet("unix:///run/crio/crio.sock", running=False), "crio"),
        ("auto", ["docker"], of_kubelet(kubelet.EMBEDDED, kind="k3s"), "k3s"),
        ("auto", ["docker"], UNKNOWN, "docker"),
        ("docker", ["containerd", "docker"], of_kubelet(CONTAINERD), "docker"),
        ("containerd", ["containerd", "docker"], NONE, "containerd"),
        ("rke2", [], of_kubelet(kubelet.EMBEDDED, kind="rke2"), "rke2"),
    ],
)
def test_the_engine_that_is_chosen(wanted, installed, seen, chosen):
    assert _engine.decide(wanted, installed, seen) == chosen


@pytest.mark.parametrize(
    ("wanted", "installed", "seen", "code", "text"),
    [
        ("auto", [], NONE, "engine_missing", "No container engine was found"),
        ("auto", ["containerd", "docker"], UNKNOWN, "engine_ambiguous", "containerd and docker.*not which of them it uses: SOURCE"),
        ("auto", ["crio", "docker"], NONE, "engine_ambiguous", "npu_runtime_engine: crio or docker"),
        ("auto", ["containerd", "crio", "docker"], NONE, "engine_ambiguous", "crio and docker"),
        ("auto", ["containerd", "isulad"], NONE, "engine_ambiguous", "containerd and isulad"),
        ("auto", ["docker"], of_kubelet("unix:///run/k0s/containerd.sock"), "engine_unsupported", "k0s is not supported.*containerd.d"),
        ("auto", ["docker"], of_kubelet("unix:///run/own.sock"), "engine_unsupported", "not known, at unix:///run/own.sock .SOURCE."),
        ("auto", ["docker"], of_kubelet("unix:///crio.sock", running=False), "engine_missing", "crio is not installed.*set up to use"),
        ("docker", ["containerd"], of_kubelet(CONTAINERD), "engine_missing", "docker is not installed"),
    ],
)
def test_what_is_refused(wanted, installed, seen, code, text):
    with pytest.raises(FleetError, match=text) as caught:
        _engine.decide(wanted, installed, seen)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("seen", "name", "uses"),
    [
        (NONE, "docker", False),
        (UNKNOWN, "docker", None),
        (of_kubelet(CONTAINERD), "containerd", True),
        (of_kubelet(CONTAINERD), "docker", False),
    ],
)
def test_whether_kubelet_uses_an_engine(seen, name, uses):
    assert _engine.kubelet_uses(seen, name) is uses


def test_the_entry_of_docker_under_kubelet_does_not_promise_cdi(node, monkeypatch):
    seen = of_kubelet("unix:///run/cri-dockerd.sock")
    monkeypatch.setattr(kubelet, "endpoint", lambda *_arguments: seen)
    (entry,) = _engine.observe(run, str(node.root))
    assert (entry["kubelet"], entry["cdi"]) == (True, None)


@pytest.mark.parametrize(
    ("version", "known"),
    [("1.28.15", False), ("1.29.0", True), ("1.31.6+k3s1", True), ("2.0", True), (None, None), ("", None), ("1", None)],
)
def test_who_hands_cdi_names_on(version, known):
    assert kubelet.cdi_by_plugins(version) is known


@pytest.mark.parametrize(
    ("kind", "said", "version"),
    [("kubelet", "Kubernetes v1.30.2", "1.30.2"), ("k3s", "k3s version v1.31.6+k3s1 (6ab750f9)", "1.31.6+k3s1")],
)
def test_the_version_is_asked_where_it_is_needed(root, kind, said, version):
    root.program(kind)
    seen = dict(of_kubelet(CONTAINERD, kind=kind), version=None)
    assert kubelet.version_of(seen, lambda argv, *_more: Result(argv, 0, said, "", False, 0.1), str(root.root)) == version
    assert kubelet.version_of(of_kubelet(CONTAINERD), None, str(root.root)) == "1.28.3"


def test_a_broken_look_at_kubelet_hides_no_engine(node, monkeypatch):
    def broken(*_arguments):
        raise OSError("odd")

    monkeypatch.setattr(kubelet, "endpoint", broken)
    (entry,) = _engine.observe(run, str(node.root))
    assert (entry["name"], entry["active"], entry["kubelet"]) == ("docker", True, None)


def test_processes_of_a_root_without_proc(tmp_path):
    assert units.processes(("kubelet",), str(tmp_path)) == []


def test_a_k3s_that_does_not_run_is_not_started_beside_a_docker():
    dormant = of_kubelet(kubelet.EMBEDDED, running=False, kind="k3s")
    with pytest.raises(FleetError, match="docker and k3s. k3s is installed and does not run") as caught:
        _engine.decide("auto", ["docker", "k3s"], dormant)
    assert caught.value.code == "engine_ambiguous"
    assert "npu_runtime_engine: docker or k3s" in caught.value.hint
    assert _engine.decide("auto", ["k3s"], dormant) == "k3s"
    assert _engine.decide("k3s", ["docker", "k3s"], dormant) == "k3s"
    assert _engine.decide("auto", ["docker", "k3s"], dict(dormant, running=True)) == "k3s"
