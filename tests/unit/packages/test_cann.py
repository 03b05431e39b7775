# SPDX-License-Identifier: GPL-3.0-or-later
"""CANN: which version is in force, its links, its environment, and what the decision does with several versions."""

import os
import shutil
import subprocess

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._command import run
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import (
    _cann,
    _cann_environment,
    _cann_folders,
    _cann_links,
    _cann_move,
    _cann_rules,
    _cann_shells,
)
from ansible_collections.npu.fleet.plugins.module_utils._packages._decide import decide
from ansible_collections.npu.fleet.plugins.module_utils._packages._records import Files

BASE = "/usr/local/Ascend"
OLD = BASE + "/ascend-toolkit"


@pytest.fixture
def host(tmp_path):
    """A function that writes files ("->" is a link, "folder" an empty one) and gives what is seen of CANN."""

    def make(files):
        for path, text in files.items():
            target = tmp_path / path[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            if text == "folder":
                target.mkdir(exist_ok=True)
            elif text.startswith("->"):
                target.symlink_to(text[2:])
            else:
                target.write_text(text)
        make.files = Files(str(tmp_path))
        return _cann.observe(make.files, BASE)

    make.root = tmp_path
    return make


def record(version, package="Ascend-cann-toolkit", arch="x86_64"):
    return f"package_name={package}\nversion={version}\narch={arch}\n"


def new(version, **kwargs):
    return {f"{BASE}/cann-{version}/x86_64-linux/ascend_toolkit_install.info": record(version, **kwargs)}


def old(version):
    return {f"{OLD}/{version}/x86_64-linux/ascend_toolkit_install.info": record(version)}


# --- which version is in force ------------------------------------------------------------------------------------------

@pytest.mark.parametrize(
    ("files", "version", "installed"),
    [
        # entries 8.1.RC1 8.2.RC1 latest set_env.sh 8.2.RC1.bak (field case): the link decides
        ({**old("8.1.RC1"), **old("8.2.RC1"), **old("8.2.RC1.bak"), OLD + "/set_env.sh": "x", OLD + "/latest": "->8.1.RC1"},
         "8.1.RC1", ["8.1.RC1", "8.2.RC1"]),
        # without it, the highest that parses as a version and holds a version file
        ({**old("8.1.RC1"), **old("8.2.RC1"), **old("8.2.RC1.bak"), OLD + "/set_env.sh": "x", OLD + "/8.3.RC1": "folder"},
         "8.2.RC1", ["8.1.RC1", "8.2.RC1"]),
        ({**old("8.2.RC1"), **old("8.10.RC1")}, "8.10.RC1", ["8.10.RC1", "8.2.RC1"]),
        ({**new("8.5.0"), **new("8.5.2"), BASE + "/cann": "->cann-8.5.0"}, "8.5.0", ["8.5.0", "8.5.2"]),
        ({**new("8.5.0"), **new("8.5.2"), BASE + "/cann": f"->{BASE}/cann-8.5.2/"}, "8.5.2", ["8.5.0", "8.5.2"]),
        # a link that leads to nothing decides nothing
        ({**new("8.5.0"), BASE + "/cann": "->cann-9.0.0"}, "8.5.0", ["8.5.0"]),
        # old and new layout: the new link counts, the old one follows it
        ({**old("8.3.RC1"), **new("8.5.0"), BASE + "/cann": "->cann-8.5.0", OLD + "/latest": "->../cann"}, "8.5.0", ["8.3.RC1", "8.5.0"]),
        ({**old("8.3.RC1"), **new("8.5.0"), OLD + "/latest": "->8.3.RC1"}, "8.3.RC1", ["8.3.RC1", "8.5.0"]),
        # a plain folder in the place of the link (runtime package, measured), and a link to a folder elsewhere
        ({BASE + "/cann/x86_64-linux/ascend_toolkit_install.info": record("8.5.0")}, "8.5.0", ["8.5.0"]),
        ({"/data/cann-8.5.0/x86_64-linux/ascend_toolkit_install.info": record("8.5.0"), BASE + "/cann": "->/data/cann-8.5.0"},
         "8.5.0", ["8.5.0"]),
    ],
)  # fmt: skip
def test_in_force(host, files, version, installed):
    found = host(files)["cann_toolkit"]
    assert (found["state"], found["version"], found["record"]["installed"]) == ("present", version, installed)


def test_a_part_without_version_info_is_cut(host):
    """version.info is written last, and both files must be there (runtime package, measured)."""
    files = {**new("8.5.0"), f"{BASE}/cann-8.5.0/share/info/runtime/ascend_install.info": "x=1\n"}
    assert host(files)["cann_toolkit"]["state"] == "half_installed"
    files[f"{BASE}/cann-8.5.0/share/info/runtime/version.info"] = "Version=8.5.0\n"
    assert host(files)["cann_toolkit"]["state"] == "present"


def test_a_cut_version_does_not_hide_a_whole_one(host):
    found = host({**new("8.5.0"), f"{BASE}/cann-8.5.2/share/x": "x", BASE + "/cann": "->cann-8.5.2"})["cann_toolkit"]
    assert (found["version"], found["record"]["broken"]) == ("8.5.0", {"8.5.2": BASE + "/cann-8.5.2"})
    assert "cann leads to /usr/local/Ascend/cann-8.5.2" in found["record"]["unsettled"][0]


def test_kernels_of_another_version_do_not_count(host):
    kernels = {f"{BASE}/cann-8.5.0/x86_64-linux/ascend_ops_install.info": record("8.5.0", "Ascend-cann-910b-ops")}
    found = host({**new("8.5.0"), **new("8.5.2"), **kernels, BASE + "/cann": "->cann-8.5.2"})["cann_kernels"]
    assert (found["state"], found["record"]["installed"]) == ("absent", ["8.5.0"])


@pytest.mark.parametrize(
    ("folder", "families"),
    [
        ("opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b", ["a2"]),
        ("opp/built-in/op_impl/ai_core/tbe/kernel/ascend910_93", ["a3"]),
        ("opp_kernel/built-in/ascend310p", ["310p"]),
        ("opp/built-in/op_impl/ai_core/tbe/kernel/config", []),
    ],
)
def test_families_of_kernels(host, folder, families):
    kernels = {f"{BASE}/cann-8.5.0/x86_64-linux/ascend_ops_install.info": record("8.5.0", "Ascend-cann-910b-ops")}
    found = host({**new("8.5.0"), **kernels, f"{BASE}/cann-8.5.0/{folder}": "folder"})["cann_kernels"]
    assert found["record"]["families"] == families


def test_nnal_whose_script_went_with_another_version_is_not_whole(host):
    """Removing one version takes set_env.sh away from the others (ATB, measured)."""
    atb = f"{BASE}/nnal/atb"
    files = {f"{atb}/8.5.0/version.info": "Version : 8.5.0\n", f"{atb}/latest": "->8.5.0"}
    assert host(files)["nnal"]["state"] == "half_installed"
    assert host({f"{atb}/set_env.sh": "x"})["nnal"]["version"] == "8.5.0"


def test_whose_a_version_is(host):
    state = {"/var/lib/npu-fleet/cann-folders.json": f'{{"{BASE}/cann-8.5.0": {{}}}}'}
    found = host({**new("8.5.0"), **new("8.5.2"), **state})["cann_toolkit"]["record"]
    assert found["ours"] == ["8.5.0"]


# --- links --------------------------------------------------------------------------------------------------------------

def test_links_of_the_new_layout(host):
    old_users = {OLD + "/latest": "->../cann", OLD + "/set_env.sh": "->../cann/set_env.sh"}
    host({**new("8.5.0"), **new("8.5.2"), BASE + "/cann": "->cann-8.5.0", **old_users})
    links = _cann.set_links(host.files, BASE, BASE + "/cann-8.5.2")
    assert len(_cann_links.astray(host.files, links)) == 3
    moved = _cann_move.point(host.files, links)
    assert os.readlink(host.root / "usr/local/Ascend/cann") == "cann-8.5.2"
    # the others follow the first one
    assert len(moved) == 1
    assert _cann_links.astray(host.files, links) == []
    _cann_move.back(host.files, moved)
    assert os.readlink(host.root / "usr/local/Ascend/cann") == "cann-8.5.0"
    assert [name for name in os.listdir(host.root / "usr/local/Ascend") if name.startswith(".")] == []


def test_what_stands_in_the_way_of_a_link_is_not_touched_and_the_rest_goes_back(host):
    host({**new("8.5.0"), **new("8.5.2"), BASE + "/cann": "->cann-8.5.0", OLD + "/latest/notes": "the admin's\n"})
    links = _cann.set_links(host.files, BASE, BASE + "/cann-8.5.2")
    with pytest.raises(FleetError) as caught:
        _cann_move.point(host.files, links)
    assert caught.value.code == "link_in_the_way"
    assert os.readlink(host.root / "usr/local/Ascend/cann") == "cann-8.5.0"
    assert (host.root / OLD[1:] / "latest/notes").exists()


def test_a_link_is_replaced_in_one_step(host, monkeypatch):
    """There is no moment without a link: a rename does it."""
    host({**new("8.5.0"), **new("8.5.2"), BASE + "/cann": "->cann-8.5.0"})
    seen = []
    rename = os.rename

    def spy(source, target):
        seen.append(os.path.lexists(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", spy)
    _cann_move.point(host.files, _cann.set_links(host.files, BASE, BASE + "/cann-8.5.2"))
    assert seen == [True]


# --- environment --------------------------------------------------------------------------------------------------------

#: Traits of the vendor's script (field case): bash only, unset variables, prepends each time, ends with a test that fails.
VENDOR = """
parts=(lib64 lib64/plugin)
export ASCEND_HOME_PATH=/opt/cann
for part in "${parts[@]}"; do export LD_LIBRARY_PATH=/opt/cann/$part:$LD_LIBRARY_PATH; done
export PYTHONPATH=/opt/cann/python:$PYTHONPATH
export PATH=/opt/cann/bin:$PATH
echo "a word that would break a file transfer"
[ -n "$SOME_UNSET_VARIABLE" ]
"""


@pytest.fixture
def profile(tmp_path):
    script = tmp_path / "set_env.sh"
    script.write_text(VENDOR)
    variables = _cann_shells.compute([str(script)], run)
    path = tmp_path / "profile.sh"
    path.write_text(_cann_shells.profile_text("# For cann_toolkit 8.5.0 (x).", [str(script)], variables))
    return path, script, variables


def shell(words, text, **env):
    env = {"PATH": "/usr/bin:/bin", **env}
    # Spelled for Python 3.6, on which this file runs too.
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "universal_newlines": True}
    return subprocess.run([*words, "-c", text], env=env, check=False, **streams)


SHELLS = [["bash"], ["bash", "--posix"], ["dash"], ["busybox", "sh"]]


@pytest.mark.parametrize("words", [words for words in SHELLS if shutil.which(words[0])], ids=" ".join)
@pytest.mark.parametrize("options", ["", "set -u;", "set -e;", "set -eu;"])
def test_login_shells(profile, words, options):
    path, script, _variables = profile
    show = 'printf "%s|" "$ASCEND_HOME_PATH" "$LD_LIBRARY_PATH" "$PYTHONPATH" "$PATH"; case $- in *u*) echo u;; esac'
    once = shell(words, f"{options} . {path}; {show}")
    wanted = "/opt/cann|/opt/cann/lib64/plugin:/opt/cann/lib64|/opt/cann/python|/opt/cann/bin:/usr/bin:/bin|"
    assert (once.returncode, once.stderr) == (0, "")
    assert once.stdout == wanted + ("u\n" if "u" in options else "")
    # sourced again, also where the mark got lost: nothing grows
    again = shell(words, f"{options} . {path}; . {path}; NPU_FLEET_ASCEND=; . {path}; {show}")
    assert again.stdout == once.stdout
    # nothing of ours is left behind
    assert "__npu_fleet" not in shell(words, f". {path}; set").stdout.replace(str(path), "")
    # what was there stays, behind
    kept = shell(words, f"{options} . {path}; {show}", LD_LIBRARY_PATH="/mine", PYTHONPATH="/mine")
    assert "/opt/cann/lib64:/mine|/opt/cann/python:/mine|" in kept.stdout
    script.unlink()
    gone = shell(words, f"{options} . {path}; echo alive")
    assert (gone.returncode, gone.stdout, gone.stderr) == (0, "alive\n", "")


def test_units_get_whole_values(profile):
    _path, _script, variables = profile
    lines = _cann_shells.unit_text("# For x.", variables).splitlines()
    assert 'LD_LIBRARY_PATH="/opt/cann/lib64/plugin:/opt/cann/lib64"' in lines
    assert f'PATH="/opt/cann/bin:{_cann_shells.UNIT_PATH}"' in lines
    assert not [line for line in lines if "$" in line]
    assert not [line for line in lines if line.startswith(("HOME", "PWD", "SHLVL", "_="))]


def test_values_are_quoted():
    text = _cann_shells.unit_text("# For x.", [("NAME", 'a "b" \\c', None)])
    assert 'NAME="a \\"b\\" \\\\c"' in text
    assert _cann_shells.quote("it's") == "'it'\\''s'"


def test_a_script_that_ends_the_shell_is_an_error(tmp_path):
    script = tmp_path / "set_env.sh"
    script.write_text("exit 0\n")
    with pytest.raises(FleetError) as caught:
        _cann_shells.compute([str(script)], run)
    assert caught.value.code == "environment_unknown"


def test_the_environment_hangs_on_the_version_in_force(host):
    found = host({**new("8.5.0"), BASE + "/cann": "->cann-8.5.0", f"{BASE}/cann-8.5.0/set_env.sh": VENDOR})
    assert len(found["cann_toolkit"]["record"]["unsettled"]) == 2
    assert _cann_shells.write(host.files, found, run)
    assert not _cann_shells.write(host.files, found, run)
    assert host({})["cann_toolkit"]["record"]["unsettled"] == []
    assert (host.root / _cann_environment.UNIT_FILE[1:]).stat().st_mode & 0o777 == 0o644
    nothing = dict.fromkeys(found, {"state": "absent"})
    assert _cann_shells.write(host.files, nothing, run)
    assert not (host.root / _cann_environment.PROFILE[1:]).exists()


# --- folders of ours ----------------------------------------------------------------------------------------------------

def claim(host, version="8.5.2", component="cann_toolkit"):
    _cann_folders.claim(host.files, str(host.root / "state"), BASE, {"component": component, "version": version})


def test_only_a_folder_that_was_not_there_is_ours(host):
    host(new("8.5.0"))
    state = str(host.root / "state")
    claim(host, "8.5.0")
    assert _cann_folders.owned(state, BASE + "/cann-8.5.0") is None
    claim(host, "8.5.2")
    assert _cann_folders.owned(state, BASE + "/cann-8.5.2")
    # a later package of ours over our own remains
    host({f"{BASE}/cann-8.5.2/x": "x"})
    claim(host, "8.5.2")
    _cann_folders.remove(host.files, state, BASE, BASE + "/cann-8.5.2")
    assert not (host.root / "usr/local/Ascend/cann-8.5.2").exists()
    with pytest.raises(FleetError) as caught:
        _cann_folders.remove(host.files, state, BASE, BASE + "/cann-8.5.0")
    assert caught.value.code == "folder_not_ours"


@pytest.mark.parametrize("path", ["/", "/etc", BASE, BASE + "/driver", BASE + "/cann", BASE + "/cann-", OLD, OLD + "/latest"])
def test_nothing_else_is_ever_removed_by_force(host, path):
    host(new("8.5.0"))
    with pytest.raises(FleetError) as caught:
        _cann_folders.remove(host.files, str(host.root / "state"), BASE, path)
    assert caught.value.code == "folder_refused"


@pytest.mark.parametrize(
    ("component", "version", "path"),
    [
        ("cann_toolkit", "8.5.0", "/b/cann-8.5.0"), ("cann_toolkit", "8.3.RC1", "/b/ascend-toolkit/8.3.RC1"),
        ("cann_toolkit", "8.5.0.alpha001", "/b/cann-8.5.0.alpha001"),
        ("cann_nnrt", "8.3.RC1", "/b/nnrt/8.3.RC1"), ("cann_nnrt", "8.5.0", "/b/cann-8.5.0"), ("nnal", "8.5.0", "/b/nnal/atb/8.5.0"),
        ("cann_kernels", "8.5.0", None),
    ],
)  # fmt: skip
def test_folder_of_a_package(component, version, path):
    assert _cann_rules.folder("/b", component, version) == path


# --- decisions ----------------------------------------------------------------------------------------------------------

def present(version, path=BASE + "/cann-x", **record_):
    return {"state": "present", "version": version, "path": path, "reason": None, "record": record_}


ABSENT = {"state": "absent", "version": None, "path": None, "reason": None, "record": {}}
TWO = {"installed": ["8.5.0", "8.5.2"]}


def steps_of(wanted, allow_downgrade=False, **components):
    observed = {"arch": "x86_64", "family": "a2", "families": ["a2"], "components": components}
    steps = decide(observed, {name: {"version": version} for name, version in wanted.items()}, allow_downgrade)
    return {step["component"]: (step["code"] or step["action"]) for step in steps}, steps


@pytest.mark.parametrize(
    ("wanted", "allow", "components", "actions"),
    [
        # beside each other: a link, forwards freely, backwards when that is allowed
        ({"cann_toolkit": "8.5.2"}, False, {"cann_toolkit": present("8.5.0", **TWO)}, {"cann_toolkit": "switch"}),
        ({"cann_toolkit": "8.5.0"}, True, {"cann_toolkit": present("8.5.2", **TWO)}, {"cann_toolkit": "switch"}),
        ({"cann_toolkit": "8.5.0"}, False, {"cann_toolkit": present("8.5.2", **TWO)}, {"cann_toolkit": "downgrade_refused"}),
        ({"cann_toolkit": "9.0.0"}, False, {"cann_toolkit": present("8.5.2", **TWO)}, {"cann_toolkit": "upgrade"}),
        # right, but links or environment are not
        ({"cann_toolkit": "8.5.0"}, False, {"cann_toolkit": present("8.5.0", unsettled=["x"], **TWO)}, {"cann_toolkit": "switch"}),
        # kernels in the folder of the version that comes into force need no step of their own
        ({"cann_toolkit": "8.5.2", "cann_kernels": "8.5.2"}, False,
         {"cann_toolkit": present("8.5.0", **TWO), "cann_kernels": present("8.5.0", **TWO)},
         {"cann_toolkit": "switch", "cann_kernels": "none"}),
        ({"cann_toolkit": "8.5.2", "cann_kernels": "8.5.2"}, False,
         {"cann_toolkit": present("8.5.0", **TWO), "cann_kernels": present("8.5.0", installed=["8.5.0"])},
         {"cann_toolkit": "switch", "cann_kernels": "upgrade"}),
        # whatever order the user lists them in, and unequal versions are refused (field case)
        ({"cann_kernels": "8.2.RC1", "cann_toolkit": "8.2.RC1"}, False, {}, {"cann_toolkit": "install", "cann_kernels": "install"}),
        ({"nnal": "8.5.0", "cann_kernels": "8.5.0", "cann_toolkit": "8.5.0"}, False, {},
         {"cann_toolkit": "install", "cann_kernels": "install", "nnal": "install"}),
        ({"cann_kernels": "8.2.RC1", "cann_toolkit": "8.3.RC1"}, False, {}, {"cann_toolkit": "install", "cann_kernels": "toolkit_differs"}),
        ({"nnal": "8.5.0"}, False, {}, {"nnal": "toolkit_missing"}),
        ({"nnal": "8.5.0"}, False, {"cann_toolkit": present("8.5.2")}, {"nnal": "toolkit_differs"}),
        # kernels for another chip on the host (field case)
        ({"cann_kernels": "8.5.0"}, False,
         {"cann_toolkit": present("8.5.0"), "cann_kernels": present("8.5.0", families=["310p"])}, {"cann_kernels": "repair"}),
        ({"cann_kernels": "8.5.0"}, False,
         {"cann_toolkit": present("8.5.0"), "cann_kernels": present("8.5.0", families=["310p", "a2"])}, {"cann_kernels": "none"}),
        ({"cann_kernels": "8.5.0"}, False,
         {"cann_toolkit": present("8.5.0"), "cann_kernels": present("8.5.0", package_name="Ascend-cann-310p-ops")},
         {"cann_kernels": "repair"}),
        # for another machine: the package did not look
        ({"cann_toolkit": "8.5.0"}, False, {"cann_toolkit": present("8.5.0", arch="aarch64")}, {"cann_toolkit": "repair"}),
        # a cut one beside the one in force
        ({"cann_toolkit": "8.5.2"}, False, {"cann_toolkit": present("8.5.0", broken={"8.5.2": "/x"})}, {"cann_toolkit": "repair"}),
        # nnrt: from 8.5.0 in the toolkit's folder, either or
        ({"cann_nnrt": "8.5.0"}, False, {}, {"cann_nnrt": "install"}),
        ({"cann_nnrt": "8.5.0"}, False, {"cann_toolkit": present("8.5.0")}, {"cann_nnrt": "toolkit_has_nnrt"}),
        ({"cann_toolkit": "8.5.0"}, False, {"cann_nnrt": present("8.5.0", trees={"8.5.0": "/x"})}, {"cann_toolkit": "nnrt_in_the_way"}),
        ({"cann_nnrt": "8.3.RC1"}, False, {"cann_toolkit": present("8.3.RC1")}, {"cann_nnrt": "install"}),
        ({"cann_nnrt": "7.0.0"}, False, {"cann_toolkit": present("8.0.RC2")}, {"cann_nnrt": "toolkit_differs"}),
    ],
)  # fmt: skip
def test_decision(wanted, allow, components, actions):
    assert steps_of(wanted, allow, **components)[0] == actions


def test_order():
    wanted = {"nnal": "8.3.RC1", "cann_nnrt": "8.3.RC1", "cann_kernels": "8.3.RC1", "cann_toolkit": "8.3.RC1"}
    assert [step["component"] for step in steps_of(wanted)[1]] == ["cann_toolkit", "cann_kernels", "cann_nnrt", "nnal"]


@pytest.mark.parametrize(("component", "name", "code"), [
    ("cann_nnrt", "Ascend-cann-toolkit_8.5.0_linux-x86_64.run", None),
    ("cann_nnrt", "Ascend-cann-toolkit_8.5.0_linux-aarch64.run", "wrong_arch"),
    ("cann_toolkit", "Ascend-cann-nnrt_8.5.0_linux-x86_64.run", "wrong_component"),
])  # fmt: skip
def test_the_package_of_nnrt_is_the_toolkits_from_8_5_0(component, name, code):
    observed = {"arch": "x86_64", "family": "a2", "families": ["a2"], "components": {}}
    assert decide(observed, {component: {"version": "8.5.0", "file": name}})[0]["code"] == code
