/* Edge triggering: each arrival is an event, drained or not; one socket in several sets, sets in
   sets, kinds of descriptors in one set. */
#include <sys/eventfd.h>

#include "../trap.h"

enum { ARRIVALS = 6 };

static void add(int epoll, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
}

static void modify(int epoll, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    MUST(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event));
}

void server(void)
{
    int connection = joined_server();
    for (int arrival = 0; arrival < ARRIVALS; arrival++) {
        hear("send");
        send_pattern(connection, (size_t)arrival * 10, 10);
        tell("sent");
    }
    hear("over");
}

static void arrival(void)
{
    tell("send");
    hear("sent");
}

void client(void)
{
    int connection = joined_client();
    int edge = MUST(epoll_create1(0)), level = MUST(epoll_create1(0)), once = MUST(epoll_create1(0));
    add(edge, connection, EPOLLIN | EPOLLET, 1);
    add(level, connection, EPOLLIN, 2);
    add(once, connection, EPOLLIN | EPOLLONESHOT, 3);
    say_events("edge, nothing there", edge, 0);
    arrival();
    say_events("edge, first", edge, WAIT_MS);
    say_events("edge, first again", edge, QUIET_MS);
    say_events("level, first", level, WAIT_MS);
    say_events("level, first again", level, WAIT_MS);
    say_events("once, first", once, WAIT_MS);
    say_events("once, first again", once, QUIET_MS);
    arrival();
    say_events("edge, second, nothing drained", edge, WAIT_MS);
    say_events("edge, second again", edge, QUIET_MS);
    say_events("once, disarmed", once, QUIET_MS);
    modify(edge, connection, EPOLLIN | EPOLLET, 1);
    say_events("edge, modified", edge, WAIT_MS);
    modify(edge, connection, EPOLLIN | EPOLLOUT | EPOLLET, 4);
    say_events("edge, both ways", edge, WAIT_MS);
    say_events("edge, both ways again", edge, QUIET_MS);
    modify(once, connection, EPOLLIN | EPOLLONESHOT, 5);
    say_events("once, armed again", once, WAIT_MS);
    arrival();
    say_events("edge, third: in and out together", edge, WAIT_MS);
    say("drained %zu", check_pattern(connection, 0, 30));
    say_events("edge, drained", edge, QUIET_MS);
    say_events("level, drained", level, QUIET_MS);
    arrival();
    say_events("edge, fourth", edge, WAIT_MS);
    say("drained in part: %zu", check_pattern(connection, 30, 4));
    say_events("edge, in part", edge, QUIET_MS);
    say_events("level, in part", level, WAIT_MS);
    say("drained %zu", check_pattern(connection, 34, 6));

    int outer = edge;
    for (int depth = 0; depth < 3; depth++) {
        int next = MUST(epoll_create1(0));
        add(next, outer, EPOLLIN, 100 + (uint64_t)depth);
        outer = next;
    }
    modify(edge, connection, EPOLLIN, 1);
    say_events("nested, nothing", outer, 0);
    struct pollfd on = {outer, POLLIN, 0};
    arrival();
    say_events("nested", outer, WAIT_MS);
    TRY(poll(&on, 1, WAIT_MS));
    say("poll of the nested set: %s", mask_name(on.revents));
    say_events("innermost", edge, 0);
    say("drained %zu", check_pattern(connection, 40, 10));
    say_events("nested, drained", outer, QUIET_MS);

    int mixed = MUST(epoll_create1(0)), counter = MUST(eventfd(0, EFD_NONBLOCK)), pipes[2];
    MUST(pipe(pipes));
    add(mixed, counter, EPOLLIN | EPOLLET, 10);
    add(mixed, pipes[0], EPOLLIN | EPOLLET, 11);
    add(mixed, connection, EPOLLIN | EPOLLET, 12);
    MUST(write(pipes[1], "x", 1));
    arrival();
    MUST(wait_mask(connection, POLLIN, POLLIN));
    uint64_t one = 1;
    MUST(write(counter, &one, sizeof one));
    int seen[3] = {0};
    struct epoll_event event;
    while (epoll_wait(mixed, &event, 1, QUIET_MS) == 1) seen[event.data.u64 - 10]++;
    say("each kind in one set: %d %d %d", seen[0], seen[1], seen[2]);
    tell("over");
}
