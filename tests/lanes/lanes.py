# SPDX-License-Identifier: GPL-3.0-or-later
"""The lanes: what is run, and with what. A lane is a function that counts into a steps.Count."""

import os
import re
import sys
import tarfile
from pathlib import Path

import pythons
import steps

BIN = Path(sys.executable).parent

# Not part of the collection, so not a concern of ansible-test: shell scripts of the simulator imitate a vendor, a fixture keeps its CRLF.
# ruff and the unit tests look after these.
NOT_SHIPPED = ("tests/", "molecule/", ".ci/")

# ansible-lint must have seen at least so many files.
FEWEST_LINTED = 50

# Top level of the built collection: anything else was forgotten in build_ignore of galaxy.yml.
COLLECTION_ENTRIES = {"MANIFEST.json", "FILES.json", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "changelogs", "docs",
                      "meta", "plugins", "roles", "playbooks"}


def lint(count):
    """ruff, mypy, yamllint and ansible-lint (profile production) on a clean copy."""
    copy = steps.clean_copy("lint")
    env = steps.environment(ANSIBLE_COLLECTIONS_PATH=steps.BUILD / "lint", ANSIBLE_LOCALHOST_WARNING="false")
    count.step("ruff", [BIN / "ruff", "check", "--no-cache", "."], cwd=copy, env=env)
    types(count, copy, env)
    count.step("yamllint", [BIN / "yamllint", "--strict", "."], cwd=copy, env=env)
    seen = []
    command = [BIN / "ansible-lint", "--offline", "--profile", "production", "--nocolor"]
    count.step("ansible-lint", command, cwd=copy, env=env, look=seen.append)
    looked_at = re.search(r"in (\d+) files processed", " ".join(seen))
    # A tool that finds nothing to look at passes too.
    count.check(looked_at and int(looked_at.group(1)) >= FEWEST_LINTED, "ansible-lint looked at too few files")


def types(count, copy, env):
    """mypy: the plugins by their names in Ansible, the agent as it is packed, with the hardware library inside."""
    settings = steps.ROOT / "tests/lanes/mypy.ini"
    packed = steps.BUILD / "agent-types"
    steps.shutil.rmtree(packed, ignore_errors=True)
    steps.shutil.copytree(copy / "roles/npu_agent/files/npu_agent", packed / "npu_agent")
    steps.shutil.copytree(copy / "plugins/module_utils/_hardware", packed / "npu_agent/_hardware")
    for place, package in ((steps.BUILD / "lint", "ansible_collections/npu/fleet/plugins"), (packed, "npu_agent")):
        command = [BIN / "mypy", "--config-file", settings, "--cache-dir", steps.BUILD / "mypy-cache" / place.name, package]
        count.step(f"mypy {package}", command, cwd=place, env={**env, "MYPYPATH": str(place)})


def unit(count):
    """Unit tests, a file at a time on each core."""
    count.pytest([*steps.SPREAD, "--durations", "15", "tests/unit"], env=steps.environment(PYTHONPATH=steps.linked_tree()))


def sanity(count):
    """ansible-test sanity, without a single ignore, of everything that is shipped."""
    copy = steps.clean_copy("sanity", NOT_SHIPPED)
    steps.bootstrap_pip()
    command = [BIN / "ansible-test", "sanity", "--local", "--python", steps.PYTHON, "--color", "no"]
    count.sanity(command, cwd=copy)
    if count.long:
        for core in pythons.CORES:
            python = pythons.core_environment(count, core)
            if python:
                version = pythons.version_of(python)
                command = [python.parent / "ansible-test", "sanity", "--local", "--python", version, "--color", "no"]
                path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
                count.sanity(command, cwd=copy, env=steps.environment(PATH=path))


def old_and_new(count):
    """Node code, controller code and the agent on other Pythons and other releases of ansible-core than this one."""
    copy = steps.clean_copy("pythons", NOT_SHIPPED)
    steps.bootstrap_pip()
    pythons.import_on_targets(count, copy)
    pythons.node_unit(count)
    pythons.agent(count)
    if count.long:
        pythons.whole_unit(count)


def collection(count):
    """Build, look into the archive, install it into an empty folder without network, read its documentation from there."""
    copy = steps.clean_copy("collection")
    built, installed = steps.BUILD / "dist", steps.BUILD / "installed"
    for folder in (built, installed):
        steps.shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    count.step("build", [BIN / "ansible-galaxy", "collection", "build", "--output-path", built, "."], cwd=copy)
    archives = list(built.glob("*.tar.gz"))
    count.check(len(archives) == 1, f"one archive expected, found {len(archives)}")
    if not archives:
        return
    with tarfile.open(archives[0]) as archive:
        names = archive.getnames()
    print(f"{archives[0].name}: {archives[0].stat().st_size} bytes, {len(names)} entries", flush=True)
    strangers = sorted({name.split("/")[0] for name in names} - COLLECTION_ENTRIES)
    count.check(not strangers, f"in the archive, but not part of a collection: {', '.join(strangers)}")
    env = steps.environment(ANSIBLE_COLLECTIONS_PATH=installed, ANSIBLE_LOCALHOST_WARNING="false")
    where = {"cwd": installed, "env": env}
    count.step("install", [BIN / "ansible-galaxy", "collection", "install", "--offline", "-p", installed, archives[0]], **where)
    count.step("verify", [BIN / "ansible-galaxy", "collection", "verify", "--offline", "npu.fleet"], **where)
    for kind, names in sorted(documented(copy).items()):
        told = []
        command = [BIN / "ansible-doc", "-t", kind, *(f"npu.fleet.{name}" for name in names)]
        count.step(f"ansible-doc -t {kind}", command, quiet=True, look=told.append, **where)
        for name in names:
            # It goes on after one it cannot read, and ends well.
            title = re.compile(rf"> {kind.upper()}:? \S*npu\.fleet\.{name}\b")
            count.check(any(map(title.match, told)), f"ansible-doc does not tell of {name}")
    playbooks = sorted(path.stem for path in (copy / "playbooks").glob("*.yml"))
    command = [BIN / "ansible-playbook", "--syntax-check", "-i", "localhost,", *(f"npu.fleet.{name}" for name in playbooks)]
    count.step("playbooks", command, **where)
    folder = steps.BUILD / "installed-host"
    steps.shutil.rmtree(folder, ignore_errors=True)
    command = [BIN / "ansible-playbook", "-i", "localhost,", steps.ROOT / "tests/lanes/installed.yml", "-e", f"folder={folder}"]
    count.step("run a module and filters", [*command, "-e", f"ansible_python_interpreter={sys.executable}"], **where)
    command = [BIN / "ansible-playbook", "-i", "localhost,", "-c", "local", "--check", "npu.fleet.site", "-e", "npu_fleet_hosts=all"]
    count.step("run the playbook site, without an NPU or without effect", command, **where)


def documented(root):
    """{kind: names} of everything that ansible-doc can tell of this collection."""
    found = {kind: {path.stem for path in (root / "plugins" / folder).glob("[!_]*.py")}
             for kind, folder in (("module", "modules"), ("lookup", "lookup"), ("callback", "callback"))
             if (root / "plugins" / folder).exists()}
    found["filter"] = {path.stem for path in (root / "plugins/filter").glob("*.yml")}
    found["role"] = {path.name for path in (root / "roles").iterdir() if path.is_dir()}
    return {kind: sorted(names) for kind, names in found.items()}


def docs(count):
    """antsibull: changelog and documentation of all plugins and roles."""
    copy = steps.clean_copy("docs")
    count.step("changelog", [BIN / "antsibull-changelog", "lint"], cwd=copy)
    # A default that is a template is right for Ansible; antsibull-docs takes it for a wrong dict or list.
    for path in copy.glob("roles/*/meta/argument_specs.yml"):
        path.write_text(re.sub(r'^ +default: "\{\{.*\}\}"\n', "", path.read_text(), flags=re.MULTILINE))
    command = [BIN / "antsibull-docs", "lint-collection-docs", "--plugin-docs", "--validate-collection-refs", "self"]
    env = steps.environment(ANSIBLE_COLLECTIONS_PATH=steps.BUILD / "docs")
    count.step("documentation", [*command, "--check-extra-docs-refs", "."], cwd=copy, env=env)


def nodes(count):
    """Real nodes: boot, reboot, count remote calls. Needs root and the Debian packages of tests/prepare.sh."""
    engines = [f"tests/unit/engine/test_real_{name}.py" for name in ("dockerd", "containerd")]
    count.pytest(["tests/nodes", *engines], env=steps.environment(PYTHONPATH=steps.linked_tree()))


def molecule(count):
    """A simulated server from bare to schedulable, twice, and looked at from outside; container engines as they are in the field."""
    scenarios = sorted(path.parent.name for path in (steps.ROOT / "molecule").glob("*/molecule.yml"))
    runs = molecule_runs(scenarios, count.long)
    for suite in dict.fromkeys(suite for suite, _, _ in runs):
        count.step(f"lab of {suite}", [sys.executable, steps.ROOT / "tests/lab/lab.py", "build", "--suite", suite])
    for suite, scenario, more in runs:
        env = steps.environment(MOLECULE_GLOB="molecule/*/molecule.yml", ANSIBLE_COLLECTIONS_PATH=steps.linked_tree(),
                                NPU_SUITE=suite, NPU_LAB_BUILT=suite, **more)
        name = " ".join(["molecule", scenario, "on", suite, *more.values()])
        count.step(name, [BIN / "molecule", "test", "--scenario-name", scenario], env=env)


def molecule_runs(scenarios, long):
    """[(suite, scenario, environment)]: each on bookworm; in the long form those of the engines on other releases too."""
    others = [(suite, scenario, {}) for suite in OTHER_SUITES for scenario in ENGINE_SCENARIOS]
    # Debian's file is of version 2 there, which containerd 2 converts; others write version 3.
    others.append(("sid", "containerd", {"NPU_CONTAINERD_CONFIG": "version-3"}))
    return [("bookworm", scenario, {}) for scenario in scenarios] + (others if long else [])


def crash(count):
    """Node, module and installer killed at every step of the journal, each mode of a package: one run ends in the new or old state."""
    command = [sys.executable, steps.ROOT / "tests/crash/sweep.py", *([] if count.long else ["--short"])]
    swept = []
    count.step("crash sweep", command, env=steps.environment(PYTHONPATH=steps.linked_tree()), look=swept.append)
    points = [int(found.group(1)) for found in (re.match(r"swept (\d+) crash points", line) for line in swept) if found]
    count.check(points and min(points) > 0, "the sweep did not say that it swept any crash point")
    if count.long:
        count.pytest(["tests/crash/test_modes.py"], env=steps.environment(PYTHONPATH=steps.linked_tree(), NPU_TEST_NODE="crash-modes"))


def system(count):
    """Bad input through the playbook that users run, on real nodes."""
    count.pytest(["tests/system"], env=steps.environment(PYTHONPATH=steps.linked_tree()))


def shared(count):
    """The parsers over a folder of real command output (NPU_SHARED)."""
    count.pytest(["tests/shared"], env=steps.environment(PYTHONPATH=steps.linked_tree()))


LANES = {"lint": lint, "unit": unit, "sanity": sanity, "pythons": old_and_new, "collection": collection, "docs": docs,
         "nodes": nodes, "molecule": molecule, "crash": crash, "system": system, "shared": shared}

# What looks at container engines runs on the engines of other Debian releases too, in the long form.
ENGINE_SCENARIOS = ("containerd", "docker")
OTHER_SUITES = ("trixie", "sid")

# Lanes that boot nodes wait for them most of the time; the others compute. One of each kind runs at a time.
BOOTING = ("nodes", "molecule", "crash", "system")
# Of these, what builds the lab of tests/lab, in one folder for all.
SHARING = ("molecule", "system")
