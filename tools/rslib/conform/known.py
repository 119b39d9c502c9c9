"""What backends are known to do wrong: docs/findings.md. A failure stays a failure; it is said which finding it is."""

_DPDK = ('testpmd', 'ovs', 'qemu10-testpmd')

# Number of the finding, text of the check, backends (a name stands for all that begin so). What no longer fails is to be taken out here and there.
KNOWN = (
    (2, 'no feature is offered without those it depends on', _DPDK),
    (10, 'a chain may end in an indirect table', ('user', 'tap', 'dgram', 'nested-tap', 'qemu10', *_DPDK)),
    (11, 'num_buffers is 1 without mergeable buffers', ('user', 'tap', 'dgram', 'nested', 'vhost-net', 'qemu10', 'passt', *_DPDK)),
    (12, 'hdr_len need not be right', ('tap', 'nested-tap', 'qemu10-tap')),
    (13, 'a frame is sent from any number of pieces', ('passt',)),
    (13, 'a frame is received into any number of pieces', ('passt',)),      # it has died of the one before
    (14, 'used flags are 0 with the event index', ('nested-vhost-net', 'vhost-net')),
    (15, 'rings of each size carry frames, from 1 to the largest', _DPDK),
    (16, 'without guest_csum flags are 0 and checksums complete', ('passt',)),
    (16, 'gso_type is only what was negotiated', ('passt',)),
    (17, 'a flow comes by the queue it was last sent on (SHOULD)', ('ovs-2',)),
)
DIES = {'passt': ('ring: ', 'ASSERTION FAILED in virtqueue_map_desc')}      # 13: in which area, and what it says


def texts(backend):
    """The checks that are known to fail on a backend."""
    return {text for _, text, who in KNOWN if backend.startswith(who)}


def remark(backend, text):
    """" (finding N)" for a failure that is known, else ''."""
    number = next((number for number, known, who in KNOWN if known == text and backend.startswith(who)), None)
    return '' if number is None else f' (finding {number})'
