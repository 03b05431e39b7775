#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Installed as <path>/firmware/script/uninstall.sh. Takes files and record away; the flash of the chips keeps what it has.
tag=Firmware
folder=$(dirname "$(realpath "$0")")
. "$folder/package.conf"
. "$folder/common.sh"
command_words="$*"
[ "$(id -u)" -eq 0 ] || { log_error 0x0093 "this script needs the root user."; exit 1; }
log_open
path=$(info_get Firmware_Install_Path_Param)
[ -n "$path" ] || { log_error 0x0080 "the firmware is not installed."; exit 1; }
rm -rf "$path/firmware"
info_delete Firmware_Install_Type
info_delete Firmware_Install_Path_Param
info_clean
log INFO "Firmware package uninstalled successfully!"
exit 0
