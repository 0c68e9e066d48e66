/* Threads on one socket: close does not wake a reader, shutdown does; numbers are used again. */
#include <sys/syscall.h>

#include "../trap.h"

struct reader {
    int fd;
    _Atomic pid_t id;
    ssize_t got;
    int error;
    char data[16];
};

static void *reads(void *argument)
{
    struct reader *reader = argument;
    reader->id = gettid();
    reader->got = read(reader->fd, reader->data, sizeof reader->data - 1);
    reader->error = errno;
    return NULL;
}

static void *accepts(void *argument)
{
    struct reader *reader = argument;
    reader->id = gettid();
    reader->got = accept(reader->fd, NULL, NULL);
    reader->error = errno;
    return NULL;
}

static pthread_t start(struct reader *reader, void *(*body)(void *))
{
    pthread_t thread;
    pthread_create(&thread, NULL, body, reader);
    while (reader->id == 0) usleep(100);
    wait_asleep(reader->id);
    return thread;
}

static void ended(const char *what, pthread_t thread, struct reader *reader)
{
    pthread_join(thread, NULL);
    say("%s: %zd %s '%s'", what, reader->got, reader->got < 0 ? error_name(reader->error) : "", reader->data);
}

static void *serves(void *argument)
{
    int connection = *(int *)argument;
    warm(connection);
    send_pattern(connection, 0, 5000);
    return (void *)check_pattern(connection, 0, 5000);
}

static void *writes(void *argument)
{
    send_pattern(*(int *)argument, 0, 1 << 20);
    return NULL;
}

void server(void)
{
    struct reader reader = {.fd = joined_server()};
    pthread_t thread = start(&reader, reads);
    TRY(close(reader.fd));
    int again = TRY(socket(AF_INET, SOCK_STREAM, 0));
    TRY(close(again));
    tell("closed");
    ended("read after close", thread, &reader);

    struct reader second = {.fd = joined_server()};
    thread = start(&second, reads);
    TRY(shutdown(second.fd, SHUT_RD));
    ended("read after shutdown", thread, &second);
    TRY(close(second.fd));

    struct reader acceptor = {.fd = listener()};
    thread = start(&acceptor, accepts);
    TRY(shutdown(acceptor.fd, SHUT_RD));
    ended("accept after shutdown", thread, &acceptor);
    TRY(close(acceptor.fd));

    int at = listener();
    tell("listening");
    int connection = MUST(accept(at, NULL, NULL));
    MUST(close(at));
    void *got;
    pthread_create(&thread, NULL, serves, &connection);
    pthread_join(thread, &got);
    say("served by another thread: %zu", (size_t)got);

    pthread_create(&thread, NULL, writes, &connection);
    say("both ways at once: %zu", check_pattern(connection, 0, 1 << 20));
    pthread_join(thread, NULL);
    for (int round = 0; round < 20; round++) {
        MUST(close(connection));
        connection = joined_server();
        send_pattern(connection, 0, 100);
    }
    say("the last is %d", connection);
    hear("over");
}

void client(void)
{
    int connection = joined_client();
    hear("closed");
    struct pollfd on = {connection, POLLIN | POLLRDHUP, 0};
    TRY(poll(&on, 1, QUIET_MS));
    TRY(send(connection, "late", 4, 0));
    say("then %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    TRY(close(connection));

    connection = joined_client();
    say("then %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    TRY(close(connection));

    hear("listening");
    connection = dial();
    warm(connection);
    say("served: %zu", check_pattern(connection, 0, 5000));
    send_pattern(connection, 0, 5000);
    pthread_t thread;
    pthread_create(&thread, NULL, writes, &connection);
    say("both ways at once: %zu", check_pattern(connection, 0, 1 << 20));
    pthread_join(thread, NULL);
    for (int round = 0; round < 20; round++) {
        int next = joined_client();
        if (check_pattern(next, 0, 100) != 100) say("round %d fails", round);
        MUST(close(connection));
        connection = next;
    }
    say("the last is %d", connection);
    tell("over");
}
