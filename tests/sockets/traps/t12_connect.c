/* Non-blocking connect, refused connect, interrupted connect. */
#include "../trap.h"

static int error_of(int fd)
{
    int error = 0;
    socklen_t length = sizeof error;
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
    return error;
}

/* A listener whose queue is full, so that the kernel leaves further connections unanswered. */
static int full_listener(void)
{
    int fd = listener();
    MUST(listen(fd, 0));
    tell("listening");
    hear("full");
    return fd;
}

static void emptied(int fd)
{
    for (int waiting = 0; waiting < 2; waiting++) MUST(accept(fd, NULL, NULL));
    MUST(close(fd));
}

void server(void)
{
    int fd = full_listener();
    hear("waiting");
    emptied(fd);
    hear("connected");
    fd = full_listener();
    hear("interrupted");
    emptied(fd);
    hear("over");
}

static void interrupted(int number)
{
    (void)number;
}

static void refused(int type)
{
    int fd = TRY(socket(AF_INET, SOCK_STREAM | type, 0));
    struct sockaddr_in to = address_of(peer, port + 7);
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    if (type) {
        say("refused: %s", mask_name(wait_mask(fd, POLLHUP, POLLIN | POLLOUT | POLLRDHUP)));
        say("SO_ERROR %s", error_name(error_of(fd)));
    }
    say("SO_ERROR %s", error_name(error_of(fd)));
    char byte;
    TRY(recv(fd, &byte, 1, 0));
    TRY(send(fd, "x", 1, MSG_NOSIGNAL));
    say("peer %s", peer_name(fd));
    struct sockaddr_in open = address_of(peer, port + 8);
    TRY(connect(fd, (struct sockaddr *)&open, sizeof open));
    TRY(close(fd));
}

void client(void)
{
    struct sockaddr_in to = address_of(peer, port);
    hear("listening");
    int first = dial();
    tell("full");
    int fd = TRY(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    char byte;
    TRY(recv(fd, &byte, 1, 0));
    TRY(send(fd, "x", 1, MSG_NOSIGNAL));
    struct pollfd on = {fd, POLLIN | POLLOUT, 0};
    TRY(poll(&on, 1, 0));
    say("local %s, peer %s", local_name(fd), peer_name(fd));
    tell("waiting");
    say("connected: %s", mask_name(wait_mask(fd, POLLOUT, POLLIN | POLLOUT | POLLRDHUP)));
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    say("SO_ERROR %s, peer %s", error_name(error_of(fd)), peer_name(fd));
    TRY(close(fd));
    TRY(close(first));
    tell("connected");

    hear("listening");
    first = dial();
    tell("full");
    struct sigaction action = {.sa_handler = interrupted};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    fd = TRY(socket(AF_INET, SOCK_STREAM, 0));
    setitimer(ITIMER_REAL, &often, NULL);
    TRY(connect(fd, (struct sockaddr *)&to, sizeof to));
    setitimer(ITIMER_REAL, &never, NULL);
    tell("interrupted");
    say("goes on: %s", mask_name(wait_mask(fd, POLLOUT, POLLIN | POLLOUT | POLLRDHUP)));
    say("SO_ERROR %s", error_name(error_of(fd)));
    TRY(close(fd));
    TRY(close(first));
    tell("over");

    refused(0);
    refused(SOCK_NONBLOCK);
    struct sockaddr odd = {.sa_family = 99};
    fd = TRY(socket(AF_INET, SOCK_STREAM, 0));
    TRY(connect(fd, &odd, sizeof odd));
    TRY(connect(fd, (struct sockaddr *)&to, 3));
    TRY(connect(fd, NULL, sizeof to));
    TRY(connect(777, (struct sockaddr *)&to, sizeof to));
    TRY(connect(0, (struct sockaddr *)&to, sizeof to));
}
