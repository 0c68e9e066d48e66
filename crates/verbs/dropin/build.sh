#!/bin/sh
# Links the drop-in directory for LD_LIBRARY_PATH: libibverbs.so.1 and librdmacm.so.1 (and both
# without the 1), all the same file, with the versions that rdma-core gives its symbols, for hosts
# without rdma-core and for programs that ask dlvsym(3) for a version. From the same code as
# libairdma.so. The loader knows a file by its inode, so a program that links both libraries loads
# one.
#   [PROFILE=dev] build.sh [OUT]        OUT: the folder, by default target/release/dropin
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
profile=${PROFILE:-release}
folder=$profile
[ "$profile" = dev ] && folder=debug
out=${1:-$target/$folder/dropin}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

(cd "$root" && "${CARGO:-cargo}" rustc --profile "$profile" -p airdma-verbs --crate-type staticlib)

# One version node after the other, each with its names, each inheriting the one before of the same
# library: RDMACM_1.1 follows RDMACM_1.0, never an IBVERBS node.
awk '!/^#/ { if (!($1 in names)) order[++count] = $1; names[$1] = names[$1] " " $2 ";" }
    END { for (i = 1; i <= count; i++) { node = order[i]; library = node; sub(/_[^_]*$/, "", library)
        printf "%s { global:%s }%s;\n", node, names[node], (library in last ? " " last[library] : ""); last[library] = node } }' \
    "$here/versions.txt" >"$work/versions"
# What is exported: those names, and the C library's functions that are interposed, which stay
# without a version.
awk '!/^#/ { print $2 }' "$here/versions.txt" >"$work/exported"
grep -v '^#' "$here/../tests/hooks.txt" >>"$work/exported"

for source in stubs rsockets; do
    cc -O2 -fPIC -Wall -Wextra -Werror -Wno-builtin-declaration-mismatch -c -o "$work/$source.o" "$here/$source.c"
done
# They are known by their versioned names alone.
objcopy --wildcard --localize-symbol='stub_*' "$work/stubs.o"
ld -r -o "$work/whole.o" --whole-archive "$target/$folder/libairdma.a" --no-whole-archive
objcopy --keep-global-symbols="$work/exported" "$work/whole.o"
mkdir -p "$out"
cc -shared -o "$work/libibverbs.so.1" "$work/whole.o" "$work/stubs.o" "$work/rsockets.o" -Wl,--gc-sections \
    -Wl,--version-script="$work/versions" -Wl,-soname,libibverbs.so.1 -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
# In one step: programs that run have the old file mapped. Another build may do the same.
install -m 755 "$work/libibverbs.so.1" "$out/libibverbs.so.1.$$"
mv "$out/libibverbs.so.1.$$" "$out/libibverbs.so.1"
for name in libibverbs.so librdmacm.so.1 librdmacm.so; do
    ln -sf libibverbs.so.1 "$out/$name"
done
echo "$out"
