# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's lines about a refused allocation: which ones, how they are read, and what is left out of them.

The lines have the form of the vendor's driver ("[ascend] [module] [function line] <process> text", its open source and public reports of
its users), of RKNPU and of the kernel's AER (drivers/pci/pcie/aer.c).
"""

import errno
import json
import os
import time

import pytest

CANARY = "CaNaRy7Xq0Zt93"
LINES = {
    "heart": "[ascend] [drv_pcie] [devdrv_sync_non_trans_msg_send 1239] <kworker/u385:0> Device is abnormal. (dev_id=5)",
    "aicore": "[ascend] [devdrv] [devdrv_refresh_aicore_info_work 322] <kworker> devdrv_manager_send_msg unsuccessful. (ret=-19; dev_id=5)",
    "page": "[ascend] [ERROR] [devmm] [devmm_svm_device_fault 438] <kworker/u16:186:9871,9871> Vm fault failed. (hostpid=1885445; devid=0)",
    "rknpu": "RKNPU: job timeout, flags: 0x0:",
    "rknpu init": "RKNPU fdab0000.npu: RKNPU: failed to wait job, task counter: 0",
    "aer": "pcieport 0000:c0:02.0: AER: Multiple Uncorrected (Fatal) error received: 0000:c1:00.0",
    "aer short": "pcieport 0000:c0:02.0: AER: Corrected error received: c1:00.0",
    "own": "devdrv_device_driver 0000:c1:00.0: enabling device (0000 -> 0002)",
    "other chip": "devdrv_device_driver 0000:c2:00.0: enabling device (0000 -> 0002)",
    "nvme": "nvme nvme0: 16/0/0 default/read/poll queues",
    "input": "input: AT Translated Set 2 keyboard as /devices/platform/i8042/serio0/input/input3",
    "disk": "hisi_sas_v3_hw 0000:74:02.0: erroneous completion iptt=2345 task=0000000012345678",
    "network": "hns3 0000:7d:00.0 enp125s0f0: link up",
    "longer address": "xhci_hcd 1000:0c1:00.00 x",
}


@pytest.fixture
def kmsg(package):
    import npu_agent.kmsg

    return npu_agent.kmsg


def write(path, *texts):
    path.write_text("".join(f"6,{number},{1000000 + number},-;{text}\n" for number, text in enumerate(texts)))
    return str(path)


def names(kmsg, path, *addresses):
    (found,) = kmsg.lines(path, [addresses])
    return [name for line in found for name, text in LINES.items() if line.endswith(text)]


@pytest.mark.parametrize(("addresses", "expected"), [
    (("0000:c1:00.0",), ["heart", "aicore", "page", "rknpu", "rknpu init", "aer", "aer short", "own"]),
    (("0000:C1:00.0", None), ["heart", "aicore", "page", "rknpu", "rknpu init", "aer", "aer short", "own"]),
    (("0000:c2:00.0",), ["heart", "aicore", "page", "rknpu", "rknpu init", "other chip"]),
    ((), ["heart", "aicore", "page", "rknpu", "rknpu init"]),
    ((None, "fdab0000.npu"), ["heart", "aicore", "page", "rknpu", "rknpu init"]),
])
def test_which_lines(kmsg, tmp_path, addresses, expected):
    assert names(kmsg, write(tmp_path / "kmsg", *LINES.values()), *addresses) == expected


def test_the_newest_20_as_dmesg_shows_them(kmsg, tmp_path):
    path = write(tmp_path / "kmsg", *(f"RKNPU: job abort {number}" for number in range(1000)), "nothing")
    assert kmsg.lines(path, [[]])[0] == [f"[    1.{number:06d}] RKNPU: job abort {number}" for number in range(980, 1000)]


def test_the_device_of_a_record_stands_in_the_lines_after_it(kmsg, tmp_path):
    path = tmp_path / "kmsg"
    path.write_text("3,1,5000001,-;device reset failed\n SUBSYSTEM=pci\n DEVICE=+pci:0000:c1:00.0\n4,2,6,-;x\n DEVICE=+pci:0000:c2:00.0\n")
    assert kmsg.lines(str(path), [["0000:c1:00.0"]])[0] == ["[    5.000001] device reset failed"]


@pytest.mark.parametrize(("text", "expected"), [
    ("RKNPU: a\\x0ab\\x1b[31m\\x5c", "RKNPU: a b [31m\\"), ("RKNPU: " + "x" * 1000, "RKNPU: " + "x" * 393), ("RKNPU: ü", "RKNPU: ü"),
])
def test_odd_texts(kmsg, tmp_path, text, expected):
    assert kmsg.lines(write(tmp_path / "kmsg", text), [[]])[0] == [f"[    1.000000] {expected}"]


@pytest.mark.parametrize("data", [b"", b"\n", b"no record about an npu\n", b"\xff\xfe npu;\n", b"6,1;npu", b" npu\n", b"6,a,b,-;npu\n"])
def test_what_is_no_record(kmsg, tmp_path, data):
    (tmp_path / "kmsg").write_bytes(data)
    assert kmsg.read(str(tmp_path / "kmsg"), []) == []


def test_a_log_without_end_is_read_in_part_only(kmsg):
    began = time.monotonic()
    assert kmsg.read("/dev/zero", []) == []
    assert time.monotonic() - began < 30


def test_a_log_that_has_nothing_does_not_hold_up(kmsg, tmp_path):
    os.mkfifo(tmp_path / "kmsg")
    held = os.open(tmp_path / "kmsg", os.O_RDWR)
    os.write(held, b"6,1,2000000,-;RKNPU: job abort\n")
    assert kmsg.lines(str(tmp_path / "kmsg"), [[]])[0] == ["[    2.000000] RKNPU: job abort"]
    os.close(held)


def test_records_that_are_overwritten_meanwhile(kmsg, monkeypatch):
    """EPIPE: go on with what is the oldest now."""
    answers = iter([b"6,1,1,-;a\n", OSError(errno.EPIPE, "x"), b"6,9,1,-;b\n", BlockingIOError()])

    def read(_stream, _size):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(os, "read", read)
    assert list(kmsg.records(0)) == ["6,1,1,-;a", "6,9,1,-;b"]


@pytest.mark.parametrize(("error", "words"), [
    (PermissionError(errno.EPERM, "Operation not permitted"), "CAP_SYSLOG"),
    (FileNotFoundError(errno.ENOENT, "No such file"), "No such file"),
    (OSError(errno.EINVAL, "Invalid argument"), "Invalid argument"),
])
def test_why_it_cannot_be_read(kmsg, monkeypatch, error, words):
    def fail(*_unused):
        raise error

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(kmsg.Unread, match=words):
        kmsg.read("/dev/kmsg", [])


def test_only_what_may_be_shown_is_kept(kmsg, tmp_path):
    """Of a log full of other devices' lines nothing; and of a long line as much as its beginning needs."""
    others = [f"pcieport 0000:c0:02.0: AER: Corrected error received: 0000:{number:02x}:00.0" for number in range(0x10, 0x90)]
    path = write(tmp_path / "kmsg", "RKNPU: " + "x" * 7000, LINES["own"], *others * 8)
    kept = kmsg.read(path, ["0000:c1:00.0"])
    assert [found for _micros, _text, found in kept] == [set(), {"0000:c1:00.0"}] and len(kept[0][1]) <= 2000
    assert len(kmsg.lines(path, [["0000:c1:00.0"], []])[0]) == 2


def test_only_what_is_shown_is_searched_for_secrets(kmsg, tmp_path, monkeypatch):
    """Python holds up a call of kubelet's while it looks for a pattern."""
    searched = []
    monkeypatch.setattr(kmsg, "redact", lambda text, _most: searched.append(len(text)) or text)
    path = write(tmp_path / "kmsg", *["RKNPU: " + "token" * 1500] * 100)
    assert list(map(len, kmsg.lines(path, [[], []]))) == [20, 20]
    assert len(searched) == 20 and max(searched) <= 2000


def test_lines_of_the_kernel_have_no_secret(kmsg, tmp_path):
    texts = [f"[ascend] [ERROR] mount http://u:{CANARY}@h failed, token={CANARY}",
             "RKNPU: " + "x " * 780 + f"https://user:{CANARY}{CANARY}@host", f"RKNPU: password=\\x22a {CANARY}\\x22"]
    path = write(tmp_path / "kmsg", *texts)
    lines = kmsg.lines(path, [[]])[0]
    assert len(lines) == 3 and CANARY not in json.dumps(lines)
