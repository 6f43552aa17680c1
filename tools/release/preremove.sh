#!/bin/sh
# dpkg says remove, rpm says 0; an upgrade leaves the service running.
if [ -d /run/systemd/system ] && { [ "$1" = remove ] || [ "$1" = 0 ]; }; then
	systemctl disable --now effectonce-relay.service || true
fi
