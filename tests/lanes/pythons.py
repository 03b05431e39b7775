# SPDX-License-Identifier: GPL-3.0-or-later
"""The Pythons of nodes and the releases of ansible-core that manage them: which pairs are tried, and with what."""

import os
import subprocess

import steps

# {ansible-core: (Pythons of its controller in order of preference, Pythons of its targets)}: its own tables, tried with one module each.
CORES = {
    "2.16": (("3.11", "3.10", "3.12"), ("3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12")),
    "2.17": (("3.11", "3.10", "3.12"), ("3.7", "3.8", "3.9", "3.10", "3.11", "3.12")),
    "2.18": (("3.11", "3.12", "3.13"), ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")),
    "2.19": (("3.11", "3.12", "3.13"), ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")),
    "2.21": (("3.12", "3.13", "3.14"), ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")),
}
# Both ends: what breaks on a Python between them mostly breaks on one of them too.
SHORT = {"2.16": ("3.6",), "2.21": ("3.13",)}

# Unit tests of node code on the Pythons that cannot be a controller. The pip of 3.6 would take releases it cannot run, so pip comes first.
NODE_UNIT = {
    "3.6": (("pip==21.3.1",), ("pytest==7.0.*", "pytest-xdist==3.0.*", "hypothesis==6.31.*", "PyYAML==6.0.*")),
    "3.7": (("pytest==7.4.*", "pytest-xdist==3.5.*", "hypothesis==6.79.*", "PyYAML==6.0.*"),),
    "3.8": (("pytest==8.3.*", "pytest-xdist==3.6.*", "hypothesis==6.113.*", "PyYAML==6.0.*"),),
    "3.9": (("pytest==8.4.*", "pytest-xdist==3.8.*", "hypothesis==6.141.*", "PyYAML==6.0.*"),),
}
NODE_UNIT_SHORT = ("3.6",)
NODE_UNIT_CORE = "2.16"  # its module_utils run on all of them
UNIT_TESTS = ("tests/unit/command", "tests/unit/hardware", "tests/unit/packages", "tests/unit/plan/test_gates.py",
              "tests/unit/plan/test_gates_container.py", "tests/unit/preflight/test_engine_facts.py",
              "tests/unit/engine/test_node_steps.py", "tests/unit/engine/test_observe.py", "tests/unit/engine/test_cri.py",
              "tests/unit/engine/test_toml_read.py", "tests/unit/engine/test_engine_containerd.py",
              "tests/unit/engine/test_containerd_decisions.py", "tests/unit/engine/test_containerd_files.py",
              "tests/unit/engine/test_engine_k3s.py", "tests/unit/engine/test_engine_crio.py", "tests/unit/engine/test_kubelet.py",
              "tests/unit/engine/test_isulad.py", "tests/unit/engine/test_transaction.py", "tests/unit/engine/test_transaction_cut.py")
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

# The whole suite of unit tests on the other Pythons of a controller: {Python: ansible-core}.
WHOLE_UNIT = {"3.10": "2.17", "3.12": "2.21", "3.13": "2.21"}
WHOLE_UNIT_NEEDS = ("grpcio", "hypothesis", "jmespath", "kubernetes", "prometheus-client", "pytest", "PyYAML", "tomli")

# The agent's oldest Python with the oldest protobuf (before generated code changed; what distributions with it have).
AGENT_PYTHON = "3.9"
OLDEST_PROTOBUF = "protobuf==3.20.3"
AGENT_TESTS = tuple(f"tests/unit/agent/test_agent_{name}.py" for name in ("allocate", "serve", "life"))
AGENT_TESTS_SHORT = ("tests/unit/agent/test_agent_allocate.py",)


def find(count, version, what):
    """An interpreter of this version; counted as not run when the machine has none."""
    found = steps.interpreter(version)
    if found is None:
        count.not_run.append(f"{what} {version} (no interpreter)")
    return found


def core_environment(count, core):
    """The python of a virtual environment with this ansible-core, None when no controller Python for it is here."""
    wanted = CORES[core][0]
    controller = next(filter(None, (steps.interpreter(version) for version in wanted)), None)
    if controller is None:
        count.not_run.append(f"ansible-core {core} (no controller Python of {', '.join(wanted)})")
        return None
    return steps.virtual_environment(f"core-{core}", controller, [(f"ansible-core=={core}.*",)])


def version_of(python):
    """Its version as text, such as 3.11."""
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", question], check=True, capture_output=True, text=True).stdout.strip()


def import_on_targets(count, copy):
    """Every file compiled and imported by each ansible-core on each Python that it manages."""
    for core, targets in ({core: CORES[core][1] for core in CORES} if count.long else SHORT).items():
        python = core_environment(count, core)
        if python is None:
            continue
        found = {version: find(count, version, f"ansible-core {core} with Python") for version in targets}
        found = {version: path for version, path in found.items() if path}
        path = os.pathsep.join([str(python.parent), *(str(path.parent) for path in found.values()), os.environ["PATH"]])
        for version in found:
            command = [python.parent / "ansible-test", "sanity", "--local", "--python", version, "--color", "no"]
            count.sanity([*command, "--test", "compile", "--test", "import"], cwd=copy, env=steps.environment(PATH=path))


def node_unit(count):
    """Unit tests of node code on the old Pythons, with the module_utils of the ansible-core that is the last to manage them."""
    core = core_environment(count, NODE_UNIT_CORE)
    if core is None:
        return
    packages = steps.BUILD / "module_utils-2.16"
    packages.mkdir(exist_ok=True)
    link = packages / "ansible"
    link.unlink(missing_ok=True)
    link.symlink_to(next(core.parents[1].glob("lib/python*/site-packages/ansible")))
    without = [f"--deselect={name}" if "::" in name else f"--ignore={name}" for name in UNIT_TOO_NEW]
    env = steps.environment(PYTHONPATH=os.pathsep.join([str(steps.linked_tree()), str(packages)]))
    for version in NODE_UNIT if count.long else NODE_UNIT_SHORT:
        python = find(count, version, "unit tests of node code on Python")
        if python:
            inside = steps.virtual_environment(f"unit-{version}", python, NODE_UNIT[version])
            count.pytest([*steps.SPREAD, *UNIT_TESTS, *without], python=inside, env=env)
    count.not_run.append(f"{len(UNIT_TOO_NEW)} tests or test files on old Pythons (they need a newer one themselves)")


def whole_unit(count):
    """The whole suite of unit tests on the other Pythons of a controller."""
    lines = (steps.ROOT / "tests/requirements.txt").read_text().splitlines()
    needed = tuple(line for line in lines if line.startswith(WHOLE_UNIT_NEEDS))
    for version, core in WHOLE_UNIT.items():
        python = find(count, version, "unit tests on Python")
        if python:
            inside = steps.virtual_environment(f"whole-unit-{version}", python, [(f"ansible-core=={core}.*", *needed)])
            env = steps.environment(PYTHONPATH=steps.linked_tree(), PATH=f"{inside.parent}{os.pathsep}{os.environ['PATH']}")
            count.pytest([*steps.SPREAD, "tests/unit"], python=inside, env=env)


def agent(count):
    """The agent as a process of its oldest Python, with the oldest protobuf."""
    python = find(count, AGENT_PYTHON, "the agent on Python")
    if python is None:
        return
    pins = steps.ROOT / f"roles/npu_agent/files/npu_agent/requirements/python{AGENT_PYTHON}.txt"
    needed = [line for line in pins.read_text().splitlines() if line and not line.startswith(("#", "protobuf"))]
    inside = steps.virtual_environment(f"agent-{AGENT_PYTHON}", python, [(*needed, OLDEST_PROTOBUF)])
    env = steps.environment(PYTHONPATH=steps.linked_tree(), AGENT_PYTHON=inside)
    count.pytest(AGENT_TESTS if count.long else AGENT_TESTS_SHORT, env=env)
