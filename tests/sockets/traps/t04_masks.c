/* What poll, select and epoll report of half-closed, closed and reset connections. */
#include "../trap.h"

#define ALL (POLLIN | POLLOUT | POLLRDHUP | POLLPRI)

static void look(const char *when, int fd, int wanted)
{
    wait_mask(fd, wanted, ALL);
    struct pollfd all = {fd, ALL, 0}, unasked = {fd, 0, 0};
    poll(&all, 1, 0);
    poll(&unasked, 1, 0);
    say("%s: poll %s, unasked %s", when, mask_name(all.revents), mask_name(unasked.revents));
    int epoll = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI, .data.u64 = 1};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    say_events(when, epoll, 0);
    event.events = EPOLLIN | EPOLLOUT;
    MUST(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event));
    say_events("without RDHUP", epoll, 0);
    event.events = 0;
    MUST(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event));
    say_events("asked for nothing", epoll, 0);
    MUST(close(epoll));
    fd_set in, out, except;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&except);
    FD_SET(fd, &in);
    FD_SET(fd, &out);
    FD_SET(fd, &except);
    struct timeval at_once = {0, 0};
    int ready = select(fd + 1, &in, &out, &except, &at_once);
    say("select %d: %d %d %d", ready, FD_ISSET(fd, &in) != 0, FD_ISSET(fd, &out) != 0, FD_ISSET(fd, &except) != 0);
}

static int next(int at)
{
    tell("listening");
    int connection = MUST(accept(at, NULL, NULL));
    warm(connection);
    return connection;
}

void server(void)
{
    int at = listener(), connection = next(at);
    hear("idle");
    MUST(shutdown(connection, SHUT_WR));
    tell("half closed");
    hear("both shut");
    look("shut by both", connection, POLLHUP);
    MUST(close(connection));

    connection = next(at);
    MUST(close(connection));
    tell("closed");

    connection = next(at);
    struct linger hard = {1, 0};
    MUST(setsockopt(connection, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
    MUST(close(connection));
    tell("reset");

    connection = next(at);
    int epoll = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE};
    TRY(epoll_ctl(epoll, EPOLL_CTL_ADD, connection, &event));
    event.events = EPOLLIN;
    TRY(epoll_ctl(epoll, EPOLL_CTL_MOD, connection, &event));
    TRY(epoll_ctl(epoll, EPOLL_CTL_DEL, connection, &event));
    event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP;
    TRY(epoll_ctl(epoll, EPOLL_CTL_ADD, connection, &event));
    event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
    TRY(epoll_ctl(epoll, EPOLL_CTL_ADD, connection, &event));
    event.events = EPOLLIN | EPOLLOUT | EPOLLET | EPOLLWAKEUP | EPOLLEXCLUSIVE;
    TRY(epoll_ctl(epoll, EPOLL_CTL_ADD, connection, &event));
    say_events("exclusive", epoll, 0);
    /* nginx's habit with its listener. */
    event.events = EPOLLIN;
    TRY(epoll_ctl(epoll, EPOLL_CTL_ADD, at, &event));
    TRY(epoll_ctl(epoll, EPOLL_CTL_DEL, at, &event));
    TRY(epoll_ctl(epoll, EPOLL_CTL_ADD, at, &event));
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    MUST(close(pair[1]));
    look("a socketpair", pair[0], POLLRDHUP);
    tell("looked");
    look("the client is gone", connection, POLLRDHUP);
}

static int again_dialled(void)
{
    hear("listening");
    int connection = dial();
    warm(connection);
    return connection;
}

void client(void)
{
    int connection = again_dialled();
    look("idle", connection, POLLOUT);
    tell("idle");
    hear("half closed");
    look("FIN", connection, POLLRDHUP);
    MUST(shutdown(connection, SHUT_WR));
    look("shut by both", connection, POLLHUP);
    tell("both shut");

    connection = again_dialled();
    hear("closed");
    look("closed", connection, POLLRDHUP);
    MUST(shutdown(connection, SHUT_RDWR));
    look("closed, and shut here", connection, POLLHUP);

    connection = again_dialled();
    hear("reset");
    look("RST", connection, POLLERR);
    int error = 0;
    socklen_t length = sizeof error;
    TRY(getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &length));
    say("SO_ERROR %s", error_name(error));
    look("RST, error taken", connection, POLLHUP);

    connection = again_dialled();
    hear("looked");
    look("a fresh socket", socket(AF_INET, SOCK_STREAM, 0), POLLHUP);
    look("a fresh datagram socket", socket(AF_INET, SOCK_DGRAM, 0), POLLOUT);
    struct pollfd bad[2] = {{777, POLLIN, 0}, {-1, POLLIN, 0}};
    TRY(poll(bad, 2, 0));
    say("%s, %s", mask_name(bad[0].revents), mask_name(bad[1].revents));
}
