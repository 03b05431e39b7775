# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook npu.fleet.lock as a user runs it."""

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from typing import ClassVar

import packages
import pytest
import yaml


@pytest.fixture
def play(tmp_path):
    place = next(path for path in sys.path if os.path.isdir(os.path.join(path, "ansible_collections/npu/fleet")))
    environment = dict(
        os.environ, ANSIBLE_COLLECTIONS_PATH=place, ANSIBLE_HOME=str(tmp_path / "ansible"), ANSIBLE_NOCOLOR="1",
        ANSIBLE_LOCALHOST_WARNING="false", ANSIBLE_REMOTE_TEMP=str(tmp_path / "remote"),
    )
    (tmp_path / "hosts.ini").write_text(f"[npu_nodes]\nnode1 ansible_connection=local ansible_python_interpreter={sys.executable}\n")

    def run(*words, **variables):
        given = {"npu_fleet_depot": str(tmp_path / "depot"), "npu_fleet_lock_for": ["a2/x86_64"], "npu_fleet_release": "25.5.0"}
        given.update(variables)
        given = {key: value for key, value in given.items() if value is not None}
        command = [sys.executable, "-m", "ansible", "playbook", "-i", str(tmp_path / "hosts.ini"), "npu.fleet.lock",
                   "-e", json.dumps(given), *words]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    return run


def flat(done):
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.long
def test_a_folder_of_the_node_twice(play, tmp_path):
    sums = packages.depot(tmp_path / "depot")
    (tmp_path / "depot" / "Ascend-hdk-910b-npu_25.5.0_linux-x86-64.zip").write_bytes(b"PK")
    done = play("--check")
    assert done.returncode == 0, flat(done)
    assert not (tmp_path / "npu.lock.yml").exists()
    assert f"Would be written: {tmp_path}/npu.lock.yml: release 25.5.0, 5 packages. Compare" in flat(done)

    done = play()
    assert done.returncode == 0, flat(done)
    assert "changed=1" in done.stdout
    # A result with a key "skipped" would count as a task that was skipped.
    assert "skipped=0" in done.stdout
    assert "localhost -> node1" in done.stdout
    assert (f"Written: {tmp_path}/npu.lock.yml: release 25.5.0, 5 packages. "
            "Compare the sums with the vendor's, then run npu.fleet.plan.") in flat(done)
    content = (tmp_path / "npu.lock.yml").read_bytes()
    assert {package["component"]: package["sha256"] for package in yaml.safe_load(content)["packages"]} == sums

    done = play(npu_fleet_depot_on="controller")
    assert "changed=0" in done.stdout, flat(done)
    assert f'"Unchanged: {tmp_path}/npu.lock.yml: release 25.5.0, 5 packages.' in flat(done)
    assert "Compare the sums" not in flat(done)
    assert "localhost -> node1" not in done.stdout
    assert (tmp_path / "npu.lock.yml").read_bytes() == content


def test_nothing_is_written_where_something_is_wrong(play, tmp_path):
    packages.depot(tmp_path / "depot")
    (tmp_path / "npu.lock.yml").write_text("the old one\n")
    data = bytearray((tmp_path / "depot" / packages.DRIVER).read_bytes())
    data[-30] ^= 1
    (tmp_path / "depot" / packages.DRIVER).write_bytes(bytes(data))
    done = play()
    assert done.returncode != 0
    assert f"{packages.DRIVER} is damaged" in flat(done)
    assert "There is no package of driver 25.5.0" in flat(done)
    assert (tmp_path / "npu.lock.yml").read_text() == "the old one\n"


def test_an_unlisted_set_is_refused_before_the_depot_is_read(play, tmp_path):
    done = play(npu_fleet_versions={"cann": "9.1.0"})
    assert done.returncode != 0
    assert "row 25.5.0 (2026-01) allows cann 8.5.0" in flat(done)


def test_variables_are_missing(play):
    done = play(npu_fleet_depot="", npu_fleet_lock_for=[], npu_fleet_release="")
    assert done.returncode != 0
    assert "Set npu_fleet_depot (an http(s):// URL or a folder), npu_fleet_lock_for (a list such as [a2/x86_64])" in flat(done)
    assert "TASK [Look at the depot]" not in done.stdout


def test_nodes_as_text(play):
    done = play(npu_fleet_lock_for="a2/x86_64")
    assert done.returncode != 0
    assert "npu_fleet_lock_for is text, not a list; write [a2/x86_64]." in flat(done)


@pytest.mark.long
def test_the_lock_goes_where_it_is_wanted(play, tmp_path):
    """A path is relative to where the command was started."""
    packages.depot(tmp_path / "depot")
    (tmp_path / "locks").mkdir()
    assert play(npu_fleet_lock="locks/east.yml").returncode == 0
    assert (tmp_path / "locks" / "east.yml").read_bytes().startswith(b"# Written by")


class Quiet(http.server.SimpleHTTPRequestHandler):
    logins: ClassVar = set()

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.logins.add(self.headers.get("Authorization"))
        super().do_GET()


def test_a_password_in_the_address_is_shown_nowhere(play, tmp_path):
    canary = "pa55-w0rd-canary"
    packages.depot(tmp_path / "depot")
    (tmp_path / "vars.yml").write_text(f"npu_fleet_depot: http://fleet:{canary}@127.0.0.1:PORT/depot?token={canary}\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = (tmp_path / "vars.yml").read_text().replace("PORT", str(server.server_address[1]))
        (tmp_path / "vars.yml").write_text(text)
        done = play("-vvv", "-e", f"@{tmp_path / 'vars.yml'}", npu_fleet_depot=None)
        server.shutdown()
    assert done.returncode == 0, flat(done)
    assert all(login and login.startswith("Basic ") for login in Quiet.logins)
    lock = (tmp_path / "npu.lock.yml").read_text()
    assert canary not in done.stdout + done.stderr + lock
    assert f"source: http://127.0.0.1:{server.server_address[1]}/depot/{packages.DRIVER}" in lock
