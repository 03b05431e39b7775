#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# First process of a node: makes the container look like a host that has just booted, then becomes systemd.
set -u

# The engine mounts its own versions of these over ours at every start. A host has plain files, which tools may replace by
# rename and which keep their edits over a reboot: so the engine's text is taken once, at the first boot.
for name in hosts hostname resolv.conf; do
    if mountpoint -q "/etc/$name"; then
        cat "/etc/$name" >"/run/.etc.$name"
        umount "/etc/$name" || continue
        [ -s "/etc/$name" ] || cat "/run/.etc.$name" >"/etc/$name"
    fi
    rm -f "/run/.etc.$name"
done

# One boot id per start; containers would otherwise all show the machine's for ever, and no reboot could be proven.
cat /proc/sys/kernel/random/uuid >/run/.boot_id
chmod 0444 /run/.boot_id
mount --bind /run/.boot_id /proc/sys/kernel/random/boot_id

[ -e /etc/ssh/ssh_host_ed25519_key ] || ssh-keygen -q -t ed25519 -N '' -C "$(cat /etc/hostname)" -f /etc/ssh/ssh_host_ed25519_key

exec /lib/systemd/systemd "$@"
