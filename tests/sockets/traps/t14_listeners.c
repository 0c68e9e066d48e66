/* Listeners on 0.0.0.0 and ::, what is accepted after its peer has gone, and what it inherits. */
#include <limits.h>

#include "../trap.h"

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t length = sizeof value;
    return getsockopt(fd, level, name, &value, &length) < 0 ? -errno : value;
}

static int listening(int family, int at)
{
    int fd = MUST(socket(family, SOCK_STREAM, 0)), on = 1;
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    struct sockaddr_in any = address_of("0.0.0.0", at);
    struct sockaddr_in6 any6 = address6_of("::", at);
    if (family == AF_INET) MUST(bind(fd, (struct sockaddr *)&any, sizeof any));
    else MUST(bind(fd, (struct sockaddr *)&any6, sizeof any6));
    TRY(listen(fd, INT_MAX));
    TRY(listen(fd, 16));
    return fd;
}

static void taken(const char *what, int at)
{
    struct sockaddr_storage from = {0};
    socklen_t length = sizeof from;
    int connection = MUST(accept(at, (struct sockaddr *)&from, &length));
    warm(connection);
    say("%s: from %s, at %s", what, name_of(&from), local_name(connection));
    MUST(close(connection));
}

void server(void)
{
    int four = listening(AF_INET, port), six = listening(AF_INET6, port + 1);
    tell("listening");
    taken("0.0.0.0", four);
    taken(":: from IPv4", six);
    taken(":: from IPv6", six);

    hear("queued");
    for (int turn = 0; turn < 4; turn++) {
        int connection = MUST(accept(four, NULL, NULL));
        char byte = 0;
        MUST(recv(connection, &byte, 1, 0));
        say("in order: %c", byte);
        TRY(recv(connection, &byte, 1, 0));
        MUST(close(connection));
    }

    hear("gone");
    int connection = TRY(accept(four, NULL, NULL));
    say("data of a peer that has gone: %zu", check_pattern(connection, 0, 1 << 20));
    MUST(close(connection));
    hear("reset");
    connection = TRY(accept(four, NULL, NULL));
    char byte;
    TRY(recv(connection, &byte, 1, 0));
    TRY(recv(connection, &byte, 1, 0));
    MUST(close(connection));

    int on = 1;
    struct timeval limit = {0, 50000};
    MUST(setsockopt(four, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    MUST(setsockopt(four, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
    MUST(setsockopt(four, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    MUST(fcntl(four, F_SETFL, O_NONBLOCK));
    TRY(accept(four, NULL, NULL));
    tell("inherit");
    say("a client: %s", mask_name(wait_mask(four, POLLIN, POLLIN | POLLOUT)));
    connection = TRY(accept(four, NULL, NULL));
    say("inherited: NODELAY %d KEEPALIVE %d flags %#x", option(connection, IPPROTO_TCP, TCP_NODELAY),
        option(connection, SOL_SOCKET, SO_KEEPALIVE), fcntl(connection, F_GETFL));
    TRY(recv(connection, &byte, 1, 0));
    TRY(accept(connection, NULL, NULL));
    TRY(listen(connection, 1));
    TRY(recv(four, &byte, 1, 0));
    TRY(send(four, "x", 1, MSG_NOSIGNAL));
    TRY(shutdown(four, SHUT_RD));
    TRY(accept(four, NULL, NULL));
    TRY(accept4(four, NULL, NULL, 12345));
    int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(accept(fresh, NULL, NULL));
    TRY(accept(0, NULL, NULL));
    tell("over");
}

static int to(int family, const char *address, int at)
{
    int fd = MUST(socket(family, SOCK_STREAM, 0));
    struct sockaddr_in four = address_of(address, at);
    struct sockaddr_in6 six = address6_of(address, at);
    if (family == AF_INET) MUST(connect(fd, (struct sockaddr *)&four, sizeof four));
    else MUST(connect(fd, (struct sockaddr *)&six, sizeof six));
    return fd;
}

static void greeted(int fd)
{
    warm(fd);
    say("local %s, peer %s", local_name(fd), peer_name(fd));
    char byte;
    TRY(recv(fd, &byte, 1, 0));
    MUST(close(fd));
}

void client(void)
{
    hear("listening");
    greeted(to(AF_INET, peer, port));
    greeted(to(AF_INET, peer, port + 1));
    greeted(to(AF_INET6, peer6, port + 1));
    int fds[4];
    for (int turn = 0; turn < 4; turn++) {
        fds[turn] = to(AF_INET, peer, port);
        TRY(send(fds[turn], "abcd" + turn, 1, 0));
        TRY(shutdown(fds[turn], SHUT_WR));
    }
    tell("queued");
    char byte;
    for (int turn = 0; turn < 4; turn++) TRY(recv(fds[turn], &byte, 1, 0));

    int fd = to(AF_INET, peer, port);
    send_pattern(fd, 0, 9000);
    TRY(close(fd));
    tell("gone");
    fd = to(AF_INET, peer, port);
    struct linger hard = {1, 0};
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
    TRY(close(fd));
    tell("reset");
    hear("inherit");
    fd = to(AF_INET, peer, port);
    hear("over");
}
