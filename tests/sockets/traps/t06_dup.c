/* Duplicates share the stream and the status flags; dup2 closes its target at once. */
#include "../trap.h"

void server(void)
{
    int connection = joined_server();
    say("received %zu", check_pattern(connection, 0, 300));
    send_pattern(connection, 0, 300);
    hear("one closed");
    struct pollfd on = {connection, POLLIN | POLLRDHUP, 0};
    TRY(poll(&on, 1, QUIET_MS));
    say("still %s", mask_name(on.revents));
    int second = joined_server();
    hear("replaced");
    say("the target of dup2: %s", mask_name(wait_mask(second, POLLRDHUP, POLLIN | POLLRDHUP)));
    send_pattern(connection, 300, 100);
    say("received %zu", check_pattern(connection, 300, 100));
    hear("all closed");
    say("the source: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    char byte;
    TRY(recv(connection, &byte, 1, 0));
}

void client(void)
{
    int one = joined_client();
    int two = TRY(dup(one));
    int three = TRY(fcntl(one, F_DUPFD, 50));
    int four = TRY(fcntl(one, F_DUPFD_CLOEXEC, 50));
    int five = TRY(dup3(one, 60, O_CLOEXEC));
    say("descriptor flags %d %d %d %d %d", fcntl(one, F_GETFD), fcntl(two, F_GETFD), fcntl(three, F_GETFD),
        fcntl(four, F_GETFD), fcntl(five, F_GETFD));
    TRY(fcntl(two, F_SETFL, O_NONBLOCK));
    say("status flags %#x %#x %#x", fcntl(one, F_GETFL), fcntl(two, F_GETFL), fcntl(five, F_GETFL));
    char byte;
    TRY(recv(one, &byte, 1, 0));
    TRY(fcntl(one, F_SETFL, 0));
    send_pattern(one, 0, 100);
    send_pattern(two, 100, 100);
    send_pattern(three, 200, 100);
    say("received %zu", check_pattern(four, 0, 100));
    say("received %zu", check_pattern(five, 100, 100));
    say("received %zu", check_pattern(one, 200, 100));
    TRY(close(two));
    TRY(close(four));
    tell("one closed");
    TRY(dup2(one, one));
    TRY(dup3(one, one, 0));
    TRY(dup3(one, 61, 12345));
    TRY(dup2(777, one));
    TRY(dup2(777, 777));
    TRY(dup2(one, -1));
    TRY(dup(777));
    TRY(fcntl(one, F_DUPFD, -1));
    int second = joined_client();
    TRY(dup2(one, second));
    tell("replaced");
    say("received at the number of the second: %zu", check_pattern(second, 300, 100));
    send_pattern(second, 300, 100);
    TRY(close(one));
    TRY(close(three));
    TRY(close(five));
    TRY(close(second));
    tell("all closed");
}
