#!/bin/bash
# setup.sh: makes sure that the Linux guest the bench compares with is in the cache, and prints its folder on standard
# output: vmlinux, initrd, kernel (its version). Debian's kernel as linux-image-amd64 has it, unpacked, not installed.
#
# Exit status: 0 it is there; 77 it cannot be had on this machine (one line on standard error says why); anything else is
# a fault. Two folders in ${RINGSIDE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ringside}:
#   linuxguest-parts-N  what is used of the packages: the only thing that needs the network
#   linuxguest-KEY      what boots; KEY covers these scripts and netserver
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${RINGSIDE_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/ringside}
# shellcheck source-path=SCRIPTDIR source=../archive.sh
. "$root/tools/archive.sh"
parts=$cache/linuxguest-parts-1 # raise the number when other packages or modules are taken
# shellcheck source=/dev/null
release=$(. /etc/os-release 2>/dev/null && echo "${ID:-}-${VERSION_CODENAME:-}") || true

say() { echo "linuxguest: $*" >&2; }
cannot() { echo "linuxguest: cannot be had here: $*" >&2; exit 77; }

[ "$release" = debian-bookworm ] || cannot "it is made from Debian 12 (debian-bookworm); this is ${release:-unknown}"
[ "$(dpkg --print-architecture)" = amd64 ] || cannot "it needs an amd64 machine"
netserver=$("$root/tools/netperf.sh" --server) || cannot "there is no netserver (lines above)"
guest=$cache/linuxguest-$(cat "$here"/{setup.sh,mkguest.py,init} "$here/../kvmlab/mklab.py" "$netserver" | sha256sum | cut -c1-16)
there() { [ -e "$guest/complete" ] && { touch "$guest" 2>/dev/null || true; } && echo "$guest"; } # the touch: see the end
! there || exit 0

mkdir -p "$cache" 2>/dev/null || true
[ -w "$cache" ] || cannot "the cache folder $cache cannot be written"
exec 9>"$cache/linuxguest.lock"
flock -w 900 9 || { say "another set-up has held $cache/linuxguest.lock for 15 minutes"; exit 1; }
! there || exit 0
tmp=$(mktemp -d "$cache/linuxguest-new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# The kernel that linux-image-amd64 depends on, and busybox, into $tmp/apt/dl. On failure $archive_why says what was wrong.
fetch() {
    local base kernel state=$tmp/apt
    archive_bases || return 1
    for base in "${archive_list[@]}"; do
        archive_open "$state" deb "$base" "$archive_codename" main || continue
        kernel=$(archive_apt "$state" apt-cache show linux-image-amd64 | sed -n 's/^Depends: .*\(linux-image-[0-9][^ ,]*\).*/\1/p' | head -n1)
        say "fetching $kernel (70 MB) and busybox-static"
        archive_run "$state" apt-get -q download "$kernel" busybox-static && return 0
    done
    return 1
}

# Of a kernel's package, 400 MB unpacked, only this is taken.
wanted=('./boot/vmlinuz-*' './bin/busybox' './lib/modules/*/kernel/drivers/virtio/*' './lib/modules/*/kernel/net/core/*'
    './lib/modules/*/kernel/drivers/net/virtio_net.ko' './lib/modules/*/kernel/drivers/net/net_failover.ko')
if [ ! -e "$parts/complete" ]; then
    fetch || cannot "$archive_why"
    mkdir "$tmp/parts"
    for d in "$tmp"/apt/dl/*.deb; do
        dpkg-deb --fsys-tarfile "$d" | tar -x -C "$tmp/parts" --no-same-owner --wildcards "${wanted[@]}" 2>/dev/null || true
    done
    touch "$tmp/parts/complete"
    rm -rf "$parts"
    mv -T "$tmp/parts" "$parts"
    rm -rf "$tmp/apt"
fi

"$here/mkguest.py" "$parts" "$tmp/guest" "$here/init" "$netserver"
touch "$tmp/guest/complete"
rm -rf "$guest"
mv -T "$tmp/guest" "$guest"
# What other versions of these scripts made, and nobody has used for a day, goes.
find "$cache" -maxdepth 1 -name 'linuxguest-*' ! -path "$parts" ! -path "$guest" ! -path "$tmp" -mmin +1440 -exec rm -rf {} +
say "made, kernel $(cat "$guest/kernel"), $(du -sm "$guest" | cut -f1) MiB"
echo "$guest"
