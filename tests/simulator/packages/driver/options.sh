# SPDX-License-Identifier: GPL-3.0-or-later
# shellcheck shell=bash
# The option matrix of the driver package ("driver package, measured", section 2). No effect on the machine: unit tests source this file.
# parse_options WORDS... sets the variables below; check_options says what is wrong in $option_code and $option_error (rc 1).

parse_options()
{
    types=()
    quiet=n force=n upgrade=n uninstall=n show_version=n check=n for_all=n norebuild=n repack=n guest=
    path_given=n path= user_given=n user= group_given=n group= unknown= words=$#
    local word
    for word in "$@"; do
        case $word in
            --full | --run | --debug | --devel | --docker) types+=("${word#--}") ;;
            --quiet) quiet=y ;;
            --force) force=y ;;
            --upgrade) upgrade=y ;;
            --uninstall) uninstall=y ;;
            --version) show_version=y ;;
            --check) check=y ;;
            --install-for-all) for_all=y ;;
            --norebuild) norebuild=y ;;
            --repack) repack=y ;;
            --vnpu_guest) guest=vnpu_guest ;;
            --install-path=*) path_given=y path=${word#*=} ;;
            --install-username=*) user_given=y user=${word#*=} ;;
            --install-usergroup=*) group_given=y group=${word#*=} ;;
            *) unknown=${unknown:-$word} ;;
        esac
    done
    type=${types[0]:-}
}

refuse()
{
    option_code=$1 option_error=$2
    return 1
}

check_options()
{
    option_code= option_error=
    [ -z "$unknown" ] || { refuse 0x0004 "Unrecognized parameters: $unknown"; return 1; }
    [ "$words" -gt 0 ] || { refuse 0x0004 "Unrecognized parameters. Try --help for more information."; return 1; }
    [ ${#types[@]} -le 1 ] || { refuse 0x0004 "only support one type: full/run/debug/devel/docker."; return 1; }
    local alone
    for alone in show_version check; do
        if [ "${!alone}" = y ]; then
            [ "$words" -eq 1 ] || refuse 0x0004 "--${alone#show_} can not be used together with other parameters."
            return
        fi
    done
    if [ "$uninstall" = y ]; then
        [ "$words" -eq 1 ] || { [ "$words" -eq 2 ] && [ "$force" = y ]; } ||
            refuse 0x0004 "--uninstall can only be used alone or with --force."
        return
    fi
    if [ "$upgrade" = y ]; then
        [ -z "$type" ] ||
            { refuse 0x0004 "--upgrade: this parameter needs to be used with --quiet or --force only, not with --$type."; return 1; }
        [ "$path_given$user_given$group_given$for_all" = nnnn ] ||
            { refuse 0x0004 "--upgrade keeps path, user and scope of the last installation and can not be used with them."; return 1; }
        [ -z "$guest" ] || { refuse 0x0004 "--vnpu_guest: this parameter needs to be used with full or run."; return 1; }
        return 0
    fi
    [ -n "$type" ] || { refuse 0x0004 "this parameter needs to be used with an install type or --upgrade."; return 1; }
    [ "$type" != debug ] || [ "$quiet" = n ] || { refuse 0x0004 "--quiet can not be used with --debug."; return 1; }
    case $type:$force in
        devel:y | docker:y)
            refuse 0x0004 "--force: this parameter needs to be used with full, run, debug, upgrade or uninstall."
            return 1 ;;
    esac
    case $type:$guest in
        full:* | run:* | *:) ;;
        *) refuse 0x0004 "--vnpu_guest: this parameter needs to be used with full or run."; return 1 ;;
    esac
    [ "$type" != docker ] || [ "$for_all" = n ] || { refuse 0x0004 "--install-for-all can not be used with --docker."; return 1; }
    [ "$user_given" = "$group_given" ] ||
        { refuse 0x0004 "--install-username and --install-usergroup are not specified at the same time."; return 1; }
    [ "$path_given" = n ] || check_path_text
}

# The spelling of the path only; what is on the disk is looked at later.
check_path_text()
{
    case $path in
        /*) ;;
        *) refuse 0x0003 "--install-path input error, an absolute path is needed."; return 1 ;;
    esac
    [[ $path =~ ^[A-Za-z0-9./_-]+$ ]] ||
        { refuse 0x0003 "--install-path does not match the regular-expression [A-Za-z0-9./_-]+."; return 1; }
}
