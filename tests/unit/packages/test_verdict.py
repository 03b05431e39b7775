# SPDX-License-Identifier: GPL-3.0-or-later
"""Installed or not is a matter of state; code and log only explain why not."""

from collections import namedtuple

import pytest

from ansible_collections.npu.fleet.plugins.module_utils._packages import _verdict


class Run(namedtuple("Run", "state rc log")):
    def __new__(cls, state, rc):
        return super().__new__(cls, state, rc, "/var/log/npu-fleet/x.log")


def failure(component, version, run, after, log):
    return _verdict.failure(component, version, run, after, log, seconds=1800, cache_dir="/srv/cache")


def component(state, version=None, **record):
    return {"state": state, "version": version, "running": None, "path": None, "reason": None, "record": record}


@pytest.mark.parametrize(
    ("name", "after", "good"),
    [
        ("driver", component("present", "25.5.0"), True),
        ("driver", component("reboot_pending", "25.5.0"), True),
        ("driver", component("present", "25.3.rc1"), False),
        ("driver", component("half_installed", "25.5.0"), False),
        ("driver", component("foreign", "25.5.0"), False),
        ("driver", component("absent"), False),
        ("driver", component("present", "22.0.4", package_version="25.5.0"), True),
        ("firmware", component("present", "7.8.0", package_version="25.5.0"), False),
        ("cann_toolkit", component("present", "25.5.0"), True),
    ],
)
def test_reached(name, after, good):
    assert _verdict.reached(name, "25.5.0", after) is good


LINE = "[Driver] [2026-11-29 14:55:19] [ERROR]"


@pytest.mark.parametrize(
    ("run", "after", "log", "code", "words"),
    [
        (Run("exited", 0), component("absent"), "[INFO]Driver package installed successfully!", "nothing_installed",
         "exit code 0, but nothing is installed"),
        (Run("exited", 0), component("present", "25.3.rc1"), "installation Stoped", "nothing_installed", "version 25.3.rc1 is on disk"),
        (Run("exited", 2), component("absent"), "Unexpected archive size.", "package_damaged", "damaged"),
        (Run("exited", 2), component("absent"), "Error in SHA256 checksums: a is different from b", "package_damaged", "damaged"),
        (Run("exited", 2), component("half_installed"), "Reboot needed for installation", "nothing_installed", "asks for a reboot"),
        (Run("exited", 1), component("absent"), LINE + "The list of missing tools: lspci,ifconfig,", "tools_missing", "lspci,ifconfig,"),
        (Run("exited", 1), component("absent"), LINE + "ERR_NO:0x0091;ERR_DES:HwHiAiUser not exists! Please add", "user_missing", "0x0091"),
        (Run("exited", 1), component("absent"), LINE + "The current installation package and environment is not match, please check.",
         "wrong_family", "another product"),
        (Run("exited", 1), component("present", "25.3.rc1"), LINE + "The davinci nodes are occupied by x", "chips_busy", "hold"),
        (Run("exited", -9), component("present", "25.3.rc1"), LINE + "Version check does not match", "flash_newer", "newer driver"),
        (Run("exited", -9), component("half_installed"), "", "package_killed", "signal 9"),
        (Run("exited", 1), component("half_installed"), LINE + "Driver_ko_install_manually failed", "module_refused", "modules"),
        (Run("exited", 1), component("absent"), "free space only 100 MB", "no_space", "space"),
        (Run("exited", 1), component("absent"), "something new", "package_failed", "exit code 1"),
        (Run("killed", -9), component("half_installed"), "", "deadline", "did not end in time"),
        (Run("flooded", -9), component("absent"), "input error, please input again", "endless_question", "same question"),
        (Run("lost", None), component("absent"), "", "lost", "end was not seen"),
    ],
)  # fmt: skip
def test_failure(run, after, log, code, words):
    error = failure("driver", "25.5.0", run, after, log)
    assert error.code == code
    assert words in error.message
    assert error.message.startswith("driver 25.5.0 was not installed: ")
    assert error.hint
    assert error.observed["rc"] == run.rc


def test_the_last_error_of_the_package_is_told():
    log = LINE + "first\n" + LINE + "ERR_NO:0x0093;ERR_DES:the last\n[Driver] [x] [INFO]End time: y\n"
    error = failure("driver", "25.5.0", Run("exited", 1), component("absent"), log)
    assert "The package said: ERR_NO:0x0093;ERR_DES:the last" in error.message


@pytest.mark.parametrize(
    ("name", "run", "log", "words"),
    [
        ("driver", Run("exited", 1), "something new", ["/var/log/npu-fleet/x.log"]),
        ("driver", Run("killed", -9), "", ["1800 s", "npu_driver_timeout"]),
        ("cann_kernels", Run("killed", -9), "", ["npu_cann_timeout"]),
        ("docker_runtime", Run("killed", -9), "", ["npu_runtime_timeout"]),
        ("driver", Run("exited", 1), "Not enough space left", ["df -h /srv/cache"]),
        ("driver", Run("exited", 1), "Drv_dkms_env_check failed", ["linux-headers-$(uname -r)", "kernel-devel-$(uname -r)"]),
        ("driver", Run("exited", 2), "Unexpected archive size.", ["sha256sum", "npu_fleet_checksums"]),
    ],
)
def test_the_hint_names_file_and_variable(name, run, log, words):
    said = str(failure(name, "25.5.0", run, component("absent"), log))
    assert [word for word in words if word not in said] == []
    assert "%(" not in said


def test_every_known_text_gives_a_whole_hint():
    for fragment, code, _meaning, _hint in _verdict._TEXTS:
        error = failure("driver", "25.5.0", Run("exited", 1), component("absent"), fragment)
        assert error.code == code
        assert "%" not in error.hint


def test_removal():
    error = failure("driver", None, Run("exited", 0), component("present", "25.5.0"), "")
    assert error.message.startswith("driver was not removed")
