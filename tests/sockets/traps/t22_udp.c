/* Datagrams: empty, large, connected, refused; the most specific socket wins. */
#include "../trap.h"

static char data[70000];

static int at(const char *address, int number)
{
    int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0)), on = 1;
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    struct sockaddr_in name = address_of(address, number);
    MUST(bind(fd, (struct sockaddr *)&name, sizeof name));
    return fd;
}

static void received(const char *what, int fd, int flags)
{
    struct sockaddr_storage from = {0};
    socklen_t length = sizeof from;
    if (!(flags & MSG_DONTWAIT)) wait_mask(fd, POLLIN, POLLIN);
    ssize_t got = recvfrom(fd, data, sizeof data, flags | MSG_DONTWAIT, (struct sockaddr *)&from, &length);
    int error = errno;
    say("%s: %zd %s from %s '%.*s'", what, got, got < 0 ? error_name(error) : "", name_of(&from), got > 0 && got < 40 ? (int)got : 0,
        data);
}

static ssize_t sent(int fd, const char *text, size_t length, const char *address, int number)
{
    struct sockaddr_in to = address_of(address, number);
    return sendto(fd, text, length, 0, (struct sockaddr *)&to, sizeof to);
}

/* The kernel limits how often it says that a port is closed. */
static int refused_mask(int fd)
{
    int mask = -1;
    for (int64_t until = now_ms() + WAIT_MS; mask <= 0 && now_ms() < until;) {
        struct pollfd on = {fd, POLLIN, 0};
        if (poll(&on, 1, 100) > 0) mask = on.revents;
        else MUST(send(fd, "x", 1, 0));
    }
    return mask;
}

static void iperf(void)
{
    /* A listener of [::] is connected to its first peer, and a second takes its place. */
    int first = MUST(socket(AF_INET6, SOCK_DGRAM, 0)), on = 1, off = 0;
    MUST(setsockopt(first, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
    MUST(setsockopt(first, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    struct sockaddr_in6 any = address6_of("::", port + 2);
    MUST(bind(first, (struct sockaddr *)&any, sizeof any));
    tell("iperf");
    struct sockaddr_storage from = {0};
    socklen_t length = sizeof from;
    MUST(wait_mask(first, POLLIN, POLLIN));
    TRY(recvfrom(first, data, sizeof data, 0, (struct sockaddr *)&from, &length));
    say("from %s, local %s", name_of(&from), local_name(first));
    TRY(connect(first, (struct sockaddr *)&from, length));
    say("connected: local %s, peer %s", local_name(first), peer_name(first));
    int second = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
    MUST(setsockopt(second, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
    MUST(setsockopt(second, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    TRY(bind(second, (struct sockaddr *)&any, sizeof any));
    TRY(send(first, "hello", 5, 0));
    received("the connected one", first, 0);
    hear("other");
    received("the second", second, 0);
    received("nothing more", first, MSG_DONTWAIT);
    MUST(close(first));
    MUST(close(second));
}

void server(void)
{
    int fd = at(own, port), other = at(own, port + 1);
    received("nothing", fd, MSG_DONTWAIT);
    tell("bound");
    hear("sent");
    int waiting;
    for (int turn = 0; turn < 3; turn++) {
        MUST(wait_mask(fd, POLLIN, POLLIN));
        MUST(ioctl(fd, FIONREAD, &waiting));
        say("next has %d", waiting);
        received("in order", fd, 0);
    }
    MUST(wait_mask(fd, POLLIN, POLLIN));
    TRY(recv(fd, data, 4, MSG_TRUNC));
    TRY(recv(fd, data, 4, 0));
    TRY(recv(fd, data, 4, MSG_PEEK | MSG_TRUNC));
    TRY(recv(fd, data, 0, 0));
    TRY(read(fd, data, 0));
    received("read of nothing took none", fd, 0);
    struct iovec part = {data, 3};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    MUST(wait_mask(fd, POLLIN, POLLIN));
    TRY(recvmsg(fd, &message, 0));
    say("truncated: %d", (message.msg_flags & MSG_TRUNC) != 0);
    received("the largest", fd, 0);
    tell("connect");
    hear("queued");
    struct sockaddr_in stranger = address_of(peer, port + 50);
    MUST(wait_mask(fd, POLLIN, POLLIN));
    TRY(connect(fd, (struct sockaddr *)&stranger, sizeof stranger));
    received("queued before connect", fd, 0);
    tell("filter");
    hear("filtered");
    received("filtered", fd, MSG_DONTWAIT);
    TRY(sent(fd, "elsewhere", 9, peer, port + 51));
    struct sockaddr unspecified = {.sa_family = AF_UNSPEC};
    TRY(connect(fd, &unspecified, sizeof unspecified));
    say("peer %s", peer_name(fd));
    TRY(send(fd, "x", 1, 0));
    tell("open");
    received("open again", fd, 0);
    received("the other", other, 0);
    iperf();
    tell("many");
    for (int turn = 0; turn < 50; turn++) {
        MUST(wait_mask(fd, POLLIN, POLLIN));
        ssize_t got = recv(fd, data, sizeof data, 0);
        if (got != turn * 100 || (got > 0 && data[got - 1] != turn)) say("datagram %d has %zd", turn, got);
        tell("next");
    }
    hear("over");
}

void client(void)
{
    int fd = at(own, port + 50), second = at(own, port + 51);
    hear("bound");
    TRY(sent(fd, "first", 5, peer, port));
    TRY(sent(fd, "", 0, peer, port));
    TRY(sent(fd, "third", 5, peer, port));
    TRY(sent(fd, "truncated?", 10, peer, port));
    TRY(sent(fd, "truncated?", 10, peer, port));
    TRY(sent(fd, "peeked", 6, peer, port));
    TRY(sent(fd, "stays", 5, peer, port));
    TRY(sent(fd, "message", 7, peer, port));
    memset(data, 'x', sizeof data);
    TRY(sent(fd, data, 65507, peer, port));
    TRY(sent(fd, data, 65508, peer, port));
    tell("sent");
    hear("connect");
    TRY(sent(second, "early", 5, peer, port));
    tell("queued");
    hear("filter");
    TRY(sent(second, "late", 4, peer, port));
    tell("filtered");
    received("elsewhere", second, 0);
    hear("open");
    TRY(sent(second, "now", 3, peer, port));
    TRY(sent(second, "to the other", 12, peer, port + 1));
    hear("iperf");
    TRY(sent(fd, "one", 3, peer, port + 2));
    received("from the connected", fd, 0);
    TRY(sent(fd, "two", 3, peer, port + 2));
    TRY(sent(second, "three", 5, peer, port + 2));
    tell("other");
    hear("many");
    struct sockaddr_in to = address_of(peer, port);
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    for (int turn = 0; turn < 50; turn++) {
        memset(data, turn, (size_t)turn * 100);
        MUST(send(fd, data, (size_t)turn * 100, 0));
        hear("next");
    }
    tell("over");

    TRY(sent(second, "x", 1, peer, port + 9));
    received("not connected: no refusal", second, MSG_DONTWAIT);
    int refused = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in closed = address_of(peer, port + 9);
    TRY(connect(refused, (struct sockaddr *)&closed, sizeof closed));
    TRY(send(refused, "x", 1, 0));
    say("refused: %s", mask_name((unsigned)refused_mask(refused)));
    TRY(recv(refused, data, 1, 0));
    TRY(recv(refused, data, 1, MSG_DONTWAIT));
    TRY(send(refused, "x", 1, 0));
    MUST(refused_mask(refused));
    TRY(send(refused, "x", 1, 0));
    TRY(sendto(socket(AF_INET, SOCK_DGRAM, 0), "x", 1, 0, NULL, 0));
    int shut = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(connect(shut, (struct sockaddr *)&closed, sizeof closed));
    TRY(shutdown(shut, SHUT_RD));
    TRY(recv(shut, data, 1, 0));
    TRY(read(shut, data, 1));
}
