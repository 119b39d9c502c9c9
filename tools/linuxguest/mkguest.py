#!/usr/bin/python3
"""Builds the files of the Linux guest that the bench compares with; called by setup.sh.

mkguest.py ROOT OUT INIT NETSERVER      ROOT: unpacked Debian packages (a kernel, busybox); makes in OUT: vmlinux, initrd
                                        and kernel, its version
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [os.path.join(HERE, '..', 'kvmlab'), os.path.join(HERE, '..', 'rslib')]
from kvmlab import cpio_archive  # noqa: E402  (found by the line above)
from mklab import find_modules, load_order, read, shared_libraries, unpack_kernel, write  # noqa: E402

MODULES = ('virtio_pci', 'virtio_net')


def initramfs(root, version, init, netserver, work):
    """The bytes of the initramfs: busybox, netserver with its libraries, the modules in the order in which to load them."""
    entries = {d: (0o040755, b'') for d in ('bin', 'dev', 'modules', 'proc', 'sys', 'tmp')}

    def add(name, data, mode=0o100755):
        folder = os.path.dirname(name)
        while folder:
            entries.setdefault(folder, (0o040755, b''))
            folder = os.path.dirname(folder)
        entries[name] = (mode, data)

    add('init', read(init))
    add('bin/busybox', read(os.path.join(root, 'bin/busybox')))
    add('bin/sh', b'busybox', 0o120777)
    add('bin/netserver', read(netserver))
    for library in shared_libraries(netserver):
        add(library.lstrip('/'), read(library))
    for n, path in enumerate(load_order(MODULES, find_modules(os.path.join(root, 'lib/modules', version)))):
        stripped = os.path.join(work, 'module.ko')
        subprocess.run(['strip', '-g', '-o', stripped, path], check=True)
        add(f'modules/{n:02}-{os.path.basename(path)}', read(stripped), 0o100644)
    return cpio_archive([(name, mode, data) for name, (mode, data) in sorted(entries.items())])


def main(argv):
    """The command."""
    if len(argv) != 4:
        raise SystemExit(__doc__)
    root, out, init, netserver = argv
    boot = os.path.join(root, 'boot')
    version = next(f for f in os.listdir(boot) if f.startswith('vmlinuz-'))[len('vmlinuz-'):]
    image = read(os.path.join(boot, 'vmlinuz-' + version))
    os.makedirs(out, exist_ok=True)
    write(os.path.join(out, 'vmlinux'), unpack_kernel(image))
    subprocess.run(['strip', '-s', os.path.join(out, 'vmlinux')], check=True)
    write(os.path.join(out, 'initrd'), initramfs(root, version, init, netserver, out))
    os.unlink(os.path.join(out, 'module.ko'))
    write(os.path.join(out, 'kernel'), (version + '\n').encode())


if __name__ == '__main__':
    main(sys.argv[1:])
