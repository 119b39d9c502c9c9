#!/bin/bash
# Gets an unmodified netperf for tests and bench, without installing it (Debian's package starts a server).
# Usage: netperf.sh            prints the path of a netperf binary
#        netperf.sh --server   prints the path of a netserver binary, to run in another guest
#   NETPERF=PATH      use this one; the server is the netserver beside it, if there is one
#   RINGSIDE_CACHE    where it is kept (as in deps.sh); the second time nothing is fetched
# In this order: $NETPERF; the cache; one that is installed; Debian's package of this machine's release (bookworm has it
# in non-free) unpacked with dpkg -x; Debian's source package built. No host is named: the archives are those that apt is
# set up with; apt's own state is not touched. Exit: 0, or 1 with one line per way that did not work.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
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

codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
keyring=
for k in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp}; do
    if [ -r "$k" ]; then
        keyring=$k
        break
    fi
done

package() { # package BASE: Debian's package from this archive, by a private apt
    local state=$work/apt
    rm -rf "$state"
    mkdir -p "$state"/{etc,lists/partial,cache/archives/partial,log,dl}
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main non-free\nSigned-By: %s\n' "$1" "$codename" "$keyring" \
        >"$state/etc/netperf.sources"
    cat >"$state/apt.conf" <<C
#clear APT::Update;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Invoke;
Dir::Etc::sourcelist "$state/etc/netperf.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::Etc::trusted "/dev/null";
Dir::Etc::trustedparts "/dev/null";
Dir::State "$state";
Dir::State::lists "$state/lists";
Dir::State::status "/dev/null";
Dir::Cache "$state/cache";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
Dir::Log "$state/log";
Acquire::Languages "none";
Acquire::PDiffs "false";
Acquire::Retries "3";
Acquire::http::Timeout "60";
Acquire::https::Timeout "60";
Acquire::AllowInsecureRepositories "false";
APT::Get::AllowUnauthenticated "false";
APT::Sandbox::User "root";
C
    LC_ALL=C timeout 600 apt-get -c "$state/apt.conf" -q update >"$state/log/update" 2>&1 &&
        (cd "$state/dl" && LC_ALL=C timeout 600 apt-get -c "$state/apt.conf" -q download netperf) >"$state/log/get" 2>&1 &&
        dpkg -x "$state"/dl/netperf_*.deb "$work/package" >"$state/log/unpack" 2>&1
}

by_package() {
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || { say "no apt and dpkg here"; return 1; }
    [ -n "$keyring" ] || { say "package debian-archive-keyring is missing"; return 1; }
    local base
    for base in $(apt-get indextargets --no-release-info --format '$(REPO_URI)|$(RELEASE)|$(COMPONENT)' 2>/dev/null |
        awk -F'|' -v c="$codename" \
            '$3 == "main" && ($2 == c || $2 == "stable" || $2 == "oldstable") && !seen[$1]++ {print $1}'); do
        if package "$base"; then
            keep "$work/package/usr/bin" "Debian's package of $codename, unpacked" || true
        fi
    done
    say "Debian's package could not be had: $(cat "$work"/apt/log/{update,get,unpack} 2>/dev/null | grep -m1 -E '^[EW]:' ||
        echo "no archive of '$codename' with it")"
    return 1
}

by_source() {
    local archive=$dest/netperf_2.7.0+git20210121.3bc455b+ds.orig.tar.xz
    "$here/fetch-sources.sh" "$dest" "$here/netperf-pins.txt" 9>&- || return 1
    command -v autoreconf >/dev/null || { say "to build netperf's source, the packages autoconf and automake are needed"; return 1; }
    mkdir -p "$work/source"
    tar -xf "$archive" -C "$work/source" --strip-components=1 --no-same-owner
    if ! (cd "$work/source" && ./autogen.sh && ./configure --enable-demo && make CFLAGS="-O2 -fcommon") \
        >"$work/build.log" 2>&1; then
        say "its source does not build: $(grep -m1 -i error "$work/build.log" || tail -n1 "$work/build.log")"
        return 1
    fi
    keep "$work/source/src" "built from Debian's source package"
}

by_package || by_source || true
say "there is no netperf client here"
exit 1
