# SPDX-License-Identifier: GPL-3.0-or-later
"""File names, texts of version files and help: what build.py puts into a package."""

import pytest
from simpkg_support import PACKAGES, load

build = load("build.py")
stages = load("package_stages.py")
tables = load("package_tables.py")


def options(*words):
    return build.arguments(["--out", "/nowhere", *words])


@pytest.mark.parametrize(
    "component, words, name",
    [
        ("driver", [], "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"),
        ("firmware", [], "Ascend-hdk-910b-npu-firmware_7.8.0.5.216.run"),
        ("cann_toolkit", [], "Ascend-cann-toolkit_8.5.0_linux-x86_64.run"),
        ("cann_kernels", [], "Ascend-cann-910b-ops_8.5.0_linux-x86_64.run"),
        ("docker_runtime", [], "Ascend-docker-runtime_7.3.0_linux-x86_64.run"),
        ("driver", ["--arch", "aarch64"], "Ascend-hdk-910b-npu-driver_25.5.0_linux-aarch64.run"),
        ("driver", ["--family", "a3", "--driver", "25.0.rc1.3"], "Atlas-A3-hdk-npu-driver_25.0.rc1.3_linux-x86-64.run"),
        ("driver", ["--mode", "wrong-family"], "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"),
        ("cann_kernels", ["--cann", "8.3.RC1"], "Ascend-cann-kernels-910b_8.3.RC1_linux-x86_64.run"),
        ("cann_nnrt", ["--cann", "8.3.RC1"], "Ascend-cann-nnrt_8.3.RC1_linux-x86_64.run"),
        ("firmware", ["--release", "a3-26.0.rc1"], "Atlas-A3-hdk-npu-firmware_9.0.0.0.205.run"),
        ("driver", ["--release", "310p-25.2.0", "--arch", "aarch64"], "Ascend-hdk-310p-npu-driver_25.2.0_linux-aarch64.run"),
        ("driver", ["--release", "310b-25.0.rc1"], "Ascend-hdk-310b-npu-driver_25.0.rc1.1_linux-x86-64.run"),
        ("cann_kernels", ["--cann", "8.0.RC2"], "Ascend-cann-kernels-910b_8.0.RC2_linux.run"),
        ("cann_kernels", ["--cann", "8.3.RC1", "--family", "a3"], "Atlas-A3-cann-kernels_8.3.RC1_linux-x86_64.run"),
        ("cann_kernels", ["--family", "a5"], "Ascend-cann-950-ops_8.5.0_linux-x86_64.run"),
        ("driver", ["--release", "a2-25.3.rc1"], "Ascend-hdk-910b-npu-driver_25.3.rc1_linux-x86-64.run"),
    ],
)
def test_file_names(component, words, name):
    assert tables.file_name(component, options(*words)) == name


# (firmware, driver, CANN, Docker Runtime), from the vendor's release sets and three or more sources each, but A3 26.0.rc1: one note.
@pytest.mark.parametrize("name, row", [
    ("a2-24.1.0", ("7.5.0.2.220", "24.1.0", "8.0.0", "6.0.0")), ("a2-25.0.rc1", ("7.7.0.1.231", "25.0.rc1.1", "8.1.RC1", "7.0.RC1")),
    ("a3-25.0.rc1", ("7.7.0.3.228", "25.0.rc1.3", "8.1.RC1", "7.0.RC1")), ("310p-25.2.0", ("7.7.0.6.236", "25.2.0", "8.2.RC1", "7.1.RC1")),
    ("a3-25.3.rc1", ("7.8.0.2.212", "25.3.rc1.2", "8.3.RC2", "7.2.RC1")), ("a3-25.5.0", ("7.8.0.5.216", "25.5.0", "8.5.0", "7.3.0")),
    ("310p-25.5.2", ("7.8.0.7.220", "25.5.2", "8.5.2", "7.3.2")), ("a3-26.0.rc1", ("9.0.0.0.205", "26.0.rc1", "9.0.0", "26.0.0")),
])  # fmt: skip
def test_releases(name, row):
    release = tables.RELEASES[name]
    assert (release["firmware"], release["driver"], release["cann"], release["runtime"]) == row
    assert name.startswith(release["family"] + "-")


def test_no_release_without_a_known_firmware():
    assert not {"a2-26.0.rc1", "310p-26.0.rc1", "a3-25.5.2", "310b-25.5.0"} & set(tables.RELEASES)


def test_driver_version_info_has_the_measured_keys_in_their_order():
    keys = [line.split("=")[0] for line in stages.driver_version_info("25.5.0").splitlines()]
    assert keys == [
        "Version", "ascendhal_version", "aicpu_version", "tdt_version", "log_version", "prof_version", "dvppkernels_version",
        "tsfw_version", "package_version", "Innerversion", "compatible_version_fw", "compatible_version",
        "required_firmware_firmware_version",
    ]  # fmt: skip


@pytest.mark.parametrize("version, window", [("23.0.7", "[7.0.0,7.1.99]"), ("24.1.rc1", "[7.0.0,7.2.99]"), ("25.5.2", "[7.0.0,8.9.9]")])
def test_firmware_window(version, window):
    assert f"compatible_version_fw={window}\n" in stages.driver_version_info(version)


def test_firmware_version_info_carries_the_hdk_release():
    text = stages.firmware_version_info("7.8.0.5.216", "25.5.0")
    assert text == "Version=7.8.0.5.216\nfirmware_version=1.0\npackage_version=25.5.0\ncompatible_version_drv=[25.5.0,25.5.0.]\n"


@pytest.mark.parametrize(
    "version, known, unknown",
    [
        ("5.0.RC3", "--nox11 --noexec --extract --quiet --check", ""),
        ("6.0.0", "--noexec --quiet", "--nox11"),
        ("7.3.0", "--quiet --check --list", "--nox11 --noexec --extract"),
        ("26.1.0", "--install --help", "--quiet --check --nox11 --list"),
    ],
)
def test_docker_runtime_options_by_version(version, known, unknown):
    words = stages.outer_help("docker_runtime", options("--runtime", version))[0].split()
    assert set(known.split()) <= set(words)
    assert not set(unknown.split()) & set(words)


def test_modules_are_25_and_the_main_one_is_among_them():
    assert len(set(tables.MODULES)) == 25
    assert "drv_pcie_host" in tables.MODULES


@pytest.mark.parametrize("low, high", [("24.1.rc1", "24.1.rc2"), ("24.1.rc3", "24.1.0"), ("25.5.0", "25.5.2"), ("8.3.RC2", "8.5.0")])
def test_version_order(low, high):
    assert tables.at_least(high, low) and not tables.at_least(low, high)


def test_nothing_of_the_product_is_imported():
    for path in [*PACKAGES.rglob("*.py"), *PACKAGES.glob("docker_runtime/*")]:
        text = path.read_text()
        assert "ansible_collections" not in text and "module_utils" not in text and "plugin_utils" not in text
