/* Parent and child hold one socket: no FIN before the last holder closes, one stream for both. */
#include "../trap.h"

enum { PART = 5000 };

static void preforked(void)
{
    int at = listener(), done[2];
    MUST(pipe(done));
    pid_t children[2];
    for (int child = 0; child < 2; child++) {
        children[child] = MUST(fork());
        if (children[child] != 0) continue;
        int connection = MUST(accept(at, NULL, NULL));
        warm(connection);
        send_pattern(connection, 0, PART);
        size_t got = check_pattern(connection, 0, PART);
        MUST(write(done[1], "x", 1));
        _exit(got == PART ? 0 : 1);
    }
    tell("listening");
    tell("listening");
    say_end("first worker", children[0]);
    say_end("second worker", children[1]);
    MUST(close(at));
}

static void parent_closes(void)
{
    int at = listener();
    tell("listening");
    int connection = MUST(accept(at, NULL, NULL));
    pid_t child = MUST(fork());
    if (child == 0) {
        MUST(close(at));
        warm(connection);
        say("the child received %zu", check_pattern(connection, 0, PART));
        send_pattern(connection, 0, PART);
        hear("no end yet");
        _exit(0);
    }
    MUST(close(connection));
    tell("closed here");
    say_end("child", child);
    MUST(close(at));
}

static void in_use(void)
{
    int connection = joined_server();
    say("parent: %zu", check_pattern(connection, 0, PART));
    pid_t child = MUST(fork());
    if (child == 0) {
        send_pattern(connection, 0, PART);
        say("child: %zu", check_pattern(connection, PART, PART));
        _exit(0);
    }
    say_end("child", child);
    send_pattern(connection, PART, PART);
    say("parent: %zu", check_pattern(connection, 2 * PART, PART));
    child = MUST(fork());
    if (child == 0) {
        TRY(shutdown(connection, SHUT_RDWR));
        _exit(0);
    }
    say_end("child", child);
    char byte;
    TRY(recv(connection, &byte, 1, 0));
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    MUST(close(connection));
}

void server(void)
{
    preforked();
    meet("preforked");
    parent_closes();
    meet("parent closes");
    in_use();
}

void client(void)
{
    int both[2];
    for (int turn = 0; turn < 2; turn++) {
        hear("listening");
        both[turn] = dial();
    }
    for (int turn = 0; turn < 2; turn++) {
        warm(both[turn]);
        say("from a worker: %zu", check_pattern(both[turn], 0, PART));
        send_pattern(both[turn], 0, PART);
        say("ends: %s", mask_name(wait_mask(both[turn], POLLRDHUP, POLLIN | POLLRDHUP)));
        MUST(close(both[turn]));
    }
    meet("preforked");

    hear("listening");
    int connection = dial();
    hear("closed here");
    warm(connection);
    send_pattern(connection, 0, PART);
    say("from the child: %zu", check_pattern(connection, 0, PART));
    struct pollfd on = {connection, POLLIN | POLLRDHUP, 0};
    TRY(poll(&on, 1, QUIET_MS));
    tell("no end yet");
    say("ends: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    MUST(close(connection));
    meet("parent closes");

    connection = joined_client();
    send_pattern(connection, 0, 3 * PART);
    say("from both: %zu", check_pattern(connection, 0, 2 * PART));
    say("ends: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
}
