# SPDX-License-Identifier: GPL-3.0-or-later
"""An engine for tests of the transaction: real files in a temporary root, and a world (``world.json``) that outlives a killed process.

Its files have one word pair a line: ``runtime NAME PATH``, ``default NAME``, ``password TEXT``; a line ``broken`` is one that it refuses to
start with. It reads ``/etc/fake/main.conf`` and then ``/etc/fake/conf.d/*.conf``.
"""

import base64
import json
import os
from pathlib import Path

from ansible_collections.npu.fleet.plugins.module_utils import _engine_base as base
from ansible_collections.npu.fleet.plugins.module_utils import _engine_steps as steps
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._files import snapshot
from ansible_collections.npu.fleet.plugins.modules.oci_runtime_node import argument_spec

NAME = "fake"
MAIN = "/etc/fake/main.conf"
IMPORT = "/etc/fake/conf.d/10-admin.conf"
OURS = "/etc/fake/conf.d/99-ours.conf"
OLD = "# admin's\npassword canary-77\nruntime runc /usr/bin/runc\n"
NEW = OLD + "runtime ascend /opt/ascend\n"
EXPECT = {"state": "present", "name": "ascend", "path": "/opt/ascend", "args": None, "default": None}
GONE = {"state": "absent", "name": "ascend", "path": None, "args": None, "default": None}


class Engine(base.BaseEngine):
    name = NAME
    label = "faked"
    takes_over_by = "restart"

    @property
    def world(self):
        return json.loads(Path(self.root, "world.json").read_text())

    def change(self, **values):
        path = Path(self.root, "world.new")
        path.write_text(json.dumps(dict(self.world, **values)))
        path.rename(Path(self.root, "world.json"))

    def find_unit(self):
        return {"name": "fake.service", "loaded": True, "state": None, "kill_mode": "process", "can_reload": False}

    def find_config(self, wanted):
        return wanted or MAIN

    def paths(self):
        folder = Path(self.root, "etc/fake/conf.d")
        return [MAIN] + ["/etc/fake/conf.d/" + path.name for path in sorted(folder.glob("*.conf"))]

    def facts(self):
        world = self.world
        runtimes = {name: {"path": path, "args": [], "type": None} for name, path in world["loaded"].items()} if world["running"] else {}
        return {
            "active": world["running"], "version": "1.0", "error": None if world["running"] else "connection refused",
            "runtimes": runtimes, "default_runtime": world["default"], "live_restore": None, "containers_running": None, "handlers": None,
        }  # fmt: skip

    def read(self):
        files = [base.file_entry(self.root, path, "main" if path == MAIN else "import") for path in self.paths()]
        return {"files": files, "effective_text": None, "writable": [MAIN, "/etc/fake/conf.d/*.conf"]}

    def validate(self, path, data, check):
        self.change(checks=self.world["checks"] + [[path, None if data is None else data.decode(), check and check.decode()]])
        if data is not None and b"unknown" in data:
            raise FleetError("faked refuses it", "parser_refused", phase="validate", object=path)
        return "by faked"

    def restart_kills(self, facts):
        return self.world["pods"]

    def running(self):
        return self.world["running"]

    def failed(self):
        return not self.world["running"]

    def systemctl(self, verb):
        if verb == "reset-failed":
            return None
        text = "".join(Path(self.root, path.lstrip("/")).read_text() for path in self.paths() if Path(self.root, path.lstrip("/")).exists())
        lines = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        self.change(calls=self.world["calls"] + [verb])
        if ["broken"] in lines or self.world["refuses"] in text.split():
            self.change(running=False)
            return f"'systemctl {verb} fake.service' failed: near 'password=canary-77'"
        default = [line[1] for line in lines if line[0] == "default"]
        loaded = {line[1]: line[2] for line in lines if line[0] == "runtime"}
        self.change(running=True, loaded=loaded, default=default[-1] if default else "runc")
        return None

    def journal(self):
        return ""


class Host:
    """A host with the fake engine, and the two steps on it."""

    def __init__(self, root):
        self.root = root
        self.engine = Engine
        (root / "etc/fake/conf.d").mkdir(parents=True)
        world = {"running": True, "loaded": {"runc": "/usr/bin/runc"}, "default": "runc", "calls": [], "checks": [], "pods": []}
        world["refuses"] = "-"
        (root / "world.json").write_text(json.dumps(world))
        self.write(MAIN, OLD)
        self.write(IMPORT, "# nothing\n")

    def at(self, path):
        return self.root / path.lstrip("/")

    def write(self, path, text):
        self.at(path).write_text(text)

    def text(self, path=MAIN):
        return self.at(path).read_text() if self.at(path).exists() else None

    @property
    def world(self):
        return json.loads((self.root / "world.json").read_text())

    def set(self, **values):
        (self.root / "world.json").write_text(json.dumps(dict(self.world, **values)))

    def params(self, **values):
        params = {name: option.get("default") for name, option in argument_spec().items()}
        params.update(name="ascend", path="/opt/ascend", root=str(self.root), timeout=1, engine="auto")
        params.update(values)
        return params

    def read(self, **values):
        return steps.read(self.params(**values), None)

    def expected(self, *more):
        paths = [entry["path"] for entry in self.read()["files"]] + list(more)
        return {path: snapshot(str(self.at(path))).sha256 or "" for path in paths}

    def commit(self, text=NEW, file=MAIN, **values):
        given = {"file": file, "expected": self.expected(file), "expect": EXPECT}
        if text is not None:
            given["content"] = base64.b64encode(text.encode()).decode()
        return steps.commit(self.params(**{**given, **values}), None)

    def next_run(self, text=NEW):
        """What the controller does when it is run again: commit where the file or the engine differs from what is wanted."""
        found = self.read()
        runtimes = found["effective"]["runtimes"]
        if self.text() != text:
            return self.commit(text)
        return self.commit(None) if "ascend" not in runtimes or not found["active"] else None

    def left(self):
        """Files of ours beside the engine's."""
        return sorted(name for folder in ("etc/fake", "etc/fake/conf.d") for name in os.listdir(self.root / folder) if "npu-fleet" in name)

    def next_run_fails(self):
        """Run again with an engine that refuses the new file; where there is nothing left to do, that is no error."""
        try:
            self.next_run()
        except FleetError:
            return True
        return False
