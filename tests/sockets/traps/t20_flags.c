/* Flags of receiving, lengths of zero, and writes that are merged. */
#include "../trap.h"

static char data[64];

static void shown(const char *what, ssize_t got)
{
    int error = errno;
    say("%s: %zd %s '%.*s'", what, got, got < 0 ? error_name(error) : "", got > 0 ? (int)got : 0, data);
}

static void interrupted(int number)
{
    (void)number;
}

void server(void)
{
    int fd = joined_server(), on = 1, off = 0;
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    hear("ready");
    TRY(send(fd, "abcdef", 6, 0));
    hear("half");
    TRY(send(fd, "gh", 2, 0));
    hear("all but two");
    TRY(send(fd, "ij", 2, 0));
    hear("timeout");
    TRY(send(fd, "kl", 2, 0));
    hear("interrupted");
    TRY(send(fd, "mnopqrst", 8, 0));
    hear("merge");
    TRY(send(fd, "u", 1, MSG_MORE));
    TRY(send(fd, "v", 1, MSG_MORE));
    TRY(send(fd, "w", 1, 0));
    hear("cork");
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    TRY(write(fd, "x", 1));
    struct iovec parts[3] = {{"y", 1}, {"", 0}, {"z", 1}};
    TRY(writev(fd, parts, 3));
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    hear("nothing");
    TRY(send(fd, "", 0, 0));
    TRY(write(fd, "", 0));
    TRY(writev(fd, parts, 0));
    volatile int negative = -1;
    TRY(writev(fd, parts, negative));
    TRY(send(fd, NULL, 1, MSG_NOSIGNAL));
    TRY(send(fd, "!", 1, MSG_OOB));
    hear("end");
    TRY(send(fd, "12", 2, 0));
    TRY(close(fd));
}

void client(void)
{
    int fd = joined_client();
    errno = 0;
    shown("nothing there", recv(fd, data, 4, MSG_DONTWAIT));
    shown("no room", recv(fd, data, 0, MSG_DONTWAIT));
    tell("ready");
    MUST(wait_mask(fd, POLLIN, POLLIN));
    shown("peek", recv(fd, data, 4, MSG_PEEK));
    shown("peek again", recv(fd, data, 64, MSG_PEEK | MSG_DONTWAIT));
    shown("read of nothing", read(fd, data, 0));
    shown("taken", recv(fd, data, 2, 0));
    shown("discarded", recv(fd, data, 2, MSG_TRUNC));
    shown("peek with offset past it", recv(fd, data, 64, MSG_PEEK));
    tell("half");
    shown("wait for all", recv(fd, data, 4, MSG_WAITALL));
    struct timeval limit = {0, 100000}, none = {0, 0};
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
    tell("all but two");
    MUST(wait_mask(fd, POLLIN, POLLIN));
    shown("wait for all, in part by the time", recv(fd, data, 4, MSG_WAITALL));
    shown("nothing by the time", recv(fd, data, 4, MSG_WAITALL));
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
    tell("timeout");
    MUST(wait_mask(fd, POLLIN, POLLIN));
    struct sigaction action = {.sa_handler = interrupted, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval once = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &once, NULL);
    shown("wait for all, in part by a signal", recv(fd, data, 4, MSG_WAITALL));
    setitimer(ITIMER_REAL, &never, NULL);
    tell("interrupted");
    struct iovec parts[3] = {{data, 2}, {data + 2, 0}, {data + 2, 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    MUST(wait_mask(fd, POLLIN, POLLIN));
    shown("into parts", recvmsg(fd, &message, MSG_WAITALL));
    say("flags %#x, name %d, control %zu", message.msg_flags, (int)message.msg_namelen, message.msg_controllen);
    shown("readv", readv(fd, parts, 3));
    tell("merge");
    MUST(wait_mask(fd, POLLIN, POLLIN));
    shown("merged", recv(fd, data, 64, 0));
    tell("cork");
    MUST(wait_mask(fd, POLLIN, POLLIN));
    shown("corked", recv(fd, data, 64, 0));
    tell("nothing");
    shown("a peer's nothing, then an urgent byte", wait_mask(fd, POLLPRI, POLLPRI) == POLLPRI);
    shown("the urgent byte", recv(fd, data, 1, MSG_OOB));
    shown("the urgent byte again", recv(fd, data, 1, MSG_OOB));
    tell("end");
    shown("wait for all, to the end", recv(fd, data, 4, MSG_WAITALL));
    shown("the end", recv(fd, data, 4, MSG_WAITALL));
    shown("the end", recv(fd, data, 4, MSG_PEEK));
    shown("the end", recv(fd, data, 4, MSG_DONTWAIT));
    struct sockaddr_in from = {0};
    socklen_t length = sizeof from;
    shown("the end", recvfrom(fd, data, 4, 0, (struct sockaddr *)&from, &length));
    say("name length %d", (int)length);
    TRY(recv(777, data, 1, 0));
    TRY(recv(0, data, 1, 0));
    TRY(send(0, data, 1, 0));
}
