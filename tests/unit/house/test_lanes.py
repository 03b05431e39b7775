# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver of the lanes counts honestly: nothing that was not run passes, and each failure is seen at the end."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

LANES = Path(__file__).resolve().parents[2] / "lanes"
sys.path.insert(0, str(LANES))

import lanes
import pythons
import run
import steps


@pytest.fixture
def build(monkeypatch, tmp_path):
    monkeypatch.setattr(steps, "BUILD", tmp_path / "build")
    monkeypatch.setattr(steps, "HOME", tmp_path / "build" / "home")
    return tmp_path / "build"


def script(folder, text):
    path = folder / "script.sh"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def counted(count):
    return count.passed, count.failed


def test_byte_code_is_kept_in_a_folder_of_ours_whatever_the_caller_wants(build, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (tmp_path / "a_module.py").write_text("")
    subprocess.run([sys.executable, "-c", "import a_module"], env=steps.environment(PYTHONPATH=tmp_path), check=True)
    assert [path.name.partition(".")[0] for path in Path(f"{build}/pycache{tmp_path}").iterdir()] == ["a_module"]
    assert not (tmp_path / "__pycache__").exists()


def test_a_step_that_fails_is_counted_and_the_next_one_runs(build, tmp_path):
    count = steps.Count()
    count.step("no", [script(tmp_path, "exit 3")])
    count.step("yes", ["true"])
    assert counted(count) == (1, 1)
    assert run.verdict(count) == "failed"


@pytest.mark.parametrize(("code", "last_line", "expected"), [
    (0, "4 passed, 1 skipped in 0.50s", (4, 0)),
    (1, "2 failed, 4 passed, 3 errors in 61.10s (0:01:01)", (4, 5)),
    (1, "1 passed, 1 error in 0.1s", (1, 1)),
    (5, "no tests ran in 0.01s", (0, 1)),
    (2, "usage: pytest", (0, 1)),
])
def test_pytest_is_counted_by_its_tests(build, tmp_path, code, last_line, expected):
    count = steps.Count()
    count.pytest([], python=script(tmp_path, f'echo "{last_line}"\nexit {code}'))
    assert counted(count) == expected
    assert count.not_run == (["1 tests skipped"] if "skipped" in last_line else [])


@pytest.mark.parametrize(("code", "lines", "expected"), [
    (0, ['Running sanity test "compile"', 'Running sanity test "pep8"'], (2, 0)),
    (0, ["WARNING: All targets skipped."], (0, 1)),
    (1, ['Running sanity test "compile"', 'Running sanity test "pep8"', "FATAL: The 1 sanity test(s) listed below (out of 2) failed."],
     (1, 1)),
    (1, ['Running sanity test "compile"', "Traceback"], (1, 1)),
])
def test_ansible_test_is_counted_by_its_tests(build, tmp_path, code, lines, expected):
    count = steps.Count()
    count.sanity([script(tmp_path, "\n".join(f"echo '{line}'" for line in lines) + f"\nexit {code}")])
    assert counted(count) == expected


def test_engines_of_other_releases_are_for_the_long_form(build):
    scenarios = sorted(path.parent.name for path in (steps.ROOT / "molecule").glob("*/molecule.yml"))
    short, long = lanes.molecule_runs(scenarios, long=False), lanes.molecule_runs(scenarios, long=True)
    assert short == [("bookworm", scenario, {}) for scenario in scenarios]
    assert long[: len(scenarios)] == [("bookworm", scenario, {}) for scenario in scenarios]
    others = [(suite, scenario, {}) for suite in ("trixie", "sid") for scenario in ("containerd", "docker")]
    assert long[len(scenarios) :] == [*others, ("sid", "containerd", {"NPU_CONTAINERD_CONFIG": "version-3"})]
    assert {scenario for _, scenario, _ in long} == set(scenarios)


@pytest.mark.parametrize("long", [False, True])
def test_a_missing_interpreter_is_told_and_does_not_pass(build, monkeypatch, capsys, long):
    monkeypatch.setattr(steps, "interpreter", lambda version: None)
    count = run.run_lane("pythons", long)
    assert counted(count) == (0, 0)
    assert run.verdict(count) == "not run"
    assert "not run here: the agent on Python 3.9 (no interpreter)" in capsys.readouterr().out
    assert "ansible-core 2.16 (no controller Python of 3.11, 3.10, 3.12)" in run.table({"pythons": count})[1]
    assert any("2.19" in words for words in count.not_run) is long


def test_short_forms_are_part_of_the_long_ones():
    assert all(set(targets) <= set(pythons.CORES[core][1]) for core, targets in pythons.SHORT.items())
    assert set(pythons.NODE_UNIT_SHORT) <= set(pythons.NODE_UNIT)
    assert set(pythons.AGENT_TESTS_SHORT) <= set(pythons.AGENT_TESTS)
    assert {python for _, targets in pythons.CORES.values() for python in targets} >= {f"3.{minor}" for minor in range(6, 14)}


def test_interpreters_are_asked_for_their_version(monkeypatch, tmp_path):
    fake = tmp_path / "python3.6"
    fake.write_text("#!/bin/sh\necho 3.5\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PYENV_ROOT", raising=False)
    assert steps.interpreter("3.6") is None
    fake.write_text("#!/bin/sh\necho 3.6\n")
    assert steps.interpreter("3.6") == fake
    assert steps.interpreter(steps.PYTHON) == Path(sys.executable)


def test_a_lane_that_does_nothing_fails(monkeypatch, capsys):
    monkeypatch.setitem(run.LANES, "idle", lambda count: None)
    monkeypatch.setattr(run.LANES["idle"], "__doc__", "Nothing.")
    assert run.main(["idle"]) == 1
    assert capsys.readouterr().out.endswith("\n0 passed, 1 failed\n")


def good(count):
    """Good."""
    print("good is at work")
    count.passed += 2
    count.not_run.append("a thing")


def bad(count):
    """Bad."""
    print("bad is at work")
    raise steps.StepFailed("broken")


def dead(count):
    """Dead."""
    os._exit(0)


def wrong(count):
    """Wrong."""
    print("wrong is at work")
    raise ValueError("of the lane itself")


def test_all_lanes_run_and_the_sum_is_the_last_line(build, monkeypatch, capsys):
    monkeypatch.setattr(run, "LANES", {"bad": bad, "good": good, "dead": dead, "wrong": wrong})
    assert run.main(["bad", "good", "dead", "wrong"]) == 1
    output = capsys.readouterr().out
    assert "==== bad: failed" in output
    assert "==== good: passed" in output
    assert re.search("good +passed +2 +0 +0 +0 +a thing", output)
    assert output.endswith("\n2 passed, 3 failed\n")
    # The output of lanes that passed stays in their files.
    assert "bad is at work" in output and "wrong is at work" in output and "of the lane itself" in output
    assert "good is at work" not in output
    assert "good is at work" in (build / "logs/good.log").read_text()
    assert run.main(["good"]) == 0
    assert "good is at work" in capsys.readouterr().out


def test_a_booting_lane_runs_beside_a_computing_one(build, monkeypatch, tmp_path):
    def lane(mine, other):
        def meet(count):
            """Meet."""
            (tmp_path / mine).touch()
            deadline = time.monotonic() + 30
            while not (tmp_path / other).exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            count.check((tmp_path / other).exists(), f"{other} did not come")
        return meet

    monkeypatch.setattr(run, "LANES", {"boots": lane("a", "b"), "computes": lane("b", "a")})
    monkeypatch.setattr(run, "BOOTING", ("boots",))
    assert run.main(["boots", "computes"]) == 0


@pytest.mark.parametrize(
    ("queue", "running", "taken"),
    [
        (["system", "crash"], ["molecule"], "crash"),
        (["system"], ["molecule"], None),
        (["nodes", "system"], ["crash"], "nodes"),
        (["system"], ["crash"], "system"),
        ([], ["crash"], None),
    ],
)
def test_what_runs_beside_a_booting_lane(queue, running, taken):
    assert run.second(queue, running) == taken


def test_the_long_form_reaches_the_lane(build, monkeypatch, capsys):
    def long(count):
        """Long."""
        count.check(count.long, "short")

    monkeypatch.setattr(run, "LANES", {"long": long, "good": good})
    assert run.main(["long"]) == 1
    assert run.main(["--long", "long"]) == 0
    assert run.main(["--long", "long", "good"]) == 0


def test_unknown_lanes_are_refused(capsys):
    assert run.main(["none"]) == 2
    assert "no such lane: none" in capsys.readouterr().err


def test_every_lane_says_what_it_does():
    assert all(lane.__doc__ for lane in lanes.LANES.values())


def test_copy_is_exact(build, monkeypatch, tmp_path):
    root = tmp_path / "clone"
    for name in ("plugins/a.py", "tests/config.yml", "tests/unit/b.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "link").symlink_to("plugins")
    monkeypatch.setattr(steps, "ROOT", root)
    copy = steps.clean_copy("x", ("tests/",))
    assert copy == build / "x/ansible_collections/npu/fleet"
    (copy / "tests/output/old").mkdir(parents=True)
    (copy / "tests/output/old/file").write_text("left by a tool")
    (root / "plugins/a.py").unlink()
    (root / "plugins/c.py").write_text("new")
    steps.clean_copy("x", ("tests/",))
    left = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.relative_to(copy).parts[0] != ".git" and not path.is_dir()}
    assert left == {"plugins/c.py", "tests/config.yml"}
    assert os.readlink(copy / "link") == "plugins"


def test_environment_is_ours(build, monkeypatch):
    monkeypatch.setenv("ANSIBLE_CONFIG", "/home/somebody/ansible.cfg")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    given = steps.environment(EXTRA=1)
    assert "ANSIBLE_CONFIG" not in given
    assert "PYTHONPATH" not in given
    assert given["HOME"] == str(build / "home")
    assert given["EXTRA"] == "1"
    assert given["PATH"].startswith(str(Path(sys.executable).parent))


def test_pip_bootstrap_installs_what_it_is_asked_for(tmp_path):
    """It calls the interpreter that runs it, with ensurepip and then with the pinned words only."""
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\necho "$@ GET_PIP=$GET_PIP" >> {tmp_path}/calls\n')
    fake.chmod(0o755)
    code = f"import sys; sys.executable = {str(fake)!r}; exec(open({str(LANES / 'pip_bootstrap.py')!r}).read())"
    subprocess.run([sys.executable, "-c", code, "--quiet", "pip==24.2", "--no-wheel"], check=True, env={**os.environ, "GET_PIP": "x"})
    assert (tmp_path / "calls").read_text().splitlines() == [
        "-m ensurepip GET_PIP=", "-m pip install --disable-pip-version-check pip==24.2 GET_PIP="]
