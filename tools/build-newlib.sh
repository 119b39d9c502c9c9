#!/bin/bash
# Builds the guest's C library from newlib's unmodified sources: only the files of newlib-files.txt, without configure.
# Usage: build-newlib.sh ARCHIVE OUT      ARCHIVE: newlib's source archive; OUT must not exist yet
#   CC: the compiler (gcc). Makes OUT/include (headers), OUT/lib/libc.a, OUT/COPYING.NEWLIB; OUT appears whole or not at all.
# The library is part of a position-independent image that is loaded once per core: everything is compiled with -fPIE
# and hidden visibility, so that the linker leaves relative relocations only.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
archive=${1:?usage: build-newlib.sh ARCHIVE OUT}
out=${2:?usage: build-newlib.sh ARCHIVE OUT}
CC=${CC:-gcc}
die() { echo "build-newlib: $*" >&2; exit 1; }

# One list for all files. The compiler may use SSE: the kernel enables it before the first line of C.
cflags=(-O2 -ffreestanding -fno-builtin -fPIE -fvisibility=hidden -mno-red-zone -fno-stack-protector -fcf-protection=none
    -fno-asynchronous-unwind-tables -ffunction-sections -fdata-sections -Wa,--noexecstack -w)
# What newlib's own Makefile defines for a target that names its system calls without an underscore.
defs=(-D_LIBC -D__NO_SYSCALLS__ -DMISSING_SYSCALL_NAMES -D_HAVE_INIT_FINI)

case $($CC -dumpmachine) in
x86_64-*) ;;
*) die "$CC makes code for $($CC -dumpmachine), not for x86_64" ;;
esac

parent=$(dirname "$out")
mkdir -p "$parent"
tmp=$(mktemp -d "$parent/.newlib.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/src" "$tmp/obj" "$tmp/new" "$tmp/new/lib"
tar -xf "$archive" -C "$tmp/src" --strip-components=1 --no-same-owner --wildcards '*/newlib/libc/*' '*/newlib/libm/*' \
    '*/COPYING.NEWLIB'
src=$tmp/src/newlib

# Headers: the generic ones, then the machine's own over them.
cp -r "$src/libc/include" "$tmp/new/include"
cp -r "$src/libc/machine/x86_64/machine/." "$tmp/new/include/machine/"
cp -r "$src/libc/machine/shared_x86/sys/." "$tmp/new/include/sys/"
cp "$tmp/src/COPYING.NEWLIB" "$tmp/new/"
# These two are all that newlib's configure would make. No wide or multibyte characters: the guest has none.
cat >"$tmp/new/include/_newlib_version.h" <<'H'
#ifndef _NEWLIB_VERSION_H__
#define _NEWLIB_VERSION_H__ 1
#define _NEWLIB_VERSION "4.5.0"
#define __NEWLIB__ 4
#define __NEWLIB_MINOR__ 5
#define __NEWLIB_PATCHLEVEL__ 0
#endif
H
cat >"$tmp/new/include/newlib.h" <<'H'
#ifndef __NEWLIB_H__
#define __NEWLIB_H__ 1
#include <_newlib_version.h>
#define _FVWRITE_IN_STREAMIO 1
#define _HAVE_CC_INHIBIT_LOOP_TO_LIBCALL 1
#define _HAVE_INITFINI_ARRAY 1
#define _HAVE_LONG_DOUBLE 1
#define _MB_LEN_MAX 1
#define _REENT_CHECK_VERIFY 1
#define _UNBUF_STREAM_OPT 1
#define _WANT_IO_C99_FORMATS 1
#define _WANT_IO_LONG_LONG 1
#define _WANT_USE_GDTOA 1
#endif
H

own=$($CC -print-file-name=include) # the compiler's own headers: stddef.h, stdarg.h
one() { # one FILE: compiles it
    $CC $CFLAGS -nostdinc -isystem "$tmp/new/include" -isystem "$own" -I"$src/$(dirname "$1")" -I"$src/libm/common" \
        -c -o "$tmp/obj/${1//\//_}.o" "$src/$1" || { echo "build-newlib: $1 does not compile" >&2; exit 255; }
}
export -f one
export CC CFLAGS="${cflags[*]} ${defs[*]}" tmp src own
grep -E '^lib' "$here/newlib-files.txt" | xargs -P"$(nproc)" -I{} bash -c 'one {}'
ar rcsD "$tmp/new/lib/libc.a" "$tmp"/obj/*.o
chmod 755 "$tmp/new"
mv -T "$tmp/new" "$out"
