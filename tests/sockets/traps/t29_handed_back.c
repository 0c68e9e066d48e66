/* A connection in use, with bytes on their way in both directions, gets other holders. */
#include "../trap.h"

enum { MUCH = 60000, FLOOD = 1 << 20, PART = 5000, AT = 40 };

static void in_child(int connection, size_t more)
{
    pid_t child = MUST(fork());
    if (child == 0) {
        say("child: %zu", check_pattern(connection, 0, MUCH));
        send_pattern(connection, MUCH, more);
        _exit(0);
    }
    say_end("child", child);
}

/* Both ends have sent and not read when one of them, or both, fork. */
static void unread_at_both(int connection, bool forks)
{
    send_pattern(connection, 0, MUCH);
    meet("sent");
    if (forks) in_child(connection, PART);
    else {
        say("here: %zu", check_pattern(connection, 0, MUCH));
        send_pattern(connection, MUCH, PART);
    }
    say("behind: %zu", check_pattern(connection, MUCH, PART));
    send_pattern(connection, MUCH + PART, 1);
    say("last: %zu", check_pattern(connection, MUCH + PART, 1));
    MUST(close(connection));
}

void again(const char *what)
{
    (void)what;
    say("after exec: %zu", check_pattern(AT, 100, MUCH - 100));
    send_pattern(AT, 0, PART);
    hear("got it");
}

void server(void)
{
    unread_at_both(joined_server(), true);
    unread_at_both(joined_server(), true);

    /* Its writer blocks meanwhile. */
    int connection = joined_server();
    hear("writing");
    usleep(30000);
    pid_t child = MUST(fork());
    if (child == 0) {
        say("flood: %zu", check_pattern(connection, 0, FLOOD));
        _exit(0);
    }
    say_end("child", child);
    send_pattern(connection, 0, PART);
    MUST(close(connection));

    /* The peer reads by splice what arrived before. */
    connection = joined_server();
    send_pattern(connection, 0, MUCH);
    child = MUST(fork());
    if (child == 0) {
        send_pattern(connection, MUCH, PART);
        _exit(0);
    }
    say_end("child", child);
    MUST(close(connection));
    tell("splice");

    connection = joined_server();
    hear("sent");
    say("before exec: %zu", check_pattern(connection, 0, 100));
    MUST(dup2(connection, AT));
    MUST(close(connection));
    start_again("handed over", true);
}

static size_t piped(int from, size_t position, size_t bytes)
{
    uint8_t data[16384];
    size_t got = 0;
    while (got < bytes) got += (size_t)MUST(read(from, data + got, bytes - got));
    for (size_t i = 0; i < got; i++)
        if (data[i] != pattern_at(position + i)) {
            say("wrong byte at %zu of the splice", position + i);
            exit(1);
        }
    return got;
}

void client(void)
{
    unread_at_both(joined_client(), false);
    unread_at_both(joined_client(), true);

    int connection = joined_client();
    tell("writing");
    send_pattern(connection, 0, FLOOD);
    say("written: %zu", check_pattern(connection, 0, PART));
    MUST(close(connection));

    connection = joined_client();
    int pipes[2];
    MUST(pipe(pipes));
    hear("splice");
    for (size_t got = 0; got < MUCH + PART;) {
        ssize_t in = MUST(splice(connection, NULL, pipes[1], NULL, 16384, 0));
        if (in == 0) break;
        got += piped(pipes[0], got, (size_t)in);
    }
    TRY(splice(connection, NULL, pipes[1], NULL, 10, 0));
    MUST(close(connection));

    connection = joined_client();
    send_pattern(connection, 0, MUCH);
    tell("sent");
    say("from the new image: %zu", check_pattern(connection, 0, PART));
    tell("got it");
    say("ends: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
}
