#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# setup-base.sh ROOT: turns a fresh Debian tree into the common base of all nodes (run by mmdebstrap, and part of the cache key).
set -eu
root=$1

# Units that cannot work in a node, or that would reach through to the machine whose kernel all nodes share:
# a privileged systemd would wipe the machine's binfmt table, set its sysctls, and let udev handle its devices.
for unit in getty@tty1.service getty.target console-getty.service \
    systemd-binfmt.service proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount systemd-sysctl.service \
    systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udev-trigger.service systemd-udev-settle.service \
    systemd-networkd-wait-online.service systemd-modules-load.service systemd-journald-audit.socket systemd-pstore.service \
    apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer dpkg-db-backup.timer \
    sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount dev-hugepages.mount dev-mqueue.mount \
    sys-fs-fuse-connections.mount; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done

# logind stays, for `shutdown` asks it; the machine's terminals and power key are none of its business.
mkdir -p "$root/etc/systemd/logind.conf.d"
printf '[Login]\nNAutoVTs=0\nReserveVT=0\nHandlePowerKey=ignore\n' >"$root/etc/systemd/logind.conf.d/node.conf"

# Nor is its hardware watchdog, which systemd would arm for the time of a reboot.
mkdir -p "$root/etc/systemd/system.conf.d"
printf '[Manager]\nRuntimeWatchdogSec=off\nRebootWatchdogSec=off\nKExecWatchdogSec=off\n' >"$root/etc/systemd/system.conf.d/node.conf"

# The kernel's log belongs to the machine; the node's own journal is kept over reboots, as on a host.
mkdir -p "$root/etc/systemd/journald.conf.d"
printf '[Journal]\nReadKMsg=no\nAudit=no\nStorage=persistent\n' >"$root/etc/systemd/journald.conf.d/node.conf"

# Made anew in each node at its first boot.
rm -f "$root"/etc/ssh/ssh_host_*_key*
: >"$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id" "$root/etc/hostname" "$root/etc/resolv.conf" "$root/etc/hosts"
