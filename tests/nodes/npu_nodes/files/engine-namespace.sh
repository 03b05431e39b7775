#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# engine-namespace.sh PRIVATE_DIR COMMAND...
# Runs inside a mount namespace of its own: gives COMMAND a pure cgroup v2 view and keeps what the engine's daemons
# write to fixed places of the machine (a trust key, shim sockets) inside PRIVATE_DIR.
set -eu
private=$1
shift
if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
    umount -R /sys/fs/cgroup 2>/dev/null || :
    mount -t cgroup2 none /sys/fs/cgroup
fi
for place in /etc/docker /run/docker /run/containerd; do
    mkdir -p "$private$place"
    mount --bind "$private$place" "$place"
done
exec "$@"
