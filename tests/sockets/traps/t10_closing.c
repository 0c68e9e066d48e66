/* Programs that close every descriptor they do not know, and live on under limits and a filter. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "../trap.h"

enum { PART = 5000 };

static void close_all_but(int connection)
{
    for (int fd = 3; fd < 1024; fd++)
        if (fd != connection) close(fd);
    open_channel();
}

static int ranged(unsigned first, unsigned last)
{
    int returned = close_range(first, last, 0);
    int error = errno;
    open_channel();
    errno = error;
    return returned;
}

/* What OpenSSH's process before authentication allows, denies and dies of. */
static int filtered(void)
{
#define ALLOW(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define DENY(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES)
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        DENY(open), DENY(openat), DENY(newfstatat), DENY(stat), DENY(shmget),
        ALLOW(read), ALLOW(write), ALLOW(writev), ALLOW(close), ALLOW(poll), ALLOW(select), ALLOW(pselect6),
        ALLOW(futex), ALLOW(mmap), ALLOW(munmap), ALLOW(mremap), ALLOW(mprotect), ALLOW(madvise), ALLOW(brk),
        ALLOW(shutdown), ALLOW(clock_gettime), ALLOW(gettimeofday), ALLOW(time), ALLOW(nanosleep),
        ALLOW(clock_nanosleep), ALLOW(getpid), ALLOW(getrandom), ALLOW(rt_sigprocmask), ALLOW(exit), ALLOW(exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return -1;
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void write_all(int fd, size_t position, size_t bytes)
{
    uint8_t data[PART];
    for (size_t i = 0; i < bytes; i++) data[i] = pattern_at(position + i);
    for (size_t done = 0; done < bytes;) {
        ssize_t sent = write(fd, data + done, bytes - done);
        if (sent <= 0) {
            say("write: %s", error_name(errno));
            return;
        }
        done += (size_t)sent;
    }
}

static size_t read_all(int fd, size_t position, size_t bytes)
{
    uint8_t data[PART];
    size_t done = 0;
    while (done < bytes) {
        struct pollfd on = {fd, POLLIN, 0};
        if (poll(&on, 1, WAIT_MS) != 1) break;
        ssize_t got = read(fd, data + done, bytes - done);
        if (got <= 0) {
            say("read: %zd %s", got, error_name(errno));
            break;
        }
        done += (size_t)got;
    }
    for (size_t i = 0; i < done; i++)
        if (data[i] != pattern_at(position + i)) {
            say("wrong byte at %zu", i);
            return i;
        }
    return done;
}

static void talked(const char *when, int connection)
{
    say("%s: %zu", when, read_all(connection, 0, PART));
    write_all(connection, 0, PART);
}

static void confined(int connection, int limit)
{
    /* With 0, poll of one descriptor is EINVAL. */
    struct rlimit one = {1, 1}, none = {0, 0};
    TRY(chroot("/proc/self/fdinfo"));
    TRY(setrlimit(RLIMIT_NOFILE, limit == 0 ? &none : &one));
    TRY(filtered());
    struct pollfd on = {connection, POLLIN, 0};
    TRY(poll(&on, 1, WAIT_MS));
    size_t got = 0;
    uint8_t data[PART];
    for (ssize_t more; got < PART && (more = read(connection, data + got, PART - got)) > 0;) got += (size_t)more;
    say("confined: %zu", got);
    write_all(connection, 0, PART);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(connection, &in);
    struct timeval seconds = {5, 0};
    tell("select");
    TRY(select(connection + 1, &in, NULL, NULL, &seconds));
    TRY(read(connection, data, 10));
    TRY(open("/dev/null", O_RDONLY));
    TRY(shutdown(connection, SHUT_WR));
    TRY(read(connection, data, 1));
    TRY(close(connection));
    _exit(0);
}

void server(void)
{
    int connection = joined_server();
    close_all_but(connection);
    talked("all others closed", connection);
    TRY(dup2(connection, 0));
    TRY(ranged(3, ~0u));
    talked("close_range", 0);
    for (int fd = 3; fd <= 8; fd++) TRY(dup2(0, fd));
    talked("dup2 onto 3 to 8", 5);
    TRY(close_range(3, 8, CLOSE_RANGE_CLOEXEC));
    say("descriptor flags %d %d", fcntl(0, F_GETFD), fcntl(4, F_GETFD));
    talked("close_range for exec", 0);
    TRY(close_range(9, 3, 0));
    TRY(ranged(3, ~0u));

    for (int limit = 1; limit >= 0; limit--) {
        connection = joined_server();
        say("the next is %d", connection);
        pid_t child = MUST(fork());
        if (child == 0) confined(connection, limit);
        /* Beside the child's lines: no line. */
        MUST(close(connection));
        say_end("confined", child);
    }

    connection = joined_server();
    struct rlimit few = {10, 4096}, enough = {1024, 4096};
    TRY(setrlimit(RLIMIT_NOFILE, &few));
    int fds[32], opened = 0;
    while (opened < 32 && (fds[opened] = socket(AF_INET, SOCK_STREAM, 0)) >= 0) opened++;
    say("opened %d, then %s", opened, error_name(errno));
    talked("no descriptor left", connection);
    TRY(setrlimit(RLIMIT_NOFILE, &enough));
    hear("over");
}

static void answered(int connection, const char *when)
{
    write_all(connection, 0, PART);
    say("%s: %zu", when, read_all(connection, 0, PART));
}

void client(void)
{
    int connection = joined_client();
    answered(connection, "all others closed");
    answered(connection, "close_range");
    answered(connection, "dup2");
    answered(connection, "close_range for exec");

    for (int limit = 1; limit >= 0; limit--) {
        int second = joined_client();
        answered(second, "confined");
        hear("select");
        write_all(second, PART, 10);
        say("ends: %s", mask_name(wait_mask(second, POLLRDHUP, POLLIN | POLLRDHUP)));
        TRY(close(second));
    }

    int third = joined_client();
    answered(third, "no descriptor left");
    tell("over");
}
