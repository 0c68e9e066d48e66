#!/bin/sh
# Installs the C API: the header, the library (shared and static), and the pkg-config file.
#   install.sh PREFIX [BUILT]      BUILT: folder of the libraries; by default a release build
# DESTDIR: folder that stands for the root. LIBDIR: folder of libraries in PREFIX, `lib` by default.
set -eu
if [ $# -lt 1 ]; then
    echo "usage: install.sh PREFIX [BUILT]" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
libdir=${LIBDIR:-lib}
into=${DESTDIR:-}$1
mkdir -p "$into/include" "$into/$libdir/pkgconfig"
prefix=$1
[ -n "${DESTDIR:-}" ] || prefix=$(cd "$1" && pwd)
built=${2:-}
if [ -z "$built" ]; then
    (cd "$root" && "${CARGO:-cargo}" build --release -p airdma-c)
    built=${CARGO_TARGET_DIR:-$root/target}/release
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
cp "$here/include/airdma.h" "$into/include/"
# Programs are linked by the plain name, and load the one with the number of the ABI.
cp "$built/libairdma_north.so" "$into/$libdir/libairdma_north.so.0"
ln -sf libairdma_north.so.0 "$into/$libdir/libairdma_north.so"
cp "$built/libairdma_north.a" "$into/$libdir/"
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" "$here/airdma.pc.in" \
    >"$into/$libdir/pkgconfig/airdma.pc"
