/* An end does not wait for a peer that reads slowly, or not at all for a while: what was written
   before it arrives all the same. */
#include "../trap.h"

enum { SLOW_MS = 2600, SOON_MS = 700, LITTLE = 4096, PART = 1000 };

/* Both kernels have little room. */
static int joined_little_server(void)
{
    int at = listener();
    tell("listening");
    int connection = MUST(accept(at, NULL, NULL)), little = LITTLE;
    MUST(close(at));
    MUST(setsockopt(connection, SOL_SOCKET, SO_SNDBUF, &little, sizeof little));
    warm(connection);
    return connection;
}

static int joined_little_client(void)
{
    hear("listening");
    int connection = MUST(socket(AF_INET, SOCK_STREAM, 0)), little = LITTLE;
    MUST(setsockopt(connection, SOL_SOCKET, SO_RCVBUF, &little, sizeof little));
    struct sockaddr_in to = address_of(peer, port);
    MUST(connect(connection, (struct sockaddr *)&to, sizeof to));
    warm(connection);
    return connection;
}

/* Writes until there is no room for some time; how many bytes. */
static size_t written(int connection)
{
    size_t at = 0;
    for (int tries = 0; tries < 20;) {
        uint8_t chunk[PART];
        for (size_t i = 0; i < PART; i++) chunk[i] = pattern_at(at + i);
        ssize_t sent = send(connection, chunk, PART, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) at += (size_t)sent, tries = 0;
        else tries++, usleep(5000);
    }
    return at;
}

static void say_length(size_t bytes)
{
    char word[32];
    snprintf(word, sizeof word, "%zu", bytes);
    tell(word);
}

/* The length that the other end says, by the channel. */
static size_t heard_length(void)
{
    char word[32] = {0};
    struct pollfd until = {channel_in, POLLIN, 0};
    if (poll(&until, 1, 4 * WAIT_MS) != 1) exit(3);
    MUST(read(channel_in, word, sizeof word));
    return (size_t)strtoull(word, NULL, 10);
}

static void ended(const char *how, int64_t since)
{
    int64_t took = now_ms() - since;
    if (took < SOON_MS) say("%s: at once", how);
    else say("%s: after %lld ms", how, (long long)took);
}

static void exits(void)
{
    pid_t child = MUST(fork());
    if (child == 0) {
        int connection = joined_little_server();
        say_length(written(connection));
        _exit(0);
    }
    say_end("process", child);
    hear("seen");
}

/* The listener of an epoll set, which must not report a connection that was closed. */
static void in_a_set(int connection)
{
    int epoll = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP, .data.u64 = 7};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, connection, &event));
    size_t bytes = written(connection);
    int64_t since = now_ms();
    TRY(close(connection));
    ended("close", since);
    say_length(bytes);
    say_events("after the close", epoll, 300);
    hear("seen");
    say_events("after the end", epoll, 300);
    say("the next is %d", (int)MUST(dup(0)));
    MUST(close(epoll));
}

void server(void)
{
    in_a_set(joined_little_server());

    int connection = joined_little_server();
    size_t bytes = written(connection);
    int64_t since = now_ms();
    TRY(shutdown(connection, SHUT_WR));
    ended("shutdown", since);
    say_length(bytes);
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    say("writable: %s", mask_name(wait_mask(connection, POLLOUT, POLLOUT)));
    TRY(shutdown(connection, SHUT_WR));
    say("answer: %zu", check_pattern(connection, 0, PART));
    hear("seen");
    MUST(close(connection));

    exits();

    /* The process lives on with a child. */
    connection = joined_little_server();
    say_length(written(connection));
    MUST(close(connection));
    pid_t child = MUST(fork());
    if (child == 0) {
        hear("seen");
        _exit(0);
    }
    say_end("child", child);
}

static void slowly(const char *what, bool answers)
{
    int connection = joined_little_client();
    size_t bytes = heard_length();
    usleep(SLOW_MS * 1000);
    size_t got = check_pattern(connection, 0, bytes);
    if (got == bytes) say("%s: all", what);
    else say("%s: %zu of %zu", what, got, bytes);
    say("ends: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    char byte;
    TRY(recv(connection, &byte, 1, 0));
    if (answers) send_pattern(connection, 0, PART);
    tell("seen");
    MUST(close(connection));
}

void client(void)
{
    slowly("close", false);
    slowly("shutdown", true);
    slowly("exit", false);
    slowly("close before a fork", false);
}
