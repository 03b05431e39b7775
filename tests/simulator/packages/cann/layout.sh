# SPDX-License-Identifier: GPL-3.0-or-later
# shellcheck shell=bash
# Where toolkit and ops lie. From 8.5.0 on: <base>/cann-<version> with the link <base>/cann; before: <base>/ascend-toolkit/<version>
# with the link latest ("Ascend packages" fact sheet, section 3.1).

layout_set()
{
    case $layout in
        cann)
            # --install-path may end in a version folder; its parent is the base then (measured).
            case ${base##*/} in cann-*) base=$(dirname "$base") ;; esac
            top=$base link=$base/cann home=$base/cann-$version ;;
        *) top=$base/ascend-toolkit link=$top/latest home=$top/$version ;;
    esac
    toolkit_record=$home/$machine/ascend_toolkit_install.info
    if [ "$component" = cann_nnrt ]; then
        top=$base/nnrt link=$top/latest home=$top/$version
        record=$home/$machine/ascend_nnrt_install.info
        return
    fi
    case $component:$layout in
        cann_toolkit:*) record=$toolkit_record ;;
        cann_kernels:cann) record=$home/$machine/ascend_ops_install.info ;;
        *) record=$home/opp_kernel/version.info ;;
    esac
}

# The runtime component of the bundle has its record first and its version.info last. Between them lies what its own scripts can
# repair (nothing but the record) and what they can not (its uninstall script is there, but looks one folder too high; measured).
cut_short()
{
    [ -f "$home/share/info/runtime/ascend_install.info" ] && [ ! -f "$home/share/info/runtime/version.info" ]
}

can_not_be_repaired() { cut_short && [ -f "$home/share/info/runtime/script/run_runtime_uninstall.sh" ]; }

# The version behind the link: what set_env.sh leads to. For ops only if its own record is there.
installed_version()
{
    local active
    active=$(realpath -e "$link" 2>/dev/null) || return 0
    [ -f "$active${record#"$home"}" ] || return 0
    sed -n 's/^[vV]ersion=//p' "$active${record#"$home"}" | head -n 1
}

package_check()
{
    [ "$component" = cann_kernels ] || return 0
    [ -f "$toolkit_record" ] || refuse 0x0080 "toolkit $version is not installed in $base; $package_name needs exactly that version."
}

package_copy()
{
    mkdir -p -m 755 "$base" "$top" "$home" || return 1
    if [ "$component" = cann_kernels ]; then
        pause_point 30
        cp -a files/. "$home/"
        return
    fi
    # Early: the information file of the runtime component. Its version.info comes last (measured).
    mkdir -p "$home/share/info/runtime/script" "$home/var" "$home/$machine"
    {
        echo "Runtime_Install_Type=full"
        echo "Runtime_Chip_Type=all"
        echo "Runtime_Feature_Type=all"
        echo "Runtime_UserName=$(id -un)"
        echo "Runtime_UserGroup=$(id -gn)"
        echo "Runtime_Install_Path_Param=$base"
        echo "Runtime_Arch_Linux_Path=$home/$machine"
        echo "Runtime_Hetero_Arch_Flag=n"
    } > "$home/share/info/runtime/ascend_install.info"
    pause_point 30
    cp -a files/. "$home/" || return 1
    [ "$whitelist" != nnrt ] || rm -rf "$home/compiler" "$home/bin"
    sed "s|@HOME@|$link|g" set_env.sh > "$home/set_env.sh"
    chmod 555 "$home/set_env.sh"
    ln -sfn "$(basename "$home")" "$link"
    if [ "$layout" = cann ]; then
        mkdir -p "$base/ascend-toolkit"
        ln -sfn ../cann "$base/ascend-toolkit/latest"
        ln -sfn ../cann/set_env.sh "$base/ascend-toolkit/set_env.sh"
    else
        ln -sfn latest/set_env.sh "$top/set_env.sh"
    fi
    [ -z "$whitelist" ] || echo "whitelist=$whitelist" > "$home/$machine/install.conf"
}

package_record()
{
    if [ "$record" = "$home/opp_kernel/version.info" ]; then
        echo "Version=$version" > "$record"
        pause_point version
        return
    fi
    {
        echo "package_name=$package_name"
        echo "version=$version"
        echo "innerversion=$inner_version"
        echo "compatible_version=$compatible_version"
        echo "arch=$arch"
        echo "os=linux"
        echo "path=$home/$machine"
    } > "$record"
    chmod 644 "$record"
    pause_point version
    [ "$component" != cann_kernels ] || return 0
    {
        echo "Version=$version"
        echo "version_dir=$(basename "$home")"
        echo "timestamp=$(date '+%Y%m%d_%H%M%S')000"
        echo "required_package_driver_version=\"\""
    } > "$home/share/info/runtime/version.info"
    echo "runtime|$version" > "$home/var/ascend_package_db.info"
    chmod 444 "$home/share/info/runtime/version.info"
    [ "$(id -u)" -ne 0 ] || { mkdir -p /etc/Ascend && echo "Cann_Install_Path_Param=$base" > /etc/Ascend/ascend_cann_install.info; }
}
