"""Which core a flow belongs to, by the published hash: what the guest's own steering is checked against. Owner = entry of
the indirection table (128 entries, the cores in turn) at the Toeplitz hash of the flow as its packets to the guest have it."""
import ipaddress

TABLE = 128
KEY = bytes.fromhex('6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa')


def toeplitz(data, key=KEY):
    """The hash: for each bit of the input that is set, the 32 bits of the key that begin at that bit, exclusively or-ed."""
    bits = int.from_bytes(key, 'big')
    size = 8 * len(key)
    result = 0
    for at in range(8 * len(data)):
        if data[at // 8] >> (7 - at % 8) & 1:
            result ^= bits >> (size - 32 - at) & 0xFFFFFFFF
    return result


def flow_hash(source, destination, sport=None, dport=None):
    """Hash of a flow: addresses as text; without ports over the addresses alone."""
    data = ipaddress.ip_address(source).packed + ipaddress.ip_address(destination).packed
    if sport is not None:
        data += sport.to_bytes(2, 'big') + dport.to_bytes(2, 'big')
    return toeplitz(data)


def owner(cores, source, destination, sport=None, dport=None):
    """The core, of so many, that owns the flow."""
    return flow_hash(source, destination, sport, dport) % TABLE % cores

