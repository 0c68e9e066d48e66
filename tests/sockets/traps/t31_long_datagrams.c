/* Datagrams that do not fit a frame, after so many that a lane could carry them: lengths, order,
   sources, flags, events, fork. */
#include "../trap.h"

enum { WARM_ROUNDS = 60, WARM_BYTES = 4000, WARM_PAUSE_US = 15000 };

static char data[70000];
static char control[256];

static void fill(size_t length, char first)
{
    for (size_t i = 0; i < length; i++) data[i] = (char)pattern_at(i);
    if (length > 0) data[0] = first;
}

static int at(const char *address, int number)
{
    int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in name = address_of(address, number);
    MUST(bind(fd, (struct sockaddr *)&name, sizeof name));
    return fd;
}

static ssize_t sent(int fd, size_t length, char first, int number)
{
    struct sockaddr_in to = address_of(peer, number);
    fill(length, first);
    return sendto(fd, data, length, 0, (struct sockaddr *)&to, sizeof to);
}

/* The first byte, and whether the rest is the pattern. */
static const char *content(ssize_t got)
{
    static char text[32];
    if (got < 1) return "";
    for (ssize_t i = 1; i < got; i++)
        if (data[i] != (char)pattern_at((size_t)i)) return "damaged";
    snprintf(text, sizeof text, "'%c'", data[0]);
    return text;
}

static void received(const char *what, int fd, int flags, size_t room)
{
    struct sockaddr_storage from = {0};
    socklen_t length = sizeof from;
    if (!(flags & MSG_DONTWAIT)) wait_mask(fd, POLLIN, POLLIN);
    errno = 0;
    ssize_t got = recvfrom(fd, data, room, flags | MSG_DONTWAIT, (struct sockaddr *)&from, &length);
    int error = errno;
    say("%s: %zd %s from %s %s", what, got, got < 0 ? error_name(error) : "", name_of(&from),
        content(got > (ssize_t)room ? (ssize_t)room : got));
}

/* Long ones to and fro, so that a lane of either direction has opened. */
static void warm_both(int fd, int number)
{
    for (int round = 0; round < WARM_ROUNDS; round++) {
        if (!is_server) MUST(sent(fd, WARM_BYTES, 'w', number));
        wait_mask(fd, POLLIN, POLLIN);
        ssize_t got = recv(fd, data, sizeof data, MSG_DONTWAIT);
        if (got != WARM_BYTES || strcmp(content(got), "'w'") != 0) say("round %d: %zd %s", round, got, content(got));
        if (is_server) MUST(sent(fd, WARM_BYTES, 'w', number));
        if (is_server) usleep(WARM_PAUSE_US);
    }
}

static const size_t lengths[] = {1472, 1473, 4000, 20000, 65507};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

static void *blocked(void *argument)
{
    int fd = *(int *)argument;
    ssize_t got = recv(fd, data, sizeof data, 0);
    say("the blocked read: %zd %s", got, content(got));
    return NULL;
}

static void parts(int fd)
{
    static char first[10], second[30];
    struct iovec two[2] = {{first, sizeof first}, {second, sizeof second}};
    wait_mask(fd, POLLIN, POLLIN);
    TRY(readv(fd, two, 2));
    say("%c, %d, %d", first[0], first[9] == (char)pattern_at(9), second[29] == (char)pattern_at(39));
    struct sockaddr_storage from = {0};
    struct iovec one = {data, 100};
    struct msghdr message = {&from, sizeof from, &one, 1, control, sizeof control, 0};
    int on = 1, off = 0;
    MUST(setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof on));
    tell("marked");
    wait_mask(fd, POLLIN, POLLIN);
    TRY(recvmsg(fd, &message, 0));
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    say("flags %#x, %s, beside: %d", message.msg_flags, name_of(&from), header ? header->cmsg_type : -1);
    MUST(setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &off, sizeof off));
    wait_mask(fd, POLLIN, POLLIN);
    TRY(read(fd, data, sizeof data));
}

static void many(int fd)
{
    static char each[3][5000];
    struct mmsghdr messages[3] = {0};
    struct iovec buffers[3];
    for (int i = 0; i < 3; i++) {
        buffers[i] = (struct iovec){each[i], sizeof each[i]};
        messages[i].msg_hdr.msg_iov = &buffers[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    hear("three");
    TRY(recvmmsg(fd, messages, 3, 0, NULL));
    for (int i = 0; i < 3; i++) say("%u %c", messages[i].msg_len, each[i][0]);
    TRY(recvmmsg(fd, messages, 3, MSG_DONTWAIT, NULL));
}

static void events(int fd)
{
    int set = MUST(epoll_create1(0));
    struct epoll_event on = {EPOLLIN | EPOLLET, {.u64 = 1}};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &on));
    tell("an event");
    say_events("the first", set, WAIT_MS);
    tell("an event");
    say_events("the second", set, WAIT_MS);
    say_events("no further", set, QUIET_MS);
    received("the first", fd, MSG_DONTWAIT, sizeof data);
    received("the second", fd, MSG_DONTWAIT, sizeof data);
    received("nothing", fd, MSG_DONTWAIT, sizeof data);
    MUST(close(set));
}

static void family(int fd)
{
    pid_t child = fork();
    if (child == 0) {
        tell("forked");
        received("the child", fd, 0, sizeof data);
        TRY(sent(fd, 4000, 'c', port + 50));
        _exit(0);
    }
    say_end("the child", child);
    tell("parent");
    received("the parent", fd, 0, sizeof data);
    TRY(sent(fd, 4000, 'p', port + 50));
}

/* Each peek goes on where the last one ended. */
static void peeks(int fd)
{
    int start = 0, waiting = 0;
    MUST(setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &start, sizeof start));
    tell("peeks");
    MUST(wait_mask(fd, POLLIN, POLLIN));
    for (int part = 0; part < 3; part++) {
        TRY(recv(fd, data, 10, MSG_PEEK));
        say("peeked at %d: %d", part, data[1] == (char)pattern_at((size_t)(10 * part + 1)));
    }
    MUST(ioctl(fd, FIONREAD, &waiting));
    say("next has %d", waiting);
    TRY(recv(fd, data, 10, MSG_PEEK));
    say("peeked at 3: %d", data[1] == (char)pattern_at(31));
    received("the peeked", fd, 0, sizeof data);
}

void server(void)
{
    int fd = at(own, port), waiting = 0;
    tell("bound");
    warm_both(fd, port + 50);
    hear("lengths");
    for (int i = 0; i < 2 * LENGTHS; i++) received("length", fd, 0, sizeof data);
    for (int i = 0; i < 8; i++) received("in order", fd, 0, sizeof data);
    hear("flags");
    MUST(wait_mask(fd, POLLIN, POLLIN));
    MUST(ioctl(fd, FIONREAD, &waiting));
    say("next has %d", waiting);
    received("peeked at", fd, MSG_PEEK, sizeof data);
    received("peeked at a part", fd, MSG_PEEK, 10);
    received("peeked at the length", fd, MSG_PEEK | MSG_TRUNC, 10);
    received("a part", fd, 0, 10);
    received("a part and the length", fd, MSG_TRUNC, 10);
    received("no part", fd, 0, 0);
    parts(fd);
    many(fd);
    events(fd);
    pthread_t reader;
    MUST(pthread_create(&reader, NULL, blocked, &fd));
    usleep(20000);
    tell("blocks");
    MUST(pthread_join(reader, NULL));
    struct sockaddr_in to = address_of(peer, port + 50);
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    tell("connected");
    received("connected", fd, 0, sizeof data);
    received("of another", fd, MSG_DONTWAIT, sizeof data);
    fill(5000, 's');
    TRY(send(fd, data, 5000, 0));
    TRY(write(fd, data, 4000));
    int other = MUST(dup(fd));
    MUST(close(fd));
    tell("duplicated");
    received("by the duplicate", other, 0, sizeof data);
    family(other);
    peeks(other);
    MUST(close(other));
    tell("closed");
    hear("over");
}

void client(void)
{
    int fd = at(own, port + 50), stranger = at(own, port + 51);
    hear("bound");
    warm_both(fd, port);
    tell("lengths");
    for (int i = 0; i < LENGTHS; i++) {
        TRY(sent(fd, lengths[i], 'a', port));
        usleep(5000);
        TRY(sent(fd, lengths[i], 'b', port));
        usleep(5000);
    }
    TRY(sent(fd, 65508, 'x', port));
    for (int i = 0; i < 8; i++) {
        TRY(sent(fd, i % 2 ? 10 : 5000, (char)('0' + i), port));
    }
    for (int i = 0; i < 6; i++) MUST(sent(fd, 6000, (char)('A' + i), port));
    tell("flags");
    hear("marked");
    struct sockaddr_in to = address_of(peer, port);
    fill(4500, 'm');
    struct iovec each[3] = {{data, 4500}, {data, 10}, {data, 3000}};
    struct mmsghdr messages[3] = {0};
    for (int i = 0; i < 3; i++) messages[i].msg_hdr = (struct msghdr){&to, sizeof to, &each[i], 1, NULL, 0, 0};
    usleep(20000);
    TRY(sendmmsg(fd, messages, 3, 0));
    say("%u %u %u", messages[0].msg_len, messages[1].msg_len, messages[2].msg_len);
    tell("three");
    for (int i = 0; i < 2; i++) {
        hear("an event");
        MUST(sent(fd, 3000, (char)('e' + i), port));
    }
    hear("blocks");
    MUST(sent(fd, 9000, 'z', port));
    hear("connected");
    MUST(sent(stranger, 4000, 'S', port));
    MUST(sent(fd, 4000, 'C', port));
    received("from the connected", fd, 0, sizeof data);
    received("written", fd, 0, sizeof data);
    hear("duplicated");
    MUST(sent(fd, 4000, 'D', port));
    hear("forked");
    usleep(100000);
    MUST(sent(fd, 4000, 'F', port));
    received("of the child", fd, 0, sizeof data);
    hear("parent");
    MUST(sent(fd, 4000, 'P', port));
    received("of the parent", fd, 0, sizeof data);
    hear("peeks");
    MUST(sent(fd, 32, 'K', port));
    hear("closed");
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    /* The kernel limits how often it says that a port is closed. */
    struct pollfd refused = {fd, POLLIN, 0};
    fill(4000, 'r');
    for (int64_t until = now_ms() + WAIT_MS; now_ms() < until && poll(&refused, 1, 100) == 0;)
        MUST(send(fd, data, 4000, 0));
    say("refused: %s", mask_name((unsigned)refused.revents));
    TRY(recv(fd, data, sizeof data, MSG_DONTWAIT));
    tell("over");
}
