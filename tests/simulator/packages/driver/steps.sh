#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The steps that change the machine, rows 11-16 of section 5 of "driver package, measured".
# Exit status for install.sh: 0 live, 1 failed, 2 not live yet, 3 the devices did not come up. Waits add up to 16 s for a first install.
tag=Driver
. ./package.conf
. ./common.sh
. ./remove.sh
[ "$for_all" = y ] && others_read=y || others_read=n

progress()
{
    log INFO "upgradePercentage:$1%"
    [ "$1" = 100 ] || pause_point "$1"
}

copy_failed()
{
    log ERROR "[Common] $1 copy failed"
    log ERROR "Drv_file_copy failed"
    exit 1
}

# for-all: the last digit of each mode is that of the group (550 -> 555).
open_for_all()
{
    [ $others_read = n ] || chmod -R o=g "$1"
}

parts_of_type()
{
    case $type in
        devel) echo "bin cert include lib64 script tools build.info" ;;
        docker) echo "bin cert lib64 script tools" ;;
        *) echo "bin cert device include lib64 script tools vnpu_guest vnpu_host host build.info scene.info" ;;
    esac
}

copy_files()
{
    local part
    [ -d "$path" ] || mkdir -m 755 "$path" || copy_failed "$path"
    mkdir -p -m 755 "$path/driver" || copy_failed "$path/driver"
    for part in $(parts_of_type); do
        cp -a "driver/$part" "$path/driver/" || copy_failed "$part"
    done
    [ "$mode" != copy-fails ] || copy_failed lib64
    chown -R "root:$group" "$path/driver"
    find "$path/driver" -mindepth 1 -type d -exec chmod 550 {} +
    open_for_all "$path/driver"
    [ "$type" = docker ] || echo "version=$version" > "$path/version.info"
    mkdir -p /usr/local/dcmi && cp -f driver/lib64/libdcmi.so driver/include/dcmi_interface_api.h /usr/local/dcmi/ || copy_failed dcmi
    [ "$type" = docker ] || copy_tools
}

copy_tools()
{
    local folder
    for folder in /usr/local/bin /usr/local/sbin; do
        install -m 555 driver/tools/npu-smi $folder/npu-smi || copy_failed npu-smi
        [ "$type" = devel ] || install -m 555 driver/tools/npu-healthcheck.sh $folder/npu-healthcheck.sh
    done
}

copy_configuration()
{
    local home
    install -m 555 host/host_*.sh "$path/" || copy_failed host
    install -m 644 etc/* /etc/ || copy_failed etc
    [ -e /etc/hccn.conf ] || : > /etc/hccn.conf
    install -m 555 host/device_boot_init.sh /usr/bin/device_boot_init.sh
    ln -sf "$path/driver/tools/hccn_tool" /usr/bin/hccn_tool
    ln -sf "$path/driver/tools/msnpureport" /usr/bin/msnpureport
    mkdir -p /etc/logrotate.d /etc/udev/rules.d /etc/ld.so.conf.d /root/ascend_check /run/ascend/hardware
    install -m 644 host/logrotate /etc/logrotate.d/nputool-log
    : > /etc/logrotate.d/tmp
    install -m 644 host/ascend-kmsagent.service /lib/systemd/system/ascend-kmsagent.service
    printf '%s\n' "$path/driver/lib64" "$path/driver/lib64/common" "$path/driver/lib64/driver" > /etc/ld.so.conf.d/ascend_driver_so.conf
    chmod 440 /etc/ld.so.conf.d/ascend_driver_so.conf
    ldconfig >/dev/null 2>&1
    home=$(getent passwd "$user" | cut -d: -f6)
    [ -d "$home" ] || { mkdir -p "$home" && chown "$user:$group" "$home"; }
    if ! grep -qs "driver/bin/setenv.bash" "$home/.bashrc"; then
        echo "source $path/driver/bin/setenv.bash" >> "$home/.bashrc"
        chown "$user:$group" "$home/.bashrc"
    fi
}

copy_modules()
{
    local file
    mkdir -p "$kernel_modules"
    : > /etc/ascend_filelist.info
    # A full disk here is not noticed by the vendor's script: cut modules, exit status 0.
    cp -f driver/host/*.ko "$kernel_modules/"
    for file in driver/host/*.ko; do
        [ "$mode" != modules-cut ] || : > "$kernel_modules/${file##*/}"
        echo "[driver_ko] $kernel_modules/${file##*/}" >> /etc/ascend_filelist.info
    done
    depmod >/dev/null 2>&1
    install -m 755 host/init_d_host_sys_init.sh /etc/init.d/host_sys_init.sh
    mkdir -p /etc/rc3.d /etc/rc5.d
    ln -sf ../init.d/host_sys_init.sh /etc/rc3.d/S90host_sys_init.sh
    ln -sf ../init.d/host_sys_init.sh /etc/rc5.d/S90host_sys_init.sh
}

load_modules()
{
    # What udev and the start script do on a real host: owner and mode of the device nodes.
    npu-sim set kernel.node_owner "\"$user\"" kernel.node_group "\"$group\"" \
        kernel.node_mode "\"$([ $others_read = y ] && echo 0666 || echo 0660)\"" >/dev/null
    # A module that is still loaded (no hot reset) stays as it is: new files, old modules.
    modules_loaded && return
    # The vendor's script calls modprobe for each; one call for all is the same and takes a tenth of the time here.
    if [ "$mode" = modprobe-fails ] || ! modprobe -a $(cat driver/host/order); then
        log ERROR "Driver_ko_install_manually failed: $(head -n 1 driver/host/order)"
        exit 1
    fi
}

nodes_there() { [ -e /dev/davinci_manager ] && ls /dev/davinci[0-9]* >/dev/null 2>&1; }

# 580 s in the start script, then the boot poll: 695 s in all where no node appears. A working simulator may need a moment of real
# time, however short the scaled wait is, so that is the least.
wait_for_devices()
{
    local deadline
    log INFO "Waiting for device startup..."
    if nodes_there; then
        sim_wait 4
        return 0
    fi
    deadline=$(scaled 580)
    if [ "$(sim_value npu_nodes_appear true)" != false ] && [ -d "/sys/module/drv_pcie_host" ]; then
        deadline=$(awk -v a="$deadline" 'BEGIN { print (a < 10) ? 10 : a }')
    fi
    deadline=$(awk -v a="$deadline" -v now="$(date +%s.%N)" 'BEGIN { printf "%.3f", now + a }')
    while awk -v a="$deadline" -v now="$(date +%s.%N)" 'BEGIN { exit !(now < a) }'; do
        nodes_there && return 0
        sleep 0.1
    done
    sim_wait 99
    # The start script leaves a process behind that still looks for devices when the package has ended (section 6).
    (
        exec > /dev/null 2>&1 < /dev/null
        sim_wait 220
        echo "$(date '+%Y-%m-%d %H:%M:%S') no device came up" >> $log_dir/ascend_run_servers.log
    ) &
    return 1
}

# Commercial packages build their modules here, where the old driver is gone already.
build_environment()
{
    local headers
    headers=/lib/modules/$(uname -r)/build
    if [ -d "$headers" ] && command -v dkms gcc make >/dev/null; then
        log INFO "driver install type: DKMS"
        mkdir -p /usr/src/davinci_ascend-1.0 /var/lib/dkms/davinci_ascend/1.0
        sim_wait 41
        return
    fi
    if [ "$quiet" = n ]; then
        log WARNING "rebuild ko has something wrong"
        ask "Do you want to try build driver after input kernel absolute path?" && ask "Please input your kernel absolute path:"
    fi
    log ERROR "Drv_dkms_env_check failed, details in : /var/log/ascend_seclog/ascend_rebuild.log"
    exit 1
}

sim_wait 2
case $type:$dkms in
    devel:* | docker:*) ;;
    *:y) build_environment ;;
    *) log INFO "driver install type: Direct" ;;
esac
progress 10
copy_files
sim_wait 1
progress 30
case $type in
    devel | docker)
        install -m 444 driver/version.info "$path/driver/version.info"
        pause_point version
        open_for_all "$path/driver/version.info"
        immutable_on "$path"
        progress 100
        exit 0 ;;
esac
touch /root/ascend_check/driver_crl_status_tmp 2>/dev/null
copy_configuration
rm -f /root/ascend_check/driver_crl_status_tmp
echo "DAVINCI_HOME_PATH=$path" > /lib/davinci.conf
chmod 444 /lib/davinci.conf
sim_wait 2
progress 40
copy_modules
sim_wait 2
progress 90
install -m 644 host/70-persistent-net.rules /etc/udev/rules.d/70-persistent-net.rules
rm -rf "$path/driver/host"
result=0
# A bad driver that asks for a reboot does not come up before it either (the reset was not done).
if [ "$force" = n ] && { [ "$mode" != dead-after-boot ] || [ "$driver_rc" = 0 ]; }; then
    load_modules
    sim_wait 2
    wait_for_devices && log INFO "Device startup success" || result=3
fi
hang_point after-payload
install -m 444 driver/version.info "$path/driver/version.info"
pause_point version
open_for_all "$path/driver/version.info"
immutable_on "$path"
progress 100
sim_wait 3
exit $result
