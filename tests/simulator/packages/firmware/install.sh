#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Inner script of the simulated firmware package. The vendor's script is not public: outside behaviour only ("Ascend packages" fact
# sheet, section 2.3; "driver package, measured", section 10). New firmware runs after the next boot of the machine.
cd "$(dirname "$0")" || exit 1
tag=Firmware
. ./package.conf
. ./common.sh

run_file=$(basename "${1#--}")
shift 2
command_words="$*"

finish()
{
    log INFO "End time: $(date '+%Y-%m-%d %H:%M:%S')"
    exit "$1"
}

refuse()
{
    log_error "$1" "$2"
    finish 1
}

action= quiet=n
for word in "$@"; do
    case $word in
        --quiet) quiet=y ;;
        --force) ;;
        --full | --upgrade | --uninstall | --version | --check)
            [ -z "$action" ] || { log_open; refuse 0x0004 "only support one type."; }
            action=${word#--} ;;
    esac
done

log_open
log INFO "Start time: $(date '+%Y-%m-%d %H:%M:%S')"
log INFO "LogFile: $log_file"
log INFO "OperationLogFile: $operation_log"
[ -n "$action" ] || refuse 0x0004 "Unrecognized parameters. Try --help for more information."
[ "$(id -u)" -eq 0 ] || refuse 0x0093 "this package needs the root user."

if [ "$action" = version ]; then
    log INFO "firmware version :$version"
    finish 0
fi

visible=n fits=n
for device in /sys/bus/pci/devices/*; do
    read -r number 2>/dev/null < "$device/vendor" && [ "$number" = 0x19e5 ] || continue
    read -r number < "$device/device"
    case " $all_pci_ids " in *" $number "*) visible=y ;; esac
    case " $pci_ids " in *" $number "*) fits=y ;; esac
done
if [ $visible = y ] && [ $fits = n ]; then
    log_error 0x0089 "The current installation package and environment is not match, please check."
    exit 1
fi

path=$(info_get Driver_Install_Path_Param)
firmware_path=$(info_get Firmware_Install_Path_Param)

if [ "$action" = uninstall ]; then
    [ -n "$firmware_path" ] || refuse 0x0080 "the firmware is not installed."
    # Files and record only: what is in the flash of the chips stays there.
    pause_point start
    rm -rf "$firmware_path/firmware"
    pause_point removed
    info_delete Firmware_Install_Type
    info_delete Firmware_Install_Path_Param
    info_clean
    log INFO "Firmware package uninstalled successfully!"
    finish 0
fi

if [ "$action" = check ]; then
    if [ -n "$path" ] && ! grep -q "\[$(version_value "$path/driver/version.info" Version)," firmware/version.info; then
        log WARNING "version relationship check fail"
    else
        log INFO "version relationship check success"
    fi
    finish 0
fi

tool=$path/driver/tools/upgrade-tool
if [ -z "$path" ] || [ ! -x "$tool" ]; then
    refuse 0x0089 "upgrade-tool not found: the firmware needs an installed driver."
fi
"$tool" --device_index -1 --phymachflag >/dev/null 2>&1
[ $? -ne 2 ] || refuse 0x0089 "not a physical-machine, the firmware can not be upgraded here."
chips=$("$tool" --mini_devices 2>/dev/null | grep -c device_id)
[ "$(free_mib "$path")" -ge "$space_mib" ] || refuse 0x0089 "free space only $(free_mib "$path") MB at $path, $space_mib MB needed."
verb=Install level=SUGGESTION done_word=installed
if [ -n "$firmware_path" ]; then
    [ "$action" = full ] || { verb=Upgrade level=MINOR done_word=upgraded; }
    if [ "$action" = full ] && [ "$quiet" = n ] && ! ask "The firmware is already installed. Install it again?"; then
        log WARNING "installation Stoped"
        finish 0
    fi
fi

good()
{
    log INFO "The firmware of [$chips] chips are successfully upgraded."
    log INFO "Firmware package $done_word successfully! \
Reboot now or after driver installation for the installation/upgrade to take effect."
}

if [ "$mode" = error-text ]; then
    log_error 0x0089 "the environment of this machine can not be checked."
    finish 0
fi
if [ "$mode" = nothing ]; then
    good
    finish "$good_rc"
fi

failed()
{
    log ERROR "Firmware package install failed: $1"
    log_operation $verb $level "$run_file" failed full
    finish 1
}
trap 'failed "stopped by a signal"' TERM HUP INT
log WARNING "Do not power off or restart the system during the installation/upgrade."
hang_point before-payload
pause_point start
sim_wait 2
log INFO "upgradePercentage:10%"
pause_point 10
[ "$mode" != flash-fails ] || failed "upgrade-tool"
# One chip after the other: whoever stops it half-way has two versions in one machine.
"$tool" --flash "$version" $((chips / 2)) >/dev/null || failed "upgrade-tool"
pause_point 30
"$tool" --flash "$version" >/dev/null || failed "upgrade-tool"
pause_point 40
sim_wait 8
log INFO "upgradePercentage:90%"
pause_point 90
hang_point after-payload
rm -rf "$path/firmware.new"
cp -a firmware "$path/firmware.new" || failed "copy of the files"
rm -rf "$path/firmware"
mv "$path/firmware.new" "$path/firmware"
pause_point version
info_set Firmware_Install_Type full
info_set Firmware_Install_Path_Param "$path"
pause_point status
sim_wait 2
log INFO "upgradePercentage:100%"
good
log_operation $verb $level "$run_file" success full
pause_point end
finish "$good_rc"
