#!/bin/bash
# setup.sh: makes sure that the nested-KVM lab is in the cache, and prints its folder on standard output.
#
# Exit status: 0 the lab is there; 77 it cannot be had on this machine (one line on standard error says why, tests
# skip with it); anything else is a fault. docs/nested-kvm.md says what the lab is.
#
# Two folders in ${RINGSIDE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ringside}:
#   kvmlab-parts-N  kernel, its modules and busybox from Debian's archive: the only thing that needs the network
#   kvmlab-KEY      what run() boots; KEY covers these scripts and the packages whose files go into it
# Each is made aside and renamed into place, under a lock; with both there nothing is fetched or built.
#
# KVMLAB_QEMU=installed|backports|plain picks the QEMU that emulates the machine (default: the first that works).
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${RINGSIDE_CACHE:-${XDG_CACHE_HOME:-${HOME:?}/.cache}/ringside}
parts=$cache/kvmlab-parts-1 # raise the number when other packages or modules are taken
want=${KVMLAB_QEMU:-installed backports plain}
qemu=/usr/bin/qemu-system-x86_64
sources=(setup.sh mklab.py init lib.sh labtool.c echocheck.c ../rslib/kvmlab.py)
# shellcheck source=/dev/null
release=$(. /etc/os-release 2>/dev/null && echo "${ID:-}-${VERSION_CODENAME:-}") || true

# shellcheck source-path=SCRIPTDIR source=../archive.sh
. "$root/tools/archive.sh"
say() { echo "kvmlab: $*" >&2; }
cannot() { echo "kvmlab: cannot be had here: $*" >&2; exit 77; }

[ "$release" = debian-bookworm ] || cannot "it is made from Debian 12 (debian-bookworm); this is ${release:-unknown}"
[ "$(dpkg --print-architecture)" = amd64 ] || cannot "it needs an amd64 machine"
"$root/tools/packages.sh" kvm >&2 || cannot "Debian packages are missing (line above)"
versions=$(dpkg-query -W -f '${Package} ${Version}\n' qemu-system-x86 qemu-system-data seabios libc6 libc6-dev gcc 2>/dev/null) ||
    cannot "it needs the packages qemu-system-x86, gcc and libc6-dev"
lab=$cache/kvmlab-$({ echo "$parts $want $versions"; cd "$here"; cat "${sources[@]}"; } | sha256sum | cut -c1-16)
there() { [ -e "$lab/complete" ] && { touch "$lab" 2>/dev/null || true; } && echo "$lab"; } # the touch: see the end
! there || exit 0

mkdir -p "$cache" 2>/dev/null || true
[ -w "$cache" ] || cannot "the cache folder $cache cannot be written"
exec 9>"$cache/kvmlab.lock"
flock -w 900 9 || { say "another setup has held $cache/kvmlab.lock for 15 minutes"; exit 1; }
! there || exit 0
tmp=$(mktemp -d "$cache/kvmlab-new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# fetch SUITE PACKAGE...: downloads into $tmp/debs; linux-image-cloud-amd64 stands for the kernel it depends on.
# On failure $archive_why says what was wrong.
fetch() {
    local suite=$1 archive p names state=$tmp/apt
    shift
    archive_bases || return 1
    for archive in "${archive_list[@]}"; do
        archive_open "$state" deb "$archive" "$suite" main || continue
        names=()
        for p in "$@"; do
            [ "$p" != linux-image-cloud-amd64 ] ||
                p=$(archive_apt "$state" apt-cache show "$p" | sed -n 's/^Depends: .*\(linux-image-[0-9][^ ,]*\).*/\1/p' | head -n1)
            names+=("$p")
        done
        if archive_run "$state" apt-get -q download "${names[@]}"; then
            rm -rf "$tmp/debs"
            mv "$state/dl" "$tmp/debs"
            say "fetched from $suite: ${names[*]}"
            return 0
        fi
    done
    return 1
}

# The network's part.
if [ ! -e "$parts/complete" ]; then
    fetch bookworm linux-image-cloud-amd64 busybox-static || cannot "$archive_why"
    for d in "$tmp"/debs/*.deb; do dpkg-deb -x "$d" "$tmp/root"; done
    "$here/mklab.py" parts "$tmp/root" "$tmp/parts"
    touch "$tmp/parts/complete"
    rm -rf "$parts"
    mv -T "$tmp/parts" "$parts"
    rm -rf "$tmp/debs" "$tmp/root"
fi

# The QEMU that emulates the AMD machine. Its SVM emulation has two faults that hang guests now and then (mklab.py);
# they are patched in a copy of the installed one or, where the places are not found, of backports' QEMU 10.
# Without that: a thread per processor, which makes the first one rare.
mkdir "$tmp/lab"
patch() { "$here/mklab.py" patch "$1" "$tmp/lab/qemu" || [ $? = 3 ] || exit 1; [ -e "$tmp/lab/qemu" ]; }
l0() { printf '#!/bin/sh\nexport QEMU_MODULE_DIR="%s"\nexec %s "$@"\n' "$1" "$2" >"$tmp/lab/l0"; }
picked=
for w in $want; do
    case $w in
    installed)
        patch $qemu || continue
        # shellcheck disable=SC2016  # for the script that l0 writes
        l0 /usr/lib/x86_64-linux-gnu/qemu '"${0%/*}/qemu" -L /usr/share/qemu -L /usr/share/seabios'
        echo single >"$tmp/lab/thread" ;;
    backports)
        fetch bookworm-backports qemu-system-x86 qemu-system-common qemu-system-data seabios ||
            { say "no QEMU from backports: $archive_why"; continue; }
        for d in "$tmp"/debs/*.deb; do dpkg-deb -x "$d" "$tmp/q"; done
        patch "$tmp/q/usr/bin/qemu-system-x86_64" || continue
        ! ldd "$tmp/lab/qemu" | grep -q 'not found' || continue
        mkdir "$tmp/lab/share"
        cp -L "$tmp"/q/usr/share/qemu/{pvh,linuxboot_dma,kvmvapic}.bin "$tmp"/q/usr/share/seabios/bios-256k.bin "$tmp/lab/share/"
        # shellcheck disable=SC2016
        l0 /nonexistent '"${0%/*}/qemu" -L "${0%/*}/share"'
        echo single >"$tmp/lab/thread" ;;
    plain)
        l0 /usr/lib/x86_64-linux-gnu/qemu $qemu
        echo multi >"$tmp/lab/thread" ;;
    *) say "KVMLAB_QEMU=$w: valid are installed, backports, plain"; exit 2 ;;
    esac
    picked=$w
    break
done
[ -n "$picked" ] || cannot "no QEMU that emulates the machine among: $want"
chmod +x "$tmp/lab/l0"
for c in labtool echocheck; do
    gcc -std=gnu17 -Os -Wall -Wextra -Werror -static -s -o "$tmp/$c" "$here/$c.c"
done
"$here/mklab.py" lab "$parts" "$tmp/lab/initrd" "$here/init" "$here/lib.sh" "$tmp/labtool" "$tmp/echocheck" $qemu
ln "$parts/vmlinux" "$tmp/lab/vmlinux" 2>/dev/null || cp "$parts/vmlinux" "$tmp/lab/vmlinux"
cp "$parts/kernel" "$tmp/lab/kernel"
touch "$tmp/lab/complete"
rm -rf "$lab"
mv -T "$tmp/lab" "$lab"
# What other versions of these scripts made, and nobody has used for a day, goes.
find "$cache" -maxdepth 1 -name 'kvmlab-*' ! -path "$parts" ! -path "$lab" ! -path "$tmp" -mmin +1440 -exec rm -rf {} +
say "made with $picked QEMU, kernel $(cat "$lab/kernel"), $(du -sm "$lab" | cut -f1) MiB"
echo "$lab"
