#!/bin/sh
# Before a removal, not before an upgrade. The first argument is "remove" of dpkg, or the number of
# versions that remain of rpm.
set -e
case "$1" in
remove | deconfigure | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now tidegate.service
	fi
	;;
esac
