#!/bin/sh
# Writes tests/rdma-core-65-layout.txt again: the sizes of structs, the offsets of fields and the
# values of constants that it names, as rdma-core's headers of release 65 have them. To record
# another name, add a line with any number.
#   regenerate-layout.sh INCLUDE   INCLUDE: the folder of infiniband/verbs.h and rdma/rdma_cma.h
set -eu
include=$(cd "$1" && pwd)
cd "$(dirname "$0")"
record=tests/rdma-core-65-layout.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
{
    for header in stddef.h stdio.h infiniband/verbs.h infiniband/sa.h rdma/rdma_cma.h rdma/ib_user_verbs.h rdma/ib_user_sa.h; do
        echo "#include <$header>"
    done
    echo 'int main(void) {'
    # A struct has a small name, a constant a large one.
    awk '!/^#/ { value = $1; name = $1; place = index(name, ".")
        if (place) value = "offsetof(struct " substr(name, 1, place - 1) ", " substr(name, place + 1) ")"
        else if (name ~ /^[a-z]/) value = "sizeof(struct " name ")"
        printf "printf(\"%s %%zu\\n\", (size_t)%s);\n", name, value }' "$record"
    echo 'return 0; }'
} >"$work/layout.c"
cc -I "$include" -o "$work/layout" "$work/layout.c"
{ grep '^#' "$record"; "$work/layout" | LC_ALL=C sort -u; } >"$work/record"
cp "$work/record" "$record"
