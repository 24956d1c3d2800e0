#!/usr/bin/env bash
# Builds Citus from its source for the installed Postgres, once, and prints the folder of the server's
# programs. The folder is a copy of the installed Postgres, to which Citus is added: the installed Postgres
# stays unchanged. Needs a C compiler and Postgres's headers; as root, the script installs them with apt-get,
# if that changes no installed package. On a machine of CI (CI=true), it may change all but Postgres.
#
#   build.sh citus-13.2.2.tar.xz
set -euo pipefail

archive=$1
[ -f "$archive" ] || { echo "$archive: no such file: it must be the source of Citus" >&2; exit 1; }
bin=${PG_BINDIR:-$(ls -d /usr/lib/postgresql/*/bin | sort -V | tail -n 1)}
major=$("$bin/postgres" --version | grep -oE '[0-9]+' | head -n 1)
# Not in the checkout, because the account that runs the server may be unable to read that.
cache=${CITUS_CACHE:-/var/tmp/pg-ratelimit-citus}/$major-$(sha256sum <"$archive" | cut -c 1-12)
if [ -f "$cache/built" ]; then
	echo "$cache$bin"
	exit
fi
{
	if [ ! -f "$("$bin/pg_config" --includedir-server)/postgres.h" ] && [ "$(id -u)" = 0 ]; then
		# The newest headers would upgrade libpq and the server.
		version() { dpkg-query -W -f '${Version}' "$1"; }
		packages="postgresql-server-dev-$major=$(version "postgresql-$major") libpq-dev=$(version libpq5)
			gcc make flex xz-utils liblz4-dev libzstd-dev libicu-dev libkrb5-dev libselinux1-dev libxslt1-dev
			libpam0g-dev libssl-dev libxml2-dev libreadline-dev"
		apt-get update -q
		# apt-get names the old version of a package that it would change in brackets.
		plan=$(apt-get install -sqy --no-upgrade --no-install-recommends $packages)
		changed=$(sed -nE 's/^(Inst ([^ ]+) \[|Remv ([^ ]+) ).*/\2\3/p' <<<"$plan" | xargs)
		# A machine of CI is thrown away: there, only Postgres itself stays as it is.
		if [ "${CI:-}" = true ]; then
			changed=$(tr ' ' '\n' <<<"$changed" | grep -E '^(postgresql|libpq)' | xargs || true)
		fi
		if [ -n "$changed" ]; then
			echo "apt-get would change installed packages ($changed). Install by hand:" $packages
			exit 1
		fi
		apt-get install -qy --no-upgrade --no-install-recommends $packages
	fi
	# If the headers are newer than the server, Citus can call functions that the server lacks, and then the
	# server crashes.
	server=$("$bin/postgres" --version | grep -oE '[0-9]+(\.[0-9]+)?' | head -n 1)
	headers=$(sed -n 's/^#define PG_VERSION "\([0-9.]*\).*/\1/p' "$("$bin/pg_config" --includedir-server)/pg_config.h")
	if [ "$server" != "$headers" ] && [ "$(printf '%s\n' "$server" "$headers" | sort -V | tail -n 1)" = "$headers" ]; then
		echo "the headers of Postgres $headers are newer than its server $server: install the same version of postgresql-$major and postgresql-server-dev-$major"
		exit 1
	fi
	rm -rf "$cache" && mkdir -p "$cache/source"
	tar -xf "$archive" -C "$cache/source" --strip-components 1
	# Postgres finds its files by their place relative to its programs, so both folders keep their places.
	for folder in "$(dirname "$bin")" "$("$bin/pg_config" --sharedir)"; do
		mkdir -p "$cache$(dirname "$folder")"
		cp -a "$folder" "$cache$folder"
	done
	cd "$cache/source"
	# Citus defines a function of this name, and so do the latest versions of Postgres.
	if grep -rqs have_createdb_privilege "$("$bin/pg_config" --includedir-server)"; then
		sed -i 's/have_createdb_privilege(void)/citus_have_createdb_privilege(void)/' src/include/pg_version_compat.h
	fi
	./configure --quiet --without-libcurl --with-extra-version= PG_CONFIG="$bin/pg_config"
	nice make -j2 -s with_llvm=no # no bitcode for the JIT, which takes as long again
	make -s install with_llvm=no DESTDIR="$cache"
	cd / && rm -rf "$cache/source" && touch "$cache/built"
} >&2
echo "$cache$bin"
