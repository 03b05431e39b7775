# SPDX-License-Identifier: GPL-3.0-or-later
"""The CRI client against a real gRPC server, against a server that speaks HTTP/2 by hand, and against bytes."""

import json
import socket
import struct
import threading
import time

import pytest
from cri_server import Server, condition, field, info, pod, version

from ansible_collections.npu.fleet.plugins.module_utils import _cri, _grpc, _hpack
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError

PLANTED = "hunter2-planted"


VERSION = version()
CONFIG = {
    "containerd": {"defaultRuntimeName": "runc", "runtimes": {"runc": {"runtimeType": "io.containerd.runc.v2", "options": {}}}},
    "registry": {"configs": {"registry.example": {"auth": {"password": PLANTED}}}},
}
STATUS = field(1, condition("RuntimeReady", True) + condition("NetworkReady", False, "NetworkPluginNotReady", f"token={PLANTED}")) + info(
    "golang", '"go1.19.8"'
)


# --- a real gRPC server ---


@pytest.fixture()
def serve(tmp_path):
    pytest.importorskip("grpc")
    running = []

    def start(answers, **more):
        running.append(Server(tmp_path / f"cri{len(running)}.sock", answers, **more))
        start.seen = running[-1].seen
        return running[-1].path

    yield start
    for server in running:
        server.stop()


def test_version(serve):
    path = serve({"Version": VERSION})
    assert _cri.version(path, 5) == {"name": "containerd", "version": "1.6.20~ds1", "api": "v1"}
    assert serve.seen == [("runtime.v1.RuntimeService", "Version", b"")]


def test_status_of_an_engine_that_lists_no_handlers(serve):
    path = serve({"Version": VERSION, "Status": STATUS + info("config", json.dumps(CONFIG))})
    status = _cri.status(path, 5)
    assert serve.seen[-1] == ("runtime.v1.RuntimeService", "Status", b"\x08\x01")
    assert status["ready"] is True
    assert status["version"] == "1.6.20~ds1"
    assert status["handlers"] is None
    assert status["config"] == {"containerd": CONFIG["containerd"]}
    assert status["conditions"]["NetworkReady"]["reason"] == "NetworkPluginNotReady"
    assert PLANTED not in json.dumps(status)


def test_handlers_without_the_default_one_that_has_no_name(serve):
    handlers = b"".join(field(3, field(1, name) + field(2, b"")) for name in ("runc", "", "ascend"))
    assert _cri.status(serve({"Version": VERSION, "Status": STATUS + handlers}), 5)["handlers"] == ["ascend", "runc"]


@pytest.mark.parametrize("config", ["", "no json", "[1]", '"text"'])
def test_a_config_that_is_no_object_is_none(serve, config):
    assert _cri.status(serve({"Version": VERSION, "Status": STATUS + info("config", config)}), 5)["config"] is None


def test_not_ready(serve):
    status = field(1, condition("RuntimeReady", False, "Reason", "why"))
    assert _cri.status(serve({"Version": VERSION, "Status": status}), 5)["ready"] is False


def test_sandboxes(serve):
    path = serve({"ListPodSandbox": pod("b", "ascend") + pod("a", "", ready=False)})
    assert _cri.sandboxes(path, 5) == [
        {"name": "a", "namespace": "space", "handler": "", "id": "id-a-a", "state": "notready"},
        {"name": "b", "namespace": "space", "handler": "ascend", "id": "id-b-a", "state": "ready"},
    ]


def test_an_empty_answer(serve):
    assert _cri.sandboxes(serve({"ListPodSandbox": b""}), 5) == []


def test_an_answer_of_many_frames(serve):
    """2.4 MB: well over a hundred frames, and more than twice the window."""
    pods = b"".join(pod(f"pod-{number:0200}", "runc") for number in range(5000))
    assert len(pods) > 2 * _grpc.WINDOW
    found = _cri.sandboxes(serve({"ListPodSandbox": pods}), 20)
    assert len(found) == 5000
    assert found[-1]["name"] == f"pod-{4999:0200}"


def test_an_engine_that_knows_only_v1alpha2(serve):
    path = serve({"Version": VERSION, "Status": STATUS}, services=("runtime.v1alpha2.RuntimeService",))
    assert _cri.status(path, 5)["ready"] is True
    assert {service for service, _method, _request in serve.seen} == {"runtime.v1alpha2.RuntimeService"}


def test_an_engine_without_its_cri_plugin(serve):
    path = serve({"Version": VERSION}, services=("containerd.services.version.v1.Version",))
    with pytest.raises(FleetError) as caught:
        _cri.status(path, 5)
    assert caught.value.code == "cri_missing"
    assert "plugin" in caught.value.hint


def test_an_error_of_the_server_is_told_without_secrets(serve):
    def fail(_request, context):
        import grpc

        context.abort(grpc.StatusCode.INTERNAL, f"ünable, 100% sure; password={PLANTED}")

    with pytest.raises(FleetError) as caught:
        _cri.version(serve({"Version": fail}), 5)
    assert caught.value.code == "cri_error"
    assert caught.value.observed == "gRPC status 13"
    assert "ünable, 100% sure" in caught.value.message
    assert PLANTED not in str(caught.value.as_dict())


def test_a_server_that_hangs(serve):
    def hang(_request, context):
        time.sleep(2)
        return VERSION

    began = time.monotonic()
    with pytest.raises(FleetError) as caught:
        _cri.version(serve({"Version": hang}), 0.4)
    assert caught.value.code == "cri_timeout"
    assert time.monotonic() - began < 1.5


def test_an_answer_that_is_no_such_message(serve):
    with pytest.raises(FleetError) as caught:
        _cri.version(serve({"Version": b"\x0b\xff"}), 5)
    assert caught.value.code == "cri_error"


def test_a_socket_that_is_not_there(tmp_path):
    with pytest.raises(FleetError) as caught:
        _cri.version(str(tmp_path / "none.sock"), 5)
    assert caught.value.code == "cri_unreachable"
    assert "No such file" in caught.value.message


def test_a_socket_that_nobody_listens_at(tmp_path):
    path = str(tmp_path / "old.sock")
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(path)
    with pytest.raises(FleetError) as caught:
        _cri.version(path, 5)
    assert caught.value.code == "cri_unreachable"


# --- a server that speaks HTTP/2 by hand ---


def h2(kind, flags, payload=b"", stream=1):
    return _grpc.frame(kind, flags, stream, payload)


def literal(name, value):
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


OK_TRAILERS = h2(_grpc.HEADERS, 0x5, literal(b"grpc-status", b"0"))
START = h2(_grpc.SETTINGS, 0, b"", 0) + h2(_grpc.HEADERS, 0x4, b"\x88")  # index 8: ":status: 200"
MESSAGE = b"\0" + struct.pack("!I", len(VERSION)) + VERSION


@pytest.fixture()
def script(tmp_path):
    """Serve one connection: read the request, send these bytes, close (or keep quiet)."""
    threads = []

    def start(answer, *, path=None, quiet=0, slowly=False):
        path = path or str(tmp_path / "by-hand.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(1)
        seen = bytearray()

        def received():
            threads[-1].join(5)
            return bytes(seen)

        start.received = received

        def work():
            connection = listener.accept()[0]
            with connection, listener:
                seen.extend(connection.recv(65536))
                try:
                    for byte in answer if slowly else ():
                        connection.sendall(bytes([byte]))
                    if not slowly:
                        connection.sendall(answer)
                    time.sleep(quiet)
                    connection.shutdown(socket.SHUT_WR)
                    while True:
                        more = connection.recv(65536)
                        if not more:
                            break
                        seen.extend(more)
                except OSError:
                    pass

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return path

    yield start
    for thread in threads:
        thread.join(5)


def ask(path, timeout=5):
    return _grpc.unary(path, "/s/m", b"question", timeout)


def test_what_is_sent(script):
    ask(script(START + h2(_grpc.DATA, 0, MESSAGE) + OK_TRAILERS))
    received = script.received()
    assert received.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert b"question" in received
    assert struct.pack("!HI", _grpc.HEADER_TABLE_SIZE, 0) in received


def test_pings_and_settings_are_answered(script):
    ping = h2(_grpc.PING, 0, b"12345678", 0)
    assert ask(script(START + ping + h2(_grpc.DATA, 0, MESSAGE) + OK_TRAILERS)) == VERSION
    assert h2(_grpc.PING, _grpc.ACK, b"12345678", 0) in script.received()
    assert h2(_grpc.SETTINGS, _grpc.ACK, b"", 0) in script.received()


def test_room_is_given_back(script):
    ask(script(START + h2(_grpc.DATA, 0, MESSAGE) + OK_TRAILERS))
    room = struct.pack("!I", len(MESSAGE))
    assert h2(_grpc.WINDOW_UPDATE, 0, room, 1) + h2(_grpc.WINDOW_UPDATE, 0, room, 0) in script.received()


def test_byte_by_byte(script):
    assert ask(script(START + h2(_grpc.DATA, 0, MESSAGE) + OK_TRAILERS, slowly=True)) == VERSION


def test_padding_priority_and_continuation(script):
    block = literal(b"grpc-status", b"0")
    headers = h2(_grpc.HEADERS, 0x1 | 0x8 | 0x20, b"\x03" + b"prio!" + block[:4] + b"pad") + h2(_grpc.CONTINUATION, 0x4, block[4:])
    data = h2(_grpc.DATA, 0x8, b"\x02" + MESSAGE + b"--")
    assert ask(script(START + data + headers)) == VERSION


def test_frames_of_other_kinds_and_streams_are_passed_over(script):
    other = h2(_grpc.DATA, 0, b"junk", 3) + h2(0x2, 0, b"\0" * 5) + h2(0xFA, 0, b"new", 0)
    assert ask(script(START + other + h2(_grpc.DATA, 0, MESSAGE) + OK_TRAILERS)) == VERSION


def coded(text):
    codes = {symbol: (length, code) for (length, code), symbol in _hpack.CODES.items()}
    bits = "".join(format(codes[byte][1], f"0{codes[byte][0]}b") for byte in text)
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def test_huffman_coded_trailers_only(script):
    """As grpc-go codes them: names and values by Huffman, to be kept in a table, no body at all."""
    block = b"\x88"
    for name, value in ((b"grpc-status", b"12"), (b"grpc-message", b"unknown service runtime.v1.RuntimeService")):
        name, value = coded(name), coded(value)
        block += b"\x40" + bytes([0x80 | len(name)]) + name + bytes([0x80 | len(value)]) + value
    with pytest.raises(_grpc.GrpcError) as caught:
        ask(script(h2(_grpc.SETTINGS, 0, b"", 0) + h2(_grpc.HEADERS, 0x5, block)))
    assert caught.value.status == _grpc.UNIMPLEMENTED
    assert caught.value.message == "unknown service runtime.v1.RuntimeService"


def test_a_message_with_percent_codes(script):
    block = b"\x88" + literal(b"grpc-status", b"2") + literal(b"grpc-message", b"a%20%C3%BC %zz 5%")
    with pytest.raises(_grpc.GrpcError) as caught:
        ask(script(h2(_grpc.HEADERS, 0x5, block)))
    assert caught.value.message == "a ü %zz 5%"


BROKEN = {
    "nothing": (b"", _grpc.UNAVAILABLE, "closed"),
    "no frames": (b"HTTP/1.1 400 Bad Request\r\n\r\n", _grpc.INTERNAL, "frame"),
    "ends in the middle": (START + h2(_grpc.DATA, 0, MESSAGE), _grpc.UNAVAILABLE, "closed"),
    "goaway": (h2(_grpc.GOAWAY, 0, struct.pack("!II", 0, 11), 0), _grpc.UNAVAILABLE, "error 11"),
    "reset": (START + h2(_grpc.RST_STREAM, 0, struct.pack("!I", 8)), _grpc.UNAVAILABLE, "error 8"),
    "no status": (h2(_grpc.HEADERS, 0x5, b"\x8d"), _grpc.UNKNOWN, "HTTP 404"),
    "status without a message": (START + OK_TRAILERS, _grpc.INTERNAL, "no message"),
    "compressed": (START + h2(_grpc.DATA, 0, b"\1" + MESSAGE[1:]) + OK_TRAILERS, _grpc.INTERNAL, "compressed"),
    "incomplete": (START + h2(_grpc.DATA, 0, MESSAGE[:-1]) + OK_TRAILERS, _grpc.INTERNAL, "incomplete"),
    "a table that we do not keep": (h2(_grpc.HEADERS, 0x5, b"\xbe"), _grpc.INTERNAL, "no table"),
    "headers break off": (h2(_grpc.HEADERS, 0x1, b"\x88") + h2(_grpc.DATA, 0, b""), _grpc.INTERNAL, "break off"),
    "short reset": (h2(_grpc.RST_STREAM, 0, b"1"), _grpc.INTERNAL, "no gRPC"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_answers(script, name):
    answer, status, words = BROKEN[name]
    with pytest.raises(_grpc.GrpcError) as caught:
        ask(script(answer))
    assert caught.value.status == status
    assert words in caught.value.message


def test_goaway_behind_our_stream_is_no_refusal(script):
    goaway = h2(_grpc.GOAWAY, 0, struct.pack("!II", 1, 0), 0)
    assert ask(script(START + goaway + h2(_grpc.DATA, 0, MESSAGE) + OK_TRAILERS)) == VERSION


def test_a_server_that_says_nothing(script):
    began = time.monotonic()
    with pytest.raises(_grpc.GrpcError) as caught:
        ask(script(START, quiet=2), timeout=0.3)
    assert caught.value.status == _grpc.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 1.8


def test_a_server_that_drips_for_ever_meets_the_deadline(script):
    """Each byte comes within the deadline, the whole does not."""
    ping = h2(_grpc.PING, 0, b"12345678", 0)
    with pytest.raises(_grpc.GrpcError) as caught:
        ask(script(START + ping * 200000, quiet=1), timeout=0.3)
    assert caught.value.status == _grpc.DEADLINE_EXCEEDED


def test_a_path_longer_than_a_unix_socket_may_have(script, tmp_path, monkeypatch):
    folder = tmp_path / ("f" * 60) / ("g" * 60)
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    script(START + h2(_grpc.DATA, 0, MESSAGE) + OK_TRAILERS, path="x.sock")
    path = str(folder / "x.sock")
    assert len(path) > 107
    assert ask(path) == VERSION


# --- HPACK ---

RFC_7541 = [  # Appendix C: C.2.1, C.2.2, C.2.4, C.3.1, C.4.1, C.6.1 (those of a table of its own, with the table's entries left out)
    ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", {"custom-key": "custom-header"}),
    ("040c2f73616d706c652f70617468", {":path": "/sample/path"}),
    ("82", {":method": "GET"}),
    (
        "828684410f7777772e6578616d706c652e636f6d",
        {":method": "GET", ":scheme": "http", ":path": "/", ":authority": "www.example.com"},
    ),
    (
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        {":method": "GET", ":scheme": "http", ":path": "/", ":authority": "www.example.com"},
    ),
    (
        "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad1718"
        "63c78f0b97c8e9ae82ae43d3",
        {
            ":status": "302", "cache-control": "private", "date": "Mon, 21 Oct 2013 20:13:21 GMT",
            "location": "https://www.example.com",
        },
    ),
]


@pytest.mark.parametrize(("block", "headers"), RFC_7541)
def test_blocks_of_the_rfc(block, headers):
    assert _hpack.decode(bytes.fromhex(block)) == headers


def test_the_huffman_code_is_complete():
    """Kraft: no code is free, none is used twice; 257 codes."""
    assert len(_hpack.CODES) == 257
    assert sorted(_hpack.CODES.values()) == list(range(257))
    assert sum(2.0 ** -length for length, _code in _hpack.CODES) == 1


def test_every_byte_by_huffman():
    assert _hpack.huffman(coded(bytes(range(256)))) == bytes(range(256))


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x00", b"\xff\xff\xff\xff"])
def test_huffman_that_breaks_off(data):
    with pytest.raises(_hpack.HpackError):
        _hpack.huffman(data)


def test_what_is_encoded_is_decoded():
    headers = [("a", "b" * 127), ("c", "d" * 5000), ("grpc-timeout", "20000m")]
    assert _hpack.decode(_hpack.encode(headers)) == dict(headers)


@pytest.mark.parametrize("block", [b"\x80", b"\x40\x05ab", b"\x7f", b"\xff\xff\xff\xff\xff\xff\x01", b"\x00\x01a\x02b"])
def test_blocks_that_can_not_be_read(block):
    with pytest.raises(_hpack.HpackError):
        _hpack.decode(block)


def test_a_new_table_size_is_passed_over():
    assert _hpack.decode(b"\x20\x88") == {":status": "200"}


# --- protobuf ---


def test_fixed_width_fields_are_passed_over():
    data = field(1, "x") + b"\x11" + b"\0" * 8 + b"\x1d" + b"\0" * 4 + field(4, 300)
    assert _cri.parse(data) == {1: [b"x"], 2: [0], 3: [0], 4: [300]}


@pytest.mark.parametrize("data", [b"\x0a\x05ab", b"\x08", b"\x08" + b"\xff" * 11, b"\x0b", b"\x0d\0", b"\x09\0"])
def test_bytes_that_are_no_message(data):
    with pytest.raises(ValueError, match="breaks off|wire type"):
        _cri.parse(data)
