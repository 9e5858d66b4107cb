#!/bin/sh
# After the installation or an upgrade, of deb and rpm: the user, the owner of the configuration, and
# a restart of a broker that runs. A new broker is not started.
set -e
if command -v systemd-sysusers >/dev/null 2>&1; then
	systemd-sysusers tidegate.conf
elif ! getent passwd tidegate >/dev/null 2>&1; then
	useradd --system --user-group --home-dir /var/lib/tidegate --shell /usr/sbin/nologin tidegate
fi
# Access keys can have their secrets in this file.
chown root:tidegate /etc/tidegate /etc/tidegate/tidegate.yaml
chmod 0750 /etc/tidegate
chmod 0640 /etc/tidegate/tidegate.yaml
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart tidegate.service
fi
