# SPDX-License-Identifier: GPL-3.0-or-later
"""Depots and packages that were made to hurt: none may hang, fill the memory, or end in anything but words."""

import gzip
import http.server
import io
import os
import resource
import struct
import tarfile
import threading
import zlib

import packages
import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _content, _depot, _fetch, _names, _versions
from ansible_collections.npu.fleet.plugins.module_utils._packages._signature import Trust

ALL = _depot.Wanted()
LABEL = "ASCEND-HDK_DRIVER_RUN_PACKAGE"
GOOD = packages.content(packages.DRIVER_FILES, label=LABEL)
CANARY = "pa55-w0rd-canary"


def package(payload, **changes):
    given = {"label": LABEL, "size": len(payload), "lines": packages.HEADER.count("\n"), "sha": ""}
    return packages.HEADER.format(**dict(given, **changes)).encode() + payload


def describe(data, size=-1):
    return _content.describe_stream(io.BytesIO(data), packages.DRIVER, len(data) if size == -1 else size)


def header(kind, size, name="x"):
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def attributes(text):
    """A header of extended attributes: "LENGTH KEY=VALUE", the length being that of all of it (POSIX pax)."""
    length = next(number for number in range(len(text), len(text) + 9) if len(f"{number} {text}\n") == number)
    body = f"{length} {text}\n".encode()
    return header(tarfile.XHDTYPE, len(body)) + body + b"\0" * (-len(body) % 512)


def zeros(first, size):
    """A gzip stream of `first` and that many zeros, of which one megabyte is compressed: after a full flush the next one is the same."""
    def flushed(data):
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        return packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)

    megabyte, sum_ = bytes(1 << 20), zlib.crc32(first)
    for _ in range(size >> 20):
        sum_ = zlib.crc32(megabyte, sum_)
    head, end = gzip.compress(b"", mtime=0)[:10], zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    return head + flushed(first) + flushed(megabyte) * (size >> 20) + end + struct.pack("<II", sum_, len(first) + size)


# --- packages ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_of_hundreds_of_megabytes_is_not_read_into_memory(kind):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FleetError) as caught:
        describe(package(zeros(header(kind, 300 << 20), 300 << 20)))
    assert caught.value.code == "package_damaged"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("payload", [
    attributes("GNU.sparse.map=abc") + header(tarfile.REGTYPE, 0),
    attributes("GNU.sparse.size=x") + header(tarfile.REGTYPE, 0),
    attributes("GNU.sparse.major=1\n27 GNU.sparse.minor=0") + header(tarfile.GNUTYPE_SPARSE, 0),
    b"".join(attributes("comment=x") for _ in range(3000)),
])
def test_headers_that_make_no_sense_are_damage(payload):
    with pytest.raises(FleetError) as caught:
        describe(package(gzip.compress(payload + bytes(10240))))
    assert caught.value.code == "package_damaged"


def test_many_members_take_time_that_grows_with_them_only(monkeypatch):
    """One block of compressed data becomes many megabytes, which must not be copied for each member."""
    monkeypatch.setattr(_content, "_MEMBERS", 20000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    describe(package(gzip.compress(header(tarfile.REGTYPE, 0) * 60000 + bytes(10240), 1)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 20


def test_what_stands_behind_the_last_member_that_is_looked_at_counts_no_more(monkeypatch):
    assert describe(GOOD)["content"]["version"] == "25.5.0"
    monkeypatch.setattr(_content, "_MEMBERS", 0)
    assert describe(GOOD)["content"]["version"] is None


@pytest.mark.parametrize("changes", [{"lines": "1 2"}, {"lines": "9" * 5000}, {"size": "9" * 5000}, {"size": " "}])
def test_numbers_of_the_header_that_are_none(changes):
    assert describe(package(b"x", **changes))["content"]["compression"] == "unknown"


def test_an_answer_without_an_end_is_left_when_it_is_longer_than_the_header_says():
    class Endless(io.BytesIO):
        def read(self, size=-1):
            return super().read(size) or bytes(size)

    with pytest.raises(FleetError) as caught:
        _content.describe_stream(Endless(GOOD), packages.DRIVER, None)
    assert caught.value.code == "package_truncated"
    bare = GOOD.replace(b"filesizes=", b"elsewhere=")
    with pytest.raises(FleetError) as caught:
        _content.describe_stream(Endless(bare), packages.DRIVER, None)
    assert "say how long it is" in caught.value.message


@pytest.mark.parametrize("name", [
    "A\u017fcend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run",  # a long s
    "Ascend-hdk-910b-npu-driver_25.5.0_sph\u0663_linux-x86-64.run",
    "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run\n",
])
def test_letters_and_digits_of_other_scripts_are_no_name(name):
    with pytest.raises(FleetError):
        _names.parse(name)


@pytest.mark.parametrize("text", ["8.5.beta.\u00b2", "8" * 5000, "8.\u0663"])
def test_digits_that_are_no_number_are_no_version(text):
    assert not _versions.same(text, text)


# --- folders ----------------------------------------------------------------------------------------------------------

def wrong(folder):
    return [(problem["file"], problem["code"]) for problem in _depot.scan(str(folder), ALL, Trust())["problems"]]


@pytest.mark.parametrize("target", ["nowhere", packages.DRIVER, "/dev/zero", "."])
def test_links_to_no_file_are_told(tmp_path, target):
    (tmp_path / packages.DRIVER).symlink_to(target)
    assert wrong(tmp_path) == [(packages.DRIVER, "package_unreadable")]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_list_that_names_a_pipe_or_a_folder(tmp_path, make):
    """A pipe would be opened for ever."""
    make(tmp_path / packages.DRIVER)
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {packages.DRIVER}\n")
    assert wrong(tmp_path) == [(packages.DRIVER, "package_unreadable")]


@pytest.mark.parametrize("line", [f"{'0' * 63}  {packages.DRIVER}", f"{packages.DRIVER} {'0' * 64}"])
def test_a_line_of_the_list_that_protects_nothing_is_told(tmp_path, line):
    sums = packages.depot(tmp_path)
    (tmp_path / "SHA256SUMS").write_text(f"# a comment about x.run\n{line}\n{sums['firmware']}  {packages.FIRMWARE}\n")
    assert wrong(tmp_path) == [("SHA256SUMS", "sums_invalid")]


def test_two_sums_for_one_name_are_told(tmp_path):
    sums = packages.depot(tmp_path)
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  {packages.DRIVER}\n{sums['driver']}  {packages.DRIVER}\n")
    assert wrong(tmp_path) == [("SHA256SUMS", "sums_invalid")]


def test_a_name_in_another_encoding_can_be_printed(tmp_path):
    with open(os.fsencode(tmp_path) + b"/\xff.run", "wb"):
        pass
    assert [name.encode("utf-8") for name in _depot.scan(str(tmp_path), ALL, Trust())["unknown"]] == [b"\\udcff.run"]


# --- servers ----------------------------------------------------------------------------------------------------------

@pytest.fixture
def server():
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_GET(self):
            page = f'<a href="{packages.DRIVER}">x</a>'.encode()
            if self.path.startswith("/depot/SHA256SUMS"):
                self.send_error(404)
            elif self.path.endswith(".run") and self.server.redirect:
                self.send_response(302)
                self.send_header("Location", self.server.redirect)
                self.end_headers()
            else:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(GOOD if self.path.endswith(".run") else page)
                self.server.endless(self)

    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.redirect, found.endless = None, lambda handler: None
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def url(server):
    return f"http://127.0.0.1:{server.server_address[1]}/depot"


@pytest.mark.parametrize("target", ["http://[", "file:///etc/passwd", "ftp://127.0.0.1:1/x.run", "//[::1/x.run"])
def test_a_server_may_not_send_to_anything_but_http(server, target):
    server.redirect = target
    assert wrong(url(server)) == [(packages.DRIVER, "download_failed")]


def test_an_encrypted_depot_may_not_send_to_a_plain_one():
    request, _opener = _fetch._request("https://depot/x.run")
    with pytest.raises(OSError, match="not followed"):
        _fetch._Redirects().redirect_request(request, io.BytesIO(), 302, "Found", {}, "http://depot/x.run")
    assert _fetch._Redirects().redirect_request(request, io.BytesIO(), 302, "Found", {}, "https://other/x.run")


def test_what_a_server_sends_without_an_end_does_not_fill_the_disk(server, tmp_path, monkeypatch):
    """openssl needs a file, so with signatures the package is kept for a moment."""
    def endless(handler):
        try:
            while handler.path.endswith(".run"):
                handler.wfile.write(bytes(65536))
        except OSError:
            pass

    server.endless = endless
    place = _depot._Index(url(server), str(tmp_path))
    with place.opened(packages.DRIVER, on_disk=True) as file:
        assert os.stat(file.path).st_size <= _depot._runfile.HEAD
        with pytest.raises(FleetError) as caught:
            file.describe()
    assert caught.value.code == "package_truncated"


@pytest.mark.parametrize("address", [
    f"http://user:{CANARY}/x@depot/", f"http://user:{CANARY}#x@depot/", f"http://user:{CANARY}?x@depot/", f"http://user:{CANARY}@[::1/",
    f"http://us\u212aer:{CANARY}\u2100@depot/", f"http://user:{CANARY}@depot:99999999/",
])
def test_an_address_that_is_none_keeps_its_password(address):
    """A slash in a password ends the part of the URL where passwords are looked for."""
    assert _fetch.secrets(address) == [address]
    assert CANARY not in _fetch.public(address)
    for call in (lambda: _depot.scan(address, ALL, Trust()), lambda: _fetch._request(address)):
        with pytest.raises(FleetError) as caught:
            call()
        assert (caught.value.code, CANARY in str(caught.value.as_dict())) == ("depot_invalid", False)


def test_a_query_that_is_none_keeps_its_token(server):
    with pytest.raises(FleetError) as caught:
        _depot.scan(f"{url(server)}?token={CANARY} x", ALL, Trust())
    assert (caught.value.code, CANARY in str(caught.value.as_dict())) == ("download_failed", False)
