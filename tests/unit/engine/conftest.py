# SPDX-License-Identifier: GPL-3.0-or-later
"""A node in a temporary root: its files, its stand-in engine, and the module steps run against it in this process."""

import json
import sys
from pathlib import Path

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _engine_steps as steps
from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.modules.oci_runtime_node import argument_spec

RUNTIME = "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"


class Node:
    def __init__(self, root):
        self.root = root
        self.config = root / "etc/docker/daemon.json"
        self.state_path = root / "engine.json"
        self.state_path.write_text(json.dumps({
            "active": True, "down": "inactive", "version": "20.10.24+dfsg1", "validate": False, "command": "/usr/sbin/dockerd -H fd://",
            "loaded": {"runtimes": {}, "default-runtime": "runc"}, "journal": [], "calls": [], "containers": {}, "fail_starts": 0,
            "dies_on_reload": False, "deaf": False,
        }))
        for folder in ("usr/bin", "usr/sbin", "etc"):
            (root / folder).mkdir(parents=True)
        source = (Path(__file__).parent / "engine_stand_in.py").read_text()
        for name in ("usr/bin/docker", "usr/sbin/dockerd", "usr/bin/systemctl", "usr/bin/journalctl"):
            (root / name).write_text(f"#!{sys.executable} -S\n" + source)
            (root / name).chmod(0o755)
        program = root / RUNTIME.lstrip("/")
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)

    @property
    def state(self):
        return json.loads(self.state_path.read_text())

    def set(self, **values):
        self.state_path.write_text(json.dumps(dict(self.state, **values)))

    def write(self, text, load=True):
        self.config.parent.mkdir(exist_ok=True)
        self.config.write_bytes(text if isinstance(text, bytes) else text.encode())
        if load:
            config = json.loads(text)
            self.set(loaded={"runtimes": config.get("runtimes", {}), "default-runtime": config.get("default-runtime") or "runc"})

    def verbs(self):
        """What was done to the engine."""
        return [call[1] for call in self.state["calls"] if call[0] == "systemctl" and call[1] != "show"]

    def params(self, **values):
        params = {name: option.get("default") for name, option in argument_spec().items()}
        params.update(name="ascend", path=RUNTIME, root=str(self.root), timeout=2, command_timeout=10)
        params.update(values)
        return params

    def read(self, **values):
        return steps.read(self.params(**values), run)

    def commit(self, **values):
        return steps.commit(self.params(**values), run)

    def remove_docker(self):
        for name in ("usr/bin/docker", "usr/sbin/dockerd"):
            (self.root / name).unlink()

    def tree(self):
        """All files but the stand-in's own, with their bytes."""
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and path != self.state_path
        }


@pytest.fixture()
def node(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    return Node(root)


@pytest.fixture()
def serve(host):
    """The CRI of the `host` of the file that asks: a real gRPC server, ended afterwards."""
    pytest.importorskip("grpc")
    yield host.serve
    host.stop()


def pytest_ignore_collect(collection_path, config):
    """A real engine takes root and a minute: only for those who name its file."""
    if not collection_path.name.startswith("test_real_"):
        return None
    asked = [Path(str(word).split("::")[0]).resolve() for word in config.invocation_params.args if not str(word).startswith("-")]
    return None if collection_path.resolve() in asked else True
