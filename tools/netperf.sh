#!/bin/bash
# Gets an unmodified netperf for tests and bench, without installing it (Debian's package starts a server).
# Usage: netperf.sh            prints the path of a netperf binary
#        netperf.sh --server   prints the path of a netserver binary, to run in another guest
#   NETPERF=PATH      use this one; the server is the netserver beside it, if there is one
#   RINGSIDE_CACHE    where it is kept (as in deps.sh); the second time nothing is fetched
# In this order: $NETPERF; the cache; one that is installed; Debian's package of this machine's release (bookworm has it
# in non-free) unpacked with dpkg -x; Debian's source package built, unmodified. From the archives that apt is set up with
# (archive.sh). Exit: 0, or 1 with one line per way that did not work.
#   NETPERF_FROM=package|source  that way only
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=archive.sh
. "$here/archive.sh"
say() { echo "netperf: $*" >&2; }
usage() { say "usage: netperf.sh [--server]"; exit 2; }
want=netperf
[ $# -le 1 ] || usage
case ${1:-} in
'') ;;
--server) want=netserver ;;
*) usage ;;
esac
works() { [ -x "$1" ] && "$1" -V 2>&1 </dev/null | grep -q '^Netperf version'; }
found() { echo "$1"; exit 0; }

if [ -n "${NETPERF:-}" ]; then
    works "$NETPERF" || { say "NETPERF=$NETPERF is no netperf that runs"; exit 1; }
    [ $want = netserver ] || found "$NETPERF"
    ! works "${NETPERF%/*}/netserver" || found "${NETPERF%/*}/netserver"
fi
cache=${RINGSIDE_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set, and neither is RINGSIDE_CACHE}/.cache}/ringside}
dest=$cache/netperf
mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
exec 9>"$dest/.netperf.lock"
flock -w 1200 9 || { say "another run has held $dest/.netperf.lock for 20 minutes"; exit 1; }
! works "$dest/$want" || found "$dest/$want"
installed=$(command -v $want || true)
[ -z "$installed" ] || ! works "$installed" || found "$installed"

work=$dest/.work
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
keep() { # keep FOLDER HOW: both programs, client last: where it is, the other is
    local p
    for p in netserver netperf; do
        works "$1/$p" || return 1
        cp "$1/$p" "$dest/$p.part" && chmod 755 "$dest/$p.part" && mv "$dest/$p.part" "$dest/$p"
    done
    say "$2: $("$dest/netperf" -V 2>&1 | grep -m1 version)"
    found "$dest/$want"
}

by_package() { # Debian's package, from an archive that has it
    local base state=$work/apt
    command -v dpkg >/dev/null || { say "no dpkg here"; return 1; }
    archive_bases || { say "$archive_why"; return 1; }
    for base in "${archive_list[@]}"; do
        if archive_open "$state" deb "$base" "$archive_codename" "main non-free" && archive_run "$state" apt-get -q download netperf &&
            dpkg -x "$state"/dl/netperf_*.deb "$work/package"; then
            keep "$work/package/usr/bin" "Debian's package of $archive_codename, unpacked" || archive_why="its programs do not run"
        fi
    done
    say "Debian's package could not be had: $archive_why"
    return 1
}

by_source() {
    local archive=$dest/netperf_2.7.0+git20210121.3bc455b+ds.orig.tar.xz
    "$here/fetch-sources.sh" "$dest" "$here/netperf-pins.txt" 9>&- || return 1
    "$here/packages.sh" netperf 9>&- || { say "to build netperf's source, packages are missing (line above)"; return 1; }
    mkdir -p "$work/source"
    tar -xf "$archive" -C "$work/source" --strip-components=1 --no-same-owner
    if ! (cd "$work/source" && ./autogen.sh && ./configure --enable-demo && make CFLAGS="-O2 -fcommon") \
        >"$work/build.log" 2>&1; then
        say "its source does not build: $(grep -m1 -i error "$work/build.log" || tail -n1 "$work/build.log")"
        return 1
    fi
    keep "$work/source/src" "built from Debian's source package"
}

case ${NETPERF_FROM:-any} in
package) by_package || true ;;
source) by_source || true ;;
any) by_package || by_source || true ;;
*) say "NETPERF_FROM=$NETPERF_FROM: valid are package, source"; exit 2 ;;
esac
say "there is no netperf client here"
exit 1
