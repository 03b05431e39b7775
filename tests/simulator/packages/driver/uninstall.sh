#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Installed as <path>/driver/script/uninstall.sh. Knows --quiet and --force only; unlike the package it leaves Driver_Install_For_All
# in the record ("driver package, measured", section 4).
tag=Driver
folder=$(dirname "$(realpath "$0")")
. "$folder/package.conf"
. "$folder/common.sh"
. "$folder/remove.sh"
command_words="$*"
force=n
for word in "$@"; do
    case $word in
        --quiet) ;;
        --force) force=y ;;
        *) log_error 0x0004 "Unrecognized parameters: $word"; exit 1 ;;
    esac
done
[ "$(id -u)" -eq 0 ] || { log_error 0x0093 "this script needs the root user."; exit 1; }
log_open
path=$(info_get Driver_Install_Path_Param)
[ -n "$path" ] || { log_error 0x0080 "the driver is not installed."; exit 1; }
if [ $force = n ] && [ -n "$(manager_holders)" ]; then
    log ERROR "The davinci nodes are occupied by some processes: $(manager_holders)"
    log_operation Uninstall MAJOR "Ascend-driver-$version" failed
    exit 1
fi
remove_start "$path"
remove_modules
text="Reboot needed for uninstallation to take effect."
if [ $force = n ] && hot_reset 7; then
    text="Uninstallation takes effect immediately."
fi
remove_files "$path"
rmdir "$path" 2>/dev/null
remove_keys
log INFO "Driver package uninstalled successfully! $text"
log_operation Uninstall MAJOR "Ascend-driver-$version" success
exit 0
