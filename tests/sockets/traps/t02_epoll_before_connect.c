/* An epoll entry that is older than the connection survives bind, connect and accept. */
#include "../trap.h"

static int watched(int epoll, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

void server(void)
{
    int epoll = TRY(epoll_create1(0));
    int at = TRY(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    TRY(watched(epoll, at, EPOLLIN, 0x1122334455667788));
    say_events("a fresh listener", epoll, 0);
    struct sockaddr_in name = address_of(own, port);
    int on = 1;
    TRY(setsockopt(at, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    TRY(bind(at, (struct sockaddr *)&name, sizeof name));
    TRY(listen(at, 16));
    say_events("listening", epoll, 0);
    for (int round = 0; round < 2; round++) {
        tell("listening");
        say_events("a client", epoll, WAIT_MS);
        int connection = TRY(accept(at, NULL, NULL));
        TRY(watched(epoll, connection, EPOLLIN | EPOLLET, 7));
        hear("connected");
        warm(connection);
        TRY(epoll_ctl(epoll, EPOLL_CTL_DEL, connection, NULL));
        hear("drained");
        send_pattern(connection, 0, 100);
        hear("seen");
        TRY(close(connection));
        say_events("accepted", epoll, QUIET_MS);
        hear("done");
    }
}

static void connected(bool blocking)
{
    hear("listening");
    int epoll = TRY(epoll_create1(0));
    int fd = TRY(socket(AF_INET, SOCK_STREAM | (blocking ? 0 : SOCK_NONBLOCK), 0));
    TRY(watched(epoll, fd, EPOLLIN | EPOLLOUT | EPOLLET, 0x8877665544332211));
    say_events("a fresh socket", epoll, 0);
    struct sockaddr_in me = address_of(own, 0), to = address_of(peer, port);
    TRY(bind(fd, (struct sockaddr *)&me, sizeof me));
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    say_events("connecting", epoll, WAIT_MS);
    tell("connected");
    say("local %s, peer %s", local_name(fd), peer_name(fd));
    warm(fd);
    struct epoll_event event;
    while (epoll_wait(epoll, &event, 1, QUIET_MS) > 0) continue;
    tell("drained");
    say_events("data", epoll, WAIT_MS);
    say("received %zu", check_pattern(fd, 0, 100));
    tell("seen");
    say("to %s", mask_name(wait_mask(fd, POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP)));
    say_events("the end", epoll, WAIT_MS);
    TRY(close(fd));
    say_events("closed", epoll, 0);
    TRY(close(epoll));
    tell("done");
}

void client(void)
{
    connected(false);
    connected(true);
}
