# SPDX-License-Identifier: GPL-3.0-or-later
"""The option table: no combination that a package refuses."""

import itertools

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _kept, _options
from ansible_collections.npu.fleet.plugins.module_utils._packages._versions import compare

DRIVER_HELP = _options.help_words(
    "--help --info --list --check --quiet --nox11 --noexec --extract --tar --full --run --debug --devel --docker --upgrade --force "
    "--install-path --install-for-all --install-username --install-usergroup --version --uninstall --vnpu_guest"
)
FIRMWARE_HELP = _options.help_words("--help --quiet --nox11 --full --upgrade --check --version --uninstall")
CANN_HELP = _options.help_words("--help --quiet --nox11 --install --upgrade --uninstall --install-path --install-for-all --whitelist")
RUNTIME_HELP = _options.help_words("--help --install --uninstall --upgrade --install-path --install-scene --config-file-path")


def wish(**changes):
    base = {
        "version": "25.5.0", "install_path": "/usr/local/Ascend", "install_for_all": True, "username": "HwHiAiUser",
        "usergroup": "HwHiAiUser", "soc": False, "engine_file": "/var/cache/npu-fleet/docker_runtime/daemon.json",
    }  # fmt: skip
    return dict(base, **changes)


@pytest.mark.parametrize(
    ("action", "changes", "record", "words"),
    [
        ("install", {}, {}, "--full --quiet --install-for-all --nox11"),
        ("install", {"install_for_all": False}, {}, "--full --quiet --nox11"),
        ("install", {"install_path": "/opt/npu"}, {}, "--full --quiet --install-for-all --install-path=/opt/npu --nox11"),
        ("install", {"username": "svc", "usergroup": "grp"}, {},
         "--full --quiet --install-for-all --install-username=svc --install-usergroup=grp --nox11"),
        ("install", {"soc": True}, {}, "--full --quiet --nox11"),
        ("upgrade", {"install_path": "/opt/npu", "username": "svc"}, {"install_path": "/opt/npu"}, "--upgrade --quiet --nox11"),
        ("downgrade", {}, {"install_path": "/usr/local/Ascend"}, "--upgrade --quiet --nox11"),
        # what is recorded stays: for-all would be dropped by a later --full
        ("repair", {"install_for_all": False}, {"install_path": "/usr/local/Ascend", "for_all": True},
         "--full --quiet --install-for-all --nox11"),
        ("repair", {"install_path": "/opt/npu", "install_for_all": False}, {"install_path": "/usr/local/Ascend"}, "--full --quiet --nox11"),
    ],
)
def test_driver(action, changes, record, words):
    assert _options.install_command("driver", action, wish(**changes), record, DRIVER_HELP) == (words.split(), None)


# --- what the packages refuse, or take and do the wrong thing with ----------------------------------------------------------
# "Driver package, measured", sections 2 and 7; "CANN packages, measured", sections 1 and 2; "Ascend packages" fact sheet, 2.2 to 2.5.
# Each row: what it is about, when it applies (component, names of the words, recorded state, version), and why it must never be called.

TYPES = {"--full", "--run", "--debug", "--devel", "--docker"}
USER = {"--install-username", "--install-usergroup"}
HDK, CANN = ("driver", "firmware"), ("cann_toolkit", "cann_kernels", "cann_nnrt", "nnal")

REFUSALS = {
    "a word twice": lambda c, w, r, v: len(w) != len(set(w)),
    "only support one type": lambda c, w, r, v: c == "driver" and len(TYPES & set(w)) > 1,
    "no type at all": lambda c, w, r, v: not {"--full", "--upgrade", "--install", "--uninstall"} & set(w),
    "--upgrade with a type": lambda c, w, r, v: "--upgrade" in w and bool((TYPES | {"--install"}) & set(w)),
    "--quiet alone": lambda c, w, r, v: set(w) <= {"--quiet", "--nox11"},
    "--quiet with --uninstall": lambda c, w, r, v: "--uninstall" in w and len(w) > 1,
    "--quiet with --debug": lambda c, w, r, v: {"--quiet", "--debug"} <= set(w),
    "a question at the end of input": lambda c, w, r, v: c in HDK + CANN and "--uninstall" not in w and "--quiet" not in w,
    "--install-path with --upgrade": lambda c, w, r, v: c in HDK and {"--install-path", "--upgrade"} <= set(w),
    "--install-for-all with --upgrade": lambda c, w, r, v: {"--install-for-all", "--upgrade"} <= set(w),
    "user with --upgrade": lambda c, w, r, v: "--upgrade" in w and bool(USER & set(w)),
    "user without group": lambda c, w, r, v: len(USER & set(w)) == 1,
    "for-all of firmware": lambda c, w, r, v: c == "firmware" and "--install-for-all" in w,
    "another path over an installed driver": lambda c, w, r, v: c == "driver" and bool(r.get("install_path")) and "--install-path" in w,
    "for-all dropped by a later --full": lambda c, w, r, v:
        c == "driver" and "--full" in w and bool(r.get("for_all")) and "--install-for-all" not in w,
    "--install of a driver": lambda c, w, r, v: c in HDK and "--install" in w,
    "--full of a bundle (it means: without driver)": lambda c, w, r, v: c in CANN and "--full" in w,
    "upgrade of what can not be upgraded": lambda c, w, r, v: c in CANN and "--upgrade" in w,
    "--whitelist before 8.5.0": lambda c, w, r, v: "--whitelist" in w and compare(v, "8.5.0.alpha") < 0,
    "scene with --upgrade of the runtime": lambda c, w, r, v: c == "docker_runtime" and {"--upgrade", "--install-scene"} <= set(w),
    "the engine's own file": lambda c, w, r, v: c == "docker_runtime" and "--install" in w and "--config-file-path" not in w,
}


def refused(component, words, record, version):
    names = [word.split("=")[0] for word in words]
    return [why for why, applies in REFUSALS.items() if applies(component, names, record, version)]


RECORDS = (
    {}, {"install_path": "/usr/local/Ascend"}, {"install_path": "/opt/npu", "for_all": True, "username": "svc", "usergroup": "grp"},
    {"install_path": "/usr/local/Ascend", "for_all": False, "username": "HwHiAiUser", "usergroup": "HwHiAiUser"}, {"username": "svc"},
)  # fmt: skip


@pytest.mark.parametrize(("component", "version", "words"), [
    ("driver", "25.5.0", DRIVER_HELP), ("firmware", "7.8.0.5.216", FIRMWARE_HELP), ("cann_toolkit", "8.5.0", CANN_HELP),
    ("cann_toolkit", "8.3.RC1", CANN_HELP), ("cann_kernels", "8.5.0", CANN_HELP), ("cann_nnrt", "8.5.0", CANN_HELP),
    ("cann_nnrt", "8.3.RC1", CANN_HELP - {"--whitelist"}), ("nnal", "8.5.0", CANN_HELP - {"--nox11", "--whitelist"}),
    ("docker_runtime", "26.1.0", RUNTIME_HELP), ("docker_runtime", "5.0.1", RUNTIME_HELP | {"--quiet", "--nox11"}),
])  # fmt: skip
def test_no_package_is_called_in_a_way_it_refuses(component, version, words):
    for action, for_all, path, user, record, soc in itertools.product(
        ("install", "upgrade", "downgrade", "repair"),
        (True, False),
        ("/usr/local/Ascend", "/opt/npu"),
        ("HwHiAiUser", "svc"),
        RECORDS,
        (True, False),
    ):
        chosen = wish(version=version, install_for_all=for_all, install_path=path, username=user, usergroup=user, soc=soc)
        if soc and record.get("for_all"):
            continue  # the SoC script does not know for-all, so it has never recorded it
        called, answer = _options.install_command(component, action, chosen, record, words)
        assert refused(component, called, record, version) == [], (action, called, record)
        assert answer == ("Y\n" if (component, version) == ("docker_runtime", "26.1.0") else None)
        assert {word.split("=")[0] for word in called} <= words


@pytest.mark.parametrize(("component", "words", "why"), [
    ("driver", "--full --run --quiet", "only support one type"),
    ("driver", "--upgrade --quiet --install-for-all", "--install-for-all with --upgrade"),
    ("driver", "--full", "a question at the end of input"),
    ("driver", "--full --quiet --install-username=a", "user without group"),
    ("driver", "--uninstall --quiet", "--quiet with --uninstall"),
    ("cann_toolkit", "--upgrade --quiet", "upgrade of what can not be upgraded"),
])  # fmt: skip
def test_the_table_of_refusals_sees_them(component, words, why):
    assert why in refused(component, words.split(), {}, "8.5.0")


def test_a_driver_over_the_record_of_another_user_gets_that_user():
    """Without it the package takes its own, and refuses (0x0095); the record may be left of another package (field case)."""
    words, _answer = _options.install_command("driver", "install", wish(), {"username": "svc1", "usergroup": "grp"}, DRIVER_HELP)
    assert words[2:5] == ["--install-for-all", "--install-username=svc1", "--install-usergroup=grp"]


def test_cann_stays_in_the_folder_that_is_recorded():
    words, _answer = _options.install_command("cann_toolkit", "upgrade", wish(version="8.5.0"), {"install_path": "/opt/cann"}, CANN_HELP)
    assert "--install-path=/opt/cann" in words


@pytest.mark.parametrize(
    ("component", "action", "changes", "help_words", "words", "answer"),
    [
        ("firmware", "install", {"install_path": "/opt/npu"}, FIRMWARE_HELP, "--full --quiet --nox11", None),
        ("firmware", "upgrade", {}, FIRMWARE_HELP, "--upgrade --quiet --nox11", None),
        ("firmware", "downgrade", {}, FIRMWARE_HELP, "--upgrade --quiet --nox11", None),
        ("firmware", "repair", {}, FIRMWARE_HELP, "--full --quiet --nox11", None),
        ("cann_toolkit", "install", {}, CANN_HELP, "--install --quiet --nox11 --install-for-all", None),
        # beside the version before, so that going back is a link
        ("cann_toolkit", "upgrade", {}, CANN_HELP, "--install --quiet --nox11 --install-for-all", None),
        ("cann_toolkit", "install", {"install_for_all": False}, CANN_HELP, "--install --quiet --nox11", None),
        ("cann_kernels", "upgrade", {}, CANN_HELP, "--install --quiet --nox11 --install-for-all", None),
        ("cann_kernels", "install", {}, CANN_HELP - {"--install-for-all"}, "--install --quiet --nox11", None),
        ("cann_nnrt", "install", {"version": "8.5.0"}, CANN_HELP, "--install --quiet --whitelist=nnrt --nox11 --install-for-all", None),
        ("cann_nnrt", "install", {"version": "8.3.RC1"}, CANN_HELP, "--install --quiet --nox11 --install-for-all", None),
        ("docker_runtime", "install", {"version": "7.3.0"}, RUNTIME_HELP | {"--quiet"},
         "--install --install-scene=docker --config-file-path=/var/cache/npu-fleet/docker_runtime/daemon.json --quiet", None),
        ("docker_runtime", "install", {"version": "5.0.1"}, RUNTIME_HELP | {"--quiet", "--nox11"},
         "--install --install-scene=docker --config-file-path=/var/cache/npu-fleet/docker_runtime/daemon.json --nox11 --quiet", None),
        ("docker_runtime", "install", {"version": "26.1.0"}, RUNTIME_HELP,
         "--install --install-scene=docker --config-file-path=/var/cache/npu-fleet/docker_runtime/daemon.json", "Y\n"),
        ("docker_runtime", "upgrade", {"version": "26.1.0"}, RUNTIME_HELP, "--upgrade", "Y\n"),
        ("docker_runtime", "upgrade", {"version": "7.3.0"}, None, "--upgrade", None),
        ("driver", "install", {}, None, "--full --quiet --install-for-all --nox11", None),
    ],
)  # fmt: skip
def test_others(component, action, changes, help_words, words, answer):  # noqa: PLR0917
    assert _options.install_command(component, action, wish(**changes), {}, help_words) == (words.split(), answer)


def test_a_word_that_the_package_does_not_know_is_not_tried():
    with pytest.raises(FleetError) as caught:
        _options.install_command("cann_toolkit", "install", wish(), {}, {"--full", "--quiet"})
    assert caught.value.code == "option_unknown"
    assert "--install" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  --full          install\n  --install-path=<path>\n", {"--full", "--install-path"}),
        ("--help | -h  --vnpu_guest", {"--help", "--vnpu_guest"}),
        ("", None),
        ("no options here", None),
    ],
)
def test_help_words(text, words):
    assert _options.help_words(text) == words


@pytest.mark.parametrize(("component", "version", "asks"), [
    ("docker_runtime", "26.1.0", True), ("docker_runtime", "26.1.0.beta.1", False), ("docker_runtime", "7.3.0", False),
    ("docker_runtime", "26.2.0", True), ("driver", "26.1.0", False),
])  # fmt: skip
def test_licence_prompt(component, version, asks):
    assert _options.asks_licence(component, version) is asks


@pytest.mark.parametrize(("component", "version", "needs"), [
    ("docker_runtime", "26.1.0", True), ("docker_runtime", "7.3.0", False), ("cann_toolkit", "8.5.0", True),
    ("cann_kernels", "8.0.RC2", True),
    ("nnal", "9.0.0", True), ("driver", "26.1.0", False), ("firmware", "7.8.0.5.216", False),
])  # fmt: skip
def test_licence_needs_consent(component, version, needs):
    assert _options.needs_licence(component, version) is needs


@pytest.mark.parametrize(
    ("component", "path", "record", "words"),
    [
        ("driver", "/opt/npu/driver", {}, "/opt/npu/driver/script/uninstall.sh --quiet"),
        ("firmware", "/usr/local/Ascend/firmware", {}, "/usr/local/Ascend/firmware/script/uninstall.sh --quiet"),
        ("docker_runtime", "/a", {}, "/a/script/uninstall.sh none docker /cache/daemon.json"),
        ("cann_toolkit", "/a", {"record_path": "/a/x86_64-linux/ascend_toolkit_install.info"}, "/a/x86_64-linux/script/uninstall.sh"),
        ("cann_kernels", "/a", {"record_path": "/a/x86_64-linux/ascend_ops_install.info"}, "/a/x86_64-linux/script/ops_uninstall.sh"),
    ],
)
def test_remove(component, path, record, words):
    now = {"path": path, "record": record}
    assert _options.remove_command(component, now, "/cache/daemon.json", lambda name: True) == words.split()
    assert _options.remove_command(component, now, "/cache/daemon.json", lambda name: False) is None
    assert _options.remove_command(component, dict(now, path=None), "/cache/daemon.json", lambda name: True) is None


# --- what is kept over a run of the driver package --------------------------------------------------------------------------

@pytest.fixture
def host(tmp_path):
    root, state = tmp_path / "root", tmp_path / "state"
    (root / "etc").mkdir(parents=True)
    (root / "etc/hccn.conf").write_text("address_0=10.0.0.1\n")
    (root / "etc/hccn.conf").chmod(0o640)
    return root, str(state)


@pytest.mark.parametrize("spoil", ["", "empty", None])
def test_settings_of_an_admin_survive_the_driver_package(host, spoil):
    root, state = host
    conf = root / "etc/hccn.conf"
    _kept.save(str(root), state)
    if spoil is None:
        conf.unlink()
    else:
        conf.write_text(spoil)
    (root / "etc/vnpu.cfg").write_text("vnpu_config_recover:enable\n")
    assert _kept.restore(str(root), state) == ["/etc/hccn.conf"]
    assert conf.read_text() == "address_0=10.0.0.1\n"
    assert spoil is None or conf.stat().st_mode & 0o777 == 0o640
    # what was not there before is the package's
    assert (root / "etc/vnpu.cfg").exists()
    assert _kept.restore(str(root), state) == []


def test_the_copy_of_a_run_that_was_cut_is_the_truth(host):
    root, state = host
    _kept.save(str(root), state)
    (root / "etc/hccn.conf").write_text("half")
    _kept.save(str(root), state)
    assert _kept.restore(str(root), state) == ["/etc/hccn.conf"]
    assert (root / "etc/hccn.conf").read_text() == "address_0=10.0.0.1\n"


def test_what_the_package_left_alone_is_left_alone(host):
    root, state = host
    _kept.save(str(root), state)
    inode = (root / "etc/hccn.conf").stat().st_ino
    assert _kept.restore(str(root), state) == []
    assert (root / "etc/hccn.conf").stat().st_ino == inode
