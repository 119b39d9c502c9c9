#!/bin/bash
# Gets QEMU 10 or later for tests and bench, beside an older one that is installed, without installing it.
# Usage: qemu10.sh      prints the path of a program to use as qemu-system-x86_64
#   RINGSIDE_CACHE      where it is kept (as in deps.sh); the second time nothing is fetched
# In this order: the installed one, if it is new enough; the cache; the packages of this release's backports, downloaded from the
# archives that apt is set up with (archive.sh) and unpacked with dpkg -x. Their program looks for its files in the places of an
# installed one, so what is printed is a script that tells it where they are. Its libraries are those of the installed QEMU.
# Exit: 0, or 2 with one line that says why it cannot be had.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=archive.sh
. "$here/archive.sh"
say() { echo "qemu10: $*" >&2; }
cannot() { say "cannot be had here: $*"; exit 2; }
[ $# = 0 ] || { say "usage: qemu10.sh (no arguments)"; exit 2; }
least=10
name=qemu-system-x86_64

works() { # works PROGRAM: it runs, and is new enough
    local v
    v=$("$1" --version 2>/dev/null </dev/null | sed -n 's/^QEMU emulator version \([0-9]*\)\..*/\1/p') && [ "${v:-0}" -ge $least ]
}
found() { echo "$1"; exit 0; }

installed=$(command -v $name || true)
[ -z "$installed" ] || ! works "$installed" || found "$installed"
cache=${RINGSIDE_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set, and neither is RINGSIDE_CACHE}/.cache}/ringside}
mkdir -p "$cache" 2>/dev/null || true
[ -w "$cache" ] || cannot "the cache folder $cache cannot be written"
dest=$(cd "$cache" && pwd)/qemu10
[ ! -e "$dest/complete" ] || ! works "$dest/$name" || found "$dest/$name" # it comes into place whole, so without the lock
exec 9>"$dest.lock"
flock -w 900 9 || cannot "another run has held $dest.lock for 15 minutes"
[ ! -e "$dest/complete" ] || ! works "$dest/$name" || found "$dest/$name"

[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || cannot "it needs a Debian machine with dpkg, amd64"
[ -n "$archive_codename" ] || cannot "/etc/os-release does not name the release"
tmp=$(mktemp -d "$dest-new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
suite=$archive_codename-backports
packages=(qemu-system-x86 qemu-system-common qemu-system-data seabios)

fetch() { # into $tmp/apt/dl
    local base
    archive_bases || return 1
    for base in "${archive_list[@]}"; do
        if archive_open "$tmp/apt" deb "$base" "$suite" main && archive_run "$tmp/apt" apt-get -q download "${packages[@]}"; then
            return 0
        fi
    done
    return 1
}
fetch || cannot "$suite: $archive_why"
mkdir "$tmp/new"
for d in "$tmp"/apt/dl/*.deb; do
    dpkg-deb -x "$d" "$tmp/new" || cannot "${d##*/} does not unpack"
done
missing=$(ldd "$tmp/new/usr/bin/$name" 2>/dev/null | awk '/not found/ {printf "%s ", $1}') || true
[ -z "$missing" ] || cannot "libraries are missing that come with the installed QEMU: $missing"
rm -rf "$tmp/new/usr/share/"{doc,man,lintian,bash-completion} "$tmp/new/etc"
cat >"$tmp/new/$name" <<'S'
#!/bin/sh
here=${0%/*}
export QEMU_MODULE_DIR="$here/usr/lib/x86_64-linux-gnu/qemu"
exec "$here/usr/bin/qemu-system-x86_64" -L "$here/usr/share/qemu" -L "$here/usr/share/seabios" -L /usr/lib/ipxe/qemu "$@"
S
chmod 755 "$tmp/new" "$tmp/new/$name"
works "$tmp/new/$name" || cannot "$suite has $("$tmp/new/$name" --version 2>&1 | head -n1), which does not run or is older than $least"
touch "$tmp/new/complete"
rm -rf "$dest"
mv -T "$tmp/new" "$dest"
say "made from $suite: $("$dest/$name" --version | head -n1), $(du -sm "$dest" | cut -f1) MiB"
echo "$dest/$name"
