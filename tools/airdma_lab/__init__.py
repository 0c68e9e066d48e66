"""Two hosts on one machine, and the programs that talk between them.

A `Lab` is two network namespaces joined by a veth pair. Programs run inside it, one core a side,
and come back as `Outcome`s; the parsers turn their text into numbers. The demo, the system tests
and the benchmarks are written on this.
"""
