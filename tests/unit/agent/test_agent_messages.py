# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages: the same as protoc makes of the .proto, the same on the wire as other code has it, on old and new protobuf."""

import ast
import json
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
from agent_rig import REPO
from google.protobuf import descriptor_pb2
from kubelet_standin import api, wire

PROTOS = [REPO / "roles/npu_agent/files/npu_agent" / name for name in ("device_plugin.proto", "pod_resources.proto")]
# Oldest: the last release before generated code changed (what distributions with Python 3.9 have). Pure Python: fits any interpreter.
OLDEST = "protobuf==3.20.3"

SCRIPT = """
import json, sys
from google.protobuf import __version__
from npu_agent import messages as m
answer = m.AllocateResponse()
one = answer.container_responses.add(envs={"B": "2", "A": "1"})
one.devices.add(host_path="/dev/davinci0", container_path="/dev/davinci0", permissions="rw")
lists = m.ListAndWatchResponse()
device = lists.devices.add(ID="Ascend910-0", health="Healthy")
device.topology.nodes.add(ID=1)
request = m.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name="a/b",
                            options=m.DevicePluginOptions(get_preferred_allocation_available=True))
again = m.AllocateRequest.FromString(bytes.fromhex(sys.argv[1]))
print(json.dumps({"version": __version__, "ids": list(again.container_requests[0].devices_ids),
                  "allocate": answer.SerializeToString(deterministic=True).hex(),
                  "lists": lists.SerializeToString().hex(), "register": request.SerializeToString().hex()}))
"""


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_same_as_the_compiler_makes(package, tmp_path, proto):
    from grpc_tools import protoc

    from npu_agent import messages

    shutil.copy(proto, tmp_path)
    assert protoc.main(["protoc", f"-I{tmp_path}", f"--descriptor_set_out={tmp_path}/set", proto.name]) == 0
    (compiled,) = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    made = messages.describe(proto.read_text())
    assert [message.name for message in made.message_type] == [message.name for message in compiled.message_type]
    for mine, theirs in zip(made.message_type, compiled.message_type, strict=True):
        for message in (mine, theirs):
            for field in (*message.field, *(field for entry in message.nested_type for field in entry.field)):
                field.ClearField("json_name")
        assert mine == theirs


def test_every_message_of_the_services_is_there(package):
    from npu_agent import messages

    for name in re.findall(r"(?:rpc \w+\(|returns \((?:stream )?)(\w+)\)", "".join(proto.read_text() for proto in PROTOS)):
        assert hasattr(messages, name)


def run_with(python, package, *extra_path):
    request = wire.encode(api.ALLOCATE_REQUEST, {"container_requests": [{"devices_ids": ["b", "a"]}]}).hex()
    env = {"PYTHONPATH": ":".join(map(str, [*extra_path, package]))}
    done = subprocess.run([python, "-c", SCRIPT, request], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_wire(found):
    assert found["ids"] == ["b", "a"]
    (one,) = wire.decode(api.ALLOCATE_RESPONSE, bytes.fromhex(found["allocate"]))["container_responses"]
    assert one["envs"] == {"A": "1", "B": "2"}
    assert one["devices"] == [{"host_path": "/dev/davinci0", "container_path": "/dev/davinci0", "permissions": "rw"}]
    (device,) = wire.decode(api.DEVICES, bytes.fromhex(found["lists"]))["devices"]
    assert device == {"ID": "Ascend910-0", "health": "Healthy", "topology": {"nodes": [{"ID": 1}]}}
    register = wire.decode(api.REGISTER, bytes.fromhex(found["register"]))
    assert register["options"] == {"pre_start_required": False, "get_preferred_allocation_available": True}
    assert (register["version"], register["endpoint"], register["resource_name"]) == ("v1beta1", "x.sock", "a/b")


def test_on_this_protobuf(package):
    check_wire(run_with(sys.executable, package))


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    """{requirement: folder with that protobuf}: the oldest, and the pins of both requirement files (their wheels fit any Python)."""
    wanted = {OLDEST: ["--platform", "any", "--implementation", "py"]}
    for path in sorted((REPO / "roles/npu_agent/files/npu_agent/requirements").glob("*.txt")):
        wanted.update({line: [] for line in path.read_text().splitlines() if line.startswith("protobuf==")})
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    folders = {requirement: tmp_path_factory.mktemp("protobuf") for requirement in wanted}
    running = [subprocess.Popen([*pip, *wanted[name], "--dest", str(folder), name]) for name, folder in folders.items()]
    assert [process.wait() for process in running] == [0] * len(running)
    for folder in folders.values():
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "site")
    return {requirement: folder / "site" for requirement, folder in folders.items()}


def test_on_old_and_new_protobuf(package, sites):
    assert len(sites) == 3
    for requirement, site in sites.items():
        found = run_with(sys.executable, package, site)
        assert found["version"] == requirement.partition("==")[2]
        check_wire(found)


def test_the_agent_is_python_3_9(package):
    files = list((package / "npu_agent").rglob("*.py"))
    assert len(files) > 20
    for path in files:
        ast.parse(path.read_text(), str(path), feature_version=(3, 9))


@pytest.mark.parametrize(("field", "value"), [
    ({"n": (1, "int")}, {"n": -1}), ({"n": (1, "int")}, {"n": 300}), ({"t": (16, "string")}, {"t": "x" * 300}),
])
def test_the_stand_ins_own_wire_code(field, value):
    assert wire.decode(field, wire.encode(field, value)) == value


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x08", b"\x0b\x00"])
def test_the_stand_ins_own_wire_code_refuses(data):
    with pytest.raises(wire.WireError):
        wire.decode({"t": (1, "string")}, data)
