set -e
conf=/etc/postgresql-common/createcluster.conf policy=/usr/sbin/policy-rc.d ours=
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
trap '[ ! -e "$conf.before" ] || mv -f "$conf.before" "$conf"; [ -z "$ours" ] || rm -f "$policy"' EXIT
if [ ! -e "$policy" ]; then
	ours=yes
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
apt-get update -q
for package in "$@"; do
	if [ -f "$conf" ]; then
		[ -e "$conf.before" ] || cp -p "$conf" "$conf.before"
		sed -i -E 's/^#? *create_main_cluster *=.*$/create_main_cluster = false/' "$conf"
	fi
	apt-get install -q -y --no-install-recommends -o DPkg::Lock::Timeout=300 "$package"
done
