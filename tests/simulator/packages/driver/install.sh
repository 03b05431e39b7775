#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Inner script of the simulated driver package. Section numbers are those of "driver package, measured".
cd "$(dirname "$0")" || exit 1
here=$PWD
tag=Driver
. ./package.conf
. ./common.sh
. ./options.sh
. ./remove.sh

outer_pid=$PPID
run_file=$(basename "${1#--}")
shift 2
command_words="$*"
default_path=/usr/local/Ascend

finish()
{
    log INFO "End time: $(date '+%Y-%m-%d %H:%M:%S')"
    exit "$1"
}

fail_early()
{
    log_error "$1" "$2"
    finish 1
}

# Another shell that runs a file of the same name.
other_run()
{
    local folder words
    for folder in /proc/[0-9]*; do
        [ "${folder#/proc/}" != "$outer_pid" ] || continue
        mapfile -d '' -t words 2>/dev/null < "$folder/cmdline" || continue
        case ${words[0]##*/} in
            sh | bash | dash) [ "${words[1]##*/}" != "$run_file" ] || return 0 ;;
        esac
    done
    return 1
}

check_environment()
{
    # An all-in-one package of the first generation: the vendor's script ends here by a bare exit, so with 0.
    if [ -e /etc/HiAI_install.info ]; then
        log_error 0x0094 "an all-in-one package is installed, uninstall it first."
        exit 0
    fi
    [ "$(id -u)" -eq 0 ] || fail_early 0x0093 "this package needs the root user."
    [ "$(uname -m)" = "$arch" ] || fail_early 0x0089 "Arch mismatch: the package is for $arch, this machine is $(uname -m)."
    local device number visible=n fits=n
    for device in /sys/bus/pci/devices/*; do
        read -r number 2>/dev/null < "$device/vendor" && [ "$number" = 0x19e5 ] || continue
        read -r number < "$device/device"
        case " $all_pci_ids " in *" $number "*) visible=y ;; esac
        case " $pci_ids " in *" $number "*) fits=y ;; esac
    done
    # No "End time" line here (section 7, package of another product).
    if [ $visible = y ] && [ $fits = n ]; then
        log_error 0x0089 "The current installation package and environment is not match, please check."
        exit 1
    fi
    # The pattern never fits the usual file names with "-", so two runs at once are found with short names only (section 8).
    case $run_file in
        *-*) ;;
        *)
            if other_run; then
                fail_early 0x0094 "there is already a process being executed."
            fi ;;
    esac
}

check_user()
{
    local recorded_user recorded_group
    recorded_user=$(info_get UserName) recorded_group=$(info_get UserGroup)
    [ "$upgrade" = n ] || { user=${recorded_user:-HwHiAiUser}; group=${recorded_group:-HwHiAiUser}; }
    user=${user:-HwHiAiUser} group=${group:-HwHiAiUser}
    if [ "$user" = root ] && [ "$for_all" = n ]; then
        fail_early 0x0091 "not permission for root without --install-for-all."
    fi
    if ! getent passwd "$user" >/dev/null || ! getent group "$group" >/dev/null; then
        fail_early 0x0091 "$user or $group not exists! Please add them first."
    fi
    id -nG "$user" | tr ' ' '\n' | grep -qxF "$group" || fail_early 0x0096 "user $user and group $group have no relatianship."
    if [ -n "$recorded_user" ] && [ "$recorded_user:$recorded_group" != "$user:$group" ]; then
        fail_early 0x0095 "user and group differ from the last installation ($recorded_user:$recorded_group), uninstall first."
    fi
}

check_path()
{
    local parent=$path look
    if [ ! -d "$path" ]; then
        parent=$(dirname "$path")
        [ -d "$parent" ] || fail_early 0x0003 "$parent does not exist, only support create one level folder."
    fi
    path=$(realpath -m "$path")
    look=$(realpath "$parent")
    [ "$(stat -c %u "$look")" -eq 0 ] || fail_early 0x0003 "$look should belong to root."
    if ! setpriv --reuid "$user" --regid "$group" --init-groups test -x "$look" 2>/dev/null; then
        fail_early 0x0003 "$user do not have the permission to enter $look."
    fi
    [ "$(stat -c %a "$look")" != 777 ] || log WARNING "$look is writable for everybody."
    [ "$(free_mib "$look")" -ge "$space_mib" ] || fail_early 0x0089 "free space only $(free_mib "$look") MB at $look, $space_mib MB needed."
}

check_tools()
{
    local tool missing=
    for tool in $(cat ./check_tools.conf); do
        command -v "$tool" >/dev/null 2>&1 || missing=$missing$tool,
    done
    [ -z "$missing" ] || fail_early 0x0089 "The list of missing tools: $missing"
}

# rc 1: the installed firmware is not the one this driver asks for.
relation_fits()
{
    local file wanted found
    file=$(info_get Firmware_Install_Path_Param)/firmware/version.info
    [ -f "$file" ] || return 0
    wanted=$(version_value ./driver/version.info required_firmware_firmware_version)
    found=$(version_value "$file" firmware_version)
    [ "$wanted" = "$found" ] && firmware_in_window "$(version_value "$file" Version)"
}

# compatible_version_fw=[low,high]
firmware_in_window()
{
    local window low high
    window=$(version_value ./driver/version.info compatible_version_fw)
    low=${window#[} low=${low%%,*} high=${window##*,} high=${high%]}
    ! version_less "$1" "$low" && ! version_less "$high" "$1"
}

check_relation()
{
    relation_fits && return 0
    log WARNING "version relationship check fail"
    [ "$quiet" = y ] && return 0
    ask "The versions of driver and firmware do not fit. Continue?" && return 0
    log WARNING "installation Stoped"
    finish 0
}

# The guard belongs to the *installed* driver: where the flash of the device asks for a newer driver than the package brings, it
# kills the running .run file with SIGKILL (section 7). The least version is the one of the smallest capability in the installed
# map that is not below what the flash asks for.
rollback_guard()
{
    local flash least
    flash=$("$old_path/driver/tools/upgrade-tool" --device_index -1 --hw_base_version 2>/dev/null |
        grep '{"device_id"' | awk -F'"' '{print $5}' | awk -F'}|,|:' '{print $2}' | sort -nr | head -n 1)
    [ "${flash:-0}" -gt 0 ] 2>/dev/null || return 0
    least=$(sed 's/#.*//' "$old_path/driver/script/version_cap.map" 2>/dev/null | awk -F, -v flash="$flash" \
        '$1 != "" && $1 + 0 >= flash && (cap == "" || $1 + 0 < cap) { cap = $1 + 0; found = $2 } END { print found }')
    [ -n "$least" ] && version_less "$version" "$least" || return 0
    log ERROR "Version check does not match: the device needs a driver of at least $least"
    log ERROR "Driver upgrade failed"
    log_operation Upgrade MINOR "$run_file" failed
    rm -rf "$here"
    kill -9 "$outer_pid" $$
}

check_busy()
{
    local holders
    [ "$force" = n ] || return 0
    holders=$(manager_holders)
    [ -n "$holders" ] || return 0
    if [ "$busy" = reboot ]; then
        log WARNING "the devices are in use by: $holders, no hot reset"
        reset_wanted=n
        return 0
    fi
    log ERROR "The davinci nodes are occupied by some processes: $holders"
    [ "$1" != Upgrade ] || log_operation Uninstall MAJOR "$run_file" failed
    finish 1
}

take_old_away()
{
    remove_start "$old_path"
    case $old_type in
        full | run | debug)
            remove_modules
            if [ "$reset_wanted" = y ] && [ "$force" = n ] && [ "$(sim_value virtual false)" = false ]; then
                hot_reset 66 || reboot=y
            else
                reboot=y
            fi ;;
        *) reboot=y ;;
    esac
    remove_files "$old_path"
    # Another path: the old top folder stays behind, empty. The same one is used again.
    info_delete Driver_Install_For_All
}

do_uninstall()
{
    local result=live
    old_path=$(info_get Driver_Install_Path_Param)
    if [ -z "$old_path" ]; then
        log_error 0x0080 "the driver is not installed."
        finish 1
    fi
    old_type=$(info_get Driver_Install_Type)
    pause_point start
    check_busy Uninstall
    # No hot reset in a virtual machine (section 7).
    if [ ! -d "$old_path/driver" ] || [ "$force" = y ] || [ "$(sim_value virtual false)" = true ]; then
        result=reboot
    fi
    remove_start "$old_path"
    remove_modules
    if [ "$result" = live ] && [[ $old_type =~ ^(full|run|debug)$ ]]; then
        hot_reset 7 || result=half
    fi
    remove_files "$old_path"
    rmdir "$old_path" 2>/dev/null
    pause_point removed
    remove_keys Driver_Install_For_All
    case $result in
        live) log INFO "Driver package uninstalled successfully! Uninstallation takes effect immediately." ;;
        reboot) log INFO "Driver package uninstalled. Reboot needed for uninstallation to take effect." ;;
        half) log INFO "Driver package uninstall finished. Reboot needed for uninstallation to take effect." ;;
    esac
    log_operation Uninstall MAJOR "$run_file" success
    pause_point end
    finish 0
}

stopped()
{
    log_operation "$verb" "$level" "$run_file" failed "$log_type"
    finish 1
}

do_install()
{
    verb=Install level=SUGGESTION done_word=installed reboot=n reset_wanted=y log_type=
    old_path=$(info_get Driver_Install_Path_Param) old_type=$(info_get Driver_Install_Type)
    if [ "$upgrade" = y ]; then
        if [ -n "$old_path" ]; then
            verb=Upgrade level=MINOR done_word=upgraded path=$old_path type=$old_type
            [ "$old_type" != debug ] || type=full
            [ "$(info_get Driver_Install_For_All)" != yes ] || for_all=y
        else
            type=full
        fi
    fi
    [ "$verb" = Upgrade ] || log_type=$type
    check_user
    if [ -z "$path" ]; then path=${old_path:-$default_path}; fi
    check_path
    case $type in devel | docker) ;; *) check_tools ;; esac
    if [ "$type" = docker ] && [ -n "$old_type" ] && [ "$old_type" != docker ]; then
        fail_early 0x0003 "--docker over another type without no driver mapping is not supported."
    fi

    if [ "$mode" = error-text ]; then
        log_error 0x0089 "the environment of this machine can not be checked."
        finish 0
    fi
    if [ "$mode" = nothing ]; then
        log INFO "upgradePercentage:100%"
        log INFO "Driver package $done_word successfully! The new version takes effect immediately."
        finish 0
    fi

    pause_point start
    if [ "$type" = debug ] && ! ask "The debug type is a risk for the system. Continue?"; then
        log WARNING "installation Stoped"
        finish 0
    fi
    [ "$verb" = Upgrade ] || check_relation
    if [ -n "$old_path" ]; then
        if [ "$verb" = Install ] && [ "$quiet" = n ] && ! ask "The driver is already installed. Install it again?"; then
            log WARNING "installation Stoped"
            finish 0
        fi
        rollback_guard
        check_busy $verb
        [ "$mode" != dead-after-boot ] || [ "$driver_rc" = 0 ] || reset_wanted=n
        take_old_away
        pause_point removed
        [ "$verb" = Install ] || check_relation
    fi
    trap stopped TERM HUP INT

    # The record is there before any file of the payload.
    [ -e /etc/vnpu.cfg ] || echo "vnpu_config_recover:enable" > /etc/vnpu.cfg
    info_set UserName "$user"
    info_set UserGroup "$group"
    info_set Driver_Install_Type "$type"
    info_set Driver_Install_Path_Param "$path"
    info_set Driver_Install_For_All "$([ "$for_all" = y ] && echo yes || echo no)"
    info_set Driver_Install_Mode "${guest:-$([ "$type" = debug ] && echo debug || echo normal)}"
    hang_point before-payload
    pause_point record

    # The steps are a process of their own: TERM to this script alone lets them come to their end first (section 8).
    export path user group type for_all force quiet
    ./steps.sh
    local rc=$?
    if [ $rc -eq 1 ]; then
        log ERROR "Driver package install failed, please retry after uninstall and reboot!"
        stopped
    fi
    [ $rc -eq 0 ] || reboot=y
    [ $rc -ne 3 ] || log WARNING "some chips not ready"
    if [ "$force" = y ] || [ "$driver_rc" = 2 ]; then reboot=y; fi
    case $type in devel | docker) reboot=n ;; esac

    if [ $reboot = y ]; then
        log WARNING "Driver package $done_word finished! Reboot needed for installation/upgrade to take effect!"
    else
        log INFO "Driver package $done_word successfully! The new version takes effect immediately."
    fi
    log_operation $verb $level "$run_file" success "$log_type"
    case $type in devel | docker) ;; *) info_set Driver_Install_Status complete ;; esac
    pause_point status
    sync "$info_file" 2>/dev/null
    pause_point end
    [ $reboot = n ] || finish 2
    finish 0
}

log_open
[ ! -f "$info_file" ] || chmod 644 "$info_file" 2>/dev/null
log INFO "Start time: $(date '+%Y-%m-%d %H:%M:%S')"
log INFO "LogFile: $log_file"
log INFO "OperationLogFile: $operation_log"
parse_options "$@"
[ -z "$unknown" ] && [ "$words" -gt 0 ] || check_options || fail_early "$option_code" "$option_error"
check_environment
check_options || fail_early "$option_code" "$option_error"

if [ "$show_version" = y ]; then
    log INFO "driver version :$version"
    finish 0
elif [ "$check" = y ]; then
    if relation_fits; then
        log INFO "version relationship check success"
    else
        log WARNING "version relationship check fail"
    fi
    finish 0
elif [ "$repack" = y ]; then
    fail_early 0x0004 "--repack is not simulated."
elif [ "$uninstall" = y ]; then
    do_uninstall
fi
do_install
