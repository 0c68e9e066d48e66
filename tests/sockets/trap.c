/* What trap.h declares. */
#include "trap.h"

#include <stdarg.h>
#include <sys/syscall.h>

bool is_server;
const char *own, *peer, *own6, *peer6, *folder;
int port;
int channel_in, channel_out;
int wait_ms = 5000;

enum { WORD_BYTES = 32, CHANNEL_AT = 900 };
static char **arguments;

/* System calls by instruction: no preload sees them. */
static long raw(long number, long a, long b, long c, long d, long e)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

void __attribute__((weak)) again(const char *what)
{
    say("nothing to do again for %s", what);
}

const char *error_name(int error)
{
    const char *name = error == 0 ? "0" : strerrorname_np(error);
    return name ? name : "unknown";
}

void say(const char *format, ...)
{
    char line[512];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(line, sizeof line - 1, format, values);
    va_end(values);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    raw(SYS_write, 1, (long)line, length, 0, 0);
}

void tell(const char *word)
{
    char record[WORD_BYTES] = {0};
    for (int i = 0; i < WORD_BYTES - 1 && word[i]; i++) record[i] = word[i];
    raw(SYS_write, channel_out, (long)record, WORD_BYTES, 0, 0);
}

void hear(const char *word)
{
    char record[WORD_BYTES] = {0};
    struct pollfd until = {channel_in, POLLIN, 0};
    int64_t deadline = now_ms() + 3 * WAIT_MS;
    long left;
    while ((left = deadline - now_ms()) > 0 && raw(SYS_poll, (long)&until, 1, left, 0, 0) <= 0) continue;
    if (left <= 0) {
        say("the other end does not say %s", word);
        _exit(3);
    }
    raw(SYS_read, channel_in, (long)record, WORD_BYTES, 0, 0);
    if (strcmp(record, word) != 0) {
        say("heard %s, not %s", record, word);
        _exit(3);
    }
}

void meet(const char *word)
{
    tell(word);
    hear(word);
}

static int open_end(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    /* Both ways, so that opening does not wait, and words outlive their writer. */
    long fd = raw(SYS_open, (long)path, O_RDWR, 0, 0, 0);
    long high = raw(SYS_fcntl, fd, F_DUPFD, CHANNEL_AT, 0, 0);
    raw(SYS_close, fd, 0, 0, 0, 0);
    if (high < 0) {
        say("no channel at %s", path);
        _exit(3);
    }
    return (int)high;
}

void open_channel(void)
{
    channel_in = open_end(is_server ? "to-server" : "to-client");
    channel_out = open_end(is_server ? "to-client" : "to-server");
}

int main(int argc, char **argv)
{
    if (argc != 8 && argc != 9) {
        fprintf(stderr, "%s ROLE OWN PEER OWN6 PEER6 PORT FOLDER\n", argv[0]);
        return 2;
    }
    const char *wait = getenv("TRAP_WAIT_MS");
    if (wait) wait_ms = atoi(wait);
    arguments = argv;
    is_server = strcmp(argv[1], "server") == 0;
    own = argv[2], peer = argv[3], own6 = argv[4], peer6 = argv[5];
    port = atoi(argv[6]);
    folder = argv[7];
    open_channel();
    if (argc == 9) again(argv[8]);
    else if (is_server) server();
    else client();
    say("end");
    return 0;
}

void start_again(const char *what, bool with_environment)
{
    char *argv[] = {arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                    arguments[5], arguments[6], arguments[7], (char *)what, NULL};
    char *nothing[] = {NULL};
    extern char **environ;
    execve("/proc/self/exe", argv, with_environment ? environ : nothing);
    say("exec: %s", error_name(errno));
    _exit(3);
}

struct sockaddr_in address_of(const char *text, int at)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(at)};
    inet_pton(AF_INET, text, &address.sin_addr);
    return address;
}

struct sockaddr_in6 address6_of(const char *text, int at)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons(at)};
    inet_pton(AF_INET6, text, &address.sin6_addr);
    return address;
}

int listener(void)
{
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    int on = 1;
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    struct sockaddr_in at = address_of(own, port);
    MUST(bind(fd, (struct sockaddr *)&at, sizeof at));
    MUST(listen(fd, 64));
    return fd;
}

int dial(void)
{
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in to = address_of(peer, port);
    MUST(connect(fd, (struct sockaddr *)&to, sizeof to));
    return fd;
}

int joined_server(void)
{
    int at = listener();
    tell("listening");
    int connection = MUST(accept(at, NULL, NULL));
    MUST(close(at));
    warm(connection);
    return connection;
}

int joined_client(void)
{
    hear("listening");
    int connection = dial();
    warm(connection);
    return connection;
}

enum { WARM_ROUNDS = 8, WARM_BYTES = 4096, WARM_MS = 40 };

/* Single bytes to and fro for a while: the server says when it is the last. */
static void warm_on(int connection)
{
    char byte = 'm';
    for (int64_t until = now_ms() + WARM_MS; byte != 'e';) {
        if (is_server) {
            byte = now_ms() < until ? 'm' : 'e';
            MUST(send(connection, &byte, 1, MSG_NOSIGNAL));
        }
        wait_mask(connection, POLLIN, POLLIN);
        if (MUST(recv(connection, &byte, 1, 0)) != 1) exit(1);
        if (is_server) usleep(1000);
        else MUST(send(connection, &byte, 1, MSG_NOSIGNAL));
    }
}

void warm(int connection)
{
    for (int round = 0; round < WARM_ROUNDS; round++) {
        size_t at = (size_t)round * WARM_BYTES;
        if (is_server) send_pattern(connection, at, WARM_BYTES);
        if (check_pattern(connection, at, WARM_BYTES) != WARM_BYTES) {
            say("the connection does not work");
            exit(1);
        }
        if (!is_server) send_pattern(connection, at, WARM_BYTES);
    }
    warm_on(connection);
}

int wait_mask(int fd, int wanted, int asked)
{
    int64_t deadline = now_ms() + WAIT_MS;
    struct pollfd on = {fd, (short)asked, 0};
    for (;;) {
        int64_t left = deadline - now_ms();
        if (left <= 0) return -1;
        int ready = poll(&on, 1, (int)left);
        if (ready < 0 && errno != EINTR) return -1;
        if (ready > 0 && (on.revents & wanted) == wanted) return on.revents;
        /* What is there is not all that is to come. */
        if (ready > 0) usleep(1000);
    }
}

const char *mask_name(unsigned mask)
{
    static __thread char names[4][96];
    static __thread int turn;
    static const struct {
        unsigned bit;
        const char *name;
    } bits[] = {{POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLRDHUP, "RDHUP"},
                {POLLERR, "ERR"}, {POLLHUP, "HUP"}, {POLLNVAL, "NVAL"}, {POLLRDNORM, "RDNORM"},
                {POLLRDBAND, "RDBAND"}, {POLLWRNORM, "WRNORM"}, {POLLWRBAND, "WRBAND"}};
    char *text = names[turn++ % 4];
    text[0] = 0;
    if ((int)mask == -1) return "none in time";
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
        if (mask & bits[i].bit) {
            if (text[0]) strcat(text, "|");
            strcat(text, bits[i].name);
        }
    return text[0] ? text : "nothing";
}

void say_events(const char *when, int epoll, int timeout_ms)
{
    struct epoll_event events[8];
    int got = epoll_wait(epoll, events, 8, timeout_ms);
    if (got < 0) say("%s: %s", when, error_name(errno));
    else if (got == 0) say("%s: no event", when);
    for (int i = 0; i < got; i++)
        say("%s: event %d of %d: %s for %llu", when, i + 1, got, mask_name(events[i].events),
            (unsigned long long)events[i].data.u64);
}

const char *name_of(const struct sockaddr_storage *address)
{
    static __thread char names[4][96];
    static __thread int turn;
    char *text = names[turn++ % 4], host[64] = "?";
    int at = 0;
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)address;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        at = ntohs(in->sin_port);
    } else if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)address;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        at = ntohs(in->sin6_port);
    }
    bool known = at >= port && at < port + 100;
    snprintf(text, 96, "%s:%s%.0d", host, known ? "" : at ? "ephemeral" : "0", known ? at : 0);
    return text;
}

const char *local_name(int fd)
{
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof name;
    return getsockname(fd, (struct sockaddr *)&name, &length) < 0 ? error_name(errno) : name_of(&name);
}

const char *peer_name(int fd)
{
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof name;
    return getpeername(fd, (struct sockaddr *)&name, &length) < 0 ? error_name(errno) : name_of(&name);
}

uint8_t pattern_at(size_t position)
{
    return (uint8_t)((position * 2654435761u) >> 13 ^ position);
}

enum { CHUNK = 16384 };

void send_pattern(int fd, size_t position, size_t bytes)
{
    uint8_t chunk[CHUNK];
    while (bytes > 0) {
        size_t length = bytes < CHUNK ? bytes : CHUNK;
        for (size_t i = 0; i < length; i++) chunk[i] = pattern_at(position + i);
        ssize_t sent = send(fd, chunk, length, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN && wait_mask(fd, POLLOUT, POLLOUT) > 0) continue;
        if (sent <= 0) {
            say("send: %s with bytes left", error_name(errno));
            return;
        }
        position += (size_t)sent;
        bytes -= (size_t)sent;
    }
}

size_t check_pattern(int fd, size_t position, size_t bytes)
{
    uint8_t chunk[CHUNK];
    size_t total = 0;
    while (total < bytes) {
        size_t most = bytes - total < CHUNK ? bytes - total : CHUNK;
        ssize_t got = recv(fd, chunk, most, 0);
        if (got < 0 && errno == EAGAIN && wait_mask(fd, POLLIN, POLLIN) > 0) continue;
        if (got < 0) say("recv: %s", error_name(errno));
        if (got <= 0) break;
        for (ssize_t i = 0; i < got; i++)
            if (chunk[i] != pattern_at(position + total + (size_t)i)) {
                say("wrong byte at %zu", position + total + (size_t)i);
                return total;
            }
        total += (size_t)got;
    }
    return total;
}

void wait_asleep(pid_t thread)
{
    char path[64], stat[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    int64_t deadline = now_ms() + WAIT_MS;
    for (int asleep = 0; asleep < 10 && now_ms() < deadline;) {
        int fd = (int)raw(SYS_open, (long)path, O_RDONLY, 0, 0, 0);
        long got = raw(SYS_read, fd, (long)stat, sizeof stat - 1, 0, 0);
        raw(SYS_close, fd, 0, 0, 0, 0);
        stat[got > 0 ? got : 0] = 0;
        const char *state = strrchr(stat, ')');
        asleep = state && state[2] == 'S' ? asleep + 1 : 0;
        usleep(2000);
    }
}

void say_end(const char *who, pid_t child)
{
    int status = 0;
    pid_t ended = waitpid(child, &status, 0);
    if (ended < 0) say("%s: %s", who, error_name(errno));
    else if (WIFEXITED(status)) say("%s: exit status %d", who, WEXITSTATUS(status));
    else say("%s: signal %d", who, WTERMSIG(status));
}

int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
