# SPDX-License-Identifier: GPL-3.0-or-later
"""The removal of the role npu_runtime in a real ansible-playbook, with actions that only write down that they were called."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROLE = Path(__file__).resolve().parents[3] / "roles" / "npu_runtime"
# Action plugins, which run inside of ansible-playbook: a module would be a process for each call.
HEAD = "import json\nfrom ansible.plugins.action import ActionBase\n\n\nclass ActionModule(ActionBase):\n    _supports_check_mode = True\n"
ENGINE = HEAD + '''
    def run(self, tmp=None, task_vars=None):
        args = self._task.args
        with open(args["path"] + ".log", "a") as log:
            log.write("%s %s%s\\n" % (args["engine"], args["state"], " asked" if self._task.check_mode else ""))
        assert (args["restart"], args["disruption"]) == (task_vars["npu_runtime_engine_restart"], task_vars["npu_runtime_disruption"])
        with open(args["path"]) as stream:
            return dict(json.load(stream), changed=True)
'''
PACKAGE = HEAD + '''
    def run(self, tmp=None, task_vars=None):
        with open(self._task.args["src"] + ".log", "a") as log:
            log.write("package %s\\n" % self._task.args["state"])
        return {"changed": True}
'''
FILTER = '''
class FilterModule(object):
    def filters(self):
        return {"package_source": lambda depot, *names: depot}
'''
GONE = {"users": [], "reload_required": False, "effective": {"runtimes": {"runc": {}}, "default_runtime": "runc"}}
ASKED, DONE, PACKAGE_GONE = "docker absent asked", "docker absent", "package absent"


def engine(name="docker", runtimes=("runc",), written=(), default="runc", error=None):
    configured = {"runtimes": dict.fromkeys(written, "/r"), "default_runtime": None, "error": error}
    return {"name": name, "runtimes": dict.fromkeys(runtimes, "/r"), "default_runtime": default, "configured": configured}


WITH = [engine(runtimes=("runc", "ascend"))]
ALLOW = {"npu_runtime_disruption": "allow"}
KEPT = {"runtimes": {"ascend": {}}, "default_runtime": "runc"}

# name: engines, what oci_runtime answers, variables, calls, does the node fail
CASES = {
    "running": (WITH, {}, {}, [ASKED, DONE, PACKAGE_GONE], False),
    "written": ([engine(written=("ascend",))], {}, {}, [ASKED, DONE, PACKAGE_GONE], False),
    "default": ([engine(default="ascend")], {}, {}, [ASKED, DONE, PACKAGE_GONE], False),
    "broken": ([engine(error="line 3: it is not JSON")], {}, {}, [ASKED, DONE, PACKAGE_GONE], False),
    "both": ([engine("containerd", written=("ascend",)), engine(runtimes=("ascend",))], {}, {},
             ["containerd absent", "containerd absent asked", ASKED, DONE, PACKAGE_GONE], False),
    "nobody": ([engine("containerd"), engine()], {}, {}, [PACKAGE_GONE], False),
    "asked": ([engine("containerd"), engine()], {}, {"npu_runtime_engine": "docker"}, [ASKED, DONE, PACKAGE_GONE], False),
    "none": ([], {}, {}, [PACKAGE_GONE], False),
    "users": (WITH, {"users": ["web"]}, {}, [ASKED], True),
    "allowed": (WITH, {"users": ["web"]}, ALLOW, [ASKED, DONE, PACKAGE_GONE], False),
    # A removed program never stays what an engine calls.
    "never": (WITH, {"reload_required": True}, {}, [ASKED, DONE], True),
    "kept": (WITH, {"effective": KEPT}, {}, [ASKED, DONE], True),
    "stays": (WITH, {"effective": {"runtimes": {}, "default_runtime": "ascend"}}, {}, [ASKED, DONE], True),
    "absent": (WITH, {}, {"state": "absent"}, [ASKED, DONE], False),
}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """One run over all cases, each a host: ({host: its calls}, hosts that failed, output)."""
    folder = tmp_path_factory.mktemp("removal")
    collection = folder / "collections/ansible_collections/npu/fleet"
    for name, text in {"action/oci_runtime": ENGINE, "action/npu_package": PACKAGE, "filter/stand_in": FILTER}.items():
        target = collection / "plugins" / f"{name}.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    (collection / "roles").mkdir()
    (collection / "roles/npu_runtime").symlink_to(ROLE)
    hosts = {}
    for name, (engines, answer, variables, _calls, _fails) in CASES.items():
        (folder / name).write_text(json.dumps(dict(GONE, **answer)))
        state = variables.get("state", "present")
        hosts[name] = {
            "npu_preflight_observed": {"engines": engines, "components": {"docker_runtime": {"state": state}}},
            "npu_runtime_path": str(folder / name), "npu_preflight_depot": str(folder / name),
            **{key: value for key, value in variables.items() if key != "state"},
        }
    common = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (folder / "inventory.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": common}}))
    tasks = [{"ansible.builtin.include_role": {"name": "npu.fleet.npu_runtime", "tasks_from": "remove.yml"}}]
    (folder / "play.yml").write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    env = dict(os.environ, ANSIBLE_COLLECTIONS_PATH=str(folder / "collections"), ANSIBLE_HOME=str(folder / "ansible"), ANSIBLE_NOCOLOR="1")
    argv = [sys.executable, "-m", "ansible", "playbook", "-i", "inventory.yml", "-f", "4", "play.yml"]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL)
    calls = {name: (folder / f"{name}.log").read_text().splitlines() if (folder / f"{name}.log").exists() else [] for name in CASES}
    failed = {name for name in CASES if f"fatal: [{name}]" in done.stdout + done.stderr}
    return calls, failed, done.stdout + done.stderr


@pytest.mark.parametrize("name", CASES)
def test_removal(played, name):
    calls, failed, output = played
    _engines, _answer, _variables, expected, fails = CASES[name]
    assert sorted(calls[name]) == sorted(expected), output[-3000:]
    assert (name in failed) is fails
    # The engine forgets first.
    assert PACKAGE_GONE not in calls[name][:-1]


def test_words(played):
    output = " ".join(played[2].split())
    assert "Containers or pods of docker on users name the runtime ascend: web." in output
    assert "these of docker name the runtime ascend and cannot start again, or end properly, without it: web." in output
    assert "docker on never still has the runtime ascend (npu_runtime_engine_restart: auto), so its package is not removed" in output
