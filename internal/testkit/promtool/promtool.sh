set -e
dir=$(mktemp -d "$0/download-XXXXXX")
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -qq prometheus || {
	if [ "$(id -u)" = 0 ]; then apt-get update -qq; else sudo -n apt-get update -qq; fi
	apt-get download -qq prometheus
}
dpkg-deb -x prometheus_*.deb files
mv files/usr/bin/promtool "$0/"
