# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent notices of kubelet's folder and of the way to it, with inotify and without. No agent process."""

import asyncio
import errno
import os
import shutil
import socket

import pytest


@pytest.fixture
def watch(package):
    import npu_agent.watch

    return npu_agent.watch


class Told:
    """Events of the log, by name."""

    def __init__(self):
        self.events = []

    def __call__(self, event, level="info", **fields):
        self.events.append((event, fields))


def socket_at(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


# --- the way

def test_the_way_ends_where_something_is_missing(watch, tmp_path):
    path = tmp_path / "kubelet/device-plugins"
    steps, folder = watch.way_to(str(path))
    assert folder is None and steps[-1] == (str(tmp_path), "kubelet") and steps[0][0] == "/"
    path.mkdir(parents=True)
    steps, folder = watch.way_to(str(path))
    assert folder == str(path) and steps[-1] == (str(tmp_path / "kubelet"), "device-plugins")


def test_links_on_the_way_are_steps(watch, tmp_path):
    (tmp_path / "data/real/device-plugins").mkdir(parents=True)
    (tmp_path / "kubelet").symlink_to("data/link")
    (tmp_path / "data/link").symlink_to(tmp_path / "data/other/../real/.")
    (tmp_path / "data/other").mkdir()
    steps, folder = watch.way_to(f"{tmp_path}/kubelet/device-plugins/")
    assert folder == str(tmp_path / "data/real/device-plugins")
    for place, name in (("", "kubelet"), ("/data", "link"), ("/data", "real"), ("/data/real", "device-plugins")):
        assert (f"{tmp_path}{place}", name) in steps


def test_a_link_to_itself_has_no_end(watch, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    assert watch.way_to(str(tmp_path / "loop/x"))[1] is None


def test_a_socket_with_the_same_inode_is_another_one(watch, tmp_path):
    path = tmp_path / "kubelet.sock"
    assert watch.stamp(path) is None
    socket_at(path)
    first = watch.stamp(path)
    path.unlink()
    path.touch()
    assert watch.stamp(path) is None  # a file is no socket
    path.unlink()
    socket_at(path)
    assert watch.stamp(path) not in (first, None)


# --- what is noticed: `change` is done with the folder watched; QUICK and SLOW are far away, so inotify alone can tell

def noticed(watch, path, change, inotify=None, seconds=10.0):
    """(whether a listener was called after `change`, the log)"""
    told = Told()

    async def run():
        folder = watch.Folder(str(path), told, *([] if inotify is None else [inotify]))
        folder.look()
        heard = asyncio.Event()
        folder.listeners.add(heard.set)
        change()
        try:
            await asyncio.wait_for(heard.wait(), seconds)
            return True, folder.trouble
        except asyncio.TimeoutError:
            return False, folder.trouble
        finally:
            folder.close()

    return (*asyncio.run(run()), told.events)


@pytest.fixture
def far(watch, monkeypatch):
    monkeypatch.setattr(watch, "SLOW", 1000.0)
    monkeypatch.setattr(watch, "QUICK", 1000.0)
    return watch


CHANGES = {
    "a socket comes": lambda base: socket_at(base / "kubelet/device-plugins/kubelet.sock"),
    "a socket goes": lambda base: (base / "kubelet/device-plugins/old.sock").unlink(),
    "a name is taken over": lambda base: os.rename(base / "kubelet/device-plugins/a", base / "kubelet/device-plugins/old.sock"),
    "the folder is moved away": lambda base: (base / "kubelet/device-plugins").rename(base / "away"),
    "the folder is removed": lambda base: shutil.rmtree(base / "kubelet/device-plugins"),
    "a folder above is moved away": lambda base: (base / "kubelet").rename(base / "away"),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_inotify_tells(far, tmp_path, change):
    (tmp_path / "kubelet/device-plugins").mkdir(parents=True)
    socket_at(tmp_path / "kubelet/device-plugins/old.sock")
    (tmp_path / "kubelet/device-plugins/a").touch()
    assert noticed(far, tmp_path / "kubelet/device-plugins", lambda: CHANGES[change](tmp_path)) == (True, None, [])


@pytest.mark.parametrize("missing", ["kubelet", "kubelet/device-plugins"])
def test_a_folder_that_comes_later(far, tmp_path, missing):
    (tmp_path / missing).parent.mkdir(exist_ok=True)
    path = tmp_path / "kubelet/device-plugins"
    assert noticed(far, path, (tmp_path / missing).mkdir)[0]


def test_a_link_that_leads_elsewhere(far, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name / "device-plugins").mkdir(parents=True)
    (tmp_path / "kubelet").symlink_to("one")

    def change():
        (tmp_path / "new").symlink_to("two")
        os.rename(tmp_path / "new", tmp_path / "kubelet")

    assert noticed(far, tmp_path / "kubelet/device-plugins", change)[0]


def test_what_happens_beside_the_way_is_of_no_interest(far, tmp_path):
    (tmp_path / "kubelet/device-plugins").mkdir(parents=True)
    assert not noticed(far, tmp_path / "kubelet/device-plugins", (tmp_path / "kubelet/pods").mkdir, seconds=0.3)[0]


def test_after_a_change_the_new_folder_is_watched(far, tmp_path):
    """A watch holds on to the folder that it was made for."""
    path = tmp_path / "kubelet/device-plugins"
    path.mkdir(parents=True)

    async def run():
        folder = far.Folder(str(path), Told())
        folder.look()
        heard = asyncio.Event()
        folder.listeners.add(heard.set)
        path.rename(tmp_path / "away")
        path.mkdir()
        await asyncio.wait_for(heard.wait(), 10)
        await asyncio.sleep(0.1)  # all that is known of the replacement has been told
        heard.clear()
        (tmp_path / "away/x").touch()
        await asyncio.sleep(0.1)
        old = heard.is_set()
        (path / "x").touch()
        await asyncio.wait_for(heard.wait(), 10)
        watches = len(folder.watches)
        folder.close()
        return old, watches

    assert asyncio.run(run()) == (False, len(far.way_to(str(path))[0]) + 1)


# --- without inotify

class Refusing:
    def __init__(self, number):
        self.number = number

    def __call__(self):
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(("number", "words"), [
    (errno.EMFILE, "all inotify instances of this user are taken (fs.inotify.max_user_instances)"),
    (errno.ENOSPC, "all inotify watches of this user are taken (fs.inotify.max_user_watches)"),
    (errno.ENOSYS, "Function not implemented"),
])
def test_without_inotify_it_is_polled_and_said(watch, tmp_path, number, words):
    heard, trouble, events = noticed(watch, tmp_path / "x", lambda: None, Refusing(number))
    assert heard and words in trouble and trouble.endswith("is looked at every 0.5 s instead")
    ((event, fields),) = events
    assert event == "kubelet's folder is not watched by inotify" and fields["cause"] == trouble and "sysctl" in fields["hint"]


def test_inotify_that_comes_back_is_used_again(watch, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "QUICK", 0.05)
    told, answers = Told(), [Refusing(errno.EMFILE), Refusing(errno.EMFILE), watch.Inotify]

    def ask():
        return answers.pop(0)()

    async def run():
        folder = watch.Folder(str(tmp_path / "x"), told, ask)
        folder.look()
        states = [bool(folder.trouble)]
        for _unused in range(200):
            await asyncio.sleep(0.05)
            if not folder.trouble:
                break
        folder.close()
        return [*states, bool(folder.trouble)]

    assert asyncio.run(run()) == [True, False]
    assert [event for event, _fields in told.events] == ["kubelet's folder is not watched by inotify",
                                                         "kubelet's folder is watched by inotify again"]
