# SPDX-License-Identifier: GPL-3.0-or-later
# shellcheck shell=bash
# Taking an installed driver away: used by the package (upgrade, uninstall) and by the installed uninstall.sh.
# Order and leftovers: "driver package, measured", section 5 rows 7-9 and section 4.

kernel_modules=/lib/modules/$(uname -r)/updates

modules_loaded() { lsmod 2>/dev/null | grep -q '^drv_pcie_host '; }

module_list() { sed -n 's/^\[driver_ko\] //p' /etc/ascend_filelist.info 2>/dev/null; }

immutable_off()
{
    chattr -R -f -i "$1/driver" 2>/dev/null
    chattr -f -i "$1"/*.sh /usr/bin/device_boot_init.sh 2>/dev/null
    return 0
}

immutable_on()
{
    # Not every file system knows the flag; the vendor's script does not care either.
    chattr -R -f +i "$1"/driver/* 2>/dev/null
    chattr -f +i "$1"/host_*.sh /usr/bin/device_boot_init.sh 2>/dev/null
    return 0
}

# Holders of the first node only: a process that has just /dev/davinci0 open is not seen (measured).
manager_holders()
{
    find /proc/[0-9]*/fd -maxdepth 1 -lname '*/davinci_manager' 2>/dev/null | cut -d/ -f3 | sort -un | tr '\n' ' '
}

remove_modules()
{
    local module
    module_list > /tmp/.npu_sim_modules.$$
    while read -r module; do rm -f "$module"; done < /tmp/.npu_sim_modules.$$
    rm -f "$kernel_modules"/drv_*.ko "$kernel_modules"/ascend_*.ko "$kernel_modules"/asdrv_*.ko "$kernel_modules"/ts_agent.ko
    depmod >/dev/null 2>&1
}

# rc 0: the old modules are out of the kernel; rc 1: a reboot is needed.
hot_reset()
{
    local names
    names=$(sed 's|.*/||; s|[.]ko$||' /tmp/.npu_sim_modules.$$ 2>/dev/null | tac)
    rm -f /tmp/.npu_sim_modules.$$
    if ! modules_loaded; then
        log WARNING "Kernel modules can not be removed"
        return 1
    fi
    sim_wait 5
    names=$(echo "${names:-drv_pcie_host}" | grep -xF "$(lsmod 2>/dev/null | cut -d' ' -f1)")
    # One call, in reverse order: where the main module is in use, half of the modules are gone by then.
    rmmod $names >/dev/null 2>&1
    if modules_loaded; then
        log WARNING "Kernel modules can not be removed"
        return 1
    fi
    sim_wait "$1"
    echo "$(date '+%Y-%m-%d %H:%M:%S') hot reset done" >> /var/log/hotreset_status.log
}

remove_start()
{
    info_delete Driver_Install_Status
    immutable_off "$1"
    rm -f "$1/driver/version.info" /etc/init.d/host_sys_init.sh /etc/rc[0-6].d/[SK]90host_sys_init.sh
}

remove_files()
{
    rm -rf "$1/driver" "$1"/host_*.sh "$1/version.info"
    rm -f /etc/ascend_filelist.info /lib/davinci.conf /etc/ld.so.conf.d/ascend_driver_so.conf /etc/hccn_weak_dict.conf \
        /etc/hdcBasic.cfg /etc/dms_events_conf.lst /etc/d-pcivnic.conf /etc/ascend_driver.conf /etc/custom_process.cfg \
        /etc/logrotate.d/nputool-log /usr/local/bin/npu-smi /usr/local/sbin/npu-smi /usr/local/bin/npu-healthcheck.sh \
        /usr/local/sbin/npu-healthcheck.sh /usr/bin/device_boot_init.sh /usr/bin/hccn_tool /usr/bin/msnpureport \
        /lib/systemd/system/ascend-kmsagent.service
    rm -rf /usr/local/dcmi /run/ascend/hardware /usr/src/davinci_ascend-1.0 /var/lib/dkms/davinci_ascend
    ldconfig >/dev/null 2>&1
}

remove_keys()
{
    local key
    for key in Driver_Install_Type Driver_Install_Path_Param Driver_Install_Mode Driver_Install_Status "$@"; do
        info_delete "$key"
    done
    info_clean
}
