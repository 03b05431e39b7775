#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Installed as script/uninstall.sh: ARG SCENE [ENGINE FILE]. The install record is not looked at: without the right scene the wrong
# file is edited and the binaries go all the same ("Ascend Docker Runtime" fact sheet, section 3).
here=$(dirname "$(realpath "$0")")
folder=$(dirname "$here")
. "$here/engine.sh"
runtime_log_open
scene=${2:-docker}
file=${3:-$(default_engine_file "$scene")}
if [ -f "$file" ]; then
    change_engine_file rm "$file" "$scene" "$folder" || { tell ERROR "$file can not be changed"; exit 1; }
fi
rm -rf "$folder" /etc/ascend-docker-runtime.d
tell INFO "ascend-docker-runtime uninstall success"
exit 0
