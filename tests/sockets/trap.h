/* What the trap programs share: two ends, `server` and `client`, that print each call's result, and
   a channel between them which no preload sees. Descriptor numbers are part of what is printed. */
#ifndef TRAP_H
#define TRAP_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Longest wait for what must come: TRAP_WAIT_MS of the environment, or five seconds. */
extern int wait_ms;
#define WAIT_MS wait_ms
/* A wait in which nothing must arrive. */
#define QUIET_MS 30

/* The two programs of a trap. */
void server(void);
void client(void);
/* What a program does that was executed by `start_again`; `what` is its argument. */
void again(const char *what);

extern bool is_server;
extern const char *own, *peer, *own6, *peer6, *folder;
/* A trap's own ports are `port`, `port + 1`, ... */
extern int port;

/* One line of the output. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *error_name(int error);
/* Evaluates a call and says what it returned. */
#define TRY(call)                                                                                          \
    ({                                                                                                     \
        errno = 0;                                                                                         \
        long returned_ = (long)(call);                                                                     \
        int error_ = errno;                                                                                \
        say("%s: %ld%s%s", #call, returned_, returned_ < 0 ? " " : "", returned_ < 0 ? error_name(error_) : ""); \
        errno = error_;                                                                                    \
        returned_;                                                                                         \
    })
/* A call that the trap only needs: a failure ends the program. */
#define MUST(call)                                                                            \
    ({                                                                                        \
        long returned_ = (long)(call);                                                        \
        if (returned_ < 0) {                                                                  \
            say("%s: %s at line %d", #call, error_name(errno), __LINE__);                     \
            exit(1);                                                                          \
        }                                                                                     \
        returned_;                                                                            \
    })

/* The channel. `tell` is async-signal-safe; `hear` ends the program if the word does not come. */
void tell(const char *word);
void hear(const char *word);
/* Both ends are here. */
void meet(const char *word);
/* The channel's descriptor, for traps that limit system calls. */
extern int channel_in, channel_out;
void open_channel(void);

/* TCP over IPv4 at `port`. */
struct sockaddr_in address_of(const char *text, int at);
struct sockaddr_in6 address6_of(const char *text, int at);
int listener(void);
int dial(void);
/* Server: listens, and accepts one client of `joined_client`. Closes the listener. */
int joined_server(void);
int joined_client(void);
/* Moves some data both ways, so that a lane that begins with the data has begun. */
void warm(int connection);

/* Waits until the mask of the descriptor has all of `wanted` (POLLIN ...), and returns the mask
   without what was not asked for. */
int wait_mask(int fd, int wanted, int asked);
/* IN|OUT|... of poll's or epoll's bits, which are the same numbers. */
const char *mask_name(unsigned mask);
/* What epoll_wait returns: number of events, and the mask of the first. */
void say_events(const char *when, int epoll, int timeout_ms);
/* "192.0.2.1:80" with the test's own addresses replaced by the role of their end. */
const char *name_of(const struct sockaddr_storage *address);
const char *local_name(int fd);
const char *peer_name(int fd);

/* All `bytes` of the stream at `position` (a fixed pattern). */
void send_pattern(int fd, size_t position, size_t bytes);
/* Reads to the end of the stream or `bytes`, checks the pattern, and returns the count read;
   says what is wrong. */
size_t check_pattern(int fd, size_t position, size_t bytes);
uint8_t pattern_at(size_t position);

/* Runs this program again with `what`, by exec: never returns. */
void start_again(const char *what, bool with_environment);
/* Waits until a thread of this process sleeps in the kernel. */
void wait_asleep(pid_t thread);
/* Waits for a child and says how it ended. */
void say_end(const char *who, pid_t child);
int64_t now_ms(void);

#endif
