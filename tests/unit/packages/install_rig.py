# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of installations share: small packages that write the vendor's files below a folder, and the machine they run on."""

import json
import os

import pytest

from ansible_collections.npu.fleet.plugins.module_utils import _detached
from ansible_collections.npu.fleet.plugins.module_utils._errors import FleetError
from ansible_collections.npu.fleet.plugins.module_utils._packages import _call, _state
from ansible_collections.npu.fleet.plugins.module_utils._packages._install import Installer, Places, Wish

DRIVER = "Ascend-hdk-910b-npu-driver_25.5.0_linux-x86-64.run"
FIRMWARE = "Ascend-hdk-910b-npu-firmware_7.8.0.5.216.run"
TOOLKIT = "Ascend-cann-toolkit_8.5.0_linux-x86_64.run"
RUNTIME = "Ascend-docker-runtime_26.1.0_linux-x86_64.run"

HELP = """case "$*" in --help)
  echo "--full --quiet --nox11 --upgrade --install --install-for-all --install-scene --config-file-path \\
--install-username --install-usergroup" >&2; exit 0;;
esac
"""
GOOD_DRIVER = HELP + """echo "call $*" >>"$ROOT/calls"
mkdir -p "$ROOT/etc" "$ROOT/usr/local/Ascend/driver"
for line in UserName=HwHiAiUser Driver_Install_Type=full Driver_Install_Path_Param=/usr/local/Ascend; do echo $line; done \\
  >"$ROOT/etc/ascend_install.info"
echo "Version=25.5.0" >"$ROOT/usr/local/Ascend/driver/version.info"
echo Driver_Install_Status=complete >>"$ROOT/etc/ascend_install.info"
pwd >"$ROOT/pwd"; echo "$TMPDIR" >>$ROOT/pwd"""
GOOD_TOOLKIT = HELP + """mkdir -p "$ROOT/usr/local/Ascend/cann-8.5.0/x86_64-linux"
echo "version=8.5.0" >"$ROOT/usr/local/Ascend/cann-8.5.0/x86_64-linux/ascend_toolkit_install.info" """
CUT_DRIVER = HELP + """mkdir -p "$ROOT/etc"
echo "Driver_Install_Path_Param=/usr/local/Ascend" >"$ROOT/etc/ascend_install.info"
exit """
RUNTIME_SCRIPT = HELP.replace("--quiet", "") + """read answer; [ "$answer" = Y ] || exit 0
for word; do case $word in --config-file-path=*) file=${word#*=};; esac; done
cat "$file" >"$ROOT/engine"; echo changed >"$file"
folder="$ROOT/usr/local/Ascend/Ascend-Docker-Runtime"
mkdir -p "$folder/script" "$ROOT/etc/ascend-docker-runtime.d"
for name in ascend-docker-runtime ascend-docker-hook; do echo x >"$folder/$name"; done
echo "version=v26.1.0" >"$folder/ascend_docker_runtime_install.info"
echo x >"$ROOT/etc/ascend-docker-runtime.d/base.list" """
STEPS = ["start", "fetched", "verified", "launched", "ended", "observed", "recorded"]


class Machine:
    """A root folder, what runs on it, and the way to install on it."""

    def __init__(self, folder, build):
        self._folder, self._build = folder, build
        self.root = folder / "root"
        self.root.mkdir()
        self.places = Places(str(folder / "cache"), str(folder / "state"), str(folder / "log"), str(folder / "run"), str(self.root))
        self.running = {"driver_loaded": None, "driver_version": None, "firmware_versions": None, "npu_present": True}
        self.family, self.arch = "a2", "x86_64"
        self.looks = 0

    def observe(self):
        self.looks += 1
        families = [self.family] if self.family else []
        components = _state.observe(str(self.root), self.running)
        return {"arch": self.arch, "family": self.family, "families": families, "components": components, "firmware_known": False}

    def package(self, name, script, **kwargs):
        path = self._folder / "packages" / name
        return {"src": str(path), "sha256": self._build(path, script.replace("$ROOT", str(self.root)), **kwargs)}

    def install(self, component, version, check_mode=False, **wish):
        values = dict.fromkeys(Wish._fields)
        values.update(component=component, version=version, state="present", timeout=20)
        values.update(install_path="/usr/local/Ascend", install_for_all=True, allow_downgrade=False, accept_licence=True, remote_src=True)
        self.installer = Installer(Wish(**dict(values, **wish)), self.observe, self.places)
        return self.installer.ensure(check_mode)

    def refused(self, *args, **kwargs):
        with pytest.raises(FleetError) as caught:
            self.install(*args, **kwargs)
        return caught.value

    def journal(self):
        path = self._folder / "state" / "journal.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def calls(self):
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path, build, monkeypatch):
    monkeypatch.setattr(_detached, "_systemd_version", lambda: 0)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(_call._users, "ensure", lambda username, usergroup, run: (["user " + username], []))
    return Machine(tmp_path, build)
