"""Ranks that send each other a megabyte by mpi4py, and compare it."""

from mpi4py import MPI

LEN = 1 << 20
world = MPI.COMM_WORLD
rank, ranks = world.Get_rank(), world.Get_size()
received = bytearray(LEN)
for step in range(1, ranks):
    to, of = (rank + step) % ranks, (rank - step) % ranks
    world.Sendrecv([bytes([rank + 1]) * LEN, MPI.BYTE], dest=to, recvbuf=[received, MPI.BYTE], source=of)
    if received != bytes([of + 1]) * LEN:
        raise SystemExit(f"rank {rank} has other bytes of rank {of}")
if world.allreduce(rank) == ranks * (ranks - 1) // 2 and rank == 0:
    print(f"{ranks} ranks exchanged what they should")
