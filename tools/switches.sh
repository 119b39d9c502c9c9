#!/bin/bash
# Gets two vhost-user switches for `ringside conform`, without installing them (Debian's package of Open vSwitch starts daemons):
# DPDK's testpmd, and Open vSwitch with DPDK.
# Usage: switches.sh    prints the folder that has dpdk-testpmd, ovs-vswitchd, ovsdb-server, ovsdb-tool, ovs-vsctl, pmds/ (DPDK's
#                       drivers, for its option -d) and vswitch.ovsschema
#   RINGSIDE_CACHE      where it is kept (as in deps.sh); the second time nothing is fetched
# Debian's packages of this machine's release, 15 MB, downloaded from the archives that apt is set up with (archive.sh) and unpacked
# with dpkg -x. Libraries that are installed are not fetched. Exit: 0, or 2 with one line that says why they cannot be had.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=archive.sh
. "$here/archive.sh"
say() { echo "switches: $*" >&2; }
cannot() { say "cannot be had here: $*"; exit 2; }
[ $# = 0 ] || { say "usage: switches.sh (no arguments)"; exit 2; }

works() { # works FOLDER: the programs find their libraries
    local p
    [ -e "$1/complete" ] || return 1
    for p in ovs-vswitchd ovsdb-server ovs-vsctl; do "$1/$p" --version >/dev/null 2>&1 </dev/null || return 1; done
    "$1/dpdk-testpmd" --help 2>&1 </dev/null | grep 'EAL common options' >/dev/null
}
found() { echo "$1"; exit 0; }

cache=${RINGSIDE_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set, and neither is RINGSIDE_CACHE}/.cache}/ringside}
mkdir -p "$cache" 2>/dev/null || true
[ -w "$cache" ] || cannot "the cache folder $cache cannot be written"
dest=$(cd "$cache" && pwd)/switches
! works "$dest" || found "$dest"
exec 9>"$dest.lock"
flock -w 900 9 || cannot "another run has held $dest.lock for 15 minutes"
! works "$dest" || found "$dest"

[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || cannot "it needs a Debian machine with dpkg, amd64"
[ -n "$archive_codename" ] || cannot "/etc/os-release does not name the release"
tmp=$(mktemp -d "$dest-new.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

# resolved STATE PACKAGE...: downloads these and what they depend on, except what is installed.
resolved() {
    local state=$1
    shift
    mkdir -p "$state/dl/partial"
    archive_run "$state" apt-get -q -y --no-install-recommends --download-only -o Dir::State::status=/var/lib/dpkg/status \
        -o Debug::NoLocking=1 -o Dir::Cache::archives="$state/dl" install "$@"
}

fetch() { # into $tmp/apt/dl; testpmd's own package comes without the headers that it wants beside it
    local base number libraries
    archive_bases || return 1
    for base in "${archive_list[@]}"; do
        archive_open "$tmp/apt" deb "$base" "$archive_codename" main || continue
        libraries=$(archive_apt "$tmp/apt" apt-cache depends dpdk-dev 2>/dev/null |
            awk '$1 == "Depends:" && $2 ~ /^(librte-|lib.*[0-9]$|ibverbs)/ {print $2}')
        number=$(sed -n 's/^librte-eal\([0-9]*\)$/\1/p' <<<"$libraries")
        [ -n "$number" ] || { archive_why="the archive has no dpdk-dev"; continue; }
        # shellcheck disable=SC2086  # one word each
        if resolved "$tmp/apt" openvswitch-switch-dpdk openvswitch-switch $libraries "librte-net-vhost$number" "librte-net-tap$number" \
            "librte-mempool-ring$number" && archive_run "$tmp/apt" apt-get -q download dpdk-dev; then
            return 0
        fi
    done
    return 1
}
say "fetching DPDK's testpmd and Open vSwitch (15 MB; they are unpacked into the cache, not installed)"
fetch || cannot "$archive_why"
new=$tmp/new
mkdir "$new"
for d in "$tmp"/apt/dl/*.deb; do
    dpkg-deb -x "$d" "$new" || cannot "${d##*/} does not unpack"
done
rm -rf "${new:?}"/{etc,var,usr/include,usr/share/{doc,man,lintian,bash-completion,python3,misc}} "$new"/usr/bin/dpdk-test{,-*}
mkdir "$new/pmds"
for d in "$new"/usr/lib/*/dpdk/pmds-*/librte_{net_vhost,net_tap,mempool_ring,bus_vdev}.so.*; do
    [[ $d != *.so.*.* ]] || ln -s "../${d#"$new/"}" "$new/pmds/"
done
wrap() { # wrap NAME PROGRAM ARGS
    # shellcheck disable=SC2016
    printf '#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\nexport LD_LIBRARY_PATH="$here/usr/lib/x86_64-linux-gnu"\nexec "$here/%s" %s"$@"\n' \
        "$2" "${3:-}" >"$new/$1"
    chmod 755 "$new/$1"
}
# shellcheck disable=SC2016
wrap dpdk-testpmd usr/bin/dpdk-testpmd '-d "$here/pmds" '
wrap ovs-vswitchd usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk
wrap ovsdb-server usr/sbin/ovsdb-server
wrap ovsdb-tool usr/bin/ovsdb-tool
wrap ovs-vsctl usr/bin/ovs-vsctl
cp "$new/usr/share/openvswitch/vswitch.ovsschema" "$new/"
chmod 755 "$new"
touch "$new/complete"
works "$new" || cannot "what $archive_codename has does not run here"
rm -rf "$dest"
mv -T "$new" "$dest"
say "made: $("$dest/ovs-vswitchd" --version | head -n1), $(du -sm "$dest" | cut -f1) MiB"
echo "$dest"
