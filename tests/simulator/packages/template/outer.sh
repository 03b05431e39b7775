#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Simulated vendor package (makeself archive with the header of the NPU simulator). The lines up to the marker are shell, the
# rest is a compressed tar. Behaviour follows "driver package, measured", sections 1 (exit codes), 2 (outer options), 3.

label="@LABEL@"
words="@WORDS@"
size=@SIZE@
sha256=@SHA256@
skip=@SKIP@
unpacked_kib=@UNPACKED_KIB@
script="@SCRIPT@"
quiet=n
noexec=n
target=
inner=
original_umask=$(umask)
umask 077

say() { [ "$quiet" = y ] || printf '%s' "$1"; }

show_help()
{
    cat >&2 <<'HELP'
@HELP@
HELP
}

known()
{
    case " $words " in *" $1 "*) return 0 ;; esac
    return 1
}

quoted() { printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"; }

payload() { tail -c "+$(($(head -n "$skip" "$run_file" | wc -c) + 1))" "$run_file"; }

# rc 2 here has nothing to do with "reboot needed": a bad archive, nothing done, no line of the inner script.
verify()
{
    say "Verifying archive integrity..."
    found=$(($(wc -c < "$run_file") - $(head -n "$skip" "$run_file" | wc -c)))
    if [ "$found" -ne "$size" ]; then
        echo " Unexpected archive size." >&2
        exit 2
    fi
    [ "$quiet" = y ] || printf '     0%% \b\b\b\b\b\b\b\b 100%%  ' >&2
    sum=$(payload | sha256sum | cut -c1-64)
    if [ "$sum" != "$sha256" ]; then
        echo "Error in SHA256 checksums: $sum is different from $sha256" >&2
        exit 2
    fi
    [ "$quiet" = y ] || printf ' SHA256 checksums are OK.' >&2
    [ "$quiet" = y ] || echo " All good."
}

caught()
{
    echo "Signal caught, cleaning up" >&2
    [ -n "$target" ] || { cd / && rm -rf "$folder"; }
    exit 15
}

here=$(pwd -P 2>/dev/null) && [ -d "$here" ] || { echo "The current directory does not exist." >&2; exit 1; }
case $0 in
    /*) run_file=$0 ;;
    *) run_file=$here/$0 ;;
esac

while [ $# -gt 0 ]; do
    if ! known "${1%%=*}"; then
        echo "Unrecognized flag : $1" >&2
        show_help
        exit 1
    fi
    case $1 in
        -h | --help)
            show_help
            exit 0 ;;
        --info)
            echo "Identification: $label"
            echo "Target directory: @DIRECTORY@"
            echo "Uncompressed size: $unpacked_kib KB"
            echo "Compression: @COMPRESSION@"
            echo "Date of packaging: @DATE@"
            echo "Script run after extraction:"
            echo "     $script"
            exit 0 ;;
        --list)
            echo "Target directory: @DIRECTORY@"
            payload | gzip -cd | tar tvf -
            exit $? ;;
        --tar)
            shift
            operation=$1
            shift
            payload | gzip -cd | tar "$operation" - "$@"
            exit $? ;;
        -q | --quiet) quiet=y ;;
        --nox11) ;;
        --noexec) noexec=y ;;
        --extract=*) target=${1#*=} ;;
        *) inner="$inner $(quoted "$1")" ;;
    esac
    shift
done
[ "$quiet" = n ] || inner="--quiet $inner"

verify
if [ -n "$target" ]; then
    folder=$target
    mkdir -p "$folder" || exit 1
else
    # The vendor's header unpacks below HOME (not /tmp) where TMPDIR is unset.
    base=${TMPDIR:-${HOME:-$here}}
    folder=$base/selfgz$$$(od -An -N2 -tu2 /dev/urandom | tr -d ' ')
    mkdir "$folder" || { echo "Cannot create target directory $folder" >&2; exit 1; }
fi
say "Uncompressing $label"
trap caught 1 2 3 15

free_kib=$(df -kP "$folder" | awk 'END { print $4 }')
if [ "$free_kib" -lt "$unpacked_kib" ]; then
    echo >&2
    echo "Not enough space left in $(dirname "$folder") ($free_kib KB) to decompress $run_file ($unpacked_kib KB)" >&2
    exit 1
fi
if ! payload | gzip -cd | (cd "$folder" && umask "$original_umask" && tar xpf -); then
    echo "Unable to decompress $run_file" >&2
    exit 1
fi
[ "$quiet" = y ] || echo
rc=0
if [ "$noexec" = n ]; then
    cd "$folder" || exit 1
    umask "$original_umask"
    eval "set -- $inner"
    # $run_file is not quoted: the vendor's header breaks on a blank in the file name, and so does this one.
    # The shell runs a trap only after this child has ended: TERM to this process waits for the whole installation.
    "$script" --$run_file "--$here" "$@"
    rc=$?
fi
[ -n "$target" ] || { cd / && rm -rf "$folder"; }
exit $rc
