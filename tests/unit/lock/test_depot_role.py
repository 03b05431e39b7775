# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of the role npu_depot in a real nginx: what it accepts, what it serves, what it refuses."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import packages
import pytest

from ansible_collections.npu.fleet.plugins.module_utils._packages import _depot
from ansible_collections.npu.fleet.plugins.module_utils._packages._signature import Trust

UNPACKED = Path(__file__).resolve().parents[3] / ".build/nginx/usr/sbin"
NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", str(UNPACKED)]))
pytestmark = pytest.mark.skipif(not NGINX, reason="nginx is missing: tests/prepare.sh all")

PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.include_vars: "{{ role }}/defaults/main.yml"
    - ansible.builtin.copy:
        content: "{{ lookup('ansible.builtin.template', role ~ '/templates/npu-depot.conf.j2', template_vars=item.options) }}"
        dest: "{{ folder }}/{{ item.name }}/depot.conf"
        mode: "0644"
      loop: "{{ variants }}"
    - ansible.builtin.template:
        src: "{{ role }}/templates/SHA256SUMS.j2"
        dest: "{{ folder }}/depot/SHA256SUMS"
        mode: "0644"
"""
AROUND = """
worker_processes 1;
error_log stderr;
pid {folder}/nginx.pid;
daemon off;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/depot.conf;
}}
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def variants():
    """One configuration for each set of options, all made in one play: folder of all, and the port."""
    # Not below pytest's own folder: as root's it is closed to others, and workers of nginx are another user, as on a real depot.
    with tempfile.TemporaryDirectory(prefix="npu-depot-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder), configured(Path(folder))


def configured(base):
    packages.depot(base / "depot")
    key, certificate = base / "key.pem", base / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=depot", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    common = {"npu_depot_folder": str(base / "depot"), "npu_depot_address": "127.0.0.1", "npu_depot_port": free_port()}
    given = {
        "plain": {}, "every-address": {"npu_depot_address": ""}, "allow": {"npu_depot_allow": ["10.0.0.0/8", "192.168.1.7"]},
        "password": {"npu_depot_htpasswd": "/etc/nginx/depot.htpasswd"},
        "https": {"npu_depot_certificate": str(certificate), "npu_depot_certificate_key": str(key)},
    }
    for name in given:
        (base / name).mkdir()
        (base / name / "nginx.conf").write_text(AROUND.format(folder=base / name))
    place = next(path for path in sys.path if os.path.isdir(os.path.join(path, "ansible_collections/npu/fleet")))
    (base / "play.yml").write_text(PLAY)
    variables = {
        "role": os.path.join(place, "ansible_collections/npu/fleet/roles/npu_depot"), "folder": str(base),
        "variants": [{"name": name, "options": {**common, **options}} for name, options in given.items()],
        "npu_depot_scan": _depot.scan(str(base / "depot"), _depot.Wanted(), Trust()), "ansible_python_interpreter": sys.executable,
    }
    command = [sys.executable, "-m", "ansible", "playbook", "-i", "localhost,", str(base / "play.yml"), "-e", json.dumps(variables)]
    environment = dict(os.environ, ANSIBLE_HOME=str(base / "ansible"), ANSIBLE_LOCALHOST_WARNING="false")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    return common["npu_depot_port"]


def nginx(base, name):
    return [NGINX, "-c", str(base / name / "nginx.conf"), "-p", str(base / name)]


@pytest.fixture(scope="module")
def served(variants):
    """A running nginx over a depot: (folder around the depot, port)."""
    base, port = variants
    process = subprocess.Popen(nginx(base, "plain"), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _attempt in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield base, port
    finally:
        process.terminate()
        process.wait(10)


def ask(port, method, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.headers), body


@pytest.mark.parametrize("name", ["plain", "every-address", "allow", "password", "https"])
def test_nginx_accepts_it(variants, name):
    done = subprocess.run([*nginx(variants[0], name), "-t"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


def test_a_depot_is_read_by_its_index(served):
    base, port = served
    found = _depot.scan(f"http://127.0.0.1:{port}/", _depot.Wanted(), Trust())
    here = _depot.scan(str(base / "depot"), _depot.Wanted(), Trust())
    assert [entry["sha256"] for entry in found["packages"]] == [entry["sha256"] for entry in here["packages"]]
    assert len(found["packages"]) == 5
    assert found["problems"] == []


def test_checksums(served):
    base, port = served
    listed = ask(port, "GET", "/SHA256SUMS")[2].decode()
    command = ["sha256sum", "--check", "--strict"]
    done = subprocess.run(command, input=listed, text=True, cwd=base / "depot", capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(listed.splitlines()) == 5


def test_a_broken_download_is_taken_up(served):
    base, port = served
    whole = (base / "depot" / packages.DRIVER).read_bytes()
    status, headers, body = ask(port, "GET", f"/{packages.DRIVER}", Range="bytes=100-")
    assert (status, body) == (206, whole[100:])
    assert headers["Content-Range"] == f"bytes 100-{len(whole) - 1}/{len(whole)}"
    assert headers["Content-Type"] == "application/octet-stream"
    assert "/" not in headers["Server"]


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "MKCOL"])
def test_nobody_writes(served, method):
    base, port = served
    assert ask(port, method, "/new.run")[0] in (403, 405)
    assert ask(port, method, f"/{packages.DRIVER}")[0] in (403, 405)
    assert not (base / "depot" / "new.run").exists()


def test_only_the_folder_is_served(served):
    base, port = served
    (base / "secret").write_text("secret")
    (base / "depot" / ".hidden").write_text("secret")
    (base / "depot" / "link").symlink_to("/etc/passwd")
    if os.getuid() == 0:
        os.lchown(base / "depot" / "link", 12345, 12345)
    assert ask(port, "GET", "/.hidden")[0] == 403
    assert ask(port, "GET", "/link")[0] == 403
    assert ask(port, "GET", "/../secret")[0] in (400, 404)
    assert ask(port, "GET", "/%2e%2e/secret")[0] in (400, 404)
