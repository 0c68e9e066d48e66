/* Exchanges data between all ranks in the ways that MPI programs do, and compares every byte with
 * what it must be: a ring of messages of every length up to 1 MiB, several at once and out of
 * order, collective operations, and one-sided ones. The first difference ends the program with
 * status 1; at the end rank 0 prints how many ranks took part. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 1 << 20, PENDING = 16, WORDS = 4096 };

static int rank, size;

static void require(int holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "rank %d: %s: wrong\n", rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* What rank `from` sends in its exchange number `salt`. */
static unsigned char byte_of(int from, int salt, int index)
{
    return (unsigned char)(index * 31 + (index >> 8) * 7 + from * 101 + salt * 13 + 1);
}

static void fill(unsigned char *data, int length, int salt)
{
    for (int i = 0; i < length; i++)
        data[i] = byte_of(rank, salt, i);
}

static void check(const unsigned char *data, int length, int from, int salt, const char *what)
{
    for (int i = 0; i < length; i++)
        require(data[i] == byte_of(from, salt, i), what);
}

/* Each rank sends to the next, and gets from the one before. */
static void ring(unsigned char *out, unsigned char *in)
{
    static const int lengths[] = { 0, 1, 7, 64, 1000, 1024, 4095, 8192, 8193, 65536, 100003, 262144, LONGEST };
    int next = (rank + 1) % size, before = (rank + size - 1) % size;

    for (int i = 0; i < (int)(sizeof lengths / sizeof *lengths); i++) {
        MPI_Status status;
        int got;
        fill(out, lengths[i], i);
        memset(in, 0, LONGEST);
        MPI_Sendrecv(out, lengths[i], MPI_BYTE, next, i, in, LONGEST, MPI_BYTE, before, i, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_BYTE, &got);
        require(got == lengths[i] && status.MPI_SOURCE == before, "length or source of a message of the ring");
        check(in, got, before, i, "ring");
    }
}

/* Many at once between every two ranks; receives are posted in the opposite order, and found by
 * their tags. */
static void many(unsigned char *out, unsigned char *in)
{
    const int length = 20011;
    MPI_Request requests[2 * PENDING];

    for (int distance = 1; distance < size; distance++) {
        int to = (rank + distance) % size, from = (rank + size - distance) % size;
        for (int i = 0; i < PENDING; i++) {
            int tag = PENDING - 1 - i;
            MPI_Irecv(in + tag * length, length, MPI_BYTE, from, tag, MPI_COMM_WORLD, &requests[i]);
        }
        for (int i = 0; i < PENDING; i++) {
            fill(out + i * length, length, i);
            MPI_Isend(out + i * length, length, MPI_BYTE, to, i, MPI_COMM_WORLD, &requests[PENDING + i]);
        }
        MPI_Waitall(2 * PENDING, requests, MPI_STATUSES_IGNORE);
        for (int i = 0; i < PENDING; i++)
            check(in + i * length, length, from, i, "many at once");
    }
}

static void collectives(unsigned char *out, unsigned char *in)
{
    const int length = LONGEST / size / 2;
    long *sums = malloc(2 * WORDS * sizeof *sums);
    long ranks = size;

    require(sums != NULL, "memory");
    for (int i = 0; i < WORDS; i++)
        sums[i] = rank * 3L + i;
    MPI_Allreduce(sums, sums + WORDS, WORDS, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < WORDS; i++)
        require(sums[WORDS + i] == 3 * ranks * (ranks - 1) / 2 + i * ranks, "MPI_Allreduce");
    free(sums);

    for (int to = 0; to < size; to++)
        fill(out + to * length, length, to);
    memset(in, 0, LONGEST);
    MPI_Alltoall(out, length, MPI_BYTE, in, length, MPI_BYTE, MPI_COMM_WORLD);
    for (int from = 0; from < size; from++)
        check(in + from * length, length, from, rank, "MPI_Alltoall");

    for (int root = 0; root < size; root++) {
        memset(in, 0, LONGEST);
        if (rank == root)
            fill(in, LONGEST, 77);
        MPI_Bcast(in, LONGEST, MPI_BYTE, root, MPI_COMM_WORLD);
        check(in, LONGEST, root, 77, "MPI_Bcast");
        MPI_Barrier(MPI_COMM_WORLD);
    }
}

/* Each rank writes into the window of the next, reads it back, and all count in the window of rank
 * 0. */
static void one_sided(unsigned char *out, unsigned char *in)
{
    const int length = 100000;
    int next = (rank + 1) % size, before = (rank + size - 1) % size;
    unsigned char *memory;
    long *counter, one = 1, old = -1;
    MPI_Win window, counters;

    MPI_Win_allocate(length, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    MPI_Win_allocate(sizeof *counter, sizeof *counter, MPI_INFO_NULL, MPI_COMM_WORLD, &counter, &counters);
    memset(memory, 0, length);
    *counter = 0;
    MPI_Barrier(MPI_COMM_WORLD);

    fill(out, length, 5);
    MPI_Win_fence(0, window);
    MPI_Put(out, length, MPI_BYTE, next, 0, length, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    check(memory, length, before, 5, "MPI_Put");
    memset(in, 0, length);
    MPI_Get(in, length, MPI_BYTE, next, 0, length, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    check(in, length, rank, 5, "MPI_Get");

    for (int i = 0; i < 50; i++) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, counters);
        MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, counters);
        MPI_Win_unlock(0, counters);
        require(old >= i && old < 50L * size, "MPI_Fetch_and_op");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, counters);
    MPI_Fetch_and_op(NULL, &old, MPI_LONG, 0, 0, MPI_NO_OP, counters);
    MPI_Win_unlock(0, counters);
    require(old == 50L * size, "what all have added");
    MPI_Win_free(&counters);
    MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
    unsigned char *out = malloc(LONGEST), *in = malloc(LONGEST);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    require(out != NULL && in != NULL, "memory");
    ring(out, in);
    many(out, in);
    collectives(out, in);
    one_sided(out, in);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%d ranks exchanged what they should\n", size);
    MPI_Finalize();
    free(out);
    free(in);
    return 0;
}
