# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetching from an HTTP depot: resume, refusals, nothing secret in errors, nothing fetched twice."""

import base64
import errno
import hashlib
import http.server
import os
import threading
from types import SimpleNamespace

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _fetch

NAME = "Ascend-cann-toolkit_8.5.0_linux-x86_64.run"


class Depot(http.server.ThreadingHTTPServer):
    """Serves one file with ranges; ``cuts`` are numbers of bytes after which an answer breaks off."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.cuts, self.requests, self.ranges, self.status = b"", [], [], True, None

    def url(self, user=""):
        return f"http://{user}127.0.0.1:{self.server_address[1]}/depot/{NAME}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        depot = self.server
        wanted = self.headers.get("Range")
        depot.requests.append((self.path, wanted, self.headers.get("Authorization")))
        if depot.status:
            self.send_error(depot.status)
            return
        start = int(wanted[len("bytes="):-1]) if wanted and depot.ranges else 0
        if start >= len(depot.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(depot.content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = depot.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(depot.content) - 1}/{len(depot.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: depot.cuts.pop(0)] if depot.cuts else body)

    def log_message(self, *unused):
        pass


@pytest.fixture
def depot(tmp_path, monkeypatch, build):
    monkeypatch.setattr(_fetch, "_FAILURES", 2)
    server = Depot()
    server.sha256 = build(tmp_path / "origin" / NAME, payload=os.urandom(300000))
    server.content = (tmp_path / "origin" / NAME).read_bytes()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def fetch(tmp_path, depot):
    def fetch(user="", sha256=None):
        return _fetch.provide(depot.url(user), sha256 or depot.sha256, str(tmp_path / "cache"), 30)

    fetch.folder = tmp_path / "cache" / depot.sha256
    return fetch


def test_fetch_and_keep(depot, fetch):
    path = fetch()
    assert path == str(fetch.folder / NAME)
    assert (fetch.folder / NAME).read_bytes() == depot.content
    assert os.access(path, os.X_OK)
    assert fetch() == path
    assert len(depot.requests) == 1


def test_a_known_file_is_not_read_again(fetch, monkeypatch):
    fetch()
    monkeypatch.setattr(_fetch._runfile, "sha256_of", lambda path: pytest.fail("hashed again"))
    fetch()


def test_a_changed_file_in_the_cache_is_fetched_again(depot, fetch):
    path = fetch()
    with open(path, "r+b") as stream:
        stream.seek(-10, 2)
        stream.write(b"0123456789")
    assert fetch() == path
    assert len(depot.requests) == 2
    assert (fetch.folder / NAME).read_bytes() == depot.content


def test_broken_transfers_are_taken_up(depot, fetch):
    depot.cuts = [100000, 50000]
    fetch()
    assert [wanted for _, wanted, _ in depot.requests] == [None, "bytes=100000-", "bytes=150000-"]
    assert hashlib.sha256((fetch.folder / NAME).read_bytes()).hexdigest() == depot.sha256


def test_the_part_of_an_earlier_run_is_used(depot, fetch):
    fetch.folder.mkdir(parents=True)
    (fetch.folder / (NAME + ".part")).write_bytes(depot.content[:200000])
    fetch()
    assert [wanted for _, wanted, _ in depot.requests] == ["bytes=200000-"]
    assert sorted(os.listdir(fetch.folder)) == [NAME, NAME + ".checked"]


def test_a_whole_part_needs_no_more_bytes(depot, fetch):
    fetch.folder.mkdir(parents=True)
    (fetch.folder / (NAME + ".part")).write_bytes(depot.content)
    fetch()
    assert [wanted for _, wanted, _ in depot.requests] == [f"bytes={len(depot.content)}-"]


@pytest.mark.parametrize("part", [b"x" * 1000, b"x" * 999999])
def test_a_part_of_another_file(depot, fetch, part):
    fetch.folder.mkdir(parents=True)
    (fetch.folder / (NAME + ".part")).write_bytes(part)
    fetch()
    assert (fetch.folder / NAME).read_bytes() == depot.content


def test_a_server_without_ranges(depot, fetch):
    depot.ranges = False
    depot.cuts = [1000]
    fetch()
    assert (fetch.folder / NAME).read_bytes() == depot.content


def test_wrong_checksum(depot, fetch, tmp_path):
    with pytest.raises(FleetError) as caught:
        fetch(sha256="0" * 64)
    assert caught.value.code == "checksum_differs"
    assert os.listdir(tmp_path / "cache" / ("0" * 64)) == []
    assert len(depot.requests) == 1


def test_truncated_on_the_server(depot, fetch):
    depot.content = depot.content[:-1000]
    with pytest.raises(FleetError) as caught:
        fetch()
    assert caught.value.code == "package_truncated"


@pytest.mark.parametrize(("status", "asked"), [(404, 1), (403, 1), (500, 2), (503, 2)])
def test_refusals_of_the_server(depot, fetch, status, asked):
    depot.status = status
    with pytest.raises(FleetError) as caught:
        fetch()
    assert caught.value.code == "download_failed"
    assert str(status) in str(caught.value)
    assert f"curl -I http://127.0.0.1:{depot.server_port}/" in caught.value.hint
    assert len(depot.requests) == asked


def test_nobody_there(fetch, depot):
    depot.shutdown()
    depot.server_close()
    with pytest.raises(FleetError) as caught:
        fetch()
    assert caught.value.code == "download_failed"
    assert "refused" in str(caught.value)


def test_user_and_password(depot, fetch):
    fetch("someone:se%40cret@")
    assert depot.requests[0][2] == "Basic " + base64.b64encode(b"someone:se@cret").decode()


def test_secrets_are_not_told(depot, fetch, tmp_path):
    depot.status = 404
    with pytest.raises(FleetError) as caught:
        fetch("someone:canary@")
    assert "canary" not in str(caught.value.as_dict())
    assert _fetch.public("https://u:canary@h/x/y.run?token=canary2") == "https://h/x/y.run"
    assert _fetch.secrets("https://u:can%40ary@h/x/y.run?token=canary2") == ["can%40ary", "can@ary", "token=canary2"]
    assert _fetch.secrets("/a/b") == []


def test_no_proxy_for_loopback(depot, fetch, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    fetch()
    assert [_fetch._is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "LOCALHOST")] == [True] * 4
    assert not _fetch._is_loopback("depot.example.com")


def test_proxy_for_others(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    _, opener = _fetch._request("http://depot.example.com/x")
    assert opener.handle_open["http"][0].proxies == {"http": "http://127.0.0.1:1"}


def test_no_room(depot, fetch, monkeypatch):
    monkeypatch.setattr(_fetch.shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(FleetError) as caught:
        fetch()
    assert caught.value.code == "no_space"
    assert f"df -h {caught.value.object}" in caught.value.hint


@pytest.fixture
def take(tmp_path, depot):
    def take(sha256=None):
        return _fetch.provide(str(tmp_path / "origin" / NAME), sha256 or depot.sha256, str(tmp_path / "cache"), 30)

    take.source = tmp_path / "origin" / NAME
    return take


def test_a_path_on_the_node_is_linked_into_the_cache(take, fetch):
    take.source.chmod(0o644)
    path = take()
    assert path == str(fetch.folder / NAME)
    assert os.path.samefile(path, take.source)
    assert take.source.stat().st_mode & 0o777 == 0o644


def test_a_path_on_another_file_system_is_copied_and_read_once(take, fetch, monkeypatch):
    def refuse(*unused):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(_fetch.os, "link", refuse)
    monkeypatch.setattr(_fetch._runfile, "sha256_of", lambda path: pytest.fail("read once more"))
    path = take()
    assert (fetch.folder / NAME).read_bytes() == take.source.read_bytes()
    assert not os.path.samefile(path, take.source)
    assert os.access(path, os.X_OK)


def test_a_path_is_not_needed_again(take, monkeypatch):
    path = take()
    take.source.unlink()
    monkeypatch.setattr(_fetch._runfile, "sha256_of", lambda path: pytest.fail("hashed again"))
    assert take() == path


def test_another_file_in_the_depot_folder(take, fetch):
    with pytest.raises(FleetError) as caught:
        take("0" * 64)
    assert caught.value.code == "checksum_differs"
    with pytest.raises(FleetError) as caught:
        _fetch.provide("/nonexistent/" + NAME, "0" * 64, str(fetch.folder.parent), 30)
    assert caught.value.code == "package_missing"
    assert os.listdir(fetch.folder.parent / ("0" * 64)) == []


def test_a_download_does_not_write_into_a_linked_file(take, fetch, depot):
    """A run that was cut between link and rename; the next one has a URL."""
    fetch.folder.mkdir(parents=True)
    before = take.source.read_bytes()
    os.link(take.source, fetch.folder / (NAME + ".link"))
    depot.cuts = [1000]
    fetch()
    assert take.source.read_bytes() == before


def test_the_package_in_the_cache_may_be_the_source(take, fetch):
    path = take()
    os.unlink(path + ".checked")
    assert _fetch.provide(path, os.path.basename(os.path.dirname(path)), str(fetch.folder.parent), 30) == path
    assert os.path.exists(path + ".checked")


def test_a_transferred_file_is_copied_checked_and_removed(take, fetch, depot, tmp_path):
    staged = tmp_path / "staged"
    cache = str(fetch.folder.parent)
    staged.write_bytes(depot.content)
    assert _fetch.accept(str(staged), "/on/the/controller/" + NAME, depot.sha256, cache) == str(fetch.folder / NAME)
    assert not staged.exists()
    staged.write_bytes(depot.content[:-1])
    with pytest.raises(FleetError) as caught:
        _fetch.accept(str(staged), NAME, "0" * 64, cache)
    assert (caught.value.code, staged.exists()) == ("package_truncated", False)


def test_mirrors_go_on_where_the_first_one_stopped(depot, fetch, build, tmp_path):
    first = Depot()
    first.content, first.cuts = depot.content, [100000, 0, 0, 0]
    thread = threading.Thread(target=first.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        _fetch.provide(first.url(), depot.sha256, str(tmp_path / "cache"), 30, mirrors=[depot.url()])
    finally:
        first.shutdown()
        first.server_close()
        thread.join()
    assert [wanted for _, wanted, _ in depot.requests] == ["bytes=100000-"]
    assert (fetch.folder / NAME).read_bytes() == depot.content


def test_a_mirror_with_another_file(depot, fetch, tmp_path):
    other = Depot()
    other.content = depot.content[:-10] + b"0123456789"
    thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        _fetch.provide(other.url(), depot.sha256, str(tmp_path / "cache"), 30, mirrors=[depot.url()])
    finally:
        other.shutdown()
        other.server_close()
        thread.join()
    assert (fetch.folder / NAME).read_bytes() == depot.content


def test_prune(fetch, depot):
    fetch()
    cache = fetch.folder.parent
    for name in ("a" * 64, "work", "docker_runtime", "A" * 64):
        (cache / name).mkdir()
    _fetch.prune(str(cache), [depot.sha256.upper()])
    assert sorted(os.listdir(cache)) == sorted([depot.sha256, "work", "docker_runtime", "A" * 64])


@pytest.mark.parametrize(
    ("src", "name"), [("/a/b.run", "b.run"), ("http://h/a/b.run?x=/y", "b.run"), ("https://h/a/b%2B1.run", "b+1.run"), ("/a/b/", "b")]
)
def test_file_name(src, name):
    assert _fetch.file_name(src) == name
