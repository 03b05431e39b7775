# SPDX-License-Identifier: GPL-3.0-or-later
"""A throw-away copy of this machine (overlay over / in a private mount namespace, entered by chroot) in which packages may install.

The kernel side is played by small scripts: `npu-sim`, `modprobe`, `rmmod`, `lsmod` keep their state in files of the copy.
Needs root: the packages refuse everybody else.
"""

import json
import os
import stat
import subprocess
from pathlib import Path

STAND_INS = {
    "npu-sim": """#!/bin/sh
echo "$*" >> /var/lib/npu-sim/calls
case $1 in
    set|get) ;;
    flash-firmware) echo "$2" > /var/lib/npu-sim/flash ;;
    *) exit 1 ;;
esac
""",
    "modprobe": """#!/bin/sh
shift # -a
for name; do
    file=/lib/modules/$(uname -r)/updates/$name.ko
    [ -e "$file" ] || exit 1
    mkdir -p /sys/module/$name
    cut -d" " -f4 $file > /sys/module/$name/version
done
grep -q '"npu_nodes_appear": false' /var/lib/npu-sim/state.json && exit 0
for name in davinci0 davinci1 davinci_manager devmm_svm hisi_hdc; do : > /dev/$name; done
""",
    "rmmod": """#!/bin/sh
for name; do
    [ -d /sys/module/$name ] || exit 1
    rm -rf /sys/module/$name
    [ $name != drv_pcie_host ] || rm -f /dev/davinci* /dev/devmm_svm /dev/hisi_hdc
done
""",
    "lsmod": """#!/bin/sh
for folder in /sys/module/*; do echo "${folder##*/} 1 0"; done
""",
    "depmod": "#!/bin/sh\nexit 0\n",
    "lspci": "#!/bin/sh\nexit 0\n",
    "udevadm": "#!/bin/sh\nexit 0\n",
    "modinfo": "#!/bin/sh\nexit 0\n",
}

FOLDERS = (
    "packages", "var/lib/npu-sim", "sys/bus/pci/devices", "etc", "home/HwHiAiUser", "dev", "usr/local/sbin",
)  # fmt: skip
ENTER = """
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root" || exit 99
mount --rbind /proc "$1/root/proc" || exit 99
[ -z "$2" ] || mount -t tmpfs -o size="$2" none "$1/root/$3" || exit 99
exec chroot "$1/root" /bin/bash -c "cd /root || exit; $4"
"""


class Sandbox:
    def __init__(self, folder: Path, pci_device="0xd802"):
        self.folder = folder
        self.upper = folder / "upper"
        for name in ("upper", "work", "root"):
            (folder / name).mkdir(parents=True, mode=0o755)
        for name in FOLDERS:
            self.path(name).mkdir(parents=True, exist_ok=True, mode=0o755)
        self.path(f"lib/modules/{os.uname().release}" if not Path("/lib").is_symlink() else f"usr/lib/modules/{os.uname().release}").mkdir(
            parents=True
        )
        for name, mode, device in (("null", 0o666, (1, 3)), ("urandom", 0o666, (1, 9))):
            os.mknod(self.path(f"dev/{name}"), mode | stat.S_IFCHR, os.makedev(*device))
            self.path(f"dev/{name}").chmod(mode)
        # No useradd: it syncs its files to the disk for every sandbox.
        for name, line in (("passwd", "HwHiAiUser:x:4321:4321::/home/HwHiAiUser:/bin/bash"), ("group", "HwHiAiUser:x:4321:")):
            lines = [old for old in Path(f"/etc/{name}").read_text().splitlines() if not old.startswith("HwHiAiUser:")]
            self.path(f"etc/{name}").write_text("\n".join([*lines, line]) + "\n")
        os.chown(self.path("home/HwHiAiUser"), 4321, 4321)
        if Path("/usr/local/Ascend").exists():
            self.run("chattr -R -f -i /usr/local/Ascend; rm -rf /usr/local/Ascend /etc/ascend_install.info")
        for name, text in STAND_INS.items():
            path = self.path(f"usr/local/sbin/{name}")
            path.write_text(text)
            path.chmod(0o755)
        self.state()
        if pci_device:
            device = self.path("sys/bus/pci/devices/0000:81:00.0")
            device.mkdir(parents=True)
            (device / "vendor").write_text("0x19e5\n")
            (device / "device").write_text(f"{pci_device}\n")

    def path(self, name):
        """A file as the sandbox sees it, if it was written there."""
        return self.upper / name.lstrip("/")

    def text(self, name):
        return self.path(name).read_text()

    def exists(self, name):
        return self.run(f"test -e {name}").returncode == 0

    def state(self, pause_at=None, virtual=False, hw_base_version=0, **kernel):
        content = {"schema": 1, "time_scale": 0.001, "virtual": virtual, "hw_base_version": hw_base_version, "kernel": kernel}
        content |= {"package": {"pause_at": pause_at}, "chips": [{"present": True}, {"present": True}]}
        self.path("var/lib/npu-sim/state.json").write_text(json.dumps(content))

    def add(self, package: Path, name=None):
        target = self.path("packages") / (name or package.name)
        target.write_bytes(package.read_bytes())
        target.chmod(0o755)
        return f"/packages/{target.name}"

    def run(self, command, stdin="", timeout=60, small_disk=None, env=None):
        size, mount_point = small_disk or ("", "")
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **(env or {})}
        words = ["unshare", "-m", "--propagation", "private", "bash", "-c", ENTER, "enter", str(self.folder), size, mount_point, command]
        return subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=timeout, env=environment, check=False)

    def info(self):
        try:
            return dict(line.split("=", 1) for line in self.text("etc/ascend_install.info").splitlines())
        except FileNotFoundError:
            return {}
