#!/usr/bin/python3
"""Makes NOTICE: the licences of what is linked into the guest beside the project's own code, as they ask for with binaries.

usage: notice.py LWIP_DIR NEWLIB_ARCHIVE           prints NOTICE
       notice.py --check LWIP_DIR NEWLIB_ARCHIVE   exit status 1 if the project's NOTICE is not that
(paths as in build/deps.mk)

Every notice is taken word for word from the sources that are compiled: for newlib the files of newlib-files.txt and the
headers they can include, for lwIP its core. Files with the same conditions are put together, with all their copyright
lines; files without a notice of their own stand under the collection's.
"""
import glob
import os
import re
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
NOTICE = os.path.join(os.path.dirname(HERE), 'NOTICE')

# The first words of the conditions, after the copyright lines.
CONDITIONS = re.compile(r'^.*?(Redistribution and\s+use|Permission to\s+use|Permission is\s+(hereby|granted)|'
                        r'This copyrighted material|This software is provided|Developed at SunPro)', re.DOTALL)
END = re.compile(r'SUCH\s+DAMAGE\.?', re.DOTALL)
COPYRIGHT = re.compile(r'copyright\s*(\(c\)|©|\d{4}|by\b|[A-Z])', re.IGNORECASE)

INTRODUCTION = """\
Ringside is licensed under the MIT licence, see LICENSE.

The guest image (ringside.elf, ringside.iso) also holds parts of the works named below, which carry the notices that
follow. They are not part of this repository; the build fetches and compiles them.

"""

VIRTIO = """\
Structures and constants of virtio, from the Linux headers <linux/virtio_*.h>
-----------------------------------------------------------------------------

Copyright Rusty Russell IBM Corporation 2007.
Copyright IBM Corp. 2007

This header is BSD licensed so anyone can use the definitions to implement
compatible drivers/servers.

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions
are met:
1. Redistributions of source code must retain the above copyright
   notice, this list of conditions and the following disclaimer.
2. Redistributions in binary form must reproduce the above copyright
   notice, this list of conditions and the following disclaimer in the
   documentation and/or other materials provided with the distribution.
3. Neither the name of IBM nor the names of its contributors
   may be used to endorse or promote products derived from this software
   without specific prior written permission.
THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS ``AS IS'' AND
ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE
IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE
ARE DISCLAIMED.  IN NO EVENT SHALL IBM OR CONTRIBUTORS BE LIABLE
FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL
DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS
OR SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION)
HOWEVER CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT
LIABILITY, OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY
OUT OF THE USE OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF
SUCH DAMAGE.
"""


def comments(text):
    """The text of each comment that names a copyright, without its decoration."""
    for comment in re.findall(r'/\*(.*?)\*/', text, re.DOTALL):
        if COPYRIGHT.search(comment):
            lines = [re.sub(r'^[ \t]*\*(?=\s|$)', '', line).rstrip() for line in comment.expandtabs().split('\n')]
            lines = ['' if re.fullmatch(r'\s*[-=*+!]+\s*|\s*@(file|verbatim|endverbatim).*|.*%W%.*', line) else line for line in lines]
            yield '\n'.join(lines).strip('\n')


def split(comment):
    """(copyright lines, conditions) of a notice; no conditions if it has none of its own."""
    match = CONDITIONS.match(comment)
    head = comment[:match.start(1)] if match else comment
    start = comment.rfind('\n', 0, match.start(1)) + 1 if match else len(comment)
    body = comment[start:]
    ends = list(END.finditer(body))
    if ends:
        body = body[:ends[-1].end()]
    else:                                           # what follows the permission in the same comment describes the code
        body = re.split(r'\n\s*\n(?=\s*(This file|Author|<<|FUNCTION|NAME|\$|@))', body)[0]
    holders = []
    for paragraph in re.split(r'\n\s*\n', head):
        if COPYRIGHT.search(paragraph):
            holders += [line.strip() for line in paragraph.split('\n') if line.strip()]
    return holders, dedent(body)


def dedent(text):
    """The text without the indentation that all its lines share, and without blank lines around it."""
    lines = text.strip('\n').rstrip().split('\n')
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return '\n'.join(line[margin:].rstrip() for line in lines)


def collect(texts):
    """{conditions: [copyright lines]} over many files, in order of appearance; white space makes no difference."""
    found = {}
    for text in texts:
        for comment in comments(text):
            holders, body = split(comment)
            key = ' '.join(body.split()).lower()
            entry = found.setdefault(key, (body, []))
            entry[1].extend(line for line in holders if line not in entry[1])
    return found.values()


def lwip_texts(folder):
    """The sources of lwIP's core and the headers it includes."""
    names = [os.path.join(folder, 'COPYING')]
    for pattern in ('core/*.c', 'core/ipv4/*.c', 'core/ipv6/*.c', 'netif/ethernet.c', 'apps/http/httpd.c', 'include/lwip/*.h',
                    'include/lwip/priv/*.h', 'include/lwip/prot/*.h', 'include/netif/ethernet.h'):
        names += sorted(glob.glob(os.path.join(folder, 'src', pattern)))
    for name in names:
        with open(name, encoding='utf-8', errors='replace') as f:
            yield f.read() if names.index(name) else '/*' + f.read() + '*/'


def newlib_texts(archive):
    """(the collection's own licence file, the sources that are compiled and the headers they can include)."""
    with open(os.path.join(HERE, 'newlib-files.txt'), encoding='ascii') as f:
        wanted = [line.strip() for line in f if line.startswith('lib')]
    folders = {os.path.dirname(name) for name in wanted} | {'libc/include', 'libc/include/sys', 'libc/include/machine',
                                                          'libc/machine/x86_64/machine', 'libc/machine/shared_x86/sys'}
    texts, licence = {}, ''
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.partition('/')[2]
            short = name.removeprefix('newlib/')
            header = name.startswith('newlib/') and name.endswith('.h') and os.path.dirname(short) in folders
            if member.isfile() and (short in wanted or header or name == 'COPYING.NEWLIB'):
                text = tar.extractfile(member).read().decode('utf-8', errors='replace')
                if name == 'COPYING.NEWLIB':
                    licence = text
                else:
                    texts[short] = text
    return licence, [texts[name] for name in sorted(texts)]


def section(title, entries):
    """One work's part of NOTICE."""
    out = [title, '-' * len(title), '']
    for body, holders in entries:
        out += [*holders, '', body, '', '*', ''] if body else []
    return '\n'.join(out[:-2])


def notice(lwip, newlib):
    """The whole text."""
    licence, texts = newlib_texts(newlib)
    general = licence[:licence.index('(3) ')].rstrip()      # who holds what bears no notice: Red Hat, Berkeley
    parts = [section('lwIP 2.2.1', collect(lwip_texts(lwip))),
             section('newlib 4.5.0', [(general, [])] + list(collect(texts))), VIRTIO]
    return INTRODUCTION + '\n\n'.join(part.rstrip() + '\n' for part in parts)


def main(argv):
    check = argv[1:2] == ['--check']
    paths = argv[2 if check else 1:]
    if len(paths) != 2:
        print(__doc__.split('\n\n')[1], file=sys.stderr)
        return 2
    text = notice(*paths)
    if not check:
        sys.stdout.write(text)
        return 0
    with open(NOTICE, encoding='utf-8') as f:
        if f.read() == text:
            return 0
    print('notice.py: NOTICE is not what the sources say: tools/notice.py LWIP_DIR NEWLIB_ARCHIVE > NOTICE', file=sys.stderr)
    return 1


if __name__ == '__main__':
    sys.exit(main(sys.argv))
