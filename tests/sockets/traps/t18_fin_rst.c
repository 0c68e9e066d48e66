/* Close with unread input, linger 0, and writes after the peer's close. */
#include "../trap.h"

static volatile sig_atomic_t pipes;

static void piped(int number)
{
    (void)number;
    pipes++;
}

void server(void)
{
    char data[64];
    int connection = joined_server();
    send_pattern(connection, 0, 3000);
    hear("unread");
    MUST(wait_mask(connection, POLLIN, POLLIN));
    TRY(close(connection));
    tell("closed with unread input");

    connection = joined_server();
    struct linger hard = {1, 0};
    MUST(setsockopt(connection, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
    TRY(close(connection));
    tell("closed hard");

    connection = joined_server();
    TRY(close(connection));
    tell("closed");

    connection = joined_server();
    hear("closed by the client");
    say("gone: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    TRY(recv(connection, data, sizeof data, 0));
    TRY(write(connection, "x", 1));
    MUST(wait_mask(connection, POLLHUP, POLLIN));
    signal(SIGPIPE, piped);
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    say("signals %d", (int)pipes);
    TRY(write(connection, "x", 1));
    say("signals %d", (int)pipes);
    struct iovec part = {"x", 1};
    TRY(writev(connection, &part, 1));
    say("signals %d", (int)pipes);
    TRY(recv(connection, data, sizeof data, 0));
    MUST(close(connection));
    tell("over");
}

static int gone(const char *word)
{
    int connection = joined_client();
    hear(word);
    return connection;
}

void client(void)
{
    char data[64];
    int connection = joined_client();
    MUST(wait_mask(connection, POLLIN, POLLIN));
    send_pattern(connection, 0, 10);
    tell("unread");
    hear("closed with unread input");
    say("reset: %s", mask_name(wait_mask(connection, POLLERR, POLLIN | POLLOUT | POLLRDHUP)));
    ssize_t got, total = 0;
    while ((got = recv(connection, data, sizeof data, 0)) > 0) total += got;
    say("%s after the data: %d", error_name(got < 0 ? errno : 0), total == 3000 || total == 0);
    TRY(recv(connection, data, sizeof data, 0));
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    MUST(close(connection));

    connection = gone("closed hard");
    say("reset: %s", mask_name(wait_mask(connection, POLLERR, POLLIN | POLLOUT | POLLRDHUP)));
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    TRY(recv(connection, data, sizeof data, 0));
    TRY(recv(connection, data, sizeof data, 0));
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    MUST(close(connection));

    connection = gone("closed");
    MUST(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP));
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    say("answered with RST: %s", mask_name(wait_mask(connection, POLLHUP, POLLIN | POLLOUT | POLLRDHUP)));
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    TRY(recv(connection, data, sizeof data, 0));
    MUST(close(connection));

    connection = joined_client();
    TRY(close(connection));
    tell("closed by the client");
    hear("over");
}
