# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the corpus in tests/fixtures/engines and turns a case of it into what ``oci_runtime_node`` would have read on a node."""

import base64
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

from ansible_collections.npu.fleet.plugins.plugin_utils import _engine_config as config
from ansible_collections.npu.fleet.plugins.plugin_utils._engine_config_types import Wanted

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

CORPUS = Path(__file__).resolve().parents[2] / "fixtures/engines"
RUNTIME = "/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime"
CANARY = "canary-7d21f0"
CONTAINERD = shutil.which("containerd")
STOCK = (
    'version = {0}\n[{1}.containerd]\ndefault_runtime_name = "runc"\n'
    '[{1}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
)
DUMPS = {}
TABLES = {1: ("plugins", "cri"), 2: ("plugins", "io.containerd.grpc.v1.cri"), 3: ("plugins", "io.containerd.cri.v1.runtime")}


def cases(folder):
    """The names of the cases of an engine, those that are broken apart."""
    return sorted(path.name for path in (CORPUS / folder).iterdir() if path.name != "broken")


def broken(folder):
    """(file, line) of each file that must be refused."""
    return sorted(json.loads((CORPUS / folder / "broken/expected.json").read_text()).items())


def told(folder, case):
    """What case.json says beside the files."""
    path = CORPUS / folder / case / "case.json"
    return json.loads(path.read_text()) if path.exists() else {}


def entry(path, role, data):
    return {
        "path": str(path), "target": str(path), "link": None, "exists": data is not None, "role": role,
        "mode": "0644", "owner": 0, "group": 0,
        "content": base64.b64encode(data or b"").decode(), "sha256": None if data is None else hashlib.sha256(data).hexdigest(),
    }  # fmt: skip


def read_answer(engine, files, **more):
    """An answer of step=read; ``files``: (path, role, bytes or None). The engine answers and has its stock runtime."""
    answer = {
        "engine": engine, "version": "1.0", "active": True, "error": None, "note": {}, "pending": False, "users": [], "others": [],
        "effective": {"runtimes": {"runc": {"path": "runc", "args": [], "type": None}}, "default_runtime": "runc", "handlers": None},
        "files": [entry(*one) for one in files], "effective_text": None, "writable": [], "unit": {"name": engine + ".service"},
        "config_path": str(files[0][0]) if files else "", "takes_over_by": "restart", "restart_kills": [], "kubelet": None,
        "program": {"exists": True, "executable": True}, "live_restore": None, "containers_running": 0,
    }  # fmt: skip
    answer.update(more)
    return answer


def wanted(engine, state="present", **more):
    values = {"name": "ascend", "path": None if state == "absent" else RUNTIME, "state": state, "engine": engine}
    return Wanted(**{**values, **more})


class Tree:
    """The files of one case in a folder of their own, changed by what a plan says; the engine reads them there."""

    def __init__(self, root, engine, files, say=None, **more):
        self.root, self.engine, self.more, self.say, self.note = root, engine, more, say, {}
        self.files = files  # (path, role), absolute

    def data(self):
        return {path: path.read_bytes() if path.exists() else None for path, _role in self.files}

    def found(self):
        files = [(path, role, path.read_bytes() if path.exists() else None) for path, role in self.files]
        more = dict(self.more)
        if self.say:
            more["effective_text"] = self.say(self)
        return read_answer(self.engine, files, note=self.note, **more)

    def plan(self, state="present", **more):
        return config.plan(self.found(), wanted(self.engine, state, **more))

    def apply(self, state="present", **more):
        """Plan and write; returns the plan."""
        plan = self.plan(state, **more)
        path = Path(plan.edit.path)
        if plan.edit.changed and plan.edit.remove:
            path.unlink()
        elif plan.edit.changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(plan.commit["content"]))
        if path not in [known for known, _role in self.files]:
            self.files.append((path, "template" if path.suffix == ".tmpl" else "dropin"))
        self.note = json.loads(json.dumps(plan.edit.note))
        return plan


# --- containerd ---


def containerd_tree(case, root):
    """A case of containerd under ``root``/etc/containerd; paths of imports in it point there."""
    source, told_of_it = CORPUS / "containerd" / case, told("containerd", case)
    home = root / "etc/containerd"
    home.mkdir(parents=True)
    for path in sorted(source.rglob("*.toml")):
        target = home / path.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes().replace(b"/etc/containerd/", bytes(home) + b"/"))
    files = [(home / "config.toml", "main")] + [(home / name, "import") for name in told_of_it.get("loads", [])]
    return Tree(root, "containerd", files, effective_text_of, binary_version=told_of_it.get("binary", "1.6.20"))


def real(tree):
    """Whether the containerd of this machine reads such files."""
    return CONTAINERD is not None and tree.more["binary_version"].startswith("1.")


def effective_text_of(tree):
    """What containerd has in effect: by its own word where it is there, else by a stand-in that merges the files."""
    if not real(tree):
        return stand_in_dump(tree)
    # The same files are read in many tests, and containerd takes its time.
    key = tuple(data and data.replace(bytes(tree.root), b"") for data in tree.data().values())
    if key not in DUMPS:
        main = tree.files[0][0]
        DUMPS[key] = dump(main) if main.exists() else run([CONTAINERD, "config", "default"])
    return DUMPS[key]


def dump(path):
    return run([CONTAINERD, "--config", str(path), "config", "dump"])


def run(argv):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stand_in_dump(tree):
    """Text with the runtimes and the default that the files give, after the measured rules of 1.6 and 2.1."""
    modern = not tree.more["binary_version"].startswith("1.")
    merged, version = {}, 1
    for path, _role in tree.files:
        data = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        version = data.get("version", version)
        for name, table in data.get("plugins", {}).items():
            merged[name] = deep(merged.get(name, {}), table) if modern else table
    section = merged.get(TABLES[min(version, 3)][1], {}).get("containerd", {})
    stock = {"runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": False}}}
    runtimes = deep(stock, section.get("runtimes", {})) if modern else section.get("runtimes") or stock
    printed = 3 if modern else 2
    table = ".".join(json.dumps(part) for part in (*TABLES[printed], "containerd"))
    lines = [f"version = {printed}", f"[{table}]", f"default_runtime_name = {json.dumps(section.get('default_runtime_name', 'runc'))}"]
    for name, values in runtimes.items():
        lines.append(f"[{table}.runtimes.{json.dumps(name)}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items() if key != "options"]
        if "options" in values:
            lines.append(f"[{table}.runtimes.{json.dumps(name)}.options]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values["options"].items()]
    return "\n".join(lines) + "\n"


def deep(first, second):
    both = dict(first)
    for key, value in second.items():
        both[key] = deep(both[key], value) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def section_of(text):
    """The ``containerd`` table of the CRI plugin in a dump, and the rest of the dump without it."""
    data = tomllib.loads(text)
    data.pop("imports", None)  # printed in random order by 1.x
    table = data["plugins"][TABLES[min(data["version"], 3)][1]]
    section = table.pop("containerd")
    # Options are printed as they stand in the file; what is not there is Go's zero value.
    for entry in section["runtimes"].values():
        if entry.get("sandboxer") == "podsandbox":
            del entry["sandboxer"]
        entry["options"] = {key: value for key, value in entry.get("options", {}).items() if value not in ("", 0, False)}
    return section, data


# --- k3s and rke2 ---


def k3s_tree(case, root):
    source, told_of_it = CORPUS / "k3s" / case, told("k3s", case)
    home = root / "agent/etc/containerd"
    home.mkdir(parents=True)
    (home / "config.toml").write_bytes((source / "generated.toml").read_bytes())
    for path in source.rglob("*"):
        if path.is_file() and path.name not in ("case.json", "generated.toml"):
            target = home / path.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(path.read_bytes())
    files = [(home / "config.toml", "generated")]
    files += [(path, "template") for path in sorted(home.glob("*.tmpl"))]
    files += [(path, "dropin") for path in sorted(home.glob("*.d/*.toml"))]
    folder = told_of_it.get("folder")
    form = {
        "version": told_of_it["version"], "dropin_folder": str(home / folder) if folder else None,
        "template_path": str(home / ("config-v3.toml.tmpl" if told_of_it["version"] == 3 else "config.toml.tmpl")),
    }  # fmt: skip
    return Tree(root, told_of_it.get("engine", "k3s"), files, None, k3s=form), home


def rendered(tree, home):
    """The configuration k3s would have after its next start: generated text, template block behind it, drop-ins merged."""
    text = (home / "config.toml").read_text()
    template = Path(tree.more["k3s"]["template_path"])
    if template.exists():
        text += "\n" + "".join(template.read_text().partition("# BEGIN npu.fleet")[1:])
    data = tomllib.loads(text)
    for path, role in tree.files:
        if role == "dropin" and path.exists():
            data = deep(data, tomllib.loads(path.read_text()))
    return data
