/* Only the program's bytes are in the stream, and what was set before connect holds after it. */
#include "../trap.h"

static void quiet(const char *when, int connection)
{
    struct pollfd on = {connection, POLLIN | POLLRDHUP, 0};
    int ready = poll(&on, 1, 2 * QUIET_MS), waiting = -1;
    ioctl(connection, FIONREAD, &waiting);
    say("%s: poll %d, %d bytes wait", when, ready, waiting);
}

void server(void)
{
    int at = listener();
    tell("listening");
    int connection = MUST(accept(at, NULL, NULL));
    quiet("no end sends", connection);
    meet("silent");
    say("ends without a byte: %zu", check_pattern(connection, 0, 1));
    MUST(close(connection));
    tell("listening");
    connection = MUST(accept(at, NULL, NULL));
    say("one byte: %zu", check_pattern(connection, 0, 10));
    send_pattern(connection, 0, 3);
    MUST(close(connection));
    tell("listening");
    connection = MUST(accept(at, NULL, NULL));
    say("accepted %s from %s", local_name(connection), peer_name(connection));
    say("all: %zu", check_pattern(connection, 0, 1 << 24));
    send_pattern(connection, 0, 300001);
    MUST(close(connection));
    MUST(close(at));
    at = listener();
    MUST(listen(at, 0));
    tell("listening");
    hear("over");
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t length = sizeof value;
    return getsockopt(fd, level, name, &value, &length) < 0 ? -errno : value;
}

static void options(int fd)
{
    say("NODELAY %d KEEPALIVE %d KEEPIDLE %d KEEPINTVL %d KEEPCNT %d CORK %d TOS %d TTL %d USER_TIMEOUT %d",
        option(fd, IPPROTO_TCP, TCP_NODELAY), option(fd, SOL_SOCKET, SO_KEEPALIVE), option(fd, IPPROTO_TCP, TCP_KEEPIDLE),
        option(fd, IPPROTO_TCP, TCP_KEEPINTVL), option(fd, IPPROTO_TCP, TCP_KEEPCNT), option(fd, IPPROTO_TCP, TCP_CORK),
        option(fd, IPPROTO_IP, IP_TOS), option(fd, IPPROTO_IP, IP_TTL), option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT));
    say("SNDBUF %d RCVBUF %d PRIORITY %d", option(fd, SOL_SOCKET, SO_SNDBUF), option(fd, SOL_SOCKET, SO_RCVBUF),
        option(fd, SOL_SOCKET, SO_PRIORITY));
    say("local %s, peer %s", local_name(fd), peer_name(fd));
}

static void set(int fd, int level, int name, int value)
{
    MUST(setsockopt(fd, level, name, &value, sizeof value));
}

void client(void)
{
    hear("listening");
    int fd = dial();
    quiet("no end sends", fd);
    meet("silent");
    TRY(shutdown(fd, SHUT_WR));
    say("ends without a byte: %zu", check_pattern(fd, 0, 1));
    MUST(close(fd));
    hear("listening");
    fd = dial();
    send_pattern(fd, 0, 1);
    TRY(shutdown(fd, SHUT_WR));
    say("three bytes: %zu", check_pattern(fd, 0, 10));
    MUST(close(fd));

    hear("listening");
    fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 77);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 11);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set(fd, IPPROTO_IP, IP_TOS, 0x28);
    set(fd, IPPROTO_IP, IP_TTL, 33);
    set(fd, SOL_SOCKET, SO_SNDBUF, 50000);
    set(fd, SOL_SOCKET, SO_RCVBUF, 60000);
    set(fd, SOL_SOCKET, SO_PRIORITY, 4);
    options(fd);
    struct sockaddr_in me = address_of(own, port + 3), to = address_of(peer, port);
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    TRY(bind(fd, (struct sockaddr *)&me, sizeof me));
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    options(fd);
    send_pattern(fd, 0, 1000003);
    options(fd);
    TRY(shutdown(fd, SHUT_WR));
    say("all: %zu", check_pattern(fd, 0, 1 << 24));
    MUST(close(fd));

    hear("listening");
    int first = dial();
    fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 300);
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    MUST(close(first));
    tell("over");
}
