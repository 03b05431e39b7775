# SPDX-License-Identifier: GPL-3.0-or-later
"""The lanes: what is run, and with what. A lane is a function that counts into a steps.Count."""

import os
import re
import sys
import tarfile
from pathlib import Path

import steps

BIN = Path(sys.executable).parent

# Not part of the collection, so not a concern of ansible-test: shell scripts of the simulator imitate a vendor, a fixture keeps its CRLF.
# ruff and the unit tests look after these.
NOT_SHIPPED = ("tests/", "molecule/", ".ci/")

# Node code on the Pythons of nodes. ansible-core 2.16 is the last that manages Python 3.6; it needs a controller Python of 3.10 to 3.12.
OLD_CORE = "ansible-core==2.16.*"
OLD_CONTROLLERS = ("3.11", "3.10", "3.12")
OLD_PYTHONS = ("3.6", "3.7", "3.8", "3.9")

# Unit tests of node code, run on the oldest of them as well. The pip that comes with it would take releases it cannot run, so pip first.
UNIT_PYTHON = "3.6"
UNIT_REQUIREMENTS = (("pip==21.3.1",), ("pytest==7.0.*", "hypothesis==6.31.*", "PyYAML==6.0.*"))
UNIT_TESTS = ("tests/unit/command", "tests/unit/hardware", "tests/unit/packages", "tests/unit/plan/test_gates.py",
              "tests/unit/engine/test_node_steps.py", "tests/unit/engine/test_observe.py")
# Where the test itself, not what it tests, needs a newer Python. They are counted as not run.
UNIT_TOO_NEW = (
    "tests/unit/hardware/test_npu_info.py",  # runs the controller's side too
    "tests/unit/hardware/test_npu_smi.py::test_table",  # zip(strict=)
    "tests/unit/hardware/test_dcmi.py::test_child_stands_alone_as_a_file",  # subprocess.run(capture_output=)
    "tests/unit/hardware/test_simulator.py",
    "tests/unit/hardware/test_stands_alone.py",
    "tests/unit/packages/test_decide.py::test_the_order_of_wishes_does_not_matter",  # reversed(dict.items())
    "tests/unit/packages/test_fetch.py",  # ThreadingHTTPServer
    "tests/unit/packages/test_state.py::test_cann_leftovers_of_a_removal",  # dict | dict
    "tests/unit/packages/test_versions.py",  # itertools.pairwise
    "tests/unit/command/test_run.py::test_stdin_text",  # pytest 7.0 puts the name of the test, 128 kB here, into the environment
)

# ansible-lint must have seen at least so many files.
FEWEST_LINTED = 50

# Top level of the built collection: anything else was forgotten in build_ignore of galaxy.yml.
COLLECTION_ENTRIES = {"MANIFEST.json", "FILES.json", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "changelogs", "docs",
                      "meta", "plugins", "roles", "playbooks"}


def lint(count):
    """ruff, yamllint and ansible-lint (profile production) on a clean copy."""
    copy = steps.clean_copy("lint")
    env = steps.environment(ANSIBLE_COLLECTIONS_PATH=steps.BUILD / "lint", ANSIBLE_LOCALHOST_WARNING="false")
    count.step("ruff", [BIN / "ruff", "check", "--no-cache", "."], cwd=copy, env=env)
    count.step("yamllint", [BIN / "yamllint", "--strict", "."], cwd=copy, env=env)
    seen = []
    command = [BIN / "ansible-lint", "--offline", "--profile", "production", "--nocolor"]
    count.step("ansible-lint", command, cwd=copy, env=env, look=seen.append)
    looked_at = re.search(r"in (\d+) files processed", " ".join(seen))
    # A tool that finds nothing to look at passes too.
    count.check(looked_at and int(looked_at.group(1)) >= FEWEST_LINTED, "ansible-lint looked at too few files")


def unit(count):
    """Unit tests, a file at a time on each core."""
    spread = ["-n", os.cpu_count() or 1, "--dist", "loadfile", "--durations", "15"]
    count.pytest([*spread, "tests/unit"], env=steps.environment(PYTHONPATH=steps.linked_tree()))


def sanity(count):
    """ansible-test sanity, without a single ignore, of everything that is shipped."""
    copy = steps.clean_copy("sanity", NOT_SHIPPED)
    steps.bootstrap_pip()
    command = [BIN / "ansible-test", "sanity", "--local", "--python", steps.PYTHON, "--color", "no"]
    count.sanity(command, cwd=copy)


def old_python(count):
    """Node code compiled, imported and tested on the older Pythons of nodes."""
    controller = next(filter(None, (steps.interpreter(version) for version in OLD_CONTROLLERS)), None)
    found = {version: steps.interpreter(version) for version in OLD_PYTHONS}
    count.not_run += [f"{version} (no interpreter)" for version, path in found.items() if path is None]
    found = {version: path for version, path in found.items() if path}
    if controller is None:
        count.not_run += [f"{version} (no controller Python of {', '.join(sorted(OLD_CONTROLLERS))})" for version in found]
    elif found:
        core = steps.virtual_environment("core-2.16", controller, [(OLD_CORE,)])
        copy = steps.clean_copy("old-python", NOT_SHIPPED)
        steps.bootstrap_pip()
        path = os.pathsep.join([str(core.parent), *(str(path.parent) for path in found.values()), os.environ["PATH"]])
        for version in found:
            tests = ["--test", "compile", "--test", "import"]
            command = [core.parent / "ansible-test", "sanity", "--local", "--python", version, "--color", "no", *tests]
            count.sanity(command, cwd=copy, env=steps.environment(PATH=path))
        if UNIT_PYTHON in found:
            old_unit(count, found[UNIT_PYTHON], core)


def old_unit(count, python, core):
    """Unit tests of node code on an old Python, with the module_utils of the ansible-core that is the last to manage it."""
    packages = steps.BUILD / "module_utils-2.16"
    packages.mkdir(exist_ok=True)
    link = packages / "ansible"
    link.unlink(missing_ok=True)
    link.symlink_to(next(core.parents[1].glob("lib/python*/site-packages/ansible")))
    inside = steps.virtual_environment(f"unit-{UNIT_PYTHON}", python, UNIT_REQUIREMENTS)
    without = [f"--deselect={name}" if "::" in name else f"--ignore={name}" for name in UNIT_TOO_NEW]
    env = steps.environment(PYTHONPATH=os.pathsep.join([str(steps.linked_tree()), str(packages)]))
    count.pytest([*UNIT_TESTS, *without], python=inside, env=env)
    count.not_run.append(f"{len(UNIT_TOO_NEW)} tests or test files on {UNIT_PYTHON} (they need a newer Python themselves)")


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
    for module in sorted(path.stem for path in (steps.ROOT / "plugins/modules").glob("*.py")):
        count.step(f"ansible-doc {module}", [BIN / "ansible-doc", "-t", "module", f"npu.fleet.{module}"], quiet=True, **where)
    for playbook in sorted(path.stem for path in (steps.ROOT / "playbooks").glob("*.yml")):
        command = [BIN / "ansible-playbook", "--syntax-check", "-i", "localhost,", f"npu.fleet.{playbook}"]
        count.step(f"playbook {playbook}", command, **where)


def changelog(count):
    """antsibull-changelog lint."""
    count.step("changelog", [BIN / "antsibull-changelog", "lint"], cwd=steps.clean_copy("changelog"))


def nodes(count):
    """Real nodes: boot, reboot, count remote calls. Needs root and the Debian packages of tests/prepare.sh."""
    count.pytest(["tests/nodes", "tests/unit/engine/test_real_dockerd.py"], env=steps.environment(PYTHONPATH=steps.linked_tree()))


def molecule(count):
    """A simulated server from bare to schedulable, twice, and looked at from outside."""
    env = steps.environment(MOLECULE_GLOB="molecule/*/molecule.yml", ANSIBLE_COLLECTIONS_PATH=steps.linked_tree())
    for scenario in sorted(path.parent.name for path in (steps.ROOT / "molecule").glob("*/molecule.yml")):
        count.step(f"molecule {scenario}", [BIN / "molecule", "test", "--scenario-name", scenario], env=env)


def system(count):
    """Bad input through the playbook that users run, on real nodes."""
    count.pytest(["tests/system"], env=steps.environment(PYTHONPATH=steps.linked_tree()))


def shared(count):
    """The parsers over a folder of real command output (NPU_SHARED)."""
    count.pytest(["tests/shared"], env=steps.environment(PYTHONPATH=steps.linked_tree()))


LANES = {"lint": lint, "unit": unit, "sanity": sanity, "old-python": old_python, "collection": collection, "changelog": changelog,
         "nodes": nodes, "molecule": molecule, "system": system, "shared": shared}
