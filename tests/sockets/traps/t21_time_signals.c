/* Time limits and signals. */
#include "../trap.h"

static volatile sig_atomic_t signals;

static void counted(int number)
{
    (void)number;
    if (++signals == 3) tell("third signal");
}

static void every(int microseconds)
{
    struct itimerval often = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &often, NULL);
}

static void handled(int flags)
{
    struct sigaction action = {.sa_handler = counted, .sa_flags = flags};
    sigaction(SIGALRM, &action, NULL);
    signals = 100;
}

static void limited(int fd, int name, int milliseconds)
{
    struct timeval limit = {milliseconds / 1000, milliseconds % 1000 * 1000};
    MUST(setsockopt(fd, SOL_SOCKET, name, &limit, sizeof limit));
}

static void timed(const char *what, int fd, int64_t least)
{
    char byte;
    int64_t before = now_ms();
    ssize_t got = recv(fd, &byte, 1, 0);
    int error = errno;
    int64_t taken = now_ms() - before;
    say("%s: %zd %s, not too early: %d, not too late: %d", what, got, got < 0 ? error_name(error) : "", taken >= least - 1,
        taken < least + 3000);
}

void server(void)
{
    int fd = joined_server();
    hear("third signal");
    send_pattern(fd, 0, 1);
    hear("third signal");
    send_pattern(fd, 0, 1);
    hear("sending");
    say("drained %d", check_pattern(fd, 0, 1 << 24) > 100000);
}

void client(void)
{
    int fd = joined_client();
    char byte;
    limited(fd, SO_RCVTIMEO, 60);
    timed("limit", fd, 60);
    struct pollfd on = {fd, POLLIN, 0};
    TRY(poll(&on, 1, 0));
    handled(SA_RESTART);
    limited(fd, SO_RCVTIMEO, 5000);
    every(20000);
    timed("with a limit, under SA_RESTART", fd, 0);
    limited(fd, SO_RCVTIMEO, 0);
    handled(0);
    timed("without SA_RESTART", fd, 0);
    handled(SA_RESTART);
    signals = 0;
    TRY(recv(fd, &byte, 1, 0));
    say("restarted until data came: %d", signals >= 3);
    signals = 0;
    TRY(read(fd, &byte, 1));
    say("restarted until data came: %d", signals >= 3);

    struct timeval limit = {5, 0};
    struct timespec exact = {5, 0};
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    TRY(poll(&on, 1, 5000));
    TRY(select(fd + 1, &in, NULL, NULL, &limit));
    FD_SET(fd, &in);
    TRY(pselect(fd + 1, &in, NULL, NULL, &exact, NULL));
    TRY(ppoll(&on, 1, &exact, NULL));
    int epoll = MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    TRY(epoll_wait(epoll, &event, 1, 5000));
    every(0);

    /* A signal that waits behind the mask comes in the moment that the call lifts it. */
    sigset_t blocked, open;
    sigemptyset(&open);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    signals = 100;
    raise(SIGALRM);
    TRY(poll(&on, 1, 0));
    say("blocked: %d", (int)signals);
    TRY(ppoll(&on, 1, &exact, &open));
    say("lifted by ppoll: %d", (int)signals);
    raise(SIGALRM);
    FD_SET(fd, &in);
    TRY(pselect(fd + 1, &in, NULL, NULL, &exact, &open));
    say("lifted by pselect: %d", (int)signals);
    raise(SIGALRM);
    TRY(epoll_pwait(epoll, &event, 1, 5000, &open));
    say("lifted by epoll_pwait: %d", (int)signals);
    raise(SIGALRM);
    TRY(poll(&on, 1, 0));
    say("blocked again: %d", (int)signals);
    sigprocmask(SIG_UNBLOCK, &blocked, NULL);
    say("unblocked: %d", (int)signals);

    FD_SET(fd, &in);
    limit = (struct timeval){0, 20000};
    TRY(select(fd + 1, &in, NULL, NULL, &limit));
    say("no time left: %d", limit.tv_sec == 0 && limit.tv_usec == 0);
    limited(fd, SO_SNDTIMEO, 50);
    static char much[1 << 16];
    ssize_t sent = 0;
    size_t total = 0;
    do {
        total += (size_t)sent;
        for (size_t i = 0; i < sizeof much; i++) much[i] = (char)pattern_at(total + i);
        sent = send(fd, much, sizeof much, MSG_NOSIGNAL);
    } while (sent > 0 && total < 1 << 30);
    say("a full stream: %s", sent < 0 ? error_name(errno) : "none");
    struct timeval set;
    socklen_t length = sizeof set;
    TRY(getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &set, &length));
    say("SNDTIMEO near 50 ms: %d", set.tv_sec == 0 && set.tv_usec >= 50000 && set.tv_usec < 60000);
    tell("sending");
    TRY(close(fd));
}
