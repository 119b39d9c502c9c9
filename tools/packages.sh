#!/bin/bash
# Makes sure of the Debian packages that a task needs.
# Usage: packages.sh GROUP...        groups: build clang iso run test kvm bench netperf passt
#        packages.sh --list GROUP... prints the packages of the groups, one a line, and does nothing
#
# Nothing missing: silent, one dpkg query, apt is not called. Something missing: says what and why, then installs
# it with apt as root, or through sudo. Without the rights: one line with the exact command. Exit: 0 all there,
# 1 apt failed, 2 nothing could be tried (no rights, no apt) or the command line is wrong.
#   RINGSIDE_PACKAGES=skip  take it that all is there (systems that are not Debian)
set -euo pipefail

# package | groups that need it | why. Names are those of Debian 12.
table() {
    cat <<'TABLE'
gcc                    | build,kvm,bench,netperf,passt | compiles the guest, newlib and lwIP
binutils               | build,kvm,bench    | ld, ar, nm, objcopy
make                   | build,netperf,passt | drives the build
libc6-dev              | build,kvm,bench,netperf,passt | headers for the programs that run on the host
linux-libc-dev         | build,passt        | the virtio structures and constants, in <linux/virtio_*.h>
python3                | build,run,test,kvm,bench | the build's generators and tools/ringside
debian-archive-keyring | build,kvm,bench,passt | checks the signature of the pinned sources
xz-utils               | build,netperf,passt | unpacks lwIP
clang                  | clang,test         | the second compiler
libclang-rt-14-dev     | clang,test         | its sanitizers and libFuzzer
grub-common            | iso,test           | grub-mkrescue
grub-pc-bin            | iso,test           | GRUB for BIOS
grub-efi-amd64-bin     | iso,test           | GRUB for UEFI
xorriso                | iso,test           | writes the ISO image
mtools                 | iso,test           | writes the ISO's EFI partition
qemu-system-x86        | run,test,kvm,bench | runs the guest
iproute2               | run,test,bench     | network namespaces and tap devices
netcat-openbsd         | run                | nc, to talk to the guest by hand
libcmocka-dev          | test               | unit tests on the host
python3-pytest         | test               | system tests
python3-pytest-xdist   | test               | system tests, several at once
iputils-ping           | test,bench         | ping
dnsmasq-base           | test               | a DHCP server and router for the guest
procps                 | test               | sysctl, in the tests of the test peers
ovmf                   | test               | UEFI firmware for QEMU
clang-format           | test               | checks the formatting of the C sources
gnuplot-nox            | bench              | draws the bench's plots
chromium               | test               | shows the status page, without a screen
chromium-driver        | test               | steers it
python3-selenium       | test               | speaks to the driver
autoconf               | netperf            | builds netperf's client from source, where Debian's package cannot be had
automake               | netperf            | the same
git                    | test               | lists the files whose formatting is checked
iperf3                 | test               | a client for the guest's iperf3
iperf                  | test               | a client for the guest's iperf2
TABLE
}

groups="build clang iso run test kvm bench netperf passt"
say() { echo "packages: $*" >&2; }
die() { say "$1"; exit "${2:-2}"; }

list=
if [ "${1:-}" = --list ]; then
    list=1
    shift
fi
[ $# -gt 0 ] || die "which group? valid: $groups"
for g in "$@"; do
    case " $groups " in
    *" $g "*) ;;
    *) die "no group '$g'; valid: $groups" ;;
    esac
done

declare -A why=()
need=()
while IFS='|' read -r pkg of reason; do
    pkg=${pkg// /} of=${of// /}
    for g in "$@"; do
        if [[ ",$of," == *",$g,"* ]]; then
            need+=("$pkg")
            why[$pkg]=${reason# }
            break
        fi
    done
done < <(table)
if [ -n "$list" ]; then
    printf '%s\n' "${need[@]}"
    exit 0
fi
[ "${RINGSIDE_PACKAGES:-}" != skip ] || exit 0

find_missing() { # sets missing: those of need that dpkg does not know as installed
    local p
    declare -A there=()
    while read -r p status; do
        [ "$status" != installed ] || there[$p]=1
    done < <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${need[@]}" 2>/dev/null)
    missing=()
    for p in "${need[@]}"; do
        [ -n "${there[$p]:-}" ] || missing+=("$p")
    done
}

missing=("${need[@]}")
! command -v dpkg-query >/dev/null || find_missing
[ ${#missing[@]} -gt 0 ] || exit 0
command -v apt-get >/dev/null ||
    die "missing, and there is no apt to install with: ${missing[*]} (RINGSIDE_PACKAGES=skip leaves out this check)"

install=(apt-get install -y --no-install-recommends "${missing[@]}")
as_root=()
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [ -t 0 ] && [ -t 2 ]; }; }; then
        as_root=(sudo)
    else
        die "missing; as root, run: apt-get update && ${install[*]}"
    fi
fi

say "installing with ${as_root[*]:+sudo }apt-get (this can take some minutes):"
for p in "${missing[@]}"; do
    printf '    %-22s %s\n' "$p" "${why[$p]}" >&2
done

# Another apt may hold a lock: dpkg's is waited for by apt itself, the one on the package lists is not.
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3
    -o Acquire::http::Timeout=60)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for ((tries = 0; tries < 60; tries++)); do
    if "${apt[@]}" update >"$log" 2>&1; then
        break
    fi
    if ! grep -q 'Could not get lock' "$log"; then
        say "apt-get update: $(grep -m1 '^[EW]:' "$log" || tail -n1 "$log") (going on with the lists there are)"
        break
    fi
    sleep 5
done
if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >"$log" 2>&1; then
    cat "$log" >&2
    die "apt-get could not install: ${missing[*]}" 1
fi
find_missing
[ ${#missing[@]} -eq 0 ] || die "apt-get succeeded, and yet these are missing: ${missing[*]}" 1
