# SPDX-License-Identifier: GPL-3.0-or-later
"""npu-simd notices each way of changing the file, at once and without mounts."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import npu_sim
import npu_simd
import pytest


@pytest.fixture(params=["inotify", "polling"])
def followed(request, state, monkeypatch):
    """Records (time, health of chip 0) of every state that the service puts into effect."""
    applied = []
    over = threading.Event()

    def record(content):
        if over.is_set():
            raise SystemExit
        applied.append((time.monotonic(), content["chips"][0]["health"]))
        return True

    if request.param == "polling":
        monkeypatch.setattr(npu_simd, "watch", lambda folder: None)

    def run():
        with contextlib.suppress(SystemExit):
            npu_simd.follow(state, record)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_for(applied, 0, 2)
    yield applied
    over.set()
    npu_sim.set_values({"over": True}, state)
    thread.join(5)
    assert not thread.is_alive()


def wait_for(applied, health, limit):
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        if applied and applied[-1][1] == health:
            return applied[-1][0]
        time.sleep(0.002)
    raise AssertionError(f"health {health} not seen within {limit} s: {applied}")


def test_setter_rename_and_edit_in_place_are_seen(followed, state):
    start = time.monotonic()
    npu_sim.set_values({"chips.0.health": 1}, state)
    assert wait_for(followed, 1, 2) - start < 1
    text = state.read_text()
    state.write_text(text.replace('"health": 1', '"health": 2', 1))
    wait_for(followed, 2, 2)
    other = state.with_name("elsewhere.json")
    other.write_text(text.replace('"health": 1', '"health": 3', 1))
    other.rename(state)
    wait_for(followed, 3, 2)


def test_nonsense_is_survived(followed, state, capsys):
    text = state.read_text()
    state.write_text("{ nonsense")
    time.sleep(0.8)
    state.write_text(text.replace('"health": 0', '"health": 2', 1))
    wait_for(followed, 2, 3)
    assert "state not applied" in capsys.readouterr().out


def test_the_lock_beside_the_file_wakes_nobody(state, monkeypatch):
    descriptor = npu_simd.watch(state.parent)
    with npu_sim.locked(state):
        pass
    time.sleep(0.02)
    assert npu_simd.touched(descriptor, state.name) is False
    npu_sim.set_values({"chips.0.health": 1}, state)
    assert npu_simd.touched(descriptor, state.name) is True


def test_headers_of_the_running_kernel_are_made_once(tmp_path):
    npu_simd.kernel_headers(tmp_path)
    build = tmp_path / "lib/modules" / os.uname().release / "build"
    assert os.uname().release in (build / "include/generated/utsrelease.h").read_text()
    (build / "Makefile").write_text("an admin's\n")
    npu_simd.kernel_headers(tmp_path)
    assert (build / "Makefile").read_text() == "an admin's\n"
