# SPDX-License-Identifier: GPL-3.0-or-later
"""How the status address is got: at once, later, or never, and in which words that is told. No agent."""

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from types import SimpleNamespace

import pytest


@pytest.fixture
def status(package, monkeypatch):
    import npu_agent.status

    monkeypatch.setattr(npu_agent.status, "RETRY_SECONDS", 0.01)
    return npu_agent.status


def error(number):
    return OSError(number, os.strerror(number))


NO_NAME = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.mark.parametrize(("cause", "words"), [
    (error(errno.EADDRNOTAVAIL), "does not have that address, or not yet"),
    (OSError("could not bind on any address out of [('10.0.0.1', 8083)]"), "does not have that address, or not yet"),
    (error(errno.EAFNOSUPPORT), "does not have that address, or not yet"),
    (error(errno.EADDRINUSE), "a free port (`ss -ltnp`"), (error(errno.EACCES), "from 1024 on"), (NO_NAME, "can look up"),
    (UnicodeError("label empty or too long"), "can look up"), (error(errno.EMFILE), "see the cause"),
])
def test_what_mends_it(status, cause, words):
    assert words in status.hint(cause)


def told(status, monkeypatch, causes):
    """The events until there is an address, after it was refused for these causes, one after the other."""
    said, left = [], list(causes)

    async def start_server(*_unused, **_more):
        if left:
            raise left.pop(0)
        return "server"

    async def run():
        endpoint = status.Endpoint(SimpleNamespace(settings=SimpleNamespace(listen=("10.0.0.1", 8083)),
                                                   log=lambda event, level="info", **fields: said.append((event, level, fields))))
        await asyncio.wait_for(endpoint.start(), 20)
        assert endpoint.server == "server"

    monkeypatch.setattr(status.asyncio, "start_server", start_server)
    asyncio.run(run())
    return said


def test_an_address_that_comes_later(status, monkeypatch):
    """One line for each cause, and one when it is there."""
    assert told(status, monkeypatch, []) == []
    late, taken = error(errno.EADDRNOTAVAIL), error(errno.EADDRINUSE)
    said = told(status, monkeypatch, [NO_NAME, late, late, late, taken, UnicodeError("x")])
    assert [event for event, _level, _fields in said] == ["no status address"] * 4 + ["the status address is there"]
    assert all(fields["listen"] == "10.0.0.1:8083" for _event, _level, fields in said)
    assert said[1][2]["hint"].endswith("it is tried again every 0.01 s")


def test_a_stop_does_not_wait_for_an_address(status):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        async def run():
            endpoint = status.Endpoint(SimpleNamespace(settings=SimpleNamespace(listen=other.getsockname()),
                                                       log=lambda *_unused, **_fields: None))
            task = asyncio.ensure_future(endpoint.start())
            await asyncio.sleep(0.1)
            assert not task.done()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait_for(task, 20)
            endpoint.close()

        asyncio.run(run())


def test_nor_for_a_name_that_is_looked_up(status, monkeypatch):
    """A resolver may take ten seconds, and a thread of asyncio's own would be waited for."""
    over = threading.Event()
    monkeypatch.setattr(status.socket, "getaddrinfo", lambda *_unused, **_more: over.wait(60) and [])

    async def run():
        task = asyncio.ensure_future(status.looked_up("node7.cluster"))
        await asyncio.sleep(0.05)
        task.cancel()

    try:
        start = time.monotonic()
        asyncio.run(run())
        assert time.monotonic() - start < 30
    finally:
        over.set()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "0.0.0.0"])
def test_addresses_of_a_name(status, name):
    found = asyncio.run(status.looked_up(name))
    assert found == [name] if name != "localhost" else set(found) <= {"127.0.0.1", "::1"} and found


def test_what_is_no_name_is_told(status):
    with pytest.raises((OSError, ValueError)):
        asyncio.run(status.looked_up("node..example"))
