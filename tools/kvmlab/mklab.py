#!/usr/bin/python3
"""Builds the files of the nested-KVM lab; called by setup.sh.

mklab.py parts ROOT OUT         from unpacked Debian packages: kernel, modules in load order, busybox
mklab.py patch QEMU OUT         a copy of QEMU without three faults of its SVM emulation (exit 3: not found)
mklab.py lab PARTS OUT FILE...  the initramfs of the emulated machine
"""
import ctypes
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), '..', 'rslib'))
from kvmlab import cpio_archive  # noqa: E402  (found by the line above)

MODULES = ('kvm-amd', 'tun', 'vhost_net')

# What QEMU needs for the machines pc and q35, -kernel, and a network card without an option ROM.
FIRMWARE = ('bios-256k.bin', 'kvmvapic.bin', 'linuxboot.bin', 'linuxboot_dma.bin', 'multiboot.bin',
            'multiboot_dma.bin', 'pvh.bin')

# Three faults of QEMU's SVM emulation (7.2 to 10.0 at least), as Debian's compiler lays them out.
#
# 1. helper_vmrun(), case SVM_EVTINJ_TYPE_INTR: after do_interrupt_x86_hardirq() the vector stays in
#    cs->exception_index. If the processor is asked to leave its loop while the guest runs, QEMU takes that value for a
#    pending exception and delivers the interrupt again, whatever the guest's IF says; the guest then waits for a lock
#    it holds itself. The store (6 bytes) goes.
# 2. helper_vmrun() and cpu_vmexit() set and clear CPU_INTERRUPT_VIRQ in cs->interrupt_request without the lock under
#    which another thread sets CPU_INTERRUPT_POLL in the same word: an interrupt of the host's local APIC is now and then
#    lost, and if it is the one-shot timer and nothing else interrupts, all stands still. VIRQ is bit 8: the same
#    operation on the second byte alone, locked, leaves the others' bits in peace.
# 3. helper_vmrun() does not take over the guest's interrupt shadow (VMCB, INTERRUPT_SHADOW), which do_vmexit() does
#    save. If the host is interrupted between a guest's sti and its hlt, and the interrupt is one for the guest, the guest
#    gets it before the hlt and then sleeps on it. Where nothing else wakes it, it sleeps for ever. In
#    x86_cpu_pending_interrupt() the jump for a guest's INTR exit is sent to the test of the shadow in front of its old
#    target: the exit comes one instruction later, when there is no shadow to lose.
DOUBLE_DELIVERY = re.compile(rb'\x41\x0f\xb6\xf4\x44\x89\xab..\0\0(\x89\xb3..\xff\xff)'
                             rb'\xc7\x83..\0\0\0\0\0\0\x48\xc7\x83..\0\0\xff\xff\xff\xff', re.S)
SET_VIRQ = re.compile(rb'(\x81\x8b..\xff\xff\x00\x01\x00\x00)', re.S)  # orl $0x100, disp32(%rbx)
CLEAR_VIRQ = re.compile(rb'(\x81\xa3..\xff\xff\xff\xfe\xff\xff)', re.S)  # andl $~0x100, disp32(%rbx)

INTR_IN_SHADOW = re.compile(rb'\x83\xe6\x0a\x83\xfe\x0a\x74(\x17)\xf6\xc1\x08\x75.\xf6\x80..\x00\x00\x02\x74.'
                            rb'\xf6\x80..\x00\x00\x08\x75.', re.S)


def nothing(_):
    return b'\x66\x0f\x1f\x44\0\0'


def second_byte_locked(code):
    """lock orb/andb on the byte after, then a nop of two bytes."""
    displacement, = struct.unpack_from('<i', code, 2)
    return b'\xf0\x80' + code[1:2] + struct.pack('<i', displacement + 1) + code[7:8] + b'\x66\x90'


NOT_FOUND = 3  # exit status: this QEMU is another one
def to_shadow_test(_):
    return b'\x0e'


PATCHES = ((DOUBLE_DELIVERY, nothing), (SET_VIRQ, second_byte_locked), (CLEAR_VIRQ, second_byte_locked),
           (INTR_IN_SHADOW, to_shadow_test))


def read(path):
    with open(path, 'rb') as f:
        return f.read()


def write(path, data, mode=0o644):
    with open(path, 'wb') as f:
        f.write(data)
    os.chmod(path, mode)


def lz4_legacy(packed):
    """Unpacks the format the kernel's build makes with "lz4 -l": a magic number, then blocks, each its packed length
    (32 bits, little-endian) and at most 8 MiB of data. liblz4 is on every Debian machine: apt itself needs it."""
    lib = ctypes.CDLL('liblz4.so.1')
    out, at, room = bytearray(), 4, ctypes.create_string_buffer(8 << 20)
    while at + 4 <= len(packed):
        length, = struct.unpack_from('<I', packed, at)
        at += 4
        if at + length > len(packed):  # the end: the kernel's build appends the unpacked length
            break
        got = lib.LZ4_decompress_safe(packed[at:at + length], room, length, len(room))
        if got < 0:
            raise SystemExit(f'mklab: bad block at byte {at} of the packed kernel')
        out += room.raw[:got]
        at += length
    return bytes(out)


def unpack_kernel(image):
    """The ELF inside a bzImage. QEMU starts it by its PVH note: nothing is decompressed under emulation."""
    setup_sectors = image[0x1f1] or 4  # Documentation/arch/x86/boot.rst: setup_sects, payload_offset, payload_length
    offset, length = struct.unpack_from('<II', image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start:start + length]
    if payload[:6] == b'\xfd7zXZ\0':
        elf = lzma.LZMADecompressor().decompress(payload)
    elif payload[:2] == b'\x1f\x8b':
        elf = zlib.decompressobj(31).decompress(payload)
    elif payload[:4] == b'\x02\x21\x4c\x18':
        elf = lz4_legacy(payload)
    else:
        raise SystemExit(f'mklab: the kernel is packed in a way unknown here ({payload[:6].hex()})')
    if elf[:4] != b'\x7fELF':
        raise SystemExit('mklab: no ELF image in the kernel')
    return elf


def find_modules(tree):
    """{name: path} of all kernel modules below tree, names spelt with underscores."""
    found = {}
    for folder, _, files in os.walk(tree):
        for f in files:
            if f.endswith('.ko'):
                found[f[:-3].replace('-', '_')] = os.path.join(folder, f)
    return found


def load_order(wanted, found):
    """Paths of the wanted modules and of those they depend on, dependencies first."""
    order = []

    def add(name):
        path = found.get(name.replace('-', '_'))
        if path is None:
            raise SystemExit(f'mklab: the kernel has no module {name}')
        depends = re.search(rb'\0depends=([^\0]*)\0', read(path))
        for d in (depends.group(1).decode() if depends else '').split(','):
            if d:
                add(d)
        if path not in order:
            order.append(path)

    for w in wanted:
        add(w)
    return order


def make_parts(root, out):
    boot = os.path.join(root, 'boot')
    version = next(f for f in os.listdir(boot) if f.startswith('vmlinuz-'))[len('vmlinuz-'):]
    os.makedirs(os.path.join(out, 'modules'))
    write(os.path.join(out, 'vmlinux'), unpack_kernel(read(os.path.join(boot, 'vmlinuz-' + version))))
    subprocess.run(['strip', '-s', os.path.join(out, 'vmlinux')], check=True)
    for n, path in enumerate(load_order(MODULES, find_modules(os.path.join(root, 'lib/modules', version)))):
        copy = os.path.join(out, 'modules', f'{n:02}-{os.path.basename(path)}')
        shutil.copy(path, copy)
        subprocess.run(['strip', '-g', copy], check=True)
    write(os.path.join(out, 'busybox'), read(os.path.join(root, 'bin/busybox')), 0o755)
    write(os.path.join(out, 'kernel'), (version + '\n').encode())


def patch_qemu(source, out):
    data = bytearray(read(source))
    for pattern, replacement in PATCHES:
        places = list(pattern.finditer(data))
        if len(places) != 1:
            print(f'mklab: {source}: code to patch was found {len(places)} times, not once', file=sys.stderr)
            sys.exit(NOT_FOUND)
        start, end = places[0].span(1)
        data[start:end] = replacement(bytes(data[start:end]))
    write(out, data, 0o755)


def shared_libraries(program):
    """Paths of the loader and the libraries a program needs, as it names them; none if it is static."""
    done = subprocess.run(['ldd', program], capture_output=True, text=True, check=False)
    if 'not found' in done.stdout:
        raise SystemExit(f'mklab: {program} lacks libraries:\n{done.stdout}')
    return re.findall(r'(?:=> |^\t)(/\S+)', done.stdout, re.M)


def make_initramfs(parts, out, files):
    entries = {d: (0o040755, b'') for d in ('bin', 'dev', 'job', 'modules', 'proc', 'sys', 'tmp', 'run')}

    def add(name, mode, data):
        folder = os.path.dirname(name)
        while folder:
            entries.setdefault(folder, (0o040755, b''))
            folder = os.path.dirname(folder)
        entries[name] = (mode, data)

    add('bin/busybox', 0o100755, read(os.path.join(parts, 'busybox')))
    add('bin/sh', 0o120777, b'busybox')
    for m in sorted(os.listdir(os.path.join(parts, 'modules'))):
        add('modules/' + m, 0o100644, read(os.path.join(parts, 'modules', m)))
    for f in files:
        name = os.path.basename(f)
        place = name if name in ('init', 'lib.sh') else 'usr/bin/' + name  # QEMU finds its data relative to its place
        add(place, 0o100755, read(f))
        for library in shared_libraries(f) if place != name else ():
            add(library.lstrip('/'), 0o100755, read(library))
    for name in FIRMWARE:
        source = next(p for p in (f'/usr/share/seabios/{name}', f'/usr/share/qemu/{name}') if os.path.exists(p))
        add('usr/share/qemu/' + name, 0o100644, read(source))
    # Folders before what is in them.
    write(out, cpio_archive([(n, m, d) for n, (m, d) in sorted(entries.items())]))


def main(argv):
    if argv[:1] == ['parts'] and len(argv) == 3:
        make_parts(argv[1], argv[2])
    elif argv[:1] == ['patch'] and len(argv) == 3:
        patch_qemu(argv[1], argv[2])
    elif argv[:1] == ['lab'] and len(argv) > 3:
        make_initramfs(argv[1], argv[2], argv[3:])
    else:
        raise SystemExit(__doc__)


if __name__ == '__main__':
    main(sys.argv[1:])
