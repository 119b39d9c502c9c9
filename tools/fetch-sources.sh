#!/bin/bash
# Fetches pinned upstream source archives with the machine's own apt set-up; no privileges are needed.
# Usage: fetch-sources.sh DEST [PINS]
#   PINS (pins.txt beside this script): lines "SHA256 FILE SOURCE-PACKAGE SUITE[,SUITE...]"
#   FETCH_CACHE=DIR[:DIR]  folders to look in first (a file counts only if its SHA-256 is the pinned one)
#   FETCH_KEEP_STATE=1     keep the private apt state (speeds up a second run)
# From the archive that apt is set up with (archive.sh); only the suite differs. The pinned SHA-256 is checked last.
# Exit: 0 all there, 1 not.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dest=${1:?usage: fetch-sources.sh DEST [PINS]}
pins=${2:-$here/pins.txt}
# shellcheck source-path=SCRIPTDIR source=archive.sh
. "$here/archive.sh"
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
archive_bases || die "$archive_why; $by_hand"
state=$dest/.apt
[ -n "${FETCH_KEEP_STATE:-}" ] || trap 'rm -rf "$state"' EXIT
suites=$(printf '%s\n' "${todo[@]}" | awk '{print $4}' | tr ',' '\n' | sort -u)

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
    ver=$(archive_apt "$state" apt-cache showsrc --only-source "$pkg" 2>/dev/null |
        awk -v s="$sum" -v f="$file" '/^Version:/ {v = $2} $1 == s && $3 == f && !p {print v; p = 1}')
    if [ -z "$ver" ]; then
        say "suite $suite has no $file with the pinned SHA-256; it has:" \
            "$(archive_apt "$state" apt-cache showsrc --only-source "$pkg" 2>/dev/null | awk '/^Version:/ {print $2}' | tr '\n' ' ')"
        return
    fi
    if ! archive_run "$state" apt-get -q source --download-only --tar-only "$pkg=$ver"; then
        say "$file: $archive_why"
        return
    fi
    if ! have "$sum" "$state/dl/$file"; then
        say "$file: its SHA-256 is not the pinned one"
        return
    fi
    keep "$state/dl/$file" "$file"
    say "$file: fetched ($pkg $ver, $suite)"
}

for base in "${archive_list[@]}"; do
    for suite in $suites; do
        ! have_all || break 2
        if ! archive_open "$state" deb-src "$base" "$suite" main; then
            say "suite $suite: $archive_why"
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
