#!/bin/sh
# Installs the C API: the header, the library (shared and static), and the pkg-config file.
#   install.sh PREFIX [BUILT]      BUILT: folder of the libraries; by default a release build
set -eu
if [ $# -lt 1 ]; then
    echo "usage: install.sh PREFIX [BUILT]" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
built=${2:-}
if [ -z "$built" ]; then
    (cd "$root" && "${CARGO:-cargo}" build --release -p airdma-c)
    built=${CARGO_TARGET_DIR:-$root/target}/release
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig"
cp "$here/include/airdma.h" "$prefix/include/"
cp "$built/libairdma_north.so" "$built/libairdma_north.a" "$prefix/lib/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/airdma.pc.in" >"$prefix/lib/pkgconfig/airdma.pc"
