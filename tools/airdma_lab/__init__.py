"""Two hosts on one machine, and the programs that talk between them.

A `Lab` holds the two hosts of `airdma lab hold`. Programs run on them, one core a side, and come back
as `Outcome`s; `airdma lab read` and `pingpong` turn their text into numbers. The demo and the
system tests are written on this.
"""
