# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker Runtime package: "Ascend Docker Runtime" fact sheet, sections 1-3; options by version: "Ascend packages", section 2.5."""

import json

import pytest

FOLDER = "/usr/local/Ascend/Ascend-Docker-Runtime"
WRAPPER = f"{FOLDER}/ascend-docker-runtime"


@pytest.fixture
def runtime(build, sandbox):
    sandbox.run("rm -rf /etc/docker /etc/containerd")
    return sandbox.add(build("docker_runtime"))


def daemon(sandbox):
    return sandbox.run("cat /etc/docker/daemon.json").stdout


def test_install_marshals_the_engine_file_anew(runtime, sandbox):
    before = '{"zz": 1, "default-runtime": "nvidia",\n  "runtimes": {"nvidia": {"path": "/n"}}}\n'
    done = sandbox.run(f"mkdir /etc/docker; cat > /etc/docker/daemon.json; {runtime} --install", stdin=before)
    assert done.returncode == 0 and "[INFO] ascend-docker-runtime install success" in done.stdout
    text = daemon(sandbox)
    assert text.startswith('{\n        "default-runtime": "ascend",\n        "runtimes": {\n                "ascend": {')
    data = json.loads(text)
    assert data["runtimes"] == {"ascend": {"path": WRAPPER, "runtimeArgs": []}, "nvidia": {"path": "/n"}} and data["zz"] == 1
    look = sandbox.run(
        f"stat -c %a /etc/docker/daemon.json {WRAPPER} /etc/ascend-docker-runtime.d /etc/ascend-docker-runtime.d/base.list "
        f"{FOLDER}/script/uninstall.sh {FOLDER}/ascend_docker_runtime_install.info /var/log/ascend-docker-runtime"
    )
    assert look.stdout.split() == ["600", "550", "750", "440", "500", "640", "750"]
    assert sandbox.run("cat /etc/ascend-docker-runtime.d/base.list").stdout.split() == [
        "/usr/local/Ascend/driver/lib64",
        "/usr/local/Ascend/driver/include",
        "/usr/local/dcmi",
        "/usr/local/bin/npu-smi",
        "/var/queue_schedule",
    ]
    info = dict(line.split("=", 1) for line in sandbox.run(f"cat {FOLDER}/ascend_docker_runtime_install.info").stdout.splitlines())
    assert (info["version"], info["path"], info["install-scene"], info["a500"]) == ("v7.3.0", FOLDER, "docker", "n")
    assert sandbox.run(f"{runtime} --upgrade").returncode == 0
    assert sandbox.run(f"{runtime} --uninstall").returncode == 0
    assert json.loads(daemon(sandbox)) == {"zz": 1, "runtimes": {"nvidia": {"path": "/n"}}}
    assert not sandbox.exists(FOLDER) and not sandbox.exists("/etc/ascend-docker-runtime.d")


def test_another_engine_file_and_type(runtime, sandbox):
    words = "--install --install-type=A500 --config-file-path=/etc/engine.json"
    assert "does not exist" in sandbox.run(f"{runtime} {words}").stdout
    assert sandbox.run(f"echo '{{}}' > /etc/engine.json; {runtime} {words}").returncode == 0
    assert not sandbox.exists("/etc/docker/daemon.json")
    assert json.loads(sandbox.run("cat /etc/engine.json").stdout)["default-runtime"] == "ascend"
    assert "/home/data/miniD/driver/lib64" in sandbox.run("cat /etc/ascend-docker-runtime.d/base.list").stdout


def test_containerd_scene_and_uninstall_with_the_wrong_scene(runtime, sandbox):
    config = (
        'version = 2 # mine\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
    )
    done = sandbox.run(
        f"mkdir /etc/containerd; cat > /etc/containerd/config.toml; {runtime} --install --install-scene=containerd", stdin=config
    )
    assert done.returncode == 0
    text = sandbox.run("cat /etc/containerd/config.toml").stdout
    assert 'default_runtime_name = "ascend"' in text and f'BinaryName = "{WRAPPER}"' in text and "mine" not in text
    # Without the scene the binaries go, and the file still names them.
    assert sandbox.run(f"{runtime} --uninstall").returncode == 0
    assert not sandbox.exists(FOLDER)
    assert sandbox.run("cat /etc/containerd/config.toml").stdout == text


@pytest.mark.parametrize(
    "prepare, words, text",
    [
        ("true", "", "one of install, uninstall, upgrade"),
        ("true", "--install --install", "only once"),
        ("true", "--install --uninstall", "only one of"),
        ("true", "--install --install-scene=podman", "not known"),
        ("true", "--install --install-type=A9", "not known"),
        ("true", "--install --install-path=relative", "absolute"),
        ("mkdir -p /usr/local/Ascend; chmod 777 /usr/local/Ascend", "--install", "belong to root"),
        ("mkdir -p /opt/x; ln -s /opt/x /opt/y", "--install --install-path=/opt/y", "be no link"),
        ("mkdir -p /etc/docker; echo '{}' > /etc/docker/daemon.json; chmod 666 /etc/docker/daemon.json", "--install", "belong to root"),
        ("true", "--upgrade", "not installed"),
        ("mkdir -p /etc/docker; echo '{\"runtimes\": []}' > /etc/docker/daemon.json", "--install", "can not be changed"),
    ],
)
def test_refusals(runtime, sandbox, prepare, words, text):
    done = sandbox.run(f"{prepare}; {runtime} {words}")
    assert done.returncode == 1 and text in done.stdout


def test_uninstall_of_nothing_is_a_warning(runtime, sandbox):
    done = sandbox.run(f"{runtime} --uninstall")
    assert done.returncode == 0 and "[WARNING]" in done.stdout


def test_the_file_name_must_hold_the_machine(build, sandbox):
    package = sandbox.add(build("docker_runtime"), name="renamed.run")
    done = sandbox.run(f"{package} --install")
    assert done.returncode == 1 and "does not contain" in done.stdout


def test_nox11_is_unknown_and_quiet_and_check_are_taken(runtime, sandbox):
    assert sandbox.run(f"{runtime} --nox11 --install").returncode == 1
    assert sandbox.run(f"{runtime} --check").returncode == 0
    assert sandbox.run(f"{runtime} --quiet --install").returncode == 0


@pytest.mark.long
def test_licence_prompt_from_26_1(build, sandbox):
    package = sandbox.add(build("docker_runtime", "--runtime", "26.1.0"))
    assert sandbox.run(f"{package} --install --quiet").returncode == 1
    done = sandbox.run(f"{package} --install", stdin="N\n")
    assert done.returncode == 0 and not sandbox.exists(FOLDER)
    done = sandbox.run(f"timeout 2 {package} --install")
    assert done.stdout.count("[Y/N]") > 20 and not sandbox.exists(FOLDER)
    assert sandbox.run(f"{package} --install", stdin="Y\n").returncode == 0 and sandbox.exists(WRAPPER)


@pytest.mark.long
def test_hang_leaves_files_without_record(build, sandbox):
    package = sandbox.add(build("docker_runtime", "--mode", "hang", "--hang-at", "after-payload"))
    sandbox.run(f"setsid -f bash -c 'echo $$ > /tmp/pid; exec {package} --install' >/dev/null 2>&1; sleep 2; kill -9 -$(cat /tmp/pid)")
    assert sandbox.exists(WRAPPER) and not sandbox.exists(f"{FOLDER}/ascend_docker_runtime_install.info")


@pytest.mark.long
def test_nothing_mode(build, sandbox):
    package = sandbox.add(build("docker_runtime", "--mode", "nothing"))
    done = sandbox.run(f"{package} --install")
    assert done.returncode == 0 and "install success" in done.stdout and not sandbox.exists(FOLDER)
