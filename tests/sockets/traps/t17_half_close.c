/* Half-closed connections. */
#include "../trap.h"

void server(void)
{
    int connection = joined_server();
    say("to its end: %zu", check_pattern(connection, 0, 1 << 20));
    char byte;
    TRY(recv(connection, &byte, 1, 0));
    TRY(recv(connection, &byte, 1, 0));
    send_pattern(connection, 0, 200000);
    hear("read half");
    send_pattern(connection, 200000, 5);
    TRY(shutdown(connection, SHUT_WR));
    TRY(shutdown(connection, SHUT_WR));
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    MUST(close(connection));

    connection = joined_server();
    hear("shut for reading");
    send_pattern(connection, 0, 10);
    tell("sent");
    say("other way: %zu", check_pattern(connection, 0, 10));
    MUST(close(connection));
    connection = joined_server();
    TRY(shutdown(connection, SHUT_RDWR));
    TRY(shutdown(connection, SHUT_RDWR));
    tell("shut");
    hear("over");
    TRY(shutdown(connection, 9));
    TRY(shutdown(0, SHUT_WR));
    TRY(shutdown(777, SHUT_WR));
    int fresh = MUST(socket(AF_INET, SOCK_STREAM, 0));
    TRY(shutdown(fresh, SHUT_WR));
}

void client(void)
{
    int connection = joined_client();
    send_pattern(connection, 0, 70000);
    TRY(shutdown(connection, SHUT_WR));
    TRY(send(connection, "x", 1, MSG_NOSIGNAL));
    say("still received: %zu", check_pattern(connection, 0, 200000));
    tell("read half");
    say("rest: %zu", check_pattern(connection, 200000, 1 << 20));
    MUST(close(connection));

    connection = joined_client();
    TRY(shutdown(connection, SHUT_RD));
    char data[16];
    TRY(recv(connection, data, sizeof data, 0));
    say("shut for reading: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP)));
    tell("shut for reading");
    hear("sent");
    int waiting = 0;
    for (int64_t until = now_ms() + WAIT_MS; waiting < 10 && now_ms() < until;) {
        MUST(ioctl(connection, FIONREAD, &waiting));
        usleep(500);
    }
    TRY(recv(connection, data, sizeof data, 0));
    TRY(recv(connection, data, sizeof data, 0));
    send_pattern(connection, 0, 10);
    MUST(close(connection));
    connection = joined_client();
    hear("shut");
    TRY(recv(connection, data, sizeof data, 0));
    say("shut by the peer: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP)));
    tell("over");
}
