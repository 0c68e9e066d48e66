#!/usr/bin/env bash
# Gives a CI job RDMA devices: installs airdma, sets what its programs need, and says what is there.
#   setup.sh PACKAGE [SHA256]  PACKAGE: path or URL of airdma's package for Debian and Ubuntu.
# Root installs it, so a URL needs the checksum, which `make release` writes to SHA256SUMS.
# For runners of GitHub (action.yml) and GitLab (gitlab.yml), and others with apt and root or sudo.
set -euo pipefail
package=${1:?usage: setup.sh PACKAGE [SHA256]}
sum=${2:-}
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

case $package in
http://* | https://*)
    if [ -z "$sum" ]; then
        echo "setup.sh: $package is a download: give its SHA-256, too (in SHA256SUMS of the release)" >&2
        exit 2
    fi
    folder=$(mktemp -d)
    # apt's own user must be able to read it.
    chmod 755 "$folder"
    curl --fail --silent --show-error --location --retry 3 --output "$folder/airdma.deb" "$package"
    package=$folder/airdma.deb
    ;;
esac
if [ ! -f "$package" ]; then
    echo "setup.sh: $package is not a file" >&2
    exit 2
fi
if [ -n "$sum" ] && ! echo "$sum  $package" | sha256sum --check --status; then
    echo "setup.sh: the SHA-256 of $package is not $sum: it is not installed" >&2
    exit 2
fi
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$(realpath "$package")"

# For `airdma link`, which makes two hosts; Ubuntu's runners forbid it to users. Containers may not
# change the kernel's settings, and loopback needs none of them.
for setting in kernel.apparmor_restrict_unprivileged_userns=0 net.core.rmem_max=4194304; do
    as_root sysctl -q -w "$setting" 2>/dev/null || echo "setup.sh: $setting stays as it is"
done

export AIRDMA_LOOPBACK=1
# Later steps of a job of GitHub's have what is in this file.
if [ -n "${GITHUB_ENV:-}" ]; then
    echo "AIRDMA_LOOPBACK=1" >>"$GITHUB_ENV"
fi
airdma devices
airdma doctor || {
    echo "setup.sh: airdma will not work here: see the lines that begin with \`bad\`" >&2
    exit 1
}
