# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubelet stand-in: what a restart does, and how it handles plugins roughly."""

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from agent_rig import until
from kubelet_standin import registration
from odd_plugin import NAME, device

# The restart of kubelet.


def test_stop_changes_nothing_in_the_folder(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    before = {path.name: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in rig.plugins.iterdir()}
    assert {"kubelet.sock", "odd.sock", "kubelet_internal_checkpoint"} <= set(before)
    rig.process.stop()
    assert {path.name: (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in rig.plugins.iterdir()} == before
    until(lambda: 1 in plugin.ended, what="the plugin sees the end of its stream")


def test_restart_deletes_sockets_and_nothing_else(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    rig.allocate(1, "kept")
    (rig.plugins / "file").write_text("x")
    (rig.plugins / "folder").mkdir()
    stray = socket.socket(socket.AF_UNIX)
    stray.bind(str(rig.plugins / "stray.sock"))
    checkpoint = (rig.plugins / "kubelet_internal_checkpoint").read_bytes()
    before = os.stat(rig.plugins / "kubelet.sock")
    rig.restart()
    left = {path.name for path in rig.plugins.iterdir()}
    assert left == {"kubelet.sock", "kubelet_internal_checkpoint", "DEPRECATION", "file", "folder"}
    after = os.stat(rig.plugins / "kubelet.sock")
    assert before.st_ctime_ns != after.st_ctime_ns
    assert (rig.plugins / "kubelet_internal_checkpoint").read_bytes() == checkpoint
    assert rig.numbers() == (0, 0)
    pod = rig.ask("pods")["default/kept"]
    assert pod["phase"] == "Running" and len(pod["devices"][NAME]) == 1
    plugin.stop()
    plugin.serve()
    plugin.register()
    rig.serving(3, 3)
    # What the pod has is not given away again.
    with pytest.raises(ValueError, match="Requested: 3, Available: 2"):
        rig.allocate(3, "too-many")
    stray.close()


def test_a_pod_whose_init_container_had_devices_does_not_survive(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    assert rig.create("both", [("main", {NAME: 1}, {})], init=[("init", {NAME: 1}, {})])["phase"] == "Running"
    rig.restart()
    pod = rig.ask("pods")["default/both"]
    assert (pod["phase"], pod["reason"]) == ("Failed", "UnexpectedAdmissionError")
    assert f"no healthy devices present; cannot allocate unhealthy devices {NAME}" in pod["message"]


def test_a_reboot_ends_every_pod_that_has_devices(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    rig.allocate(1, "one")
    rig.restart()
    assert rig.ask("pods")["default/one"]["phase"] == "Running"
    rig.restart(reboot=True)
    pod = rig.ask("pods")["default/one"]
    assert (pod["phase"], pod["reason"], pod["devices"]) == ("Failed", "UnexpectedAdmissionError", {})


def test_the_new_socket_can_have_the_old_inode(odd):
    rig, _plugin = odd
    for _unused in range(5):  # another process may have been quicker to take the number
        before = os.stat(rig.plugins / "kubelet.sock")
        rig.restart(same_inode=True)
        after = os.stat(rig.plugins / "kubelet.sock")
        assert before.st_ctime_ns != after.st_ctime_ns
        if before.st_ino == after.st_ino:
            break
    else:
        pytest.skip("this file system does not give an inode number away twice")
    assert [name for name in os.listdir(rig.plugins) if name.startswith(".")] == []


def test_an_inode_number_is_kept_for_the_socket(tmp_path):
    names = [tmp_path / name for name in ("a", "b", "c")]
    for _unused in range(5):
        for name in names:
            name.touch()
        wanted = names[-1].stat().st_ino
        for name in names:
            name.unlink()
        kept = registration.hold_inode(tmp_path, wanted, tries=16)
        names[0].touch()
        found = names[0].stat().st_ino
        for path in [*kept, names[0]]:
            os.unlink(path)
        if found == wanted:
            break
    else:
        pytest.skip("this file system does not give an inode number away twice")
    assert len(kept) < 16


def test_the_folder_is_replaced(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    folder = os.stat(rig.plugins).st_ino
    held = os.open(rig.plugins, os.O_RDONLY)  # so that the number of the old one is not given away again
    rig.restart(replace_folder=True)
    assert os.stat(rig.plugins).st_ino != folder and {path.name for path in rig.plugins.iterdir()} == {"kubelet.sock", "DEPRECATION"}
    os.close(held)
    assert rig.numbers() == (None, None)
    with pytest.raises(ValueError, match="cannot allocate unregistered device"):
        rig.allocate(1, "one")


def test_down_time_of_a_restart(odd):
    rig, _plugin = odd
    before = rig.ask("info")["start"]
    rig.restart(down=0.7)
    assert rig.ask("info")["start"] - before >= 0.7


def test_a_kill_is_no_end_of_its_plugins(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    rig.process.stop(signal.SIGKILL)
    until(lambda: 1 in plugin.ended)
    assert (rig.plugins / "odd.sock").exists() and (rig.plugins / "kubelet.sock").exists()


# Rough handling.


def test_a_stream_that_ends_while_its_successor_is_dialled(odd):
    """Kubelet forgets the successor, lets it be, and does not notice when that ends (source)."""
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    rig.ask("rough", dial_delay=1)
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(plugin.register)
        until(lambda: len(rig.ask("registrations")) == 2)
        plugin.end(1)
        rig.serving(0, 3)
        second.result(20)
    rig.serving(3, 3)
    plugin.end(2)
    until(lambda: len(rig.ask("history", kind="end")) == 2)
    assert rig.numbers() == (3, 3)
    plugin.register()
    rig.serving(3, 3)


def test_kubelet_ends_the_stream(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    assert rig.ask("end_stream", resource=NAME) == 1
    rig.serving(0, 3)
    until(lambda: 1 in plugin.ended, what="the plugin sees the end of its stream")
    plugin.register()
    rig.serving(3, 3)


def test_the_list_is_never_asked_for(kubelet):
    rig, plugin = kubelet("--rough", "list=0")
    plugin.register()
    assert plugin.called("GetDevicePluginOptions")
    time.sleep(0.3)
    assert not plugin.called("ListAndWatch") and rig.numbers() == (None, None)
    rig.ask("rough", list=1)
    plugin.register()
    rig.serving(3, 3)
    rig.restart()  # what was said on the command line holds on
    plugin.stop()
    plugin.serve()
    plugin.register()
    time.sleep(0.3)
    assert len(plugin.called("ListAndWatch")) == 1


def test_slow_dial_and_refusal(odd):
    rig, plugin = odd
    rig.ask("rough", dial_delay=0.5)
    begun = time.monotonic()
    plugin.register()
    assert time.monotonic() - begun >= 0.5
    rig.ask("rough", refuse=1, dial_delay=0)
    with pytest.raises(grpc.RpcError, match="refused on purpose"):
        plugin.register()
    with pytest.raises(ValueError, match="there is no rough handling 'smile'"):
        rig.ask("rough", smile=1)


def test_the_socket_is_dropped(odd):
    rig, plugin = odd
    plugin.register()
    rig.serving(3, 3)
    rig.ask("drop_socket")
    with pytest.raises(grpc.RpcError):
        plugin.register(seconds=2)
    plugin.push(device("a"))
    rig.serving(1, 1)  # the stream goes on


def test_a_failed_second_registration_hides_the_end_of_the_first(kubelet):
    rig, plugin = kubelet("--dial-seconds", "0.3")
    plugin.register()
    rig.serving(3, 3)
    other = rig.plugin("other.sock")
    other.server.stop(0).wait()
    with pytest.raises(grpc.RpcError, match="failed to dial"):
        other.register()
    plugin.end(1)
    until(lambda: rig.ask("history", kind="end"))
    assert rig.numbers() == (3, 3)
