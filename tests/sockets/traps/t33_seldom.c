/* Calls that programs seldom make of a connection in use. */
#include "../trap.h"

#include <sys/syscall.h>

enum { PART = 5000, CORKED_MS = 100, LATE_MS = 1500 };

static void ends_quickly(void)
{
    pid_t child = MUST(fork());
    if (child == 0) {
        int connection = joined_server();
        send_pattern(connection, 0, PART);
        quick_exit(0);
    }
    say_end("quick_exit", child);
    hear("seen");
}

/* A process starts and ends by the kernel's calls, and reads by one that has an offset. */
static void by_number(void)
{
    int connection = joined_server();
    pid_t child = MUST(syscall(SYS_fork));
    if (child == 0) {
        send_pattern(connection, 0, PART);
        syscall(SYS_exit_group, 0);
    }
    say_end("fork by its number", child);
    send_pattern(connection, PART, PART);
    MUST(close(connection));
    hear("seen");

    child = MUST(fork());
    if (child == 0) {
        connection = joined_server();
        send_pattern(connection, 0, PART);
        syscall(SYS_exit_group, 0);
    }
    say_end("exit by its number", child);
    hear("seen");

    connection = joined_server();
    char data[64];
    struct iovec part = {data, sizeof data};
    hear("written");
    TRY(preadv2(connection, &part, 1, -1, 0));
    part.iov_len = 4;
    TRY(pwritev2(connection, &part, 1, -1, 0));
    MUST(close(connection));
    hear("seen");
}

void server(void)
{
    int connection = joined_server(), on = 1, off = 0;
    MUST(setsockopt(connection, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    MUST(send(connection, "corked", 6, MSG_NOSIGNAL));
    tell("corked");
    hear("seen");
    MUST(setsockopt(connection, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    MUST(send(connection, "more", 4, MSG_NOSIGNAL | MSG_MORE));
    tell("more");
    hear("seen");
    MUST(close(connection));

    ends_quickly();

    connection = joined_server();
    pid_t child = MUST(_Fork());
    if (child == 0) {
        send_pattern(connection, 0, PART);
        _exit(0);
    }
    say_end("child of _Fork", child);
    send_pattern(connection, PART, PART);
    MUST(close(connection));
    hear("seen");

    connection = joined_server();
    say("the next is %d", connection);
    closefrom(connection + 1);
    open_channel();
    send_pattern(connection, 0, PART);
    say("after closefrom: %zu", check_pattern(connection, 0, PART));
    MUST(close(connection));
    hear("seen");

    by_number();

    connection = joined_server();
    char byte;
    tell("unconnect");
    say("unconnected: %s", mask_name(wait_mask(connection, POLLERR, POLLIN | POLLOUT | POLLRDHUP)));
    TRY(recv(connection, &byte, 1, 0));
    TRY(recv(connection, &byte, 1, 0));
    MUST(close(connection));

    connection = joined_server();
    say("connected again: %zu", check_pattern(connection, 0, PART));
    MUST(close(connection));
}

/* What the peer keeps back comes after a while, and not at once. */
static void kept_back(int connection, const char *word)
{
    char data[16];
    hear(word);
    int64_t since = now_ms();
    MUST(wait_mask(connection, POLLIN, POLLIN));
    int64_t took = now_ms() - since;
    if (took >= LATE_MS) say("%s: after %lld ms", word, (long long)took);
    say("%s: %zd bytes", word, recv(connection, data, sizeof data, 0));
    /* With MSG_MORE alone, acknowledgements of what was before send it. */
    if (strcmp(word, "corked") == 0) say("not at once: %d", took >= CORKED_MS);
    tell("seen");
}

static void whole(const char *what, size_t bytes)
{
    int connection = joined_client();
    say("%s: %zu", what, check_pattern(connection, 0, bytes));
    say("ends: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    MUST(close(connection));
    tell("seen");
}

void client(void)
{
    int connection = joined_client();
    kept_back(connection, "corked");
    kept_back(connection, "more");
    MUST(close(connection));

    whole("quick_exit", PART);
    whole("_Fork", 2 * PART);

    connection = joined_client();
    say("from closefrom: %zu", check_pattern(connection, 0, PART));
    send_pattern(connection, 0, PART);
    say("ends: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    MUST(close(connection));
    tell("seen");

    whole("fork by its number", 2 * PART);
    whole("exit by its number", PART);
    connection = joined_client();
    send_pattern(connection, 0, 64);
    tell("written");
    say("answered: %zu", check_pattern(connection, 0, 4));
    MUST(close(connection));
    tell("seen");

    connection = joined_client();
    hear("unconnect");
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    TRY(connect(connection, &nowhere, sizeof nowhere));
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    hear("listening");
    struct sockaddr_in to = address_of(peer, port);
    TRY(connect(connection, (struct sockaddr *)&to, sizeof to));
    warm(connection);
    send_pattern(connection, 0, PART);
    MUST(close(connection));
}
