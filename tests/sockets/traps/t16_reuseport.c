/* SO_REUSEPORT: several listeners at one port, of one process or of two. */
#include "../trap.h"

enum { CLIENTS = 40 };

static int shared(int type, int at, int on)
{
    int fd = socket(AF_INET, type, 0);
    if (on >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) < 0) return -1;
    struct sockaddr_in name = address_of(own, at);
    if (bind(fd, (struct sockaddr *)&name, sizeof name) < 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

static int answered(int at, int most)
{
    int count = 0;
    while (count < most && wait_mask(at, POLLIN, POLLIN) > 0) {
        int connection = MUST(accept(at, NULL, NULL));
        send_pattern(connection, 0, 100);
        check_pattern(connection, 0, 100);
        close(connection);
        count++;
    }
    return count;
}

void server(void)
{
    int one = TRY(shared(SOCK_STREAM, port, 1)), two = TRY(shared(SOCK_STREAM, port, 1));
    TRY(shared(SOCK_STREAM, port, -1));
    TRY(listen(one, 64));
    TRY(listen(two, 64));
    int alone = TRY(shared(SOCK_STREAM, port + 1, -1));
    TRY(shared(SOCK_STREAM, port + 1, 1));
    TRY(close(alone));
    int value = 0;
    socklen_t length = sizeof value;
    TRY(getsockopt(one, SOL_SOCKET, SO_REUSEPORT, &value, &length));
    say("REUSEPORT %d", value);
    tell("listening");
    hear("dialled");
    int counts[2] = {0, 0};
    for (int turn = 0; turn < CLIENTS; turn++) {
        struct pollfd both[2] = {{one, POLLIN, 0}, {two, POLLIN, 0}};
        MUST(poll(both, 2, WAIT_MS));
        int chosen = both[0].revents ? 0 : 1;
        counts[chosen] += answered(chosen == 0 ? one : two, 1);
    }
    say("all %d, spread: %d", counts[0] + counts[1], counts[0] > 0 && counts[1] > 0);

    int d1 = TRY(shared(SOCK_DGRAM, port, 1)), d2 = TRY(shared(SOCK_DGRAM, port, 1));
    tell("datagrams");
    hear("sent");
    int got[2] = {0, 0};
    char data[8];
    for (int turn = 0; turn < CLIENTS; turn++) {
        struct pollfd both[2] = {{d1, POLLIN, 0}, {d2, POLLIN, 0}};
        if (poll(both, 2, WAIT_MS) <= 0) break;
        int chosen = both[0].revents ? 0 : 1;
        got[chosen] += recv(chosen == 0 ? d1 : d2, data, sizeof data, MSG_DONTWAIT) == 4;
    }
    say("all %d, spread: %d", got[0] + got[1], got[0] > 0 && got[1] > 0);
}

void client(void)
{
    hear("listening");
    int fds[CLIENTS];
    for (int turn = 0; turn < CLIENTS; turn++) fds[turn] = dial();
    tell("dialled");
    size_t whole = 0;
    for (int turn = 0; turn < CLIENTS; turn++) send_pattern(fds[turn], 0, 100);
    for (int turn = 0; turn < CLIENTS; turn++) {
        whole += check_pattern(fds[turn], 0, 100) == 100;
        close(fds[turn]);
    }
    say("answered %zu", whole);
    hear("datagrams");
    struct sockaddr_in to = address_of(peer, port);
    for (int turn = 0; turn < CLIENTS; turn++) {
        int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
        MUST(sendto(fd, "four", 4, 0, (struct sockaddr *)&to, sizeof to));
        close(fd);
    }
    tell("sent");
}
