# Copyright (c) 2026 npu.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that the vendor's packages need, and the distribution's package that brings each. Private to the collection."""

# Program -> (Debian and Ubuntu, openEuler and other RPM systems). check_tools.conf of the driver package, which refuses to work without
# them (docs/facts.md, P 2.2); alternatives are parted by a bar. What coreutils bring is not asked for: nothing at all works without it.
TOOLS = {
    "which": ("debianutils", "which"),
    "update-rc.d|chkconfig": ("init-system-helpers", "chkconfig"),
    "awk": ("gawk", "gawk"),
    "chattr": ("e2fsprogs", "e2fsprogs"),
    "lsattr": ("e2fsprogs", "e2fsprogs"),
    "ldconfig": ("libc-bin", "glibc"),
    "lspci": ("pciutils", "pciutils"),
    "ifconfig": ("net-tools", "net-tools"),
    "find": ("findutils", "findutils"),
    "sed": ("sed", "sed"),
    "grep": ("grep", "grep"),
    "modprobe": ("kmod", "kmod"),
    "modinfo": ("kmod", "kmod"),
    "udevadm": ("udev", "systemd-udev"),
    "useradd": ("passwd", "shadow"),
    "rev": ("bsdextrautils", "util-linux"),
    "ps": ("procps", "procps-ng"),
    "systemctl": ("systemd", "systemd"),
    "tar": ("tar", "tar"),
}
# What a package that builds its modules on the node needs beside the headers.
BUILD_TOOLS = {"gcc": ("gcc", "gcc"), "make": ("make", "make")}
