# SPDX-License-Identifier: GPL-3.0-or-later
"""CANN toolkit and ops: "Ascend packages" fact sheet, sections 2.4 and 3.1; "CANN packages, measured", section 1."""

import pytest

TOP = "/usr/local/Ascend"


@pytest.fixture
def toolkit(build, sandbox):
    return sandbox.add(build("cann_toolkit"))


@pytest.fixture
def ops(build, sandbox):
    return sandbox.add(build("cann_kernels"))


def record(sandbox, path):
    text = sandbox.run(f"cat {path}").stdout
    return dict(line.split("=", 1) for line in text.splitlines())


def test_version_is_bare_and_needs_no_root(toolkit, sandbox):
    done = sandbox.run(f"{toolkit} --quiet --version; setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp {toolkit} --version")
    assert done.stdout.splitlines()[0] == "8.5.0" and done.stdout.splitlines()[-1] == "8.5.0"
    assert not sandbox.exists("/var/log/ascend_seclog")


def test_install_toolkit_then_ops(toolkit, ops, sandbox):
    done = sandbox.run(f"{toolkit} --install --quiet --install-for-all")
    assert done.returncode == 0 and "install success" in done.stdout and "Cannot find the install path of driver" in done.stdout
    assert sandbox.run(f"readlink {TOP}/cann {TOP}/ascend-toolkit/latest").stdout.split() == ["cann-8.5.0", "../cann"]
    assert record(sandbox, f"{TOP}/cann/x86_64-linux/ascend_toolkit_install.info") == {
        "package_name": "Ascend-cann-toolkit",
        "version": "8.5.0",
        "innerversion": "V100R001C25SPC001B212",
        "compatible_version": "[V100R001C00,V100R001C99]",
        "arch": "x86_64",
        "os": "linux",
        "path": f"{TOP}/cann-8.5.0/x86_64-linux",
    }
    assert record(sandbox, f"{TOP}/cann/share/info/runtime/version.info")["Version"] == "8.5.0"
    assert record(sandbox, f"{TOP}/cann/share/info/runtime/ascend_install.info")["Runtime_Install_Path_Param"] == TOP
    assert sandbox.run(f"bash -c '. {TOP}/cann/set_env.sh; echo $ASCEND_HOME_PATH'").stdout == f"{TOP}/cann\n"
    assert sandbox.run(f"bash -uc '. {TOP}/cann/set_env.sh'").returncode != 0
    assert sandbox.run(f"{ops} --install --quiet").returncode == 0
    assert record(sandbox, f"{TOP}/cann/x86_64-linux/ascend_ops_install.info")["package_name"] == "Ascend-cann-910b-ops"
    assert sandbox.exists(f"{TOP}/cann/opp/built-in/op_impl/ai_core/tbe/kernel/ascend910b")
    assert sandbox.run(f"{toolkit} --upgrade --quiet").returncode == 0
    assert sandbox.exists(f"{TOP}/cann/x86_64-linux/ascend_ops_install.info")
    assert sandbox.run(f"{ops} --uninstall").returncode == 0
    assert not sandbox.exists(f"{TOP}/cann/opp") and sandbox.exists(f"{TOP}/cann/x86_64-linux/ascend_toolkit_install.info")
    assert sandbox.run(f"{toolkit} --uninstall").returncode == 0
    assert sandbox.run(f"cd {TOP}; find . -mindepth 1").stdout.split() == ["./cann-8.5.0", "./cann-8.5.0/var"]


def test_ops_want_exactly_their_toolkit(build, ops, sandbox):
    assert sandbox.run(f"{ops} --install --quiet").returncode == 1
    other = sandbox.add(build("cann_toolkit", "--cann", "8.5.1"))
    assert sandbox.run(f"{other} --install --quiet").returncode == 0
    done = sandbox.run(f"{ops} --install --quiet")
    assert done.returncode == 1 and "needs exactly that version" in done.stdout
    assert not sandbox.exists(f"{TOP}/cann-8.5.0")


def test_another_architecture_is_not_noticed(build, sandbox):
    package = sandbox.add(build("cann_toolkit", "--arch", "aarch64"))
    assert sandbox.run(f"{package} --install --quiet").returncode == 0
    assert sandbox.exists(f"{TOP}/cann/aarch64-linux/ascend_toolkit_install.info")


def test_upgrade(build, toolkit, sandbox):
    done = sandbox.run(f"{toolkit} --upgrade --quiet")
    assert done.returncode == 1 and "upgrade failed" in done.stdout and "0x0080" in done.stdout
    newer = sandbox.add(build("cann_toolkit", "--cann", "8.5.2"))
    sandbox.run(f"{toolkit} --install --quiet")
    assert sandbox.run(f"{newer} --upgrade --quiet").returncode == 0
    assert not sandbox.exists(f"{TOP}/cann-8.5.0") and sandbox.run(f"readlink {TOP}/cann").stdout == "cann-8.5.2\n"


@pytest.mark.parametrize(
    "prepare, words, text",
    [
        ("true", "", "One of parameters"),
        ("true", "--quiet", "not supported to used by this way"),
        ("true", "--install --upgrade", "only support one type"),
        ("true", "--uninstall", "0x0080"),
        ("true", "--uninstall --quiet", "not supported to used by this way"),
        ("true", "--install --quiet --install-path=/a/b/c", "parent path doesn't exist, please create"),
        ("true", "'--install-path=/a b' --install --quiet", "is invalid, only characters in"),
        (f"mkdir -m 700 {TOP}", "--install --quiet", "does not support install_for_all param"),
    ],
)
def test_refusals(toolkit, sandbox, prepare, words, text):
    done = sandbox.run(f"{prepare}; {toolkit} {words}")
    assert done.returncode == 1 and text in done.stdout
    assert not sandbox.exists(f"{TOP}/cann-8.5.0")


def test_unknown_option_is_stopped_by_the_outer_layer(toolkit, sandbox):
    done = sandbox.run(f"{toolkit} --install --nodeps")
    assert done.returncode == 1 and "--whitelist=" in done.stderr


@pytest.mark.long
def test_the_licence_question(toolkit, sandbox):
    done = sandbox.run(f"{toolkit} --install", stdin="n\n")
    assert done.returncode == 0 and "stop installation!" in done.stdout and not sandbox.exists(f"{TOP}/cann")
    done = sandbox.run(f"timeout 2 {toolkit} --install")
    assert done.stdout.count("input error") > 20
    assert sandbox.run(f"{toolkit} --install", stdin="y\n").returncode == 0


def test_path_that_ends_in_the_version_folder(toolkit, sandbox):
    assert sandbox.run(f"{toolkit} --install --quiet --install-path=/usr/local/Ascend/cann-8.5.0").returncode == 1
    assert sandbox.run(f"mkdir -m 755 {TOP}; {toolkit} --install --quiet --install-path={TOP}/cann-8.5.0").returncode == 0
    assert record(sandbox, f"{TOP}/cann/share/info/runtime/ascend_install.info")["Runtime_Install_Path_Param"] == TOP


def test_nnrt_by_whitelist(build, toolkit, sandbox):
    assert sandbox.run(f"{toolkit} --install --quiet --whitelist=nnrt").returncode == 0
    assert sandbox.run(f"cat {TOP}/cann/*/install.conf").stdout == "whitelist=nnrt\n"
    assert not sandbox.exists(f"{TOP}/cann/compiler")
    # An upgrade does not make a toolkit of it.
    newer = sandbox.add(build("cann_toolkit", "--cann", "8.5.2"))
    assert sandbox.run(f"{newer} --upgrade --quiet").returncode == 0
    assert sandbox.run(f"cat {TOP}/cann/*/install.conf").stdout == "whitelist=nnrt\n"
    assert not sandbox.exists(f"{TOP}/cann/compiler")


def test_versions_lie_side_by_side_and_the_link_goes_to_the_last(build, toolkit, sandbox):
    newer = sandbox.add(build("cann_toolkit", "--cann", "8.5.2"))
    old = sandbox.add(build("cann_toolkit", "--cann", "8.3.RC1"))
    for package in (newer, toolkit, old):
        assert sandbox.run(f"{package} --install --quiet").returncode == 0
    versions = sandbox.run(f"grep -h ^version= {TOP}/cann-*/*-linux/*.info {TOP}/ascend-toolkit/8*/*-linux/*.info").stdout.split()
    assert versions == ["version=8.5.0", "version=8.5.2", "version=8.3.RC1"]
    assert sandbox.run(f"readlink {TOP}/cann").stdout == "cann-8.5.0\n"


def test_layout_before_8_5(build, sandbox):
    toolkit = sandbox.add(build("cann_toolkit", "--cann", "8.3.RC1"))
    kernels = sandbox.add(build("cann_kernels", "--cann", "8.3.RC1"))
    assert sandbox.run(f"{toolkit} --install --quiet && {kernels} --install --quiet").returncode == 0
    assert record(sandbox, f"{TOP}/ascend-toolkit/latest/x86_64-linux/ascend_toolkit_install.info")["version"] == "8.3.RC1"
    assert record(sandbox, f"{TOP}/ascend-toolkit/8.3.RC1/opp_kernel/version.info") == {"Version": "8.3.RC1"}


@pytest.mark.long
def test_hang_then_install(build, toolkit, sandbox):
    package = sandbox.add(build("cann_toolkit", "--mode", "hang", "--hang-at", "before-payload"), name="hang.run")
    sandbox.run(
        f"setsid -f bash -c 'echo $$ > /tmp/pid; exec {package} --install --quiet' >/dev/null 2>&1; sleep 2; kill -9 -$(cat /tmp/pid)"
    )
    assert not sandbox.exists(f"{TOP}/cann-8.5.0")
    assert sandbox.run(f"{toolkit} --install --quiet").returncode == 0


def break_in(build, sandbox, stage):
    package = sandbox.add(build("cann_toolkit", "--mode", "breaks", "--hang-at", stage), name="breaks.run")
    done = sandbox.run(f"{package} --install --quiet")
    assert done.returncode == 1 and "install failed, please retry after uninstall!" in done.stdout
    assert sandbox.exists(f"{TOP}/cann-8.5.0/share/info/runtime/ascend_install.info")
    assert not sandbox.exists(f"{TOP}/cann-8.5.0/share/info/runtime/version.info")
    assert not sandbox.exists(f"{TOP}/cann-8.5.0/x86_64-linux/ascend_toolkit_install.info")


def test_broken_in_the_copy_stage(build, toolkit, sandbox):
    break_in(build, sandbox, "before-payload")
    done = sandbox.run(f"{toolkit} --uninstall")
    assert done.returncode == 0 and "run_runtime_uninstall.sh not found" in done.stdout
    assert sandbox.exists(f"{TOP}/cann-8.5.0/share/info/runtime/ascend_install.info")
    assert sandbox.run(f"{toolkit} --install --quiet").returncode == 0
    assert sandbox.exists(f"{TOP}/cann/x86_64-linux/ascend_toolkit_install.info")


@pytest.mark.parametrize("words", ["--uninstall", "--install --quiet"])
def test_broken_after_the_copy_only_removing_the_folder_helps(build, toolkit, sandbox, words):
    break_in(build, sandbox, "after-payload")
    done = sandbox.run(f"{toolkit} {words}")
    assert done.returncode == 1 and "package uninstall failed" in done.stdout
    assert sandbox.run(f"rm -rf {TOP}/cann-8.5.0; {toolkit} --install --quiet").returncode == 0


def test_nnrt_has_a_package_of_its_own_before_8_5(build, sandbox):
    nnrt = sandbox.add(build("cann_nnrt", "--cann", "8.3.RC1"))
    assert sandbox.run(f"{nnrt} --install --quiet").returncode == 0
    assert record(sandbox, f"{TOP}/nnrt/latest/x86_64-linux/ascend_nnrt_install.info")["version"] == "8.3.RC1"
    assert sandbox.run(f"bash -c '. {TOP}/nnrt/set_env.sh; echo $ASCEND_HOME_PATH'").stdout == f"{TOP}/nnrt/latest\n"
    assert sandbox.run(f"{nnrt} --uninstall").returncode == 0 and not sandbox.exists(f"{TOP}/nnrt/latest")


def test_nothing_mode(build, sandbox):
    package = sandbox.add(build("cann_toolkit", "--mode", "nothing"))
    done = sandbox.run(f"{package} --install --quiet")
    assert done.returncode == 0 and "install success" in done.stdout and not sandbox.exists(TOP)
