# SPDX-License-Identifier: GPL-3.0-or-later
"""The DCMI child and its client, with real libraries that behave oddly (odd_dcmi.c) and with children that do."""

import ctypes
import json
import os
import pathlib
import pwd
import re
import subprocess
import sys
import tempfile
import time

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._hardware import _dcmi, _dcmi_child
from ansible_collections.npu.fleet.plugins.module_utils._hardware._dcmi_client import (
    DcmiClient,
    DcmiError,
    find_library,
    library_faults,
    library_path,
    library_places,
    load_faults,
)


@pytest.fixture
def client_of():
    clients = []

    def make(library, timeout=10.0, **more):
        clients.append(DcmiClient(library, timeout, **more))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.mark.parametrize(("struct", "size"), [
    # compiled sizes of the vendor's header on a 64-bit machine
    (_dcmi.ChipInfo, 100), (_dcmi.ChipInfoV2, 132), (_dcmi.PcieInfo, 28), (_dcmi.PcieInfoAll, 64), (_dcmi.ElabelInfo, 1280),
    (_dcmi.DieId, 20), (_dcmi.HbmInfo, 32), (_dcmi.MemoryInfo, 112), (_dcmi.EccInfo, 28), (_dcmi.SensorInfo, 64),
    (_dcmi.SliceTotals, 360), (_dcmi.SliceOne, 264), (_dcmi.EventFilter, 48), (_dcmi.FaultEvent, 352), (_dcmi.Event, 360),
])
def test_struct_sizes(struct, size):
    assert ctypes.sizeof(struct) == size


def test_struct_offsets():
    assert (_dcmi.PcieInfoAll.domain.offset, _dcmi.HbmInfo.memory_usage.offset, _dcmi.MemoryInfo.hugepagesize.offset) == (16, 16, 24)
    assert _dcmi.ChipInfoV2.npu_name.offset == 100
    assert (_dcmi.SliceTotals.aic.offset, _dcmi.SliceOne.template.offset, _dcmi.Event.fault.offset) == (208, 8, 8)
    fields = ("deviceid", "severity", "assertion", "serial", "raised", "name")
    assert [getattr(_dcmi.FaultEvent, field).offset for field in fields] == [4, 10, 11, 12, 24, 32]


def test_chips(client_of, odd_library):
    chips = client_of(odd_library()).call("chips")
    assert [(chip["card_id"], chip["device_id"], chip["logic_id"], chip["phy_id"]) for chip in chips] == [
        (4, 0, 0, 6), (4, 1, 1, 7), (9, None, None, None),
    ]
    first = chips[0]
    assert (first["name"], first["npu_name"], first["aicore_count"], first["serial"]) == ("910B4", None, 20, "0000000000000001")
    assert (first["pci_address"], first["pci_device"], first["pci_sub_device"]) == ("0001:c4:1f.0", "d802", "3000")
    assert first["vdie"] == "00000010-00000011-00000012-00000013-00000014"
    assert chips[1]["vdie"] is None and chips[1]["error"] is None  # nothing but zeros says nothing
    assert first["error"] is None
    assert chips[2]["error"]["return"] == -8012
    assert chips[2]["error"]["name"] == "NOT_READY"
    assert "dcmi_get_device_num_in_card" in chips[2]["error"]["message"]


def test_health_of_one_chip_that_fails_leaves_the_others(client_of, odd_library):
    first, second, third = client_of(odd_library()).call("health")
    assert (first["health"], first["health_code"], first["error_codes"], first["error"]) == ("Alarm", 2, ["80E18005", "00E3A203"], None)
    assert (second["health"], second["dropped"], second["error"]["function"]) == (None, True, "dcmi_get_device_health")
    assert second["error_codes"] == ["80E18005", "00E3A203"]
    assert (third["health"], third["error_codes"]) == (None, None)


def test_telemetry(client_of, odd_library):
    first, second, _third = client_of(odd_library()).call("telemetry")
    assert (first["power_w"], first["temperature_c"], first["hbm_used_mib"], first["hbm_total_mib"]) == (90.4, 41, 3402, 65536)
    assert (first["aicore_percent"], first["hbm_bandwidth_percent"], first["vector_percent"]) == (72, 80, 82)
    assert (first["npu_percent"], first["memory_total_mib"], first["error"]) == (None, None, None)  # not supported is no error
    assert (second["temperature_c"], second["hbm_used_mib"], second["error"]["return"]) == (-3, None, -8005)


def test_old_library(client_of, odd_library):
    client = client_of(odd_library("OLD"))
    first, second, _third = client.call("chips")
    assert (first["name"], first["pci_address"], second["pci_address"]) == ("310P3", "0000:04:00.0", "0000:04:00.1")
    assert (first["pci_device"], first["pci_sub_vendor"], first["pci_sub_device"]) == ("d500", "0200", "0110")
    assert client.call("telemetry")[0]["power_w"] == 72.5  # from the board: the chip has no figure


def test_second_api(client_of, odd_library):
    client = client_of(odd_library("SECOND"))
    assert client.call("open")["api"] == "v2"
    assert client.call("open")["driver_version"] == "25.7.rc1"
    first, second = client.call("chips")
    assert (first["logic_id"], first["phy_id"], first["name"], first["pci_address"]) == (0, 7, "Ascend950PR", "0000:61:00.0")
    assert second["aicore_count"] == 33
    first, second = client.call("health")
    assert (first["health"], first["dropped"], first["error_codes"]) == ("OK", False, [])
    assert (second["health"], second["dropped"], second["error_codes"]) == ("UNKNOWN", True, ["81AF8000"])


def test_library_that_prints_does_not_break_the_channel(client_of, odd_library):
    client = client_of(odd_library("NOISE"))
    assert client.call("open")["driver_version"] == "25.5.0"
    assert len(client.call("chips")) == 3


def test_one_child_serves_many_calls(client_of, odd_library):
    client = client_of(odd_library())
    client.call("open")
    pid = client.pid
    for _ in range(20):
        client.call("health")
    assert (client.pid, client.starts) == (pid, 1)


def test_library_that_refuses(client_of, odd_library):
    client = client_of(odd_library("REFUSE"))
    with pytest.raises(DcmiError) as caught:
        client.call("chips")
    error = caught.value.as_dict()
    assert (error["code"], error["return"], error["name"], error["function"]) == ("dcmi_failed", -8005, "INNER_ERR", "dcmi_init")
    assert "driver is not loaded" in error["message"]
    assert client.pid is None  # the next call begins with a new process


def test_hanging_call_is_killed_at_the_deadline(client_of, odd_library):
    client = client_of(odd_library("HANG"))
    before = time.monotonic()
    with pytest.raises(DcmiError) as caught:
        client.call("chips", timeout=0.5)
    assert time.monotonic() - before < 10
    assert caught.value.code == "dcmi_timeout"
    assert client.pid is None
    with pytest.raises(DcmiError, match="in time"):
        client.call("chips", timeout=0.5)
    assert client.starts == 2


def test_late_child_is_dead_with_its_own_children(client_of, tmp_path):
    client = client_of("/nowhere/libdcmi.so", argv=["sh", "-c", f"echo $$ > {tmp_path}/sh; sleep 60 & echo $! > {tmp_path}/sleep; wait"])
    with pytest.raises(DcmiError):
        client.call("open", timeout=4.0)
    pids = [int((tmp_path / name).read_text()) for name in ("sh", "sleep")]
    deadline = time.monotonic() + 10  # a killed process of a busy machine takes its time to die
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as handle:
            return handle.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_crash_is_told_with_signal_and_last_words(client_of, odd_library):
    with pytest.raises(DcmiError) as caught:
        client_of(odd_library("CRASH")).call("open")
    assert caught.value.code == "dcmi_child_died"
    assert "signal 6" in str(caught.value)
    assert "about to crash" in str(caught.value)


def test_child_that_was_killed_is_started_again(client_of, odd_library):
    client = client_of(odd_library())
    client.call("open")
    os.kill(client.pid, 9)
    time.sleep(0.2)
    assert len(client.call("chips")) == 3
    assert client.starts == 2


def test_child_ends_with_its_parent_even_inside_a_call(odd_library):
    child = subprocess.Popen([sys.executable, _dcmi.__file__, odd_library("HANG")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert "ready" in json.loads(child.stdout.readline())
    child.stdin.write(b'{"id": 1, "cmd": "open"}\n')
    child.stdin.flush()
    time.sleep(0.3)
    assert child.poll() is None
    child.stdin.close()
    assert child.wait(10) == 1
    child.stdout.close()


def test_child_stands_alone_as_a_file(odd_library):
    child = subprocess.run(
        [sys.executable, "-I", "-S", _dcmi.__file__, odd_library()], input=b'{"id": 7, "cmd": "version"}\nnonsense\n[]\n',
        capture_output=True, check=False, timeout=20,
    )
    ready, version, *refused = [json.loads(line) for line in child.stdout.splitlines()]
    assert "ready" in ready
    assert (version["id"], version["result"]["driver_version"]) == (7, "25.5.0")
    assert [reply["error"]["code"] for reply in refused] == ["dcmi_request", "dcmi_request"]
    assert child.returncode == 0


def lines_of(library, *requests):
    """What the child says to these requests, after that it is ready."""
    text = "".join(json.dumps(request) + "\n" for request in requests).encode()
    child = subprocess.run([sys.executable, _dcmi.__file__, library], input=text, stdout=subprocess.PIPE, check=False, timeout=20)
    return [json.loads(line) for line in child.stdout.splitlines()][1:]


def test_child_says_which_chip_it_is_at(odd_library):
    *at, last = lines_of(odd_library(), {"id": 1, "cmd": "list", "progress": True})
    # The list of cards, each card, then each chip; 2 of card 4 is no NPU, and card 9 does not tell its chips.
    assert [line["at"] for line in at] == [None, [4, None], [9, None], [4, 0], [4, 1], [4, 2]]
    assert [(one["card_id"], one["device_id"], one["phy_id"]) for one in last["result"]] == [(4, 0, 6), (4, 1, 7), (9, None, None)]


@pytest.mark.parametrize(("wanted", "at", "chips"), [
    ({"skip": [[4, 0]]}, [None, [4, None], [9, None], [4, 1], [4, 2]], [(4, 1), (9, None)]),
    ({"skip": [[4, None]]}, [None, [9, None]], [(9, None)]),
    ({"skip": [[9, None], [4, 1]]}, [None, [4, None], [4, 0], [4, 2]], [(4, 0)]),
    ({"only": [[4, 1]]}, [[4, 1]], [(4, 1)]),
    ({"only": [[4, 1], [4, 0]], "skip": [[4, 0]]}, [[4, 1]], [(4, 1)]),
])
def test_child_leaves_chips_out(odd_library, wanted, at, chips):
    *said, last = lines_of(odd_library(), {"id": 1, "cmd": "health", "progress": True, **wanted})
    assert [line["at"] for line in said] == at
    assert [(one["card_id"], one["device_id"]) for one in last["result"]] == chips


def test_child_ends_when_told(odd_library):
    said = lines_of(odd_library(), {"id": 1, "cmd": "list"}, {"cmd": "end"}, {"id": 2, "cmd": "list"})
    assert said[-1] == {"ended": True} and not any(line.get("id") == 2 for line in said)


def test_library_without_events_says_so_and_answers_on(odd_library):
    said = lines_of(odd_library(), {"id": 1, "cmd": "subscribe"}, {"id": 2, "cmd": "list"})
    assert said[0]["result"]["subscribed"] is False and "dcmi_subscribe_fault_event" in said[0]["result"]["why"]
    assert len(said[1]["result"]) == 3


def test_library_without_slices_has_none(odd_library):
    chip = lines_of(odd_library(), {"id": 1, "cmd": "slices", "only": [[4, 0]]})[0]["result"][0]
    assert (chip["slices"], chip["aicore_count"], chip["error"]) == ([], None, None)


@pytest.mark.parametrize(("script", "code", "why"), [
    ("exit 3", "dcmi_child_died", "status 3"),
    ("echo oops >&2; exit 1", "dcmi_child_died", "oops"),
    ("echo '{\"ready\": 1}'; echo garbage; sleep 60", "dcmi_child_died", "garbage"),
    ("echo '{\"ready\": 1}'; echo '{\"id\": 99, \"result\": []}'; sleep 60", "dcmi_child_died", "another request"),
    ("echo '[]'; sleep 60", "dcmi_child_died", "not a JSON object"),
    ("echo '{}'; sleep 60", "dcmi_child_died", "ready"),
    ("sleep 60", "dcmi_timeout", "in time"),
])
def test_child_that_misbehaves(client_of, script, code, why):
    client = client_of("/nowhere/libdcmi.so", argv=["sh", "-c", script])
    with pytest.raises(DcmiError) as caught:
        client.call("open", timeout=1.0 if code == "dcmi_timeout" else 20.0)
    assert caught.value.code == code
    assert why in str(caught.value)


def test_child_that_cannot_be_started(client_of):
    with pytest.raises(DcmiError, match="cannot be started"):
        client_of("/nowhere/libdcmi.so", argv=["/nowhere/python"]).call("open")


def test_library_that_is_none(client_of, tmp_path):
    path = tmp_path / "libdcmi.so"
    path.write_text("no library")
    with pytest.raises(DcmiError) as caught:
        client_of(str(path)).call("open")
    assert caught.value.code == "dcmi_library_unusable"
    assert str(path) in str(caught.value)


def test_unknown_command(client_of, odd_library):
    with pytest.raises(DcmiError, match="no command"):
        client_of(odd_library()).call("reset")


def test_search_order(tmp_path):
    places = library_places("/opt/Ascend", str(tmp_path))
    assert [place.replace(str(tmp_path), "") for place in places] == [
        "/usr/local/dcmi/libdcmi.so", "/opt/Ascend/driver/lib64/driver/libdcmi.so", "/opt/Ascend/driver/lib64/libdcmi.so",
        "/usr/lib64/libdcmi.so",
    ]
    with pytest.raises(DcmiError) as caught:
        find_library("/opt/Ascend", str(tmp_path))
    assert caught.value.code == "dcmi_library_missing"
    for place in (places[3], places[1]):
        os.makedirs(os.path.dirname(place))
        open(place, "w").close()
        assert find_library("/opt/Ascend", str(tmp_path)) == place
    assert library_path("/opt/Ascend").split(":")[0] == "/opt/Ascend/driver/lib64"


def place(folder, kind, mode, owner=0):
    """Make one step of the way to a library."""
    if kind == "link":
        folder.symlink_to(mode)
        os.lchown(folder, owner, 0)
        return
    folder.mkdir() if kind == "folder" else folder.write_text("")
    folder.chmod(mode)
    os.chown(folder, owner, 0)


@pytest.fixture
def safe():
    """A folder that nobody else may write to; those of pytest are below /tmp."""
    with tempfile.TemporaryDirectory(prefix=".npu-fleet-", dir=pwd.getpwuid(os.geteuid()).pw_dir) as folder:
        yield pathlib.Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
@pytest.mark.parametrize(("steps", "own", "faults"), [
    ([("lib", "folder", 0o755), ("lib/libdcmi.so", "file", 0o644)], 0, []),
    ([("lib", "folder", 0o755), ("lib/libdcmi.so", "file", 0o440)], 0, []),
    ([("lib", "folder", 0o755), ("lib/libdcmi.so", "file", 0o664)], 0, ["lib/libdcmi.so has mode 0664, .*`chmod go-w .*lib/libdcmi.so`"]),
    ([("lib", "folder", 0o755), ("lib/libdcmi.so", "file", 0o646)], 0, ["lib/libdcmi.so has mode 0646"]),
    ([("lib", "folder", 0o775), ("lib/libdcmi.so", "file", 0o644)], 0, ["lib has mode 0775"]),
    ([("lib", "folder", 0o1777), ("lib/libdcmi.so", "file", 0o644)], 0, ["lib has mode 1777"]),  # sticky or not
    ([("lib", "folder", 0o755), ("lib/libdcmi.so", "file", 0o644, 12345)], 0, ["lib/libdcmi.so belongs to user 12345; `chown root "]),
    ([("lib", "folder", 0o755), ("lib/libdcmi.so", "file", 0o644, 12345)], 12345, []),  # the user's own
    ([("lib", "folder", 0o755, 1), ("lib/libdcmi.so", "file", 0o666)], 0, ["lib belongs to daemon", "lib/libdcmi.so has mode 0666"]),
    ([("real", "folder", 0o755), ("real/x.so", "file", 0o644), ("lib", "link", "real"), ("real/libdcmi.so", "link", "x.so")], 0, []),
    ([("real", "folder", 0o777), ("real/libdcmi.so", "file", 0o644), ("lib", "link", "real")], 0, ["real has mode 0777"]),
    # A link that leads through a folder where others may write, to a file that is safe itself.
    ([("open", "folder", 0o777), ("good", "folder", 0o755), ("good/libdcmi.so", "file", 0o644), ("open/step", "link", "../good"),
      ("lib", "link", "open/step")], 0, ["open has mode 0777"]),
    ([("real", "folder", 0o755), ("real/libdcmi.so", "file", 0o644), ("lib", "link", "real", 12345)], 0, ["lib belongs to user 12345"]),
    ([("lib", "folder", 0o755)], 0, ["lib/libdcmi.so: No such file"]),
])
def test_library_that_others_could_change(safe, steps, own, faults):
    for name, kind, mode, *owner in steps:
        place(safe / name, kind, mode, *owner)
    found = library_faults(str(safe / "lib/libdcmi.so"), own)
    assert len(found) == len(faults), found
    for said, wanted in zip(found, faults):  # noqa: B905  Python 3.6 knows no `strict`
        assert re.match(re.escape(str(safe)) + "/" + wanted, said), said


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
@pytest.mark.parametrize(("step", "fault"), [
    (("driver/lib64/libc_sec.so", "file", 0o777, 0), "driver/lib64/libc_sec.so has mode 0777"),
    (("driver/lib64/driver/libascend_hal.so.1", "file", 0o644, 12345), "driver/lib64/driver/libascend_hal.so.1 belongs to user 12345"),
    (("driver/lib64/common", "folder", 0o777, 0), "driver/lib64/common has mode 0777"),
    (("driver/lib64/libc_sec.so", "link", "../../open/libc_sec.so", 0), "open has mode 0777"),
    (("driver/lib64/libgone.so", "link", "nowhere", 0), None),
    (("driver/lib64/notes.txt", "file", 0o777, 0), None),
    (("driver/tools", "folder", 0o777, 0), None),
])
def test_libraries_beside_it_that_others_could_change(safe, step, fault):
    for folder in ("driver", "driver/lib64", "driver/lib64/driver", "lib"):
        place(safe / folder, "folder", 0o755)
    place(safe / "lib/libdcmi.so", "file", 0o644)
    place(safe / "open", "folder", 0o777)
    place(safe / "open/libc_sec.so", "file", 0o644)
    place(safe / step[0], *step[1:])
    found = load_faults(str(safe / "lib/libdcmi.so"), str(safe), 0)
    assert [one.startswith(f"{safe}/{fault}") for one in found] == [True] * (fault is not None), found


@pytest.mark.parametrize(("note", "good"), [("UserName=nobody\nUserGroup=nogroup\n", True), ("UserName=daemon\n", False), ("", False)])
def test_libraries_of_the_drivers_own_user(safe, note, good):
    for folder in ("driver", "driver/lib64"):
        place(safe / folder, "folder", 0o755)
    place(safe / "driver/lib64/libc_sec.so", "file", 0o444, pwd.getpwnam("nobody").pw_uid)
    place(safe / "libdcmi.so", "file", 0o444)
    (safe / "note").write_text(note)
    assert (load_faults(str(safe / "libdcmi.so"), str(safe), 0, str(safe / "note")) == []) is good


def test_many_faults_are_counted(safe):
    for folder in ("driver", "driver/lib64"):
        place(safe / folder, "folder", 0o755)
    for number in range(9):
        place(safe / f"driver/lib64/lib{number}.so", "file", 0o666)
    place(safe / "libdcmi.so", "file", 0o644)
    found = load_faults(str(safe / "libdcmi.so"), str(safe))
    assert len(found) == 5 and found[-1] == "and 5 more"


def test_the_child_inherits_no_places_of_libraries(client_of, odd_library, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    client = client_of(odd_library())
    client.call("open")
    with open(f"/proc/{client.pid}/environ", encoding="utf-8") as stream:
        variables = dict(word.split("=", 1) for word in stream.read().split("\0") if word)
    assert variables["LD_LIBRARY_PATH"] == library_path()


def test_a_child_starts_when_no_file_can_be_opened(client_of, odd_library, monkeypatch):
    """The code of the child is there from the start: descriptors may run out, or an update takes the package's files away."""
    loader = type(_dcmi.__spec__.loader)
    monkeypatch.setattr(loader, "get_code", lambda *_unused: pytest.fail("the code was read again"))
    assert client_of(odd_library()).call("open")


def test_who_talks_all_the_time_is_heard_in_turns(monkeypatch):
    """Otherwise a storm of events, or of the library's chatter, would leave no time for anything else."""
    child = _dcmi_child.Child.__new__(_dcmi_child.Child)
    child._buffer, child._noise, child.ended, child.output, child.noise = b"", b"", False, 5, 6
    reads = []

    def read(descriptor, _size):
        reads.append(descriptor)
        return b"x" * 65536 if len(reads) < 1000 else pytest.fail("no end")

    monkeypatch.setattr(_dcmi_child.os, "read", read)
    monkeypatch.setattr(child, "reap", lambda seconds: False)
    assert child.read() and len(reads) <= 16
    assert child.heard().startswith("; it said: xxx") and len(reads) <= 32
    assert child.line("health") is None
    for _turn in range(100):
        child.read()
        if len(child._buffer) > _dcmi_child.LINE_BYTES:
            break
    with pytest.raises(DcmiError, match="says a line without end"):
        child.line("health")
    assert child.ended
