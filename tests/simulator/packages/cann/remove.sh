# SPDX-License-Identifier: GPL-3.0-or-later
# shellcheck shell=bash
# Taking CANN parts away. Leftovers: "CANN packages, measured", section 1.

package_remove()
{
    if [ "$component" = cann_kernels ]; then
        (cd files && find . -type f) | while read -r file; do rm -f "$home/$file"; done
        rm -f "$record"
        find "$home" -mindepth 1 -depth -type d -empty -delete 2>/dev/null
        return 0
    fi
    if can_not_be_repaired; then
        tell ERROR "$package_name package uninstall failed"
        exit 1
    fi
    # Its own files only: the ops of the same version stay, and so does an empty var folder (measured).
    (cd files && find . -type f) | while read -r file; do rm -f "$home/$file"; done
    rm -rf "$home/set_env.sh" "$home/share/info/runtime" "$home/var" "$home/$machine/install.conf" "$record"
    find "$home" -mindepth 1 -depth -type d -empty -delete
    mkdir -p "$home/var"
    [ "$(realpath -m "$link")" != "$home" ] || links_remove
}

links_remove()
{
    rm -f "$link"
    if [ "$layout" = cann ]; then
        rm -f "$base/ascend-toolkit/latest" "$base/ascend-toolkit/set_env.sh"
        rmdir "$base/ascend-toolkit" 2>/dev/null
    else
        rm -f "$top/set_env.sh"
    fi
    [ "$(id -u)" -ne 0 ] || rm -f /etc/Ascend/ascend_cann_install.info
}

# --upgrade takes the version away that the link leads to.
previous_remove()
{
    local old
    old=$(realpath -e "$link" 2>/dev/null) || return 0
    [ "$component" = cann_kernels ] || rm -rf "${old:?}"
}
