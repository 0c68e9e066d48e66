/* A process that is stopped for a while goes on with its connections; an end that closes one does
   not wait for it. */
#include "../trap.h"

enum { PART = 30000, SOON_MS = 700 };

/* Longer than a lane waits for acknowledgements; under a fault, than it needs to show. */
static int stopped_s(void)
{
    return WAIT_MS < 5000 ? 2 : 10;
}

/* Long enough for a lane to open before the stop. */
static int busy(int connection)
{
    for (int turn = 0; turn < 8; turn++) warm(connection);
    return connection;
}

void server(void)
{
    int talks = busy(joined_server()), ends = busy(joined_server());
    tell("stop");
    hear("stopped");
    /* One set by two descriptors, of which the one that took the member is closed. */
    int set = MUST(epoll_create1(0)), copy = MUST(dup(set));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP, .data.u64 = 7};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends, &event));
    MUST(close(set));
    send_pattern(talks, 0, PART);
    send_pattern(ends, 0, PART);
    int64_t since = now_ms();
    TRY(close(ends));
    say("closed at once: %d", now_ms() - since < SOON_MS);
    say_events("closed", copy, QUIET_MS);
    say("answer: %zu", check_pattern(talks, 0, PART));
    say("it took its time: %d", now_ms() - since > 1000 * (stopped_s() - 1));
    say_events("closed, and its end is known", copy, QUIET_MS);
    MUST(close(talks));
}

/* Says by the descriptor that it has a connection. */
static int joined_child_of(int to)
{
    int connection = busy(joined_client());
    MUST(write(to, "x", 1));
    return connection;
}

static void talks(int to)
{
    int connection = joined_child_of(to);
    say("received: %zu", check_pattern(connection, 0, PART));
    send_pattern(connection, 0, PART);
    say("ends: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
}

static void listens(int to)
{
    int connection = joined_child_of(to);
    char byte;
    say("received: %zu", check_pattern(connection, 0, PART));
    TRY(recv(connection, &byte, 1, 0));
}

/* One process alone reads the channel at any time. */
static pid_t child_of(void (*work)(int))
{
    int joined[2];
    char byte;
    MUST(pipe(joined));
    pid_t child = MUST(fork());
    if (child == 0) {
        work(joined[1]);
        _exit(0);
    }
    MUST(read(joined[0], &byte, 1));
    MUST(close(joined[0]));
    MUST(close(joined[1]));
    return child;
}

void client(void)
{
    pid_t children[2] = {child_of(talks), child_of(listens)};
    hear("stop");
    for (int c = 0; c < 2; c++) MUST(kill(children[c], SIGSTOP));
    tell("stopped");
    sleep(stopped_s());
    for (int c = 0; c < 2; c++) {
        MUST(kill(children[c], SIGCONT));
        say_end("child", children[c]);
    }
}
