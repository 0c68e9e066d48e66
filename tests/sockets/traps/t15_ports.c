/* Ports: one name space with the kernel. */
#include "../trap.h"

static int bound(int family, int type, const char *address, int at, int reuse, int only_six)
{
    int fd = socket(family, type, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
    if (family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only_six, sizeof only_six);
    struct sockaddr_in four = address_of(address, at);
    struct sockaddr_in6 six = address6_of(address, at);
    int failed = family == AF_INET ? bind(fd, (struct sockaddr *)&four, sizeof four)
                                   : bind(fd, (struct sockaddr *)&six, sizeof six);
    int error = errno;
    if (failed) close(fd);
    errno = error;
    return failed ? -1 : fd;
}

static void alone(void)
{
    /* Away from the port whose connections of an earlier run are in TIME_WAIT. */
    int lone = port + 20;
    int first = TRY(bound(AF_INET, SOCK_STREAM, "0.0.0.0", lone, 0, 0));
    TRY(bound(AF_INET, SOCK_STREAM, "0.0.0.0", lone, 0, 0));
    TRY(bound(AF_INET, SOCK_STREAM, own, lone, 0, 0));
    int datagrams = TRY(bound(AF_INET, SOCK_DGRAM, "0.0.0.0", lone, 0, 0));
    TRY(bound(AF_INET, SOCK_DGRAM, own, lone, 0, 0));
    TRY(bound(AF_INET6, SOCK_STREAM, "::", lone, 0, 0));
    int six = TRY(bound(AF_INET6, SOCK_STREAM, "::", lone, 0, 1));
    TRY(close(six));
    TRY(close(datagrams));
    TRY(close(first));
    first = TRY(bound(AF_INET, SOCK_STREAM, own, lone, 1, 0));
    int second = TRY(bound(AF_INET, SOCK_STREAM, own, lone, 1, 0));
    TRY(listen(first, 1));
    TRY(listen(second, 1));
    TRY(bound(AF_INET, SOCK_STREAM, own, lone, 1, 0));
    struct sockaddr_in again = address_of(own, lone + 5);
    TRY(bind(first, (struct sockaddr *)&again, sizeof again));
    TRY(close(second));
    TRY(close(first));
    first = TRY(bound(AF_INET, SOCK_STREAM, own, 0, 0, 0));
    say("port 0: %s", local_name(first));
    TRY(close(first));
    TRY(bound(AF_INET, SOCK_STREAM, peer, lone, 0, 0));
    TRY(bound(AF_INET, SOCK_DGRAM, peer, lone, 0, 0));
    TRY(bound(AF_INET, SOCK_STREAM, own, lone, 0, 0));
    first = TRY(socket(AF_INET, SOCK_STREAM, 0));
    say("unbound: %s", local_name(first));
    TRY(listen(first, 1));
    say("listening unbound: %s", local_name(first));
    int fresh = TRY(socket(AF_INET, SOCK_DGRAM, 0));
    TRY(listen(fresh, 1));
    TRY(bind(fresh, NULL, 16));
    TRY(bind(fresh, (struct sockaddr *)&again, 2));
    TRY(bind(0, (struct sockaddr *)&again, sizeof again));
}

void server(void)
{
    alone();
    for (int fd = 3; fd < 64; fd++) close(fd);
    int connection = joined_server();
    say("peer %s", peer_name(connection));
    say("beside its connections: %d", bound(AF_INET, SOCK_STREAM, own, port, 0, 0) < 0 ? errno : 0);
    say("with REUSEADDR: %d", bound(AF_INET, SOCK_STREAM, own, port, 1, 0) < 0 ? errno : 0);
    hear("over");
}

void client(void)
{
    alone();
    for (int fd = 3; fd < 64; fd++) close(fd);
    int connection = joined_client();
    say("local %s", local_name(connection));
    int probe = TRY(bound(AF_INET, SOCK_STREAM, own, port + 9, 0, 0));
    struct sockaddr_in to = address_of(peer, port + 8);
    TRY(connect(probe, (struct sockaddr *)&to, sizeof to));
    tell("over");
}
