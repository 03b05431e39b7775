#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Inner script of the simulated Ascend Docker Runtime package ("Ascend Docker Runtime" fact sheet, sections 1-3; options by version:
# "Ascend packages" fact sheet, section 2.5). It restarts no engine; it only asks for it.
cd "$(dirname "$0")" || exit 1
. ./package.conf
. ./common.sh
. ./engine.sh

run_file=$(basename "${1#--}")
shift 2

die()
{
    tell ERROR "$1"
    exit 1
}

action= path=/usr/local/Ascend type= scene=docker file=
for word in "$@"; do
    case $word in
        --quiet | --check) ;;
        --install | --uninstall | --upgrade)
            [ -z "$action" ] || die "only one of install, uninstall, upgrade can be given, and only once"
            action=${word#--} ;;
        --version)
            echo "$version"
            exit 0 ;;
        --install-path=*) path=${word#*=} ;;
        --install-type=*) type=${word#*=} ;;
        --install-scene=*) scene=${word#*=} ;;
        --config-file-path=*) file=${word#*=} ;;
    esac
done
[ -n "$action" ] || case " $* " in
    *" --check "*)
        tell WARNING "--check looks at the archive only"
        exit 0 ;;
    *) die "one of install, uninstall, upgrade is needed" ;;
esac
[ "$(id -u)" -eq 0 ] || die "this package needs the root user"
runtime_log_open

# From 26.1.0 on: a licence that --quiet does not accept. N ends with status 0 and nothing installed; without stdin it asks for ever.
if [ "$licence_prompt" = y ]; then
    while true; do
        echo "Do you accept the licence of Ascend Docker Runtime? [Y/N]"
        read -r answer || { answer=; sleep 0.02; }
        case $answer in
            Y | y) break ;;
            N | n)
                tell INFO "licence not accepted"
                exit 0 ;;
        esac
    done
fi

case $scene in
    docker | containerd | isula) ;;
    *) die "install-scene $scene is not known" ;;
esac
case $type in
    '' | A500 | A500A2 | A200 | A200ISoC | A200IA2) ;;
    *) die "install-type $type is not known" ;;
esac
case $run_file in
    *"$(uname -m)"*) ;;
    *) die "the name of the package does not contain $(uname -m)" ;;
esac
case $path in
    /*) ;;
    *) die "install-path must be absolute" ;;
esac
folder=$path/Ascend-Docker-Runtime
trusted_path "$folder" || die "$folder: each folder must belong to root, be no link, and be writable for root only"

if [ "$action" = uninstall ]; then
    if [ ! -d "$folder" ]; then
        tell WARNING "ascend-docker-runtime is not installed"
        exit 0
    fi
    exec "$folder/script/uninstall.sh" "$scene" "$scene" "$file"
fi

runc=$(command -v docker-runc || command -v runc) || die "neither docker-runc nor runc is in PATH"
[ "$(stat -L -c %u "$runc")" -eq 0 ] || die "$runc does not belong to root"
if [ "$action" = upgrade ] && { [ ! -d "$folder" ] || [ ! -d /etc/ascend-docker-runtime.d ]; }; then
    die "ascend-docker-runtime is not installed, upgrade is not possible"
fi
if [ "$mode" = error-text ]; then
    tell ERROR "ascend-docker-runtime $action failed"
    exit 0
fi
if [ "$mode" = nothing ]; then
    tell INFO "ascend-docker-runtime $action success"
    exit 0
fi

if [ "$action" = install ]; then
    if [ -n "$file" ]; then
        [ -f "$file" ] || die "$file does not exist"
    else
        file=$(default_engine_file "$scene")
        if [ ! -e "$file" ]; then
            mkdir -p "$(dirname "$file")"
            if [ "$scene" = containerd ]; then
                containerd config default > "$file" || die "containerd config default failed"
            else
                echo '{}' > "$file"
            fi
        fi
    fi
    trusted_path "$file" || die "$file must belong to root, be no link, and be writable for root only"
fi

hang_point before-payload
pause_point start
sim_wait 1
mkdir -p -m 755 "$path"
rm -rf "$folder"
pause_point 10
mkdir -m 750 "$folder" "$folder/script" "$folder/assets"
install -m 550 bin/* "$folder/" || die "copy failed"
pause_point 30
install -m 500 uninstall.sh "$folder/script/uninstall.sh"
install -m 440 engine.sh "$folder/script/engine.sh"
install -m 640 README "$folder/README"
mkdir -p /etc/ascend-docker-runtime.d
chmod 750 /etc/ascend-docker-runtime.d
install -m 440 "lists/base.list${type:+_$type}" /etc/ascend-docker-runtime.d/base.list
pause_point 40
sim_wait 1
hang_point after-payload
pause_point 90

answer_for() { [ "$type" = "$1" ] && echo y || echo n; }
{
    echo "version=v$version"
    echo "arch=$(uname -m)"
    echo "os=linux"
    echo "path=$folder"
    echo "build=Ascend-docker-runtime_$version-$(uname -m)"
    echo "a500=$(answer_for A500)"
    echo "a500a2=$(answer_for A500A2)"
    echo "a200=$(answer_for A200)"
    echo "a200isoc=$(answer_for A200ISoC)"
    echo "a200ia2=$(answer_for A200IA2)"
    echo "install-scene=$scene"
    echo "config-file-path=$file"
} > "$folder/ascend_docker_runtime_install.info"
chmod 640 "$folder/ascend_docker_runtime_install.info"
pause_point version
if [ "$action" = install ]; then
    change_engine_file add "$file" "$scene" "$folder" || die "ascend-docker-runtime install failed: $file can not be changed"
fi
pause_point status
tell INFO "ascend-docker-runtime $action success"
pause_point end
echo "[INFO] restart $scene to let it take effect"
exit 0
