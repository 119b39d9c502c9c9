#!/bin/bash
# Makes sure of everything the build needs from outside: Debian packages, lwIP's sources, newlib compiled.
# Usage: deps.sh OUT.mk       writes OUT.mk, a makefile that sets LWIP_DIR (sources), NEWLIB_DIR (include/, lib/libc.a) and NEWLIB_ARCHIVE
#   CC: the compiler (gcc)
#   RINGSIDE_CACHE: where sources and the compiled newlib are kept (default: ringside in XDG_CACHE_HOME or ~/.cache).
# What lies in the cache under its name is complete: sources are named by their pinned SHA-256, newlib by a key of pin,
# file list, build script (its flags are in there) and compiler. So the second time nothing is fetched or built, and
# two runs at once are safe: the second waits for the first and finds its work done.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: deps.sh OUT.mk}
say() { echo "deps: $*" >&2; }
die() { say "$*"; exit 1; }
export CC=${CC:-gcc}

groups=(build)
[[ $CC != *clang* ]] || groups+=(clang)
"$here/packages.sh" "${groups[@]}"

cache=${RINGSIDE_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set, and neither is RINGSIDE_CACHE}/.cache}/ringside}
[[ $cache != *[[:space:]]* ]] || die "make cannot do with blanks in a path: set RINGSIDE_CACHE to another folder than '$cache'"
mkdir -p "$cache" 2>/dev/null || die "cannot make the folder $cache; set RINGSIDE_CACHE to one that can be written"
cache=$(cd "$cache" && pwd)

pin() { awk -v p="$1" '$3 == p {print $1, $2}' "$here/pins.txt"; } # pin SOURCE: its SHA-256 and file
read -r lwip_sum lwip_file < <(pin lwip) || die "pins.txt has no line for lwip"
read -r newlib_sum newlib_file < <(pin newlib) || die "pins.txt has no line for newlib"
compiler=$($CC --version 2>/dev/null) || die "the compiler '$CC' does not run; valid: gcc, clang, or a path to one"
key=$({ echo "$newlib_sum"; echo "$CC $compiler"; cat "$here/newlib-files.txt" "$here/build-newlib.sh"; } | sha256sum)

patch=$here/../net/patches/lwip-2.2.1.patch
patch_sum=$(sha256sum <"$patch")
lwip_dir=$cache/src/lwip-${lwip_sum:0:16}-${patch_sum:0:8}
newlib_dir=$cache/newlib/${key:0:16}

unpack() { # unpack ARCHIVE DIR [PATCH]: whole or not at all
    local tmp
    mkdir -p "$(dirname "$2")"
    tmp=$(mktemp -d "$(dirname "$2")/.unpack.XXXXXX")
    tar -xf "$1" -C "$tmp" --strip-components=1 --no-same-owner
    chmod 755 "$tmp"
    [ -z "${3:-}" ] || patch -s -p1 -d "$tmp" <"$3" || die "$3 does not fit $1"
    mv -T "$tmp" "$2"
}

if [ ! -d "$lwip_dir" ] || [ ! -d "$newlib_dir" ]; then
    exec 8>"$cache/.lock"
    flock -w 1200 8 || die "another build has held $cache/.lock for 20 minutes"
    # Of what an interrupted run left behind nothing is complete.
    rm -rf "$cache"/src/.unpack.* "$cache"/newlib/.newlib.*
    if [ ! -d "$lwip_dir" ] || [ ! -d "$newlib_dir" ]; then
        "$here/fetch-sources.sh" "$cache/archives" 8>&-
    fi
    [ -d "$lwip_dir" ] || unpack "$cache/archives/$lwip_file" "$lwip_dir" "$patch"
    if [ ! -d "$newlib_dir" ]; then
        say "building newlib with ${compiler%%$'\n'*} (once)"
        "$here/build-newlib.sh" "$cache/archives/$newlib_file" "$newlib_dir" 8>&-
    fi
    exec 8>&-
fi

mkdir -p "$(dirname "$out")"
tmp=$(mktemp "$out.XXXXXX")
trap 'rm -f "$tmp"' EXIT
cat >"$tmp" <<MK
# Made by tools/deps.sh. Do not edit.
LWIP_DIR := $lwip_dir
NEWLIB_DIR := $newlib_dir
NEWLIB_ARCHIVE := $cache/archives/$newlib_file
# An emptied cache makes this file out of date, and so is filled again. (These rules are not to be the default goal.)
deps_goal := \$(.DEFAULT_GOAL)
$out: $lwip_dir/src/Filelists.mk $newlib_dir/lib/libc.a
$lwip_dir/src/Filelists.mk $newlib_dir/lib/libc.a: ;
.DEFAULT_GOAL := \$(deps_goal)
MK
chmod 644 "$tmp"
mv "$tmp" "$out"
