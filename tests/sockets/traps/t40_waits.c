/* Each call that waits for descriptors, on connections that may have a lane: what it finds, its
   time, its signals, its sets, and a thread that is cancelled in it. */
#include "../trap.h"

static volatile sig_atomic_t handled;

static void wakes(int number)
{
    (void)number;
    handled++;
}

static const char *const names[] = {"poll", "ppoll", "select", "pselect", "epoll_wait", "epoll_pwait", "epoll_pwait2"};
enum { POLL, PPOLL, SELECT, PSELECT, EPOLL_WAIT, EPOLL_PWAIT, EPOLL_PWAIT2, WAYS };

/* The sets of the last select(2). */
static fd_set readable, writable;

/* Waits until the descriptor is readable; for ever if the time is negative. */
static int waits(int way, int fd, int ms, const sigset_t *mask)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    struct timeval left = {ms / 1000, ms % 1000 * 1000};
    struct epoll_event event;
    int epoll = -1, found = -1;
    if (way >= EPOLL_WAIT) {
        epoll = MUST(epoll_create1(0));
        MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}));
    }
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(fd, &readable);
    switch (way) {
    case POLL: found = poll(&entry, 1, ms); break;
    case PPOLL: found = ppoll(&entry, 1, ms < 0 ? NULL : &time, mask); break;
    case SELECT: found = select(fd + 1, &readable, &writable, NULL, ms < 0 ? NULL : &left); break;
    case PSELECT: found = pselect(fd + 1, &readable, &writable, NULL, ms < 0 ? NULL : &time, mask); break;
    case EPOLL_WAIT: found = epoll_wait(epoll, &event, 1, ms); break;
    case EPOLL_PWAIT: found = epoll_pwait(epoll, &event, 1, ms, mask); break;
    case EPOLL_PWAIT2: found = epoll_pwait2(epoll, &event, 1, ms < 0 ? NULL : &time, mask); break;
    }
    int error = errno;
    if (way == SELECT && ms >= 0 && found == 0 && (left.tv_sec != 0 || left.tv_usec != 0)) say("select: time is left");
    if (way == SELECT && ms > 0 && found > 0 && left.tv_sec * 1000 + left.tv_usec / 1000 >= ms) say("select: no time has passed");
    if (epoll >= 0) close(epoll);
    errno = error;
    return found;
}

static void say_wait(const char *what, int way, int fd, int ms, const sigset_t *mask)
{
    int64_t start = now_ms();
    int before = handled;
    errno = 0;
    int found = waits(way, fd, ms, mask);
    int error = errno;
    bool early = found == 0 && now_ms() - start < ms;
    say("%s, %s: %d %s%s, %d handled%s", what, names[way], found, found < 0 ? error_name(error) : "", early ? " early" : "",
        handled - before,
        way != SELECT && way != PSELECT ? "" : FD_ISSET(fd, &readable) ? ", in the set" : ", not in the set");
}

static void reads(int fd)
{
    char byte = 0;
    long got = recv(fd, &byte, 1, MSG_DONTWAIT);
    say("read %ld: %c", got, byte);
}

struct sleeper {
    int way, fd;
    _Atomic pid_t id;
    bool cleaned;
    int found;
};

static void cleans(void *argument)
{
    ((struct sleeper *)argument)->cleaned = true;
}

static void *sleeps(void *argument)
{
    struct sleeper *sleeper = argument;
    pthread_cleanup_push(cleans, sleeper);
    sleeper->id = gettid();
    sleeper->found = waits(sleeper->way, sleeper->fd, -1, NULL);
    pthread_cleanup_pop(0);
    return NULL;
}

static pthread_t start(struct sleeper *sleeper)
{
    pthread_t thread;
    pthread_create(&thread, NULL, sleeps, sleeper);
    while (sleeper->id == 0) usleep(100);
    wait_asleep(sleeper->id);
    return thread;
}

static void one_way(int way, int fd)
{
    say_wait("nothing", way, fd, 30, NULL);
    say_wait("at once", way, fd, 0, NULL);
    tell("byte");
    say_wait("a byte", way, fd, -1, NULL);
    reads(fd);
    tell("byte");
    say_wait("a byte in time", way, fd, WAIT_MS, NULL);
    say_wait("still there", way, fd, 0, NULL);
    reads(fd);

    struct itimerval soon = {.it_value = {.tv_usec = 20000}};
    setitimer(ITIMER_REAL, &soon, NULL);
    say_wait("a signal", way, fd, -1, NULL);

    sigset_t usr1, none;
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    raise(SIGUSR1);
    if (way == PPOLL || way == PSELECT || way == EPOLL_PWAIT || way == EPOLL_PWAIT2) {
        say_wait("a blocked signal that the call takes", way, fd, -1, &none);
    } else {
        say_wait("a blocked signal", way, fd, 30, NULL);
    }
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    say("%s: the signal came %s", names[way], handled % 2 == 0 ? "once" : "in vain");

    struct sleeper sleeper = {.way = way, .fd = fd};
    pthread_t thread = start(&sleeper);
    void *result;
    pthread_cancel(thread);
    pthread_join(thread, &result);
    say("%s: %s, %s", names[way], result == PTHREAD_CANCELED ? "cancelled" : "ended", sleeper.cleaned ? "cleaned" : "not cleaned");
}

void server(void)
{
    int first = joined_server();
    warm(first);
    meet("second");
    int second = joined_server();
    warm(second);
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = wakes, .sa_flags = SA_RESTART}, NULL);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = wakes}, NULL);
    for (int way = 0; way < WAYS; way++) one_way(way, first);

    /* Threads that wait for a connection each: the one that is not first in line is woken, too. */
    for (int way = 0; way < WAYS; way++) {
        struct sleeper one = {.way = way, .fd = first}, two = {.way = (way + 4) % WAYS, .fd = second};
        pthread_t threads[2] = {start(&one), start(&two)};
        tell("byte on the second");
        pthread_join(threads[1], NULL);
        reads(second);
        tell("byte");
        pthread_join(threads[0], NULL);
        reads(first);
        say("%s beside %s: %d, %d", names[one.way], names[two.way], one.found, two.found);
    }

    /* Descriptors that have nothing to do with the connections. */
    int ends[2];
    MUST(pipe(ends));
    for (int way = 0; way < WAYS; way++) {
        struct sleeper one = {.way = way, .fd = ends[0]};
        pthread_t thread = start(&one);
        MUST(write(ends[1], "p", 1));
        pthread_join(thread, NULL);
        char byte;
        MUST(read(ends[0], &byte, 1));
        say("%s of a pipe: %d", names[way], one.found);
    }
    TRY(poll(NULL, 0, 10));
    TRY(select(0, NULL, NULL, NULL, &(struct timeval){.tv_usec = 10000}));
    TRY(epoll_wait(first, &(struct epoll_event){0}, 1, 10));
    TRY(epoll_wait(-1, &(struct epoll_event){0}, 1, 10));
    TRY(ppoll(NULL, 0, &(struct timespec){.tv_nsec = -1}, NULL));
    TRY(select(-1, NULL, NULL, NULL, &(struct timeval){.tv_usec = 10000}));
    tell("over");
}

void client(void)
{
    int first = joined_client();
    warm(first);
    meet("second");
    int second = joined_client();
    warm(second);
    for (int i = 0; i < 2 * WAYS; i++) {
        hear("byte");
        usleep(10000);
        MUST(send(first, "a", 1, 0));
    }
    for (int i = 0; i < WAYS; i++) {
        hear("byte on the second");
        MUST(send(second, "b", 1, 0));
        hear("byte");
        MUST(send(first, "c", 1, 0));
    }
    hear("over");
}
