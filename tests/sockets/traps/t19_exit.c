/* What was sent arrives after close, exit and SIGKILL of its sender; a dead process is an end. */
#include "../trap.h"

enum { PART = 30000 };

static pid_t sender(int connection, void (*end)(void))
{
    pid_t child = MUST(fork());
    if (child == 0) {
        send_pattern(connection, 0, PART);
        end();
        _exit(0);
    }
    MUST(close(connection));
    return child;
}

static void by_exit(void)
{
    exit(0);
}

static void by_kill(void)
{
    raise(SIGKILL);
}

static void by_abort(void)
{
    signal(SIGABRT, SIG_DFL);
    abort();
}

static void own_process(void (*end)(void))
{
    pid_t child = MUST(fork());
    if (child == 0) {
        int connection = joined_server();
        send_pattern(connection, 0, PART);
        end();
    }
    say_end("its own process", child);
    hear("seen");
}

void server(void)
{
    int connection = joined_server();
    send_pattern(connection, 0, PART);
    TRY(close(connection));
    hear("seen");
    say_end("exit", sender(joined_server(), by_exit));
    hear("seen");
    say_end("SIGKILL", sender(joined_server(), by_kill));
    hear("seen");
    own_process(by_exit);
    own_process(by_kill);
    own_process(by_abort);

    connection = joined_server();
    struct linger soft = {1, 5};
    MUST(setsockopt(connection, SOL_SOCKET, SO_LINGER, &soft, sizeof soft));
    send_pattern(connection, 0, PART);
    TRY(close(connection));
    hear("seen");

    pid_t child = MUST(fork());
    if (child == 0) {
        connection = joined_server();
        tell("waiting");
        for (;;) pause();
    }
    hear("kill");
    MUST(kill(child, SIGKILL));
    say_end("idle, killed", child);
    hear("seen");
}

static void whole(const char *what)
{
    int connection = joined_client();
    size_t got = check_pattern(connection, 0, PART);
    say("%s: %zu, then %s", what, got, mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    char byte;
    TRY(recv(connection, &byte, 1, 0));
    MUST(close(connection));
    tell("seen");
}

void client(void)
{
    whole("close");
    whole("exit");
    whole("SIGKILL");
    whole("exit of its own process");
    whole("SIGKILL of its own process");
    whole("abort of its own process");
    whole("linger");
    int connection = joined_client();
    hear("waiting");
    tell("kill");
    say("a killed peer: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    tell("seen");
}
