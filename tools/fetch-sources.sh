#!/bin/bash
# Fetches pinned upstream source archives with the machine's own apt set-up; no privileges are needed.
# Usage: fetch-sources.sh DEST [PINS]
#   PINS (pins.txt beside this script): lines "SHA256 FILE SOURCE-PACKAGE SUITE[,SUITE...]"
#   FETCH_CACHE=DIR[:DIR]  folders to look in first (a file counts only if its SHA-256 is the pinned one)
#   FETCH_KEEP_STATE=1     keep the private apt state (speeds up a second run)
# No host is named: the archive's address is the one apt is set up with already (indextargets reads deb822 and one-line
# files alike); only the suite differs. apt checks InRelease against Debian's archive keyring, then Sources, then the
# file; the pinned SHA-256 is checked last. The system's apt state is not touched. Exit: 0 all there, 1 not.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dest=${1:?usage: fetch-sources.sh DEST [PINS]}
pins=${2:-$here/pins.txt}
say() { echo "fetch-sources: $*" >&2; }
die() { say "$*"; exit 1; }

mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
exec 9>"$dest/.lock"
flock -w 1200 9 || die "another run has held $dest/.lock for 20 minutes"

have() { [ -f "$2" ] && [ "$(sha256sum <"$2" | cut -d' ' -f1)" = "$1" ]; } # have SHA256 PATH
keep() { # keep PATH FILE: takes PATH over as dest/FILE, whole or not at all
    cp "$1" "$dest/$2.part" && chmod 644 "$dest/$2.part" && mv "$dest/$2.part" "$dest/$2"
}

todo=()
while read -r sum file pkg suites _; do
    case $sum in '' | '#'*) continue ;; esac
    [[ $sum =~ ^[0-9a-f]{64}$ && $file != */* && -n ${suites:-} ]] || die "bad line in $pins: $sum $file"
    have "$sum" "$dest/$file" && continue
    IFS=: read -ra dirs <<<"${FETCH_CACHE:-}"
    for d in "${dirs[@]}"; do
        if have "$sum" "$d/$file"; then
            keep "$d/$file" "$file"
            continue 2
        fi
    done
    todo+=("$sum $file $pkg $suites")
done <"$pins"
[ ${#todo[@]} -gt 0 ] || exit 0

by_hand="with these SHA-256 sums they can be put into $dest by hand:$(printf ' %s' "${todo[@]% * *}")"
command -v apt-get >/dev/null || die "no apt-get here; $by_hand"
keyring=
for k in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp}; do
    if [ -r "$k" ]; then
        keyring=$k
        break
    fi
done
[ -n "$keyring" ] || die "package debian-archive-keyring is missing"
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")

# Base addresses of the archives that carry this machine's own release, component main.
mapfile -t bases < <(apt-get indextargets --no-release-info --format '$(REPO_URI)|$(RELEASE)|$(COMPONENT)' 2>/dev/null |
    awk -F'|' -v c="$codename" \
        '$3 == "main" && ($2 == c || $2 == "stable" || $2 == "oldstable") && !seen[$1]++ {print $1}')
[ ${#bases[@]} -gt 0 ] || die "apt has no source for '$codename main' on this machine; $by_hand"

state=$dest/.apt
[ -n "${FETCH_KEEP_STATE:-}" ] || trap 'rm -rf "$state"' EXIT
suites=$(printf '%s\n' "${todo[@]}" | awk '{print $4}' | tr ',' '\n' | sort -u)

prepare() { # prepare BASE SUITE: a private apt that knows one archive, one suite, sources only
    mkdir -p "$state"/{etc,lists/partial,cache/archives/partial,log,dl}
    printf 'Types: deb-src\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$1" "$2" "$keyring" \
        >"$state/etc/src.sources"
    cat >"$state/apt.conf" <<C
#clear APT::Update;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Invoke;
Dir::Etc::sourcelist "$state/etc/src.sources";
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
Acquire::AllowDowngradeToInsecureRepositories "false";
APT::Get::AllowUnauthenticated "false";
APT::Update::Error-Mode "any";
C
    # As root, apt downloads as user _apt; where _apt cannot reach this folder, it is told not to try.
    if [ "$(id -u)" = 0 ]; then
        chown _apt "$state/dl" "$state/lists/partial" 2>/dev/null || true
        if ! setpriv --reuid=_apt --regid=nogroup --clear-groups test -w "$state/dl" 2>/dev/null; then
            echo 'APT::Sandbox::User "root";' >>"$state/apt.conf"
        fi
    fi
}

papt() { # papt COMMAND ARGS...: the private apt
    local c=$1
    shift
    LC_ALL=C timeout 600 "$c" -c "$state/apt.conf" "$@"
}

have_all() {
    local t s f
    for t in "${todo[@]}"; do
        read -r s f _ _ <<<"$t"
        have "$s" "$dest/$f" || return 1
    done
}

fetch() { # fetch SHA256 FILE PACKAGE SUITE
    local sum=$1 file=$2 pkg=$3 suite=$4 ver
    # The package version whose index entry lists exactly this file with exactly this SHA-256: Debian revisions move
    # with point releases, the upstream archive stays.
    ver=$(papt apt-cache showsrc --only-source "$pkg" 2>/dev/null |
        awk -v s="$sum" -v f="$file" '/^Version:/ {v = $2} $1 == s && $3 == f && !p {print v; p = 1}')
    if [ -z "$ver" ]; then
        say "suite $suite has no $file with the pinned SHA-256; it has:" \
            "$(papt apt-cache showsrc --only-source "$pkg" 2>/dev/null | awk '/^Version:/ {print $2}' | tr '\n' ' ')"
        return
    fi
    if ! (cd "$state/dl" && papt apt-get -q source --download-only --tar-only "$pkg=$ver") >"$state/log/source" 2>&1; then
        say "$file: $(grep -m1 '^E:' "$state/log/source" || echo 'apt-get source failed')"
        return
    fi
    if ! have "$sum" "$state/dl/$file"; then
        say "$file: its SHA-256 is not the pinned one"
        return
    fi
    keep "$state/dl/$file" "$file"
    say "$file: fetched ($pkg $ver, $suite)"
}

for base in "${bases[@]}"; do
    for suite in $suites; do
        ! have_all || break 2
        prepare "$base" "$suite"
        if ! papt apt-get -q update >"$state/log/update" 2>&1; then
            say "suite $suite: $(grep -m1 -E '^[EW]:' "$state/log/update" || echo 'apt-get update failed')"
            continue
        fi
        for t in "${todo[@]}"; do
            read -r sum file pkg want <<<"$t"
            if [[ ",$want," == *",$suite,"* ]] && ! have "$sum" "$dest/$file"; then
                fetch "$sum" "$file" "$pkg" "$suite"
            fi
        done
    done
done
have_all || die "not everything could be fetched; $by_hand"
