#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# setup-image.sh: last step of a node image's build, inside the image.
set -eu
here=/usr/local/lib/npu-nodes

# Only machines that cannot grant what engines ask for get the shim; elsewhere the node's runc is Debian's, untouched.
if [ -e $here/oci-shim ]; then
    dpkg-divert --quiet --local --rename --divert /usr/sbin/runc.distrib --add /usr/sbin/runc
    install -m 0755 $here/oci-shim /usr/sbin/runc
fi

: >/var/log/node-calls.log
chmod 0666 /var/log/node-calls.log
