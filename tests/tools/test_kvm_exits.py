"""KVM's tracepoints in the nested machine (rslib.bench.exits): what the lab writes is read, named and divided rightly."""
import json
import os
import re

from rslib.bench import exits, lab

AREA = '@notify 00000000febfb000 00000000febfbfff\n'
OUTPUT = AREA + '''@bench TCP_RR 1 THROUGHPUT=900 ; exits=40
@exits TCP_RR 1 exits=35 kvm_exit/exit_reason:400=6 kvm_exit/exit_reason:78=13 kvm_msr/ecx:80b=11 kvm_mmio/type:2,gpa:febfb004=6 tap/rx=8 tap/tx=12
@exits TCP_RR 101 exits=335 kvm_exit/exit_reason:400=106 kvm_exit/exit_reason:78=63 kvm_exit/exit_reason:7c=50 kvm_exit/exit_reason:1234=10 \
kvm_msr/ecx:80b=41 kvm_msr/ecx:838=5 kvm_msr/ecx:c0000101=3 kvm_inj_virq/vector:48=4 kvm_inj_virq/vector:65=46 \
kvm_mmio/type:2,gpa:febfb004=96 kvm_mmio/type:2,gpa:febfb000=10 kvm_mmio/type:2,gpa:febfb008=2 kvm_mmio/type:1,gpa:febfb004=7 \
kvm_mmio/type:2,gpa:fee000b0=9 kvm_userspace_exit/reason:6=1 kvm_userspace_exit/reason:77=2 kvm_msi_set_irq/common_pid:vhost-103[108]=40 \
kvm_msi_set_irq/common_pid:qemu-system-x86[103]=3 tap/rx=108 tap/tx=112
@exits TCP_STREAM 1 kvm_exit/exit_reason:78=5 tap/rx=2 tap/tx=3
@exits TCP_STREAM 1025 kvm_exit/exit_reason:78=4 kvm_exit/exit_reason:7b=64 tap/rx=34 tap/tx=35
'''


def test_counts_are_named_and_the_setup_subtracted():
    told = exits.figures(OUTPUT)['TCP_RR']
    assert (told['unit'], told['units']) == ('transaction', 100)
    assert told['exits'] == {'nested page fault': 100, 'halt': 50, 'MSR': 50, 'exit 0x1234': 10}
    assert told['msr'] == {'end of interrupt': 30, 'timer': 5, 'MSR 0xc0000101': 3}
    assert told['injected'] == 50 and told['raised'] == {'irqfd': 40, 'QEMU': 3}
    assert told['user_space'] == {'MMIO': 1, 'reason 77': 2}
    # Reads are no notifications, nor is what lies elsewhere; queue 2 is the control queue of a single pair.
    assert told['ioeventfd'] == {'transmit': 90, 'receive': 10, 'control': 2}
    assert exits.figures(OUTPUT, cpus=2)['TCP_RR']['ioeventfd'] == {'transmit': 90, 'receive': 12}
    assert (told['frames_to_guest'], told['frames_from_guest']) == (100, 100)


def test_nothing_is_below_zero_and_nothing_lost_without_an_area():
    told = exits.figures(OUTPUT)['TCP_STREAM']
    assert told['exits'] == {'port I/O': 64} and told['units'] == 1024
    assert exits.figures(OUTPUT.replace(AREA, ''))['TCP_RR']['ioeventfd'] == {}
    assert exits.figures('nothing') == {}
    alone = exits.figures(AREA + '@exits UDP_RR 50 kvm_exit/exit_reason:78=5 tap/rx=2 tap/tx=3\n')['UDP_RR']
    assert alone['units'] == 50 and alone['exits'] == {'halt': 5}       # a single run is taken as it is


def test_table_has_rows_per_unit_and_per_frame():
    ours, linux, gone = (lab.Place(name, True) for name in ('ringside', 'linux', 'other'))
    told = exits.figures(OUTPUT)
    other = {'TCP_RR': {**told['TCP_RR'], 'exits': {'halt': 100, 'pause': 10}}}
    block = exits.table({ours: [told], linux: [other]}, [ours, linux, gone])
    rows = {tuple(row[:3]): row[3:] for row in block.rows}
    assert len(rows) == len(block.rows) and block.heads == ['test', 'per', 'what', ours.name, linux.name, gone.name]
    assert rows['TCP_RR', 'transaction', 'exits'] == ['2.10', '1.10', 'failed']
    assert rows['TCP_RR', 'transaction', '- pause'] == ['0.00', '0.10', 'failed']
    assert rows['TCP_RR', 'transaction', '- raised by the device, through irqfd'][0] == '0.40'
    assert rows['TCP_STREAM', 'KiB', 'exits'] == ['0.0625', 'failed', 'failed']
    assert rows['TCP_STREAM', 'frame to the guest', 'exits'] == ['2.00', 'failed', 'failed']
    names = [row[2] for row in block.rows if row[0] == 'TCP_RR']
    first = next(i for i, name in enumerate(names) if name.startswith('-- '))
    assert names[0] == 'exits' and names[first - 1] == '- MSR' and '-- end of interrupt' in names[first:first + 3]


def test_file_can_be_read_back():
    place = lab.Place('ringside', False, words='poll=0')
    told = json.loads(json.dumps(exits.as_json({place: [exits.figures(OUTPUT)], lab.Place('linux', True): []}, 'said')))
    assert told['head'] == 'said' and len(told['guests']) == 1
    guest = told['guests'][0]
    assert (guest['guest'], guest['words'], guest['backend'], guest['cpus']) == ('ringside', 'poll=0', 'qemu', 1)
    assert guest['tests']['TCP_RR']['exits']['nested page fault'] == 100


def test_job_counts_the_tracepoints_that_are_read():
    with open(os.path.join(os.path.dirname(lab.__file__), 'lab.job'), encoding='utf-8') as f:
        job = f.read()
    counted = set(re.search(r"^TRACEPOINTS='(.*)'", job, re.MULTILINE).group(1).split())
    assert counted == set(re.findall(r'^trace kvm/(\w+)', job, re.MULTILINE))
    with open(exits.__file__, encoding='utf-8') as f:
        read = set(re.findall(r"event == '(kvm_\w+)'", f.read()))
    assert read == counted
