/* An entry's key is the descriptor and its open file; it lasts as long as the open file. */
#include "../trap.h"

static int ctl(int epoll, int operation, int fd, uint64_t data)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = data};
    return epoll_ctl(epoll, operation, fd, &event);
}

void server(void)
{
    int connection = joined_server();
    hear("send");
    send_pattern(connection, 0, 10);
    tell("sent");
    hear("more");
    int second = joined_server();
    send_pattern(second, 0, 10);
    tell("sent");
    hear("over");
    say("the first ended: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
}

void client(void)
{
    int connection = joined_client();
    int epoll = TRY(epoll_create(1));
    TRY(ctl(epoll, EPOLL_CTL_MOD, connection, 1));
    TRY(ctl(epoll, EPOLL_CTL_DEL, connection, 1));
    TRY(ctl(epoll, EPOLL_CTL_ADD, connection, 1));
    TRY(ctl(epoll, EPOLL_CTL_ADD, connection, 2));
    int copy = TRY(dup(connection));
    TRY(ctl(epoll, EPOLL_CTL_ADD, copy, 3));
    TRY(ctl(epoll, EPOLL_CTL_DEL, copy, 3));
    TRY(ctl(epoll, EPOLL_CTL_ADD, epoll, 4));
    TRY(ctl(epoll, EPOLL_CTL_ADD, 777, 4));
    TRY(ctl(777, EPOLL_CTL_ADD, connection, 4));
    TRY(ctl(connection, EPOLL_CTL_ADD, copy, 4));
    TRY(epoll_ctl(epoll, 9, connection, NULL));
    int file = TRY(open("/proc/self/exe", O_RDONLY));
    TRY(ctl(epoll, EPOLL_CTL_ADD, file, 5));
    struct epoll_event events[2];
    TRY(epoll_wait(epoll, events, 0, 0));
    TRY(epoll_wait(connection, events, 2, 0));
    TRY(epoll_create(0));
    TRY(epoll_create1(12345));

    TRY(close(connection));
    tell("send");
    hear("sent");
    say_events("closed, but with a duplicate", epoll, WAIT_MS);
    TRY(ctl(epoll, EPOLL_CTL_DEL, connection, 1));
    say("received by the duplicate: %zu", check_pattern(copy, 0, 10));
    tell("more");
    int second = joined_client();
    say("the number again: %d", second);
    TRY(ctl(epoll, EPOLL_CTL_ADD, second, 6));
    hear("sent");
    say_events("another file at the same number", epoll, WAIT_MS);
    TRY(close(copy));
    say("received %zu", check_pattern(second, 0, 10));
    TRY(close(second));
    say_events("all closed", epoll, QUIET_MS);
    tell("over");
}
