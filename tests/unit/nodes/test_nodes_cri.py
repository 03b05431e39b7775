# SPDX-License-Identifier: GPL-3.0-or-later
"""The CRI client of tests/cri, against a server of its own: what is sent, what is told, and what becomes of a pod that fails."""

import hashlib
import io
import json
import tarfile
from concurrent import futures
from types import SimpleNamespace

import cri
import grpc
import images
import pytest


class Runtime:
    """A containerd that knows the handlers runc and ascend, notes its calls, and can make no container where told so."""

    def __init__(self):
        self.calls, self.broken = [], False

    def handle(self, name, request):
        types = cri.messages()[0]
        self.calls.append((name, request))
        if name == "Version":
            return types.VersionResponse(runtime_name="containerd", runtime_version="2.1.9")
        if name == "Status":
            config = {"containerd": {"runtimes": {"runc": {}, "ascend": {}}}}
            condition = types.RuntimeCondition(type="NetworkReady", reason="NetworkPluginNotReady")
            return types.StatusResponse(status=types.RuntimeStatus(conditions=[condition]), info={"config": json.dumps(config)})
        if name == "RunPodSandbox" and request.runtime_handler not in ("", "runc", "ascend"):
            raise LookupError(f'no runtime for "{request.runtime_handler}" is configured')
        if name == "CreateContainer" and self.broken:
            raise LookupError("no such image")
        return {
            "RunPodSandbox": types.RunPodSandboxResponse(pod_sandbox_id="pod-1"),
            "CreateContainer": types.CreateContainerResponse(container_id="c-1"),
            "ListContainers": types.ListContainersResponse(containers=[types.Container(id="c-1")]),
            "ExecSync": types.ExecSyncResponse(stdout=b"davinci0\n", stderr=b"hm", exit_code=4),
            "ListPodSandbox": types.ListPodSandboxResponse(items=[types.PodSandbox(id="pod-1", runtime_handler="ascend")]),
        }.get(name, types.Nothing())


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    runtime, (types, services) = Runtime(), cri.messages()

    def method(name):
        def call(_self, request, context):
            try:
                return runtime.handle(name, request)
            except LookupError as error:
                context.abort(grpc.StatusCode.UNKNOWN, str(error))

        return call

    names = [rpc.name for rpc in types.DESCRIPTOR.services_by_name["RuntimeService"].methods]
    servicer = type("Servicer", (services.RuntimeServiceServicer,), {name: method(name) for name in names})()
    server = grpc.server(futures.ThreadPoolExecutor(1))
    services.add_RuntimeServiceServicer_to_server(servicer, server)
    socket = str(tmp_path / "cri.sock")
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    monkeypatch.setattr(cri, "Nodes", SimpleNamespace)
    monkeypatch.setattr(cri, "connect", lambda _nodes, _name, _socket: cri.Client(socket, timeout=5))
    yield runtime
    server.stop(None)


def named(runtime):
    return [name for name, _ in runtime.calls]


def test_a_pod_is_looked_into_and_taken_away(runtime, capsys):
    code = cri.main(["run", "node", "--handler", "ascend", "--env", "ASCEND_VISIBLE_DEVICES=0,1", "--env", "EMPTY=", "--", "ls", "-l"])
    assert code == 4 and capsys.readouterr() == ("davinci0\n", "hm")
    assert named(runtime) == ["RunPodSandbox", "CreateContainer", "StartContainer", "ExecSync", "StopPodSandbox", "RemovePodSandbox"]
    sent = dict(runtime.calls)
    assert sent["RunPodSandbox"].runtime_handler == "ascend" and sent["RunPodSandbox"].config.hostname == ""
    assert sent["RunPodSandbox"].config.linux.security_context.namespace_options.network == 2
    assert {env.key: env.value for env in sent["CreateContainer"].config.envs} == {"ASCEND_VISIBLE_DEVICES": "0,1", "EMPTY": ""}
    assert list(sent["ExecSync"].cmd) == ["ls", "-l"]


def test_a_pod_can_stay(runtime, capsys):
    cri.main(["run", "node", "--keep"])
    assert capsys.readouterr().out.splitlines() == ["davinci0", "pod-1"]
    cri.main(["exec", "node", "pod-1"])
    cri.main(["remove", "node", "pod-1"])
    assert named(runtime)[3:] == ["ExecSync", "ListContainers", "ExecSync", "StopPodSandbox", "RemovePodSandbox"]


def test_the_words_of_a_refusal_are_shown(runtime, capsys):
    assert cri.main(["run", "node", "--handler", "nope"]) == 3
    assert 'UNKNOWN: no runtime for "nope" is configured' in capsys.readouterr().err
    assert named(runtime) == ["RunPodSandbox"]


def test_a_pod_without_its_container_does_not_stay(runtime):
    runtime.broken = True
    assert cri.main(["run", "node", "--keep"]) == 3
    assert named(runtime) == ["RunPodSandbox", "CreateContainer", "StopPodSandbox", "RemovePodSandbox"]


def test_status_and_pods(runtime, capsys):
    assert cri.main(["status", "node"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["version"], status["handlers"]) == ("2.1.9", ["ascend", "runc"])
    assert status["conditions"] == {"NetworkReady": [False, "NetworkPluginNotReady"]}
    assert cri.main(["pods", "node"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["handler"] == "ascend"


def test_a_word_that_sets_nothing_is_refused(runtime, capsys):
    assert cri.main(["run", "node", "--env", "ALL"]) == 2
    assert "--env ALL: not K=V" in capsys.readouterr().err and runtime.calls == []


@pytest.mark.parametrize("line, image", [
    ('    sandbox_image = "registry.k8s.io/pause:3.6"', "registry.k8s.io/pause:3.6"),
    ("      sandbox = 'registry.k8s.io/pause:3.10'", "registry.k8s.io/pause:3.10"),
])  # fmt: skip
def test_the_sandbox_image_of_both_versions(line, image):
    assert images.sandbox_image(f'version = 2\n  sandbox_mode = "podsandbox"\n{line}\n    sandboxer = "x"\n') == image
    with pytest.raises(ValueError, match="names no sandbox image"):
        images.sandbox_image("version = 2\n")


def test_the_image_has_its_names_and_a_command():
    with tarfile.open(fileobj=io.BytesIO(images.archive(b"program", ["a:1", "b:2"]))) as tar:
        read = {entry.name: tar.extractfile(entry).read() for entry in tar}
    (manifest,) = json.loads(read["manifest.json"])
    config = json.loads(read[manifest["Config"]])
    assert manifest["RepoTags"] == ["a:1", "b:2"] and config["config"]["Cmd"][0] == "/bin/sleep"
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(read["layer.tar"]).hexdigest()]
    with tarfile.open(fileobj=io.BytesIO(read["layer.tar"])) as layer:
        assert layer.extractfile("bin/busybox").read() == b"program" and layer.getmember("bin/ls").linkname == "busybox"
