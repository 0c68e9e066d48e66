/* What programs ask of a socket, and the urgent byte. */
#include <linux/sockios.h>

#include "../trap.h"

static volatile sig_atomic_t urgent;

static void urged(int number)
{
    (void)number;
    urgent++;
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t length = sizeof value;
    return getsockopt(fd, level, name, &value, &length) < 0 ? -errno : value;
}

static int asked(int fd, unsigned long request)
{
    int value = -1;
    return ioctl(fd, request, &value) < 0 ? -errno : value;
}

static void all_of(const char *what, int fd)
{
    say("%s: TYPE %d PROTOCOL %d DOMAIN %d ACCEPTCONN %d ERROR %d", what, option(fd, SOL_SOCKET, SO_TYPE),
        option(fd, SOL_SOCKET, SO_PROTOCOL), option(fd, SOL_SOCKET, SO_DOMAIN), option(fd, SOL_SOCKET, SO_ACCEPTCONN),
        option(fd, SOL_SOCKET, SO_ERROR));
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    int failed = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length);
    say("TCP_INFO %d, state %d", failed, info.tcpi_state);
    say("MAXSEG %d, unknown %d, other level %d", option(fd, IPPROTO_TCP, TCP_MAXSEG) > 0, option(fd, IPPROTO_TCP, 9999),
        option(fd, 99, 1));
    char name[16] = {0};
    length = sizeof name;
    say("CONGESTION %d", getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length));
    say("FIONREAD %d SIOCOUTQ %d", asked(fd, FIONREAD), asked(fd, SIOCOUTQ));
}

/* Lines of /proc/net/tcp in the state at `port`. */
static int listed(int state)
{
    FILE *table = fopen("/proc/net/tcp", "r");
    char line[512];
    int found = 0;
    while (table && fgets(line, sizeof line, table)) {
        unsigned at, is;
        if (sscanf(line, " %*d: %*8[0-9A-F]:%x %*8[0-9A-F]:%*x %x", &at, &is) == 2)
            found += at == (unsigned)port && is == (unsigned)state;
    }
    if (table) fclose(table);
    return found;
}

static void acknowledged(int connection)
{
    int left = 1;
    for (int64_t until = now_ms() + WAIT_MS; left > 0 && now_ms() < until; usleep(500)) left = asked(connection, SIOCOUTQ);
    say("SIOCOUTQ %d", left);
}

void server(void)
{
    int at = listener();
    all_of("listener", at);
    say("listed listening: %d", listed(10));
    tell("listening");
    int connection = MUST(accept(at, NULL, NULL));
    warm(connection);
    hear("all");
    say("listed established: %d", listed(1));
    int waiting = 0;
    for (int64_t until = now_ms() + WAIT_MS; waiting < 5000 && now_ms() < until; usleep(500))
        waiting = asked(connection, FIONREAD);
    say("5000 wait: %d", waiting);
    say("taken %zu", check_pattern(connection, 0, 1000));
    say("%d left", asked(connection, FIONREAD));
    say("taken %zu", check_pattern(connection, 1000, 4000));

    signal(SIGURG, urged);
    TRY(fcntl(connection, F_SETOWN, getpid()));
    say("owner %d", fcntl(connection, F_GETOWN) == getpid());
    tell("urgent");
    say("urgent: %s", mask_name(wait_mask(connection, POLLPRI | POLLIN, POLLIN | POLLPRI | POLLRDHUP)));
    for (int64_t until = now_ms() + WAIT_MS; urgent == 0 && now_ms() < until;) usleep(500);
    say("SIGURG %d", urgent > 0);
    fd_set except;
    FD_ZERO(&except);
    FD_SET(connection, &except);
    struct timeval limit = {1, 0};
    TRY(select(connection + 1, NULL, NULL, &except, &limit));
    char data[64] = {0};
    hear("sent");
    for (int64_t until = now_ms() + WAIT_MS; asked(connection, FIONREAD) < 3 && now_ms() < until;) usleep(500);
    TRY(recv(connection, data, sizeof data, 0));
    say("up to the mark '%s'", data);
    say("at the mark %d", asked(connection, SIOCATMARK));
    TRY(recv(connection, data, 1, MSG_OOB));
    say("the byte '%c'", data[0]);
    MUST(wait_mask(connection, POLLIN, POLLIN));
    memset(data, 0, sizeof data);
    TRY(recv(connection, data, sizeof data, 0));
    say("behind the mark '%s'", data);
    int on = 1;
    MUST(setsockopt(connection, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
    tell("inline");
    hear("sent");
    for (int64_t until = now_ms() + WAIT_MS; asked(connection, FIONREAD) < 2 && now_ms() < until;) usleep(500);
    memset(data, 0, sizeof data);
    TRY(recv(connection, data, sizeof data, 0));
    TRY(recv(connection, data + 8, sizeof data - 8, 0));
    say("inline '%s' '%s'", data, data + 8);
    hear("over");
}

void client(void)
{
    int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0)), datagrams = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    all_of("fresh", fresh);
    all_of("datagrams", datagrams);
    int size = 50000;
    for (int turn = 0; turn < 2; turn++) {
        int fd = turn == 0 ? fresh : datagrams;
        TRY(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
        TRY(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
        say("doubled: %d %d", option(fd, SOL_SOCKET, SO_SNDBUF), option(fd, SOL_SOCKET, SO_RCVBUF));
    }
    TRY(setsockopt(fresh, SOL_SOCKET, 9999, &size, sizeof size));
    TRY(setsockopt(fresh, SOL_SOCKET, SO_SNDBUF, &size, 1));
    TRY(setsockopt(777, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    TRY(setsockopt(0, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    say("SIOCATMARK of a fresh one %d", asked(fresh, SIOCATMARK));
    hear("listening");
    int connection = dial();
    warm(connection);
    acknowledged(connection);
    all_of("connection", connection);
    send_pattern(connection, 0, 5000);
    tell("all");
    acknowledged(connection);
    struct linger linger = {1, 7}, found = {0};
    socklen_t length = sizeof found;
    TRY(setsockopt(connection, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    TRY(getsockopt(connection, SOL_SOCKET, SO_LINGER, &found, &length));
    say("linger %d %d", found.l_onoff, found.l_linger);
    linger = (struct linger){0, 0};
    TRY(setsockopt(connection, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    int on = 1;
    TRY(ioctl(connection, FIONBIO, &on));
    say("status flags %#x", fcntl(connection, F_GETFL));
    char byte;
    TRY(recv(connection, &byte, 1, 0));
    on = 0;
    TRY(ioctl(connection, FIONBIO, &on));
    hear("urgent");
    TRY(send(connection, "abc", 3, 0));
    TRY(send(connection, "!", 1, MSG_OOB));
    TRY(send(connection, "def", 3, 0));
    tell("sent");
    hear("inline");
    TRY(send(connection, "g", 1, 0));
    TRY(send(connection, "?", 1, MSG_OOB));
    tell("sent");
    tell("over");
    TRY(recv(connection, &byte, 1, 0));
}
