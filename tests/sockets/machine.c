/* A random sequence of calls on several connections and a datagram socket. Both ends draw the same
   plan from the seed, so that each knows what must arrive: every byte of a stream is known by its
   position. After each step nothing is left in any stream, and the probes say so. */
#include "trap.h"

#include <sys/mman.h>
#include <sys/sendfile.h>

enum { CONNECTIONS = 3, DATAGRAM_SOCKET = CONNECTIONS, ALL = (1 << (CONNECTIONS + 1)) - 1 };
enum { LARGEST = 200000, STEP_BYTES_MAX = 1 << 20, DATAGRAM_ROUNDS = 6, BURST = 4 };
enum { WARM_BYTES = 4000, WARM_DATAGRAMS = 20, WARM_US = 2000 };

struct state {
    uint64_t step;
    /* Connections, and behind them the datagram socket, that are made anew before the next step:
       the kernel has got them, and lanes are tested. */
    unsigned stale;
    int fds[CONNECTIONS];
    int datagrams;
    /* How far each stream is, from the server and from the client. */
    size_t from[2][CONNECTIONS];
};

static struct state now;
static uint64_t seed, steps;
static uint64_t drawn;

/* splitmix64 of the seed, the step and the count of draws in it. */
static uint64_t draw(uint64_t below)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + now.step * 0xbf58476d1ce4e5b9u + ++drawn * 0x94d049bb133111ebu;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % below;
}

static size_t draw_bytes(void)
{
    switch (draw(4)) {
    case 0: return 1 + draw(16);
    case 1: return 1 + draw(2000);
    case 2: return 1 + draw(20000);
    default: return 1 + draw(LARGEST);
    }
}

static void fail(const char *what)
{
    say("step %llu: %s: %s", (unsigned long long)now.step, what, error_name(errno));
    _exit(4);
}

static void fill(uint8_t *data, int connection, size_t at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) data[i] = pattern_at(at + i) ^ (uint8_t)(connection * 37);
}

static void check(const uint8_t *data, int connection, size_t at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != (pattern_at(at + i) ^ (uint8_t)(connection * 37))) {
            say("step %llu: connection %d: wrong byte at %zu", (unsigned long long)now.step, connection, at + i);
            _exit(4);
        }
}

/* -- blocking transfers: one end sends, the other receives -- */

static const char *const SENDS[] = {"send", "write", "writev", "sendmsg", "sendto", "sendfile", "splice", "MSG_MORE", "TCP_CORK"};
static const char *const RECEIVES[] = {"recv", "read", "readv", "recvmsg", "recvfrom", "WAITALL", "PEEK", "splice", "RCVTIMEO"};
enum { SEND_KINDS = 9, RECEIVE_KINDS = 9 };

static ssize_t send_some(int fd, int kind, uint8_t *data, size_t bytes)
{
    struct iovec parts[3] = {{data, bytes / 3}, {data + bytes / 3, 0}, {data + bytes / 3, bytes - bytes / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    switch (kind) {
    case 0: return send(fd, data, bytes, MSG_NOSIGNAL);
    case 1: return write(fd, data, bytes);
    case 2: return writev(fd, parts, 3);
    case 3: return sendmsg(fd, &message, MSG_NOSIGNAL);
    default: return sendto(fd, data, bytes, MSG_NOSIGNAL, NULL, 0);
    }
}

static void send_by_file(int fd, uint8_t *data, size_t bytes, bool by_splice)
{
    int file = MUST(memfd_create("data", 0)), pipes[2];
    if (write(file, data, bytes) != (ssize_t)bytes) fail("memfd");
    MUST(pipe(pipes));
    off_t at = 0;
    while ((size_t)at < bytes) {
        if (!by_splice) {
            if (sendfile(fd, file, &at, bytes - (size_t)at) <= 0) fail("sendfile");
            continue;
        }
        ssize_t in = splice(file, &at, pipes[1], NULL, bytes - (size_t)at, 0);
        if (in <= 0) fail("splice from a file");
        while (in > 0) {
            ssize_t out = splice(pipes[0], NULL, fd, NULL, (size_t)in, 0);
            if (out <= 0) fail("splice to a socket");
            in -= out;
        }
    }
    close(file);
    close(pipes[0]);
    close(pipes[1]);
}

static void send_all(int connection, int kind, size_t bytes)
{
    static uint8_t data[LARGEST + 1];
    int fd = now.fds[connection], on = 1, off = 0;
    fill(data, connection, now.from[!is_server][connection], bytes);
    if (kind == 5 || kind == 6) {
        send_by_file(fd, data, bytes, kind == 6);
        return;
    }
    if (kind == 8) MUST(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    for (size_t done = 0; done < bytes;) {
        size_t part = bytes - done;
        if (kind >= 7 && part > 1000) part = 1000;
        ssize_t sent = kind == 7 ? send(fd, data + done, part, MSG_NOSIGNAL | (done + part < bytes ? MSG_MORE : 0))
                                 : send_some(fd, kind, data + done, part);
        if (sent <= 0) fail("send");
        done += (size_t)sent;
    }
    if (kind == 8) MUST(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
}

static ssize_t receive_some(int fd, int kind, uint8_t *data, size_t room)
{
    struct iovec parts[3] = {{data, room / 3}, {data + room / 3, 0}, {data + room / 3, room - room / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    static uint8_t peeked[LARGEST + 1];
    ssize_t seen, got;
    switch (kind) {
    case 0: return recv(fd, data, room, 0);
    case 1: return read(fd, data, room);
    case 2: return readv(fd, parts, 3);
    case 3: return recvmsg(fd, &message, 0);
    case 4: return recvfrom(fd, data, room, 0, (struct sockaddr *)&from, &length);
    case 5:
        got = recv(fd, data, room, MSG_WAITALL);
        if (got >= 0 && (size_t)got != room) say("WAITALL: %zd of %zu", got, room);
        return got;
    case 6:
        seen = recv(fd, peeked, room, MSG_PEEK);
        got = seen > 0 ? recv(fd, data, (size_t)seen, 0) : seen;
        if (got != seen || (got > 0 && memcmp(data, peeked, (size_t)got) != 0)) fail("PEEK and recv differ");
        return got;
    default: return recv(fd, data, room, 0);
    }
}

static ssize_t receive_by_splice(int fd, const int *pipes, uint8_t *data, size_t room)
{
    ssize_t got = splice(fd, NULL, pipes[1], NULL, room, 0);
    for (ssize_t done = 0; done < got;) {
        ssize_t part = read(pipes[0], data + done, (size_t)(got - done));
        if (part <= 0) fail("pipe");
        done += part;
    }
    return got;
}

static void receive_all(int connection, int kind, size_t bytes)
{
    static uint8_t data[LARGEST + 1];
    int fd = now.fds[connection], pipes[2];
    size_t at = now.from[is_server][connection];
    struct timeval limit = {0, 20000}, none = {0, 0};
    MUST(pipe(pipes));
    if (kind == 8) MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    for (size_t done = 0; done < bytes;) {
        ssize_t got = kind == 7 ? receive_by_splice(fd, pipes, data, bytes - done)
                                : receive_some(fd, kind, data, bytes - done);
        if (kind == 8 && got < 0 && errno == EAGAIN) continue;
        if (got <= 0) fail(got == 0 ? "the stream ends early" : "receive");
        check(data, connection, at + done, (size_t)got);
        done += (size_t)got;
    }
    if (kind == 8) MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
    close(pipes[0]);
    close(pipes[1]);
}

/* One stream moves; `from_server` sends. */
static void transfer(int connection, bool from_server, size_t bytes)
{
    int sends = (int)draw(SEND_KINDS), receives = (int)draw(RECEIVE_KINDS);
    say("step %llu: connection %d, %s, %zu bytes, %s to %s", (unsigned long long)now.step, connection,
        from_server ? "down" : "up", bytes, SENDS[sends], RECEIVES[receives]);
    if (from_server == is_server) send_all(connection, sends, bytes);
    else receive_all(connection, receives, bytes);
    now.from[!from_server][connection] += bytes;
}

/* -- all connections, both ways at once, by an event loop -- */

static const char *const LOOPS[] = {"poll", "select", "level", "edge", "once"};

struct lane {
    size_t to_send, to_receive, sent, received;
    bool writable, readable;
};

static bool finished(const struct lane *lanes)
{
    for (int c = 0; c < CONNECTIONS; c++)
        if (lanes[c].sent < lanes[c].to_send || lanes[c].received < lanes[c].to_receive) return false;
    return true;
}

static short wanted(const struct lane *lane)
{
    return (short)((lane->sent < lane->to_send ? POLLOUT : 0) | (lane->received < lane->to_receive ? POLLIN : 0));
}

static void await(struct lane *lanes, int kind, int epoll)
{
    struct pollfd on[CONNECTIONS];
    fd_set in, out;
    int ready = 0, most = 0;
    FD_ZERO(&in);
    FD_ZERO(&out);
    for (int c = 0; c < CONNECTIONS; c++) {
        int fd = now.fds[c];
        short mask = wanted(&lanes[c]);
        on[c] = (struct pollfd){fd, mask, 0};
        if (kind == 1 && mask & POLLIN) FD_SET(fd, &in);
        if (kind == 1 && mask & POLLOUT) FD_SET(fd, &out);
        if (fd > most) most = fd;
        struct epoll_event event = {.events = (uint32_t)mask, .data.u32 = (uint32_t)c};
        if (kind == 4) event.events |= EPOLLONESHOT;
        if (kind == 2 || kind == 4) MUST(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event));
    }
    struct timeval limit = {WAIT_MS / 1000, 0};
    struct epoll_event events[CONNECTIONS];
    if (kind == 0) ready = poll(on, CONNECTIONS, WAIT_MS);
    else if (kind == 1) ready = select(most + 1, &in, &out, NULL, &limit);
    else ready = epoll_wait(epoll, events, CONNECTIONS, WAIT_MS);
    if (ready < 0) fail("wait");
    if (ready == 0) {
        errno = 0;
        fail("nothing is ready in time");
    }
    for (int c = 0; c < CONNECTIONS; c++) {
        int fd = now.fds[c];
        if (kind == 0) lanes[c].readable |= on[c].revents & POLLIN, lanes[c].writable |= on[c].revents & POLLOUT;
        if (kind == 1) lanes[c].readable |= FD_ISSET(fd, &in), lanes[c].writable |= FD_ISSET(fd, &out);
    }
    for (int e = 0; kind >= 2 && e < ready; e++) {
        struct lane *lane = &lanes[events[e].data.u32];
        if (events[e].events & EPOLLIN) lane->readable = true;
        if (events[e].events & EPOLLOUT) lane->writable = true;
    }
}

static void move(struct lane *lane, int c)
{
    static uint8_t data[32768];
    while (lane->writable && lane->sent < lane->to_send) {
        size_t part = lane->to_send - lane->sent;
        if (part > sizeof data) part = sizeof data;
        fill(data, c, now.from[!is_server][c] + lane->sent, part);
        ssize_t sent = send(now.fds[c], data, part, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) fail("send");
        if (sent < 0) lane->writable = false;
        else lane->sent += (size_t)sent;
    }
    while (lane->readable && lane->received < lane->to_receive) {
        size_t part = lane->to_receive - lane->received;
        if (part > sizeof data) part = sizeof data;
        ssize_t got = recv(now.fds[c], data, part, 0);
        if (got == 0) fail("the stream ends early");
        if (got < 0 && errno != EAGAIN) fail("recv");
        if (got < 0) {
            lane->readable = false;
            break;
        }
        check(data, c, now.from[is_server][c] + lane->received, (size_t)got);
        lane->received += (size_t)got;
    }
}

static void all_ways(void)
{
    int kind = (int)draw(5);
    struct lane lanes[CONNECTIONS] = {0};
    size_t bytes[2][CONNECTIONS];
    for (int c = 0; c < CONNECTIONS; c++)
        for (int way = 0; way < 2; way++) bytes[way][c] = draw(5) == 0 ? 0 : draw(STEP_BYTES_MAX);
    say("step %llu: %s, down %zu %zu %zu, up %zu %zu %zu", (unsigned long long)now.step, LOOPS[kind], bytes[0][0],
        bytes[0][1], bytes[0][2], bytes[1][0], bytes[1][1], bytes[1][2]);
    int epoll = MUST(epoll_create1(0));
    for (int c = 0; c < CONNECTIONS; c++) {
        lanes[c].to_send = bytes[!is_server][c];
        lanes[c].to_receive = bytes[is_server][c];
        MUST(fcntl(now.fds[c], F_SETFL, O_NONBLOCK));
        struct epoll_event event = {.events = kind == 3 ? EPOLLIN | EPOLLOUT | EPOLLET : 0, .data.u32 = (uint32_t)c};
        MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, now.fds[c], &event));
    }
    while (!finished(lanes)) {
        await(lanes, kind, epoll);
        for (int c = 0; c < CONNECTIONS; c++) move(&lanes[c], c);
    }
    for (int c = 0; c < CONNECTIONS; c++) {
        MUST(fcntl(now.fds[c], F_SETFL, 0));
        for (int way = 0; way < 2; way++) now.from[way][c] += bytes[way][c];
    }
    MUST(close(epoll));
}

/* -- the descriptors -- */

static int passed(int fd)
{
    int pair[2], taken = -1;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    char byte = 'x', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    MUST(sendmsg(pair[0], &message, 0));
    MUST(close(fd));
    message.msg_controllen = sizeof control;
    MUST(recvmsg(pair[1], &message, 0));
    header = CMSG_FIRSTHDR(&message);
    if (!header) fail("nothing was passed");
    memcpy(&taken, CMSG_DATA(header), sizeof taken);
    MUST(close(pair[0]));
    MUST(close(pair[1]));
    return taken;
}

static void other_descriptor(int c, bool here)
{
    int kind = (int)draw(3);
    bool is_datagram = draw(4) == 0;
    int *place = is_datagram ? &now.datagrams : &now.fds[c], fd = *place;
    static const char *const names[] = {"dup", "dup2", "SCM_RIGHTS"};
    say("step %llu: %s %d, %s at the %s", (unsigned long long)now.step, is_datagram ? "datagrams beside" : "connection", c,
        names[kind], here == is_server ? "server" : "client");
    if (kind == 2) now.stale |= 1u << (is_datagram ? DATAGRAM_SOCKET : c);
    if (!here) return;
    if (kind == 2) *place = passed(fd);
    else {
        *place = kind == 0 ? (int)MUST(dup(fd)) : (int)MUST(dup2(fd, 100 + (int)(now.step % 100) * CONNECTIONS + c));
        MUST(close(fd));
    }
}

static int meeting(void)
{
    return is_server ? joined_server() : joined_client();
}

/* Longest wait of a call that receives. */
static void limit_datagrams(int64_t ms)
{
    struct timeval limit = {ms / 1000, ms % 1000 * 1000};
    MUST(setsockopt(now.datagrams, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
}

static void meet_datagrams(void)
{
    static const char data[WARM_BYTES];
    char got[WARM_BYTES];
    struct sockaddr_in me = address_of(own, port + 2 - is_server), to = address_of(peer, port + 1 + is_server);
    now.datagrams = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(bind(now.datagrams, (struct sockaddr *)&me, sizeof me));
    MUST(connect(now.datagrams, (struct sockaddr *)&to, sizeof to));
    limit_datagrams(WAIT_MS);
    meet("bound");
    for (int turn = 0; turn < 2 * WARM_DATAGRAMS; turn++) {
        if (is_server == (turn % 2 == 0)) MUST(send(now.datagrams, data, sizeof data, 0));
        else if (recv(now.datagrams, got, sizeof got, 0) != sizeof got) fail("no datagram");
        usleep(WARM_US);
    }
}

static void renew(void)
{
    for (int c = 0; c < CONNECTIONS; c++) {
        if (!(now.stale & 1u << c)) continue;
        MUST(close(now.fds[c]));
        now.fds[c] = meeting();
        now.from[0][c] = now.from[1][c] = 0;
    }
    if (now.stale & 1u << DATAGRAM_SOCKET) {
        MUST(close(now.datagrams));
        meet("closed");
        meet_datagrams();
    }
    now.stale = 0;
}

static void reconnected(int c)
{
    bool from_server = draw(2), half = draw(2);
    size_t bytes = draw_bytes();
    say("step %llu: connection %d, %zu bytes, then %s by the %s", (unsigned long long)now.step, c, bytes,
        half ? "half closed" : "closed", from_server ? "server" : "client");
    uint8_t byte;
    if (from_server == is_server) {
        send_all(c, 0, bytes);
        if (half) {
            MUST(shutdown(now.fds[c], SHUT_WR));
            if (recv(now.fds[c], &byte, 1, 0) != 0) fail("no end");
        }
    } else {
        receive_all(c, 0, bytes);
        if (half) {
            if (recv(now.fds[c], &byte, 1, 0) != 0) fail("no end");
        }
    }
    if (!half && from_server != is_server) {
        tell("received");
        if (recv(now.fds[c], &byte, 1, 0) != 0) fail("no end");
    } else if (!half) {
        MUST(close(now.fds[c]));
        hear("received");
    }
    if (half || from_server != is_server) MUST(close(now.fds[c]));
    now.from[0][c] = now.from[1][c] = 0;
    now.fds[c] = meeting();
}

static void in_child(int c)
{
    bool here = draw(2) == is_server, from_server = draw(2);
    size_t bytes = draw_bytes();
    now.stale = ALL;
    say("step %llu: connection %d, in a child of the %s", (unsigned long long)now.step, c, here == is_server ? "server" : "client");
    if (!here) {
        transfer(c, from_server, bytes);
        return;
    }
    pid_t child = MUST(fork());
    if (child == 0) {
        transfer(c, from_server, bytes);
        _exit(0);
    }
    int status = 0;
    MUST(waitpid(child, &status, 0));
    if (status != 0) fail("the child failed");
    now.from[!from_server][c] += bytes;
}

/* -- datagrams: some at once, each of its own length; both ends know all of them -- */

static const char *const DATAGRAM_SENDS[] = {"send", "write", "writev", "sendmsg", "sendto", "sendmmsg"};
static const char *const DATAGRAM_RECEIVES[] = {"recv",  "read",  "readv",   "recvmsg",      "recvfrom",
                                                "recvmmsg", "PEEK", "MSG_TRUNC", "FIONREAD"};
static const char *const DATAGRAM_WAITS[] = {"blocks", "poll", "select", "epoll", "RCVTIMEO", "no wait"};
enum { DATAGRAM_SEND_KINDS = 6, DATAGRAM_RECEIVE_KINDS = 9, DATAGRAM_WAIT_KINDS = 6 };

static ssize_t send_datagram(int kind, uint8_t *data, size_t bytes)
{
    struct sockaddr_in to = address_of(peer, port + 1 + is_server);
    struct iovec parts[2] = {{data, bytes / 3}, {data + bytes / 3, bytes - bytes / 3}};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}};
    int fd = now.datagrams;
    switch (kind) {
    case 0: return send(fd, data, bytes, MSG_DONTWAIT);
    case 1: return write(fd, data, bytes);
    case 2: return writev(fd, parts, 2);
    case 3: return sendmsg(fd, &message.msg_hdr, MSG_NOSIGNAL);
    case 4: return sendto(fd, data, bytes, 0, (struct sockaddr *)&to, sizeof to);
    default: return sendmmsg(fd, &message, 1, 0) == 1 ? (ssize_t)message.msg_len : -1;
    }
}

static ssize_t receive_datagram(int kind, uint8_t *data, size_t room, size_t expected)
{
    static uint8_t peeked[65536];
    struct sockaddr_in from = {0}, sender = address_of(peer, port + 1 + is_server);
    socklen_t length = sizeof from;
    struct iovec parts[2] = {{data, 100}, {data + 100, room - 100}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}}};
    int fd = now.datagrams, waiting = -1;
    ssize_t got;
    switch (kind) {
    case 0: return recv(fd, data, room, 0);
    case 1: return read(fd, data, room);
    case 2: return readv(fd, parts, 2);
    case 3: return recvmsg(fd, &messages[0].msg_hdr, 0);
    case 4:
        got = recvfrom(fd, data, room, 0, (struct sockaddr *)&from, &length);
        if (got >= 0 && (length != sizeof from || from.sin_port != sender.sin_port ||
                         from.sin_addr.s_addr != sender.sin_addr.s_addr))
            fail("a datagram of another sender");
        return got;
    case 5: return recvmmsg(fd, messages, 1, 0, NULL) == 1 ? (ssize_t)messages[0].msg_len : -1;
    case 6:
        got = recv(fd, peeked, sizeof peeked, MSG_PEEK);
        if (got < 0) return got;
        if (recv(fd, data, room, 0) != got || memcmp(data, peeked, (size_t)got) != 0) fail("PEEK and recv differ");
        return got;
    case 7:
        /* The length of all of it, where there is room for half. */
        if (recv(fd, data, expected / 2, MSG_PEEK | MSG_TRUNC) != (ssize_t)expected) fail("another length with MSG_TRUNC");
        return recv(fd, data, room, MSG_TRUNC);
    default:
        /* Without a datagram there are 0 bytes, too. */
        if (wait_mask(fd, POLLIN, POLLIN) < 0) fail("no datagram");
        MUST(ioctl(fd, FIONREAD, &waiting));
        if ((size_t)waiting != expected) fail("another length by FIONREAD");
        return recv(fd, data, room, 0);
    }
}

static void await_datagram(int kind, int epoll)
{
    struct timeval limit = {WAIT_MS / 1000, 0};
    struct epoll_event event;
    fd_set in;
    FD_ZERO(&in);
    FD_SET(now.datagrams, &in);
    int ready = 1;
    if (kind == 1) ready = wait_mask(now.datagrams, POLLIN, POLLIN) & POLLIN;
    else if (kind == 2) ready = select(now.datagrams + 1, &in, NULL, NULL, &limit);
    else if (kind == 3) ready = epoll_wait(epoll, &event, 1, WAIT_MS);
    if (ready != 1) fail("no datagram");
}

static void take_datagrams(int kind, int wait, const size_t *lengths, int count)
{
    static uint8_t data[65536];
    int fd = now.datagrams, epoll = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    if (wait == 4) limit_datagrams(20);
    if (wait == 5) MUST(fcntl(fd, F_SETFL, O_NONBLOCK));
    int64_t deadline = now_ms() + WAIT_MS;
    for (int at = 0; at < count;) {
        await_datagram(wait, epoll);
        ssize_t got = receive_datagram(kind, data, sizeof data, lengths[at]);
        if (got < 0 && errno == EAGAIN && wait >= 4 && now_ms() < deadline) continue;
        if (got < 0) fail("no datagram");
        if (got != (ssize_t)lengths[at]) fail("a datagram of another length");
        check(data, at, lengths[at], (size_t)got);
        at++;
    }
    if (recv(fd, data, sizeof data, MSG_DONTWAIT) >= 0) fail("a datagram too many");
    if (wait == 4) limit_datagrams(WAIT_MS);
    if (wait == 5) MUST(fcntl(fd, F_SETFL, 0));
    MUST(close(epoll));
}

static void datagrams(void)
{
    bool from_server = draw(2);
    int rounds = 1 + (int)draw(DATAGRAM_ROUNDS);
    for (int round = 0; round < rounds; round++) {
        static uint8_t data[65536];
        int sends = (int)draw(DATAGRAM_SEND_KINDS), receives = (int)draw(DATAGRAM_RECEIVE_KINDS);
        int wait = (int)draw(DATAGRAM_WAIT_KINDS), count = 1 + (int)draw(BURST);
        /* Two calls for one datagram do not both find it. */
        if (receives >= 6 && wait >= 4) wait = 1;
        size_t lengths[BURST];
        for (int at = 0; at < count; at++) lengths[at] = draw(2) ? draw(30000) : draw(1400);
        say("step %llu: %d datagrams %s, %s to %s, %s", (unsigned long long)now.step, count, from_server ? "down" : "up",
            DATAGRAM_SENDS[sends], DATAGRAM_RECEIVES[receives], DATAGRAM_WAITS[wait]);
        if (from_server != is_server) {
            take_datagrams(receives, wait, lengths, count);
            tell("datagrams");
            continue;
        }
        for (int at = 0; at < count; at++) {
            fill(data, at, lengths[at], lengths[at]);
            if (send_datagram(sends, data, lengths[at]) != (ssize_t)lengths[at]) fail("datagram");
        }
        hear("datagrams");
    }
}

/* -- the sequence -- */

static void replaced(void)
{
    bool here = draw(2) == is_server;
    now.stale = ALL;
    say("step %llu: exec at the %s", (unsigned long long)now.step, here == is_server ? "server" : "client");
    if (!here) return;
    int kept = MUST(memfd_create("state", 0));
    now.step++;
    MUST(write(kept, &now, sizeof now));
    char number[16];
    snprintf(number, sizeof number, "%d", kept);
    start_again(number, true);
}

/* Between two steps no stream has anything in it. */
static void probe(void)
{
    for (int c = 0; c < CONNECTIONS; c++) {
        struct pollfd on = {now.fds[c], POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
        int waiting = -1;
        char byte;
        ssize_t got = recv(now.fds[c], &byte, 1, MSG_DONTWAIT);
        const char *what = got < 0 ? error_name(errno) : "something";
        /* The last acknowledgements make room. */
        wait_mask(now.fds[c], POLLOUT, POLLOUT);
        poll(&on, 1, 0);
        ioctl(now.fds[c], FIONREAD, &waiting);
        say("  %d: %s, %s, %d, down %zu, up %zu", c, what, mask_name((unsigned)on.revents), waiting, now.from[0][c], now.from[1][c]);
    }
}

static void step(void)
{
    drawn = 0;
    int c = (int)draw(CONNECTIONS);
    switch (draw(16)) {
    case 0: case 1: case 2: case 3: all_ways(); break;
    case 4: case 5: other_descriptor(c, draw(2) == is_server); break;
    case 6: reconnected(c); break;
    case 7: in_child(c); break;
    case 8: case 9: datagrams(); break;
    case 10: replaced(); break;
    default: {
        bool from_server = draw(2);
        transfer(c, from_server, draw_bytes());
    }
    }
}

static void go_on(void)
{
    signal(SIGPIPE, SIG_IGN);
    /* From within a new image, the step of the exec is over for the other end. */
    for (; now.step < steps; now.step++) {
        meet("step");
        renew();
        step();
        meet("moved");
        probe();
    }
    meet("over");
    struct linger none = {0, 0};
    for (int c = 0; c < CONNECTIONS; c++) MUST(setsockopt(now.fds[c], SOL_SOCKET, SO_LINGER, &none, sizeof none));
}

static void set_up(void)
{
    seed = strtoull(getenv("MACHINE_SEED") ?: "1", NULL, 10);
    steps = strtoull(getenv("MACHINE_STEPS") ?: "20", NULL, 10);
}

static void begin(void)
{
    set_up();
    for (int c = 0; c < CONNECTIONS; c++) now.fds[c] = meeting();
    meet_datagrams();
    go_on();
}

void server(void)
{
    begin();
}

void client(void)
{
    begin();
}

void again(const char *what)
{
    set_up();
    int kept = atoi(what);
    MUST(lseek(kept, 0, SEEK_SET));
    MUST(read(kept, &now, sizeof now));
    MUST(close(kept));
    meet("moved");
    probe();
    go_on();
}
