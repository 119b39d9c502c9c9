#!/bin/bash
# Gets a passt that speaks vhost-user, for `ringside conform`: Debian 12's own is older.
# Usage: passt.sh       prints the path of the program
#   RINGSIDE_CACHE      where it is kept (as in deps.sh); the second time nothing is fetched
# In this order: the installed one, if it can; the cache; Debian's source package of a newer release, pinned in passt-pins.txt, built
# (a minute). Exit: 0, or 2 with one line that says why it cannot be had.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
say() { echo "passt: $*" >&2; }
cannot() { say "cannot be had here: $*"; exit 2; }
[ $# = 0 ] || { say "usage: passt.sh (no arguments)"; exit 2; }
works() { [ -x "$1" ] && "$1" --help 2>&1 </dev/null | grep -q -e '--vhost-user'; }
found() { echo "$1"; exit 0; }

installed=$(command -v passt || true)
[ -z "$installed" ] || ! works "$installed" || found "$installed"
cache=${RINGSIDE_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set, and neither is RINGSIDE_CACHE}/.cache}/ringside}
mkdir -p "$cache/passt" 2>/dev/null || true
[ -w "$cache/passt" ] || cannot "the cache folder $cache/passt cannot be written"
dest=$(cd "$cache/passt" && pwd)
! works "$dest/passt" || found "$dest/passt"
exec 8>"$dest/.passt.lock"
flock -w 900 8 || cannot "another run has held $dest/.passt.lock for 15 minutes"
! works "$dest/passt" || found "$dest/passt"

"$here/fetch-sources.sh" "$dest" "$here/passt-pins.txt" 8>&- >&2 || cannot "its source could not be fetched (line above)"
"$here/packages.sh" passt 8>&- >&2 || cannot "Debian packages are missing (line above)"
work=$dest/.work
rm -rf "$work"
mkdir "$work"
trap 'rm -rf "$work"' EXIT
read -r _ archive _ < <(grep -v '^#' "$here/passt-pins.txt")
tar -xf "$dest/$archive" -C "$work" --strip-components=1 --no-same-owner
make -C "$work" passt CFLAGS="-O2" >"$work/build.log" 2>&1 ||
    cannot "its source does not build: $(grep -m1 -i error "$work/build.log" || tail -n1 "$work/build.log")"
works "$work/passt" || cannot "what was built has no --vhost-user"
# Beside it lie variants for processors with AVX2, which it looks for by its own name.
cp "$work/passt" "$dest/passt.part" && mv "$dest/passt.part" "$dest/passt"
say "built from Debian's source package"
echo "$dest/passt"
