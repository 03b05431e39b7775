# SPDX-License-Identifier: GPL-3.0-or-later
# shellcheck shell=bash
# Shared by the package and the installed uninstall.sh: log, and the change of the engine's file.

runtime_log=/var/log/ascend-docker-runtime/installer.log

runtime_log_open() { mkdir -p -m 750 /var/log/ascend-docker-runtime; }

tell()
{
    echo "[$1] $2"
    echo "[$1] $(date '+%Y/%m/%d %H:%M:%S') $2" 2>/dev/null >> $runtime_log
}

default_engine_file()
{
    case $1 in
        docker) echo /etc/docker/daemon.json ;;
        isula) echo /etc/isulad/daemon.json ;;
        containerd) echo /etc/containerd/config.toml ;;
    esac
}

# root:root, no link, nobody else may write ("Ascend Docker Runtime" fact sheet, section 1).
trusted()
{
    [ ! -L "$1" ] && [ "$(stat -c %u:%g "$1")" = 0:0 ] && [ -z "$(find "$1" -maxdepth 0 -perm /022)" ]
}

trusted_path()
{
    local part=$1
    [[ $1 =~ ^/[a-zA-Z0-9./_-]{0,1023}$ ]] || return 1
    while [ "$part" != / ]; do
        [ ! -e "$part" ] && [ ! -L "$part" ] || trusted "$part" || return 1
        part=$(dirname "$part")
    done
}

# add|rm FILE SCENE INSTALL_FOLDER: the result is written beside the file and moved over it; the file is 0600 afterwards.
change_engine_file()
{
    local new=$2.$PPID
    case $1 in
        add) "$4/ascend-docker-plugin-install-helper" add "$new" "$2" "$4/ascend-docker-runtime" no "$3" 2>> $runtime_log ;;
        rm) "$4/ascend-docker-plugin-install-helper" rm "$new" "$2" no "$3" 2>> $runtime_log ;;
    esac || { rm -f "$new"; return 1; }
    mv "$new" "$2" && chmod 600 "$2"
}
