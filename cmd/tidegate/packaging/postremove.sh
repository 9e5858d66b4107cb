#!/bin/sh
# After a removal. The data in /var/lib/tidegate and the user stay.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
