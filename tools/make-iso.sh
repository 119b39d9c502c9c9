#!/bin/sh
# Makes a bootable CD image around the guest: GRUB for BIOS and for UEFI, multiboot2.
# usage: make-iso.sh ELF OUT.iso ["boot line"]
# Only the modules the boot needs go in: about 5 MB instead of 20.
set -eu

if [ $# -lt 2 ] || [ $# -gt 3 ]; then
    echo "usage: make-iso.sh ELF OUT.iso [\"boot line\"]" >&2
    exit 2
fi
elf=$1 out=$2 line=${3-}
[ -r "$elf" ] || { echo "make-iso.sh: $elf: no such file; 'make' builds it" >&2; exit 2; }
for tool in grub-mkrescue xorriso mformat; do
    command -v "$tool" >/dev/null ||
        { echo "make-iso.sh: $tool is missing: apt-get install grub-pc-bin grub-efi-amd64-bin grub-common xorriso mtools" >&2; exit 2; }
done
case $line in
*[!A-Za-z0-9\ =.,:/+_-]*) echo "make-iso.sh: the boot line may hold letters, digits, blanks and = . , : / + _ - only" >&2; exit 2 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
tree=$work/tree
mkdir -p "$tree/boot/grub"
cp "$elf" "$tree/boot/ringside.elf"
cat >"$tree/boot/grub/grub.cfg" <<CFG
set timeout=0
set default=0
menuentry "Ringside" {
    multiboot2 /boot/ringside.elf $line
}
CFG
modules="multiboot2 normal part_gpt part_msdos iso9660 fat"
if ! grub-mkrescue --install-modules="$modules" --fonts= --locales= --themes= -o "$out" "$tree" >"$work/log" 2>&1; then
    cat "$work/log" >&2
    rm -f "$out"
    exit 1
fi
