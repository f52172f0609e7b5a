#!/bin/sh
# Install what building and testing need, if something is missing (Debian, Ubuntu). Says nothing otherwise.
# --clang adds the second compiler, whose warnings `make check` looks at when it is there.
set -eu

packages=
if ! command -v gcc >/dev/null; then packages="$packages gcc libc6-dev"; fi
if ! command -v cmake >/dev/null; then packages="$packages cmake"; fi
if ! command -v make >/dev/null; then packages="$packages make"; fi
if ! command -v curl >/dev/null; then packages="$packages curl"; fi
if ! command -v pkg-config >/dev/null; then packages="$packages pkg-config"; fi

# library NAME PACKAGE: a library that pkg-config must know.
library() {
    if ! pkg-config --exists "$1" 2>/dev/null; then packages="$packages $2"; fi
}
library jansson libjansson-dev
library libpcre2-8 libpcre2-dev
library cmocka libcmocka-dev
library libmicrohttpd libmicrohttpd-dev

if [ "${1:-}" = --clang ] && ! command -v clang >/dev/null; then packages="$packages clang libomp-dev"; fi

[ -n "$packages" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "nibble needs (names as in Debian):$packages" >&2
    echo "Please install them with your system's package manager, then run this again." >&2
    exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "Missing packages:$packages" >&2
        echo "Installing them needs root or sudo, and neither is there." >&2
        exit 1
    fi
    as_root=sudo
fi
echo "installing:$packages"
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
# shellcheck disable=SC2086 # the list is meant to split
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages
