# SPDX-License-Identifier: GPL-3.0-or-later
"""Depots: a folder, an index of links, a list of checksums; with everything that may be wrong in them."""

import functools
import http.server
import json
import threading

import authority
import packages
import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _depot
from ansible_collections.npu.fleet.plugins.module_utils._packages._signature import Trust

ALL = _depot.Wanted()
CANARY = "pa55-w0rd-canary"


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        if self.server.no_index and self.path.endswith("/"):
            self.send_error(403)
            return
        super().do_GET()


@pytest.fixture
def server(tmp_path):
    handler = functools.partial(Handler, directory=str(tmp_path))
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    found.seen, found.no_index = [], False
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()


def url(server, credentials=""):
    return f"http://{credentials}127.0.0.1:{server.server_address[1]}/depot"


def scan(src, wanted=ALL, **trust):
    return _depot.scan(str(src), wanted, Trust(**trust))


def names(result):
    return [entry["file"] for entry in result["packages"]]


def write_sums(folder, sums):
    (folder / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()))


def test_a_folder(tmp_path):
    sums = packages.depot(tmp_path / "depot")
    (tmp_path / "depot" / "README").write_text("hello")
    (tmp_path / "depot" / "Ascend-hdk-910b-npu_25.5.0_linux-x86-64.zip").write_bytes(b"PK")
    (tmp_path / "depot" / "driver.run").write_bytes(b"x")
    (tmp_path / "depot" / "old").mkdir()
    result = scan(tmp_path / "depot")
    assert {entry["component"]: entry["sha256"] for entry in result["packages"]} == sums
    assert names(result) == sorted(names(result))
    assert result["problems"] == []
    assert (result["passed_over"], result["unknown"]) == (["Ascend-hdk-910b-npu_25.5.0_linux-x86-64.zip"], ["driver.run"])
    assert result["packages"][0]["source"] == str(tmp_path / "depot" / result["packages"][0]["file"])


@pytest.mark.parametrize("no_index", [False, True])
def test_an_index(tmp_path, server, no_index):
    """The page of links, or SHA256SUMS where the server shows no page."""
    sums = packages.depot(tmp_path / "depot")
    by_folder = scan(tmp_path / "depot")
    if no_index:
        write_sums(tmp_path / "depot", {entry["file"]: entry["sha256"] for entry in by_folder["packages"]})
    server.no_index = no_index
    result = scan(url(server))
    assert {entry["component"]: entry["sha256"] for entry in result["packages"]} == sums
    for mine, theirs in zip(result["packages"], by_folder["packages"], strict=True):
        assert mine["source"] == f"{url(server)}/{mine['file']}"
        assert dict(mine, source=None) == dict(theirs, source=None)
    assert [path for path, _login in server.seen].count(f"/depot/{packages.DRIVER}") == 1


def test_credentials_are_used_and_not_returned(tmp_path, server):
    packages.depot(tmp_path / "depot")
    result = scan(url(server, f"user:{CANARY}@") + f"?token={CANARY}")
    assert len(result["packages"]) == 5
    assert all(login and login.startswith("Basic ") for _path, login in server.seen)
    assert CANARY not in json.dumps(result)
    (tmp_path / "depot" / packages.DRIVER).write_bytes(b"nothing")
    assert CANARY not in json.dumps(scan(url(server, f"user:{CANARY}@") + f"?token={CANARY}"))
    server.shutdown()
    server.server_close()
    with pytest.raises(FleetError) as caught:
        scan(url(server, f"user:{CANARY}@"))
    assert caught.value.code == "download_failed"
    assert CANARY not in json.dumps(caught.value.as_dict())


def test_only_what_is_wanted_is_read(tmp_path, server):
    packages.depot(tmp_path / "depot")
    packages.depot(tmp_path / "depot", "aarch64")
    (tmp_path / "depot" / packages.DRIVER.replace("910b", "310p")).write_bytes(b"not read")
    wanted = _depot.Wanted(["a2"], ["aarch64"], {"driver": ["25.5.0"], "cann_toolkit": ["8.5.0"], "docker_runtime": ["7.2.RC1"]})
    result = scan(url(server), wanted)
    assert names(result) == [packages.TOOLKIT.replace("x86_64", "aarch64"), packages.DRIVER.replace("x86-64", "aarch64")]
    assert result["problems"] == []
    assert len([path for path, _login in server.seen if path.endswith(".run")]) == 2


def test_everything_that_is_wrong_is_told_at_once(tmp_path):
    folder = tmp_path / "depot"
    packages.depot(folder)
    data = (folder / packages.DRIVER).read_bytes()
    (folder / packages.DRIVER).write_bytes(data[:-5])
    (folder / packages.TOOLKIT).rename(folder / packages.TOOLKIT.replace("8.5.0", "8.5.1"))
    write_sums(folder, {packages.FIRMWARE: "0" * 64, packages.DRIVER.replace("910b", "310p"): "0" * 64})
    result = scan(folder)
    assert {problem["file"]: problem["code"] for problem in result["problems"]} == {
        packages.DRIVER: "package_truncated",
        packages.TOOLKIT.replace("8.5.0", "8.5.1"): "package_contradicts",
        packages.FIRMWARE: "checksum_differs",
        packages.DRIVER.replace("910b", "310p"): "package_missing",
    }
    assert names(result) == [packages.OPS, packages.RUNTIME]


@pytest.mark.parametrize("by_http", [False, True])
def test_signatures(tmp_path, server, by_http):
    folder = tmp_path / "depot"
    packages.depot(folder)
    vendor = authority.Authority(tmp_path / "ca")
    vendor.sign(folder / packages.DRIVER)
    vendor.crl(folder / (packages.DRIVER + ".crl"))
    vendor.sign(folder / packages.FIRMWARE, ".cms")
    (folder / packages.FIRMWARE).write_bytes(packages.content(packages.FIRMWARE_FILES))
    result = scan(url(server) if by_http else folder, ca=str(vendor.ca))
    signed = {entry["component"]: entry["signature"] for entry in result["packages"]}
    assert (signed["driver"]["verified"], signed["driver"]["file"]) == (True, packages.DRIVER + ".p7s")
    assert (signed["driver"]["crl"], signed["driver"]["crl_age_days"]) == (packages.DRIVER + ".crl", 0)
    assert signed["cann_toolkit"] is None
    assert [(problem["file"], problem["code"]) for problem in result["problems"]] == [(packages.FIRMWARE, "signature_invalid")]


def test_signatures_that_nobody_can_judge(tmp_path, server):
    packages.depot(tmp_path / "depot")
    (tmp_path / "depot" / (packages.DRIVER + ".p7s")).write_bytes(b"x")
    for src in (tmp_path / "depot", url(server)):
        found = {entry["component"]: entry["signature"] for entry in scan(src)["packages"]}
        assert (found["driver"]["verified"], found["driver"]["file"]) == (False, packages.DRIVER + ".p7s")


@pytest.mark.parametrize(("src", "code"), [("/nowhere/depot", "depot_missing"), ("http://127.0.0.1:9/depot", "download_failed")])
def test_no_depot(src, code):
    with pytest.raises(FleetError) as caught:
        scan(src)
    assert caught.value.code == code
    assert caught.value.hint


def test_a_server_that_breaks_off(tmp_path, server, monkeypatch):
    packages.depot(tmp_path / "depot")
    whole = Handler.copyfile
    monkeypatch.setattr(Handler, "copyfile", lambda self, source, output: output.write(source.read()[:-7]) if self.path.endswith(
        packages.DRIVER) else whole(self, source, output))
    result = scan(url(server))
    assert [(problem["file"], problem["code"]) for problem in result["problems"]] in (
        [[(packages.DRIVER, "package_damaged")], [(packages.DRIVER, "download_failed")]])
    assert len(result["packages"]) == 4


# The forms are those of nginx's autoindex, Apache's mod_autoindex and Python's http.server.
@pytest.mark.parametrize(("page", "expected"), [
    ('<html><head><title>Index of /a/</title></head><body><h1>Index of /a/</h1><hr><pre><a href="../">../</a>\n'
     '<a href="x_1.run">x_1.run</a>   05-Jan-2026 09:34   120M\n<a href="old/">old/</a>  -\n</pre><hr></body></html>', {"x_1.run"}),
    ('<table><tr><th><a href="?C=N;O=D">Name</a></th></tr><tr><td><a href="/">Parent Directory</a></td></tr>'
     '<tr><td><a href="x_1.run">x_1..&gt;</a></td></tr></table>', {"x_1.run"}),
    ('<ul><li><a href="x_1.run">x</a></li><li><a href="./y%20z.run">y</a></li><li><a href=".hidden">.</a></li></ul>',
     {"x_1.run", "y z.run"}),
    ('<a href="http://other.example/a/x.run">x</a><a href="..%2fx.run">x</a><a>no link</a><a href="/b/x.run">x</a>', set()),
    # Servers of artifacts write whole addresses.
    ('<a href="/a/x.run">x</a><A class=f HREF=\'http://depot/a/y.run\'>y</A>', {"x.run", "y.run"}),
    # What is no address, or of another protocol, or no part of a page.
    ('<a href="http://[/x.run">x</a><a href="//[::1/x.run">x</a><a href="javascript:x.run">x</a><a href="https://depot/a/x.run">x</a>'
     '<![odd[<a href="z.run">z</a>', {"z.run"}),
    ("not a page", set()),
])
def test_pages_of_links(page, expected):
    assert _depot.parse_index(page, "http://user:word@depot/a/") == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("a" * 64 + "  x.run\n" + "B" * 64 + " *./y.run\r\n", {"x.run": "a" * 64, "y.run": "b" * 64}),
    ("# comment\n" + "a" * 63 + "  x.run\n" + "a" * 64 + "  folder/x.run\n" + "a" * 64 + "  ../x.run\n", {}),
    # From Windows, and by sha256sum --tag.
    ("\ufeff" + "a" * 64 + "  x.run\r\nSHA256 (y.run) = " + "b" * 64 + "\r\n", {"x.run": "a" * 64, "y.run": "b" * 64}),
    ("", {}),
])
def test_lists_of_checksums(text, expected):
    assert _depot.parse_sums(text) == expected


@pytest.mark.parametrize("src", ["depot", "./depot/", "~/depot"])
def test_sources_are_whole_paths(tmp_path, monkeypatch, src):
    """A run from another folder could not find them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    packages.depot(tmp_path / "depot")
    found = scan(src)["packages"]
    assert [entry["source"] for entry in found] == [str(tmp_path / "depot" / entry["file"]) for entry in found]
    assert found
