# SPDX-License-Identifier: GPL-3.0-or-later
# makeself sources this file instead of its own header (`makeself --header`). It is sourced twice: the first time only to count
# lines, so the number of lines must not depend on the values. $NPU_SIM_OUTER is template/outer.sh, already filled by build.py.
sed -e "s|@SHA256@|$SHAsum|" -e "s|@SIZE@|$totalsize|" -e "s|@SKIP@|${SKIP:-0}|" -e "s|@UNPACKED_KIB@|$USIZE|" \
    -e "s|@COMPRESSION@|$COMPRESS|" -e "s|@SCRIPT@|$SCRIPT|" -e "s|@DATE@|$DATE|" -e "s|@DIRECTORY@|$archdirname|" \
    "$NPU_SIM_OUTER" > "$archname"
