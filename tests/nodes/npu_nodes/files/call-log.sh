#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# sshd's ForceCommand on a node: writes one line per remote execution (command, subsystem or login), then does what was asked.
# Line: TIME USER KIND COMMAND, with control characters of the command turned into blanks.
command=${SSH_ORIGINAL_COMMAND-}
case $command in
'') kind=login ;;
*/sftp-server | */sftp-server\ *) kind=sftp ;;
*) kind=exec ;;
esac
line=$(printf '%s' "$command" | tr '\000-\037' ' ' | cut -c1-2000)
printf '%s %s %s %s\n' "$(date +%Y-%m-%dT%H:%M:%S.%3N%z)" "$USER" "$kind" "$line" >>/var/log/node-calls.log
shell=${SHELL:-/bin/sh}
if [ "$kind" = login ]; then
    exec "$shell" -l
fi
exec "$shell" -c "$command"
