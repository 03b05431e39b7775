#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Inner script of the simulated CANN toolkit and ops (kernels) packages. Sources: "Ascend packages" fact sheet, sections 2.4 and 3.1;
# "CANN packages, measured", section 1 (traits of the components); the architecture is not looked at (measured).
cd "$(dirname "$0")" || exit 1
. ./package.conf
. ./common.sh
. ./layout.sh
. ./remove.sh

run_file=$(basename "${1#--}")
shift 2
command_words="$*"
machine=$arch-linux

if [ "$(id -u)" -eq 0 ]; then
    base=/usr/local/Ascend
else
    base=$HOME/Ascend
    log_dir=$HOME/var/log/ascend_seclog
    operation_log=$log_dir/operation.log
fi
log_file=$log_dir/$log_name

tell()
{
    local line
    line="[$tag] [$(date '+%Y%m%d-%H:%M:%S')] [$1] $2"
    echo "$line"
    echo "$line" 2>/dev/null >> "$log_file"
}

die()
{
    tell ERROR "$1"
    tell INFO "End time: $(date '+%Y-%m-%d %H:%M:%S')"
    exit 1
}

refuse() { die "ERR_NO:$1;ERR_DES:$2"; }

actions=() quiet=n for_all=n whitelist= path_given=n force=n
for word in "$@"; do
    case $word in
        --install | --full | --devel | --upgrade | --uninstall | --version | --check) actions+=("${word#--}") ;;
        --quiet) quiet=y ;;
        --force) force=y ;;
        --install-for-all) for_all=y ;;
        --whitelist=*) whitelist=${word#*=} ;;
        --install-path=*) path_given=y base=${word#*=} ;;
    esac
done
action=${actions[0]:-}

# Prints the bare version: no prefix, no root needed.
if [ "$action" = version ] && [ ${#actions[@]} -eq 1 ]; then
    echo "$version"
    exit 0
fi
[ "$(id -u)" -eq 0 ] || mkdir -p "$log_dir"
[ "$(id -u)" -ne 0 ] || log_open
tell INFO "Start time: $(date '+%Y-%m-%d %H:%M:%S')"
tell INFO "LogFile: $log_file"
[ ${#actions[@]} -gt 0 ] ||
    refuse 0x0004 "One of parameters install/upgrade/uninstall/check/version is needed; the others are not supported to used by this way."
[ ${#actions[@]} -eq 1 ] || refuse 0x0004 "only support one type of action."
case $action:$quiet in
    uninstall:y | check:y) refuse 0x0004 "--quiet is for install and upgrade, not supported to used by this way." ;;
esac

check_driver()
{
    local driver
    driver=$(info_get Driver_Install_Path_Param)
    if [ -z "$driver" ] || [ ! -f "$driver/driver/version.info" ]; then
        tell WARNING "Cannot find the install path of driver"
    else
        tell INFO "Check version matched!"
    fi
}

if [ "$action" = check ]; then
    check_driver
    exit 0
fi

check_path()
{
    [[ $base =~ ^/[A-Za-z0-9./_-]*$ ]] || refuse 0x0003 "$base is invalid, only characters in [A-Za-z0-9./_-] after / are taken."
    base=${base%/}
    [ "$action" != uninstall ] || return 0
    local mode
    [ -d "$base" ] || [ -d "$(dirname "$base")" ] || refuse 0x0003 "parent path doesn't exist, please create $(dirname "$base")."
    [ -d "$base" ] || return 0
    mode=$(stat -c %a "$base")
    if [ "$(id -u)" -eq 0 ] && [[ ! $mode =~ [1357]$ ]]; then
        refuse 0x0003 "$base with mode $mode does not support install_for_all param."
    fi
    [ "$mode" != 777 ] || question "$base may be written by everybody."
}

# A question accepts y and n; at the end of stdin it is asked again for ever.
question()
{
    local answer
    [ "$quiet" = n ] || return 0
    tell INFO "$1 Continue? [y/n]"
    while true; do
        read -r answer || { answer=; sleep 0.02; }
        case $answer in
            y | Y) return 0 ;;
            n | N)
                tell INFO "stop installation!"
                exit 0 ;;
            *) echo "[$tag] [ERROR] input error, please input again!" ;;
        esac
    done
}

check_path
layout_set
installed=$(installed_version)

if [ "$action" = uninstall ]; then
    if [ "$component" != cann_kernels ] && [ ! -f "$record" ] && cut_short && ! can_not_be_repaired; then
        # Killed while it copied: nothing is removed, the record stays, and the status is 0 (measured).
        tell ERROR "run_runtime_uninstall.sh not found"
        exit 0
    fi
    [ -f "$record" ] || cut_short || refuse 0x0080 "$package_name $version is not installed."
    pause_point start
    package_remove
    pause_point removed
    tell INFO "$package_name uninstall success"
    tell INFO "End time: $(date '+%Y-%m-%d %H:%M:%S')"
    exit 0
fi
if [ "$action" = upgrade ] && [ -z "$installed" ]; then
    refuse 0x0080 "$package_name is not installed, upgrade failed."
fi
package_check
[ -d "$base" ] && disk=$base || disk=$(dirname "$base")
[ "$(free_mib "$disk")" -ge "$space_mib" ] || die "not enough space at $base, $space_mib MB needed."
question "The licence of the vendor has to be accepted."
[ -z "$installed" ] || [ "$action" = upgrade ] || [ "$installed" != "$version" ] || question "$package_name $version is already installed."
check_driver

if [ "$mode" = error-text ]; then
    # What a component does with an option that it does not know (read): an error line and status 0.
    tell ERROR "ERR_NO:0x0004;ERR_DES:Unrecognized parameters: $command_words"
    exit 0
fi
if [ "$mode" = nothing ]; then
    tell INFO "$package_name install success"
    exit 0
fi

failed()
{
    tell ERROR "$package_name package install failed, please retry after uninstall!"
    exit 1
}
# Stopped in the copy stage: the record of the runtime component and nothing else.
part_of_the_copy()
{
    cp() { return 1; }
    package_copy
    failed
}
trap failed TERM HUP INT
hang_point before-payload
pause_point start
if [ -f "$record" ] || { [ "$component" != cann_kernels ] && can_not_be_repaired; }; then package_remove; fi
# A tree that was installed with a whitelist keeps it: an upgrade does not make a toolkit of it.
if [ "$action" = upgrade ] && [ -z "$whitelist" ]; then
    whitelist=$(sed -n 's/^whitelist=//p' "$(realpath -m "$link")/$machine/install.conf" 2>/dev/null)
fi
[ "$action" != upgrade ] || [ "$installed" = "$version" ] || previous_remove
pause_point 10
sim_wait 10
[ "$mode:$hang_at" != breaks:before-payload ] || part_of_the_copy
package_copy || failed
[ "$mode:$hang_at" != breaks:after-payload ] || failed
pause_point 40
sim_wait 10
hang_point after-payload
pause_point 90
package_record
pause_point status
tell INFO "$package_name install success, installed in $home"
tell INFO "Please make sure that $home/lib64 is in LD_LIBRARY_PATH: source set_env.sh"
tell INFO "End time: $(date '+%Y-%m-%d %H:%M:%S')"
pause_point end
exit 0
