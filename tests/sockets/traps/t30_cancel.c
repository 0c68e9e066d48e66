/* Threads that are cancelled in calls of the kernel: clean-up handlers run, the process goes on. */
#include "../trap.h"

struct blocked {
    int fd;
    _Atomic pid_t id;
    bool cleaned;
};

static void cleans(void *argument)
{
    ((struct blocked *)argument)->cleaned = true;
}

static void *reads(void *argument)
{
    struct blocked *blocked = argument;
    char byte;
    pthread_cleanup_push(cleans, blocked);
    blocked->id = gettid();
    read(blocked->fd, &byte, 1);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *receives(void *argument)
{
    struct blocked *blocked = argument;
    char byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    pthread_cleanup_push(cleans, blocked);
    blocked->id = gettid();
    recvmsg(blocked->fd, &message, 0);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *accepts(void *argument)
{
    struct blocked *blocked = argument;
    pthread_cleanup_push(cleans, blocked);
    blocked->id = gettid();
    accept(blocked->fd, NULL, NULL);
    pthread_cleanup_pop(0);
    return NULL;
}

/* The cancellation is pending when the call begins. */
static void *opens(void *argument)
{
    struct blocked *blocked = argument;
    pthread_cleanup_push(cleans, blocked);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    blocked->id = gettid();
    pause();
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    int fd = open("/dev/null", O_RDONLY);
    close(fd);
    write(blocked->fd, "", 0);
    pthread_testcancel();
    pthread_cleanup_pop(0);
    return NULL;
}

static void wakes(int number)
{
    (void)number;
}

static void cancelled(const char *what, int fd, void *(*body)(void *))
{
    struct blocked blocked = {.fd = fd};
    pthread_t thread;
    void *result;
    pthread_create(&thread, NULL, body, &blocked);
    while (blocked.id == 0) usleep(100);
    wait_asleep(blocked.id);
    pthread_cancel(thread);
    if (body == opens) pthread_kill(thread, SIGUSR1);
    pthread_join(thread, &result);
    say("%s: %s, %s", what, result == PTHREAD_CANCELED ? "cancelled" : "ended", blocked.cleaned ? "cleaned" : "not cleaned");
}

void server(void)
{
    int ends[2], pair[2];
    MUST(pipe(ends));
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    int at = listener();
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = wakes}, NULL);
    cancelled("read of a pipe", ends[0], reads);
    cancelled("recvmsg of a pair", pair[0], receives);
    int datagrams = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in me = address_of(own, port + 1);
    MUST(bind(datagrams, (struct sockaddr *)&me, sizeof me));
    cancelled("read of a UDP socket", datagrams, reads);
    cancelled("recvmsg of a UDP socket", datagrams, receives);
    MUST(close(datagrams));
    cancelled("accept", at, accepts);
    cancelled("open", ends[1], opens);
    MUST(close(at));
    tell("over");
}

void client(void)
{
    hear("over");
}
