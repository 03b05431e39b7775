# SPDX-License-Identifier: GPL-3.0-or-later
# shellcheck shell=bash
# Shared by the inner scripts of every simulated package. The caller sets: tag (Driver ...) and sources package.conf before this file.

sim_state=${NPU_SIM_STATE:-/var/lib/npu-sim/state.json}
log_dir=/var/log/ascend_seclog
log_file=$log_dir/ascend_install.log
operation_log=$log_dir/operation.log
info_file=/etc/ascend_install.info
quiet=${quiet:-n}
user_name=$(id -un)

# First number, word or true/false behind "KEY": in the state file; the default where file or key is missing.
sim_value()
{
    local value
    value=$(sed -n "s/.*\"$1\"[[:space:]]*:[[:space:]]*\"\{0,1\}\([A-Za-z0-9.+_:-]*\).*/\1/p" "$sim_state" 2>/dev/null | head -n 1)
    echo "${value:-$2}"
}

scaled() { awk -v seconds="$1" -v scale="$(sim_value time_scale 0.01)" 'BEGIN { printf "%.3f", seconds * scale }'; }

sim_wait() { sleep "$(scaled "$1")"; }

# A package built with --mode hang stays for ever at the stage given by --hang-at. Short sleeps: no long orphan is left after a kill.
hang_point()
{
    while [ "${mode:-ok}" = hang ] && [ "${hang_at:-}" = "$1" ]; do sleep 1; done
}

# `npu-sim set package.pause_at COMPONENT:STAGE`: the package stops there until somebody removes /run/npu-sim/paused, which says
# "COMPONENT:STAGE PID". Every component knows every stage (README.md says what is on the disk at each).
pause_point()
{
    local folder=/run/npu-sim
    [ "$(sim_value pause_at "")" = "$component:$1" ] || return 0
    mkdir -p $folder
    # $BASHPID: the process that stands still, also in a subshell. Moved into place: a reader sees the whole line or no file.
    echo "$component:$1 $BASHPID" > $folder/paused.new
    mv $folder/paused.new $folder/paused
    while [ -e $folder/paused ]; do sleep 0.05; done
}

log_open()
{
    [ -d /var/log ] || mkdir -m 755 /var/log
    [ -d $log_dir ] || mkdir -m 750 -p $log_dir
    [ -e $log_file ] || { : > $log_file; chmod 640 $log_file; }
}

# One line on stdout and one in the log. Warnings and errors carry colour codes even without a terminal.
log()
{
    local now level="[$1]"
    printf -v now '%(%Y-%m-%d %H:%M:%S)T' -1
    case $1 in
        ERROR) level=$'\033[31m[ERROR]\033[0m' ;;
        WARNING) level=$'\033[33m[WARNING]\033[0m' ;;
    esac
    echo "[$tag] [$now] $level$2"
    echo "[$tag] [$now] [uid=$UID($user_name)] [$1]$2" 2>/dev/null >> $log_file || true
}

log_error() { log ERROR "ERR_NO:$1;ERR_DES:$2"; }

log_operation()
{
    # KIND LEVEL FILE RESULT [INSTALL_TYPE]
    [ -e $operation_log ] || { : > $operation_log; chmod 640 $operation_log; }
    echo "$1 $2 root $(date '+%Y-%m-%d %H:%M:%S') 127.0.0.1 $3 $4${5:+ install_type=$5}; cmdlist=$command_words." >> $operation_log
}

# Questions accept y and n only. At the end of stdin the vendor's scripts ask again for ever: that is kept, at a limited rate.
ask()
{
    local answer
    log INFO "$1 [y/n]"
    while true; do
        if ! read -r answer; then
            answer=
            sleep 0.02
        fi
        case $answer in
            y | Y | yes) return 0 ;;
            n | N | no) return 1 ;;
            *) echo "[$tag] [$(date '+%Y-%m-%d %H:%M:%S')] [ERROR]input error, please input again!" ;;
        esac
    done
}

info_get() { sed -n "s/^$1=//p" "$info_file" 2>/dev/null | tail -n 1; }

info_delete() { [ ! -f "$info_file" ] || sed -i "/^$1=/d" "$info_file"; }

# A known key is deleted and appended, so the order of the keys changes with every run.
info_set()
{
    [ -f "$info_file" ] || { : > "$info_file"; }
    chmod 644 "$info_file"
    info_delete "$1"
    echo "$1=$2" >> "$info_file"
}

info_clean()
{
    [ -f "$info_file" ] || return 0
    grep -q 'Install_Path_Param=' "$info_file" || rm -f "$info_file"
}

version_value() { sed -n "s/^$2=//p" "$1" 2>/dev/null | head -n 1; }

# true if version $1 < $2; rc sorts below the plain number.
version_less()
{
    local a b
    a=$(echo "${1,,}" | sed 's/[.]\(rc\|b\|alpha\|beta\)/~\1/g')
    b=$(echo "${2,,}" | sed 's/[.]\(rc\|b\|alpha\|beta\)/~\1/g')
    [ "$a" != "$b" ] && [ "$(printf '%s\n%s\n' "$a" "$b" | sort -V | head -n 1)" = "$a" ]
}

free_mib() { df -mP "$1" | awk 'END { print $4 }'; }
