# SPDX-License-Identifier: GPL-3.0-or-later
"""When kubelet is told a new list, and how a session names and retries. No process, no gRPC call; pauses are either none or endless."""

import asyncio
import contextlib
import importlib.util
import os
import socket
import time
from types import SimpleNamespace

import pytest

ENDLESS = 1000.0


@pytest.fixture
def plugin(package, monkeypatch):
    import npu_agent.plugin

    monkeypatch.setattr(npu_agent.plugin, "GOOD_PAUSE", ENDLESS)
    monkeypatch.setattr(npu_agent.plugin, "BAD_PAUSE", 0.0)
    return npu_agent.plugin


class Board:
    def __init__(self, **healthy):
        self.version, self.waiters = 0, set()
        self.set(**healthy)

    def set(self, **healthy):
        self.units = {name: SimpleNamespace(healthy=value) for name, value in healthy.items()}
        self.version += 1
        self.payload = b"%d" % self.version
        for waiter in self.waiters:
            waiter.set()


def told(plugin, board, *changes):
    """The payloads that go out after the first list, for these changes of the board, one after the other."""

    async def run():
        stream, sent = plugin.Stream(board), []
        board.waiters.add(stream.wake)
        first = stream.message()

        async def send():
            while not stream.over:
                await stream.due()
                if not stream.over:
                    sent.append(stream.message())

        sending = asyncio.ensure_future(send())
        for change in changes:
            change(board, stream)
            for _unused in range(20):  # whoever can go on, does
                await asyncio.sleep(0)
        stream.end()
        await asyncio.wait_for(sending, 10)
        return first, sent

    return asyncio.run(run())


def state(**healthy):
    return lambda board, _stream: board.set(**healthy)


@pytest.mark.parametrize(("changes", "sent"), [
    ([], []),
    ([state(a=True, b=False)], [b"2"]),  # bad news at once
    ([state(a=True)], [b"2"]),  # an id that is not there any more, too
    ([state(a=True, b=True, c=True)], []),  # good news has time
    ([state(a=True, b=True, c=True), state(a=True, b=False, c=True)], [b"3"]),  # and comes along with bad news
    ([state(a=True, b=False), state(a=False, b=False)], [b"2", b"3"]),
    ([state(a=True, b=False), state(a=True, b=True)], [b"2"]),
])
def test_bad_news_goes_out_at_once_good_news_has_time(plugin, changes, sent):
    assert told(plugin, Board(a=True, b=True), *changes) == (b"1", sent)


def test_what_was_good_again_before_it_could_be_told_is_no_bad_news(plugin, monkeypatch):
    monkeypatch.setattr(plugin, "BAD_PAUSE", ENDLESS)
    assert told(plugin, Board(a=True), state(a=False), state(a=True)) == (b"1", [])


def test_good_news_after_its_pause(plugin, monkeypatch):
    monkeypatch.setattr(plugin, "GOOD_PAUSE", 0.0)
    assert told(plugin, Board(a=False), state(a=True)) == (b"1", [b"2"])


def test_an_empty_list_does_not_wait(plugin):
    def drain(_board, stream):
        stream.empty = True
        stream.wake.set()

    assert told(plugin, Board(a=True), state(a=True, b=True), drain, state(a=False)) == (b"1", [b""])


@pytest.mark.parametrize("turns", range(1, 6))
def test_cut(plugin, tmp_path, turns):
    """A service that ends while its server starts ends: gRPC's own trouble with that must not take the end's place."""
    made = plugin.Plugin(Board(a=True), None, None, {}, lambda: None)

    async def serve():
        try:
            await made.open(str(tmp_path / "s"))
            await asyncio.Event().wait()
        finally:
            await made.close()

    async def run():
        task = asyncio.ensure_future(serve())
        for _turn in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 20)

    asyncio.run(run())


def twin(plugin):
    """The same code once more, as another process has it."""
    found = importlib.util.spec_from_file_location("npu_agent.twin", plugin.__file__)
    made = importlib.util.module_from_spec(found)
    found.loader.exec_module(made)
    return made


def test_two_processes_with_one_number_leave_each_others_sockets_alone(plugin, tmp_path):
    """`serve` and `access` in containers: both are process 1, and both open a socket when kubelet comes back."""

    async def run():
        made = [module.Plugin(Board(a=True), None, None, {}, lambda: None) for module in (plugin, twin(plugin))]
        await asyncio.gather(made[0].open(str(tmp_path / "one")), made[1].open(str(tmp_path / "two")))
        assert all(one.owned() and plugin.alive(one.path) for one in made)
        assert sorted(os.listdir(tmp_path)) == ["one", "two"]
        await asyncio.gather(*(one.close() for one in made))

    asyncio.run(run())
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_has_left_goes_and_nothing_else(plugin, tmp_path):
    names = {".npu-agent-1-0.sock": 100, ".npu-agent-0a1b2c3d.sock": 100, ".npu-agent-0a1b2c3e.sock": 1, ".npu-agent-0a1b2c3f.sock": 100,
             "npu-agent-Ascend910.sock": 100, ".npu-agent-other.sock": 100}
    now, live, file = time.time(), ".npu-agent-0a1b2c3f.sock", tmp_path / ".npu-agent-0a1b2c40.sock"
    with contextlib.ExitStack() as stack:
        for name, age in names.items():
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(tmp_path / name))
            os.utime(tmp_path / name, (now - age, now - age))
            if name == live:
                listener.listen()
        file.touch()
        os.utime(file, (now - 100, now - 100))
        plugin.clear_scratch(str(tmp_path), now)
        assert set(os.listdir(tmp_path)) == {*list(names)[2:], file.name}
    assert plugin.SCRATCH.fullmatch(os.path.basename(plugin.scratch_in("/x")))


def test_names_of_sockets(package):
    from npu_agent.config import SOCKET_NAME_ROOM
    from npu_agent.plugin import scratch_in
    from npu_agent.session import endpoint_of

    assert endpoint_of("huawei.com/Ascend910") == "npu-agent-Ascend910.sock"
    long = ["huawei.com/Ascend910-10c.3cpu.16g", "huawei.com/Ascend910-10c.3cpu.16g.ndvpp", "x.example/Ascend910-10c.3cpu.16g"]
    names = [*(endpoint_of(name) for name in [*long, "huawei.com/" + "y" * 63]), scratch_in("")]
    assert len(set(names)) == 5 and all(len("/" + name) <= SOCKET_NAME_ROOM for name in names)


def test_a_full_queue_is_somebody_who_listens(package, tmp_path):
    from npu_agent.plugin import alive

    path = str(tmp_path / "x")
    assert not alive(path)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
        listener.bind(path)
        assert not alive(path)
        listener.listen(0)
        for waiting in (one, two):
            waiting.setblocking(False)
            try:
                waiting.connect(path)
            except BlockingIOError:
                pass
        assert alive(path)
    assert not alive(path)
