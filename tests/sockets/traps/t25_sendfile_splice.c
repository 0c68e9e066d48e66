/* sendfile and splice, calls before constructors and in signal handlers, and errno. */
#include <sys/mman.h>
#include <sys/sendfile.h>

#include "../trap.h"

enum { FILE_BYTES = 300000 };

static int made_early = -1, early_error;

/* Before the constructors of all libraries without a priority. */
__attribute__((constructor(101))) static void early(void)
{
    made_early = socket(AF_INET, SOCK_DGRAM, 0);
    early_error = errno;
    char byte;
    recv(made_early, &byte, 1, MSG_DONTWAIT);
    close(made_early);
}

static int file_of(size_t bytes)
{
    int fd = MUST(memfd_create("file", 0));
    uint8_t *whole = malloc(bytes);
    for (size_t i = 0; i < bytes; i++) whole[i] = pattern_at(i);
    MUST(write(fd, whole, bytes));
    free(whole);
    MUST(lseek(fd, 0, SEEK_SET));
    return fd;
}

static int handled_fd;
static volatile ssize_t handled_result;

static void in_handler(int number)
{
    (void)number;
    int before = errno;
    char byte;
    handled_result = recv(handled_fd, &byte, 1, MSG_DONTWAIT);
    errno = before;
}

void server(void)
{
    say("before constructors: a descriptor %d", made_early >= 0);
    int connection = joined_server(), file = file_of(FILE_BYTES);
    off_t offset = 1000;
    TRY(sendfile(connection, file, &offset, 5000));
    say("offset %ld, position %ld", (long)offset, (long)lseek(file, 0, SEEK_CUR));
    MUST(lseek(file, 6000, SEEK_SET));
    TRY(sendfile(connection, file, NULL, 4000));
    say("position %ld", (long)lseek(file, 0, SEEK_CUR));
    offset = 10000;
    while (offset < FILE_BYTES)
        if (sendfile(connection, file, &offset, FILE_BYTES) <= 0) break;
    say("offset %ld", (long)offset);
    TRY(sendfile(connection, file, &offset, 10));
    TRY(sendfile(connection, 777, &offset, 10));
    TRY(sendfile(777, file, &offset, 10));
    offset = -1;
    TRY(sendfile(connection, file, &offset, 10));

    int pipes[2];
    MUST(pipe(pipes));
    hear("splice");
    size_t through = 0;
    while (through < 20000) {
        ssize_t in = splice(connection, NULL, pipes[1], NULL, 20000 - through, SPLICE_F_MOVE);
        if (in <= 0) break;
        for (ssize_t out = 0; out < in;) {
            ssize_t more = splice(pipes[0], NULL, connection, NULL, (size_t)(in - out), SPLICE_F_MOVE | SPLICE_F_MORE);
            if (more <= 0) break;
            out += more;
        }
        through += (size_t)in;
    }
    say("spliced %zu", through);
    offset = 0;
    TRY(splice(connection, &offset, pipes[1], NULL, 1, 0));
    MUST(fcntl(connection, F_SETFL, O_NONBLOCK));
    TRY(splice(connection, NULL, pipes[1], NULL, 10, 0));
    MUST(fcntl(connection, F_SETFL, 0));
    TRY(splice(connection, NULL, connection, NULL, 10, 0));
    tell("end");
    hear("closed");
    MUST(wait_mask(connection, POLLRDHUP, POLLRDHUP));
    TRY(splice(connection, NULL, pipes[1], NULL, 10, 0));

    errno = 77;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    int after_socket = errno;
    struct pollfd on = {fd, POLLIN, 0};
    poll(&on, 1, 0);
    int after_poll = errno;
    close(fd);
    say("errno stays: %d %d %d", after_socket, after_poll, errno);
    connection = joined_server();
    char data[16];
    tell("bytes");
    errno = 77;
    recv(connection, data, 5, 0);
    int after_recv = errno;
    send(connection, "x", 1, 0);
    int after_send = errno;
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(epoll, EPOLL_CTL_ADD, connection, &event);
    epoll_wait(epoll, &event, 1, 0);
    say("errno stays: %d %d %d", after_recv, after_send, errno);
    handled_fd = connection;
    signal(SIGUSR1, in_handler);
    raise(SIGUSR1);
    say("in a handler: %zd", handled_result);
    /* A stream of stdio is read and written by the library's own calls. */
    FILE *stream = fdopen(dup(connection), "r+");
    setvbuf(stream, NULL, _IOLBF, 256);
    tell("line");
    char line[64] = {0};
    if (fgets(line, sizeof line, stream)) say("a line: %.*s", (int)strcspn(line, "\n"), line);
    fseek(stream, 0, SEEK_CUR);
    fprintf(stream, "answer %d\n", 42);
    fflush(stream);
    dprintf(connection, "by dprintf\n");
    fclose(stream);
    hear("over");
}

void client(void)
{
    int connection = joined_client();
    say("by sendfile: %zu", check_pattern(connection, 1000, FILE_BYTES - 1000));
    tell("splice");
    send_pattern(connection, 0, 20000);
    say("by splice: %zu", check_pattern(connection, 0, 20000));
    hear("end");
    int file = file_of(10), null = MUST(open("/dev/null", O_WRONLY));
    TRY(sendfile(null, file, NULL, 5));
    MUST(close(connection));
    tell("closed");
    connection = joined_client();
    hear("bytes");
    TRY(send(connection, "12345", 5, 0));
    char data[64] = {0};
    TRY(recv(connection, data, 1, 0));
    hear("line");
    TRY(send(connection, "a whole line\n", 13, 0));
    for (size_t got = 0; got < 21;) {
        ssize_t more = recv(connection, data + got, sizeof data - got, 0);
        if (more <= 0) break;
        got += (size_t)more;
    }
    say("'%s'", data);
    tell("over");
}
