"""Rows that cover every pair of values of several parameters: most faults need one or two particular values, and the pairs
cost a few dozen rows where the full product costs hundreds. Deterministic: the same parameters give the same rows."""
import itertools
import zlib


def product(parameters, allowed=lambda row: True):
    """Every allowed row, as dicts. parameters: {name: values}."""
    rows = (dict(zip(parameters, values)) for values in itertools.product(*parameters.values()))
    return [row for row in rows if allowed(row)]


def pairs_of(row):
    """The pairs of parameter values that a row holds."""
    return set(itertools.combinations(row.items(), 2))


def cover(parameters, allowed=lambda row: True, seed=0):
    """Rows out of the product that hold every pair that any allowed row holds. Greedy: always the row with the most pairs
    still missing; of equal ones the first in an order that `seed` stirs."""
    everything = product(parameters, allowed)
    everything.sort(key=lambda row: zlib.crc32(f'{seed} {row}'.encode()))
    held = [(row, pairs_of(row)) for row in everything]
    missing = set().union(*(pairs for _, pairs in held))
    chosen = []
    while missing:
        row, pairs = max(held, key=lambda one: len(one[1] & missing))
        chosen.append(row)
        missing -= pairs
    return chosen
