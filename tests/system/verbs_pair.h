/* What the programs of these tests share: a TCP connection between the two ends, beside the RDMA
 * that is tested; patterns of bytes; waiting for completions; and the way they give up. `NAME` is
 * the program's. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT "18515"

/* Exit status 1: a check failed; 2: it could not be set up. */
#define CHECK(condition, ...) do { if (!(condition)) fail(1, __LINE__, __VA_ARGS__); } while (0)
#define SETUP(condition, ...) do { if (!(condition)) fail(2, __LINE__, __VA_ARGS__); } while (0)

static bool client;
static int patience_s = 40; /* for each completion */
static int control = -1;

__attribute__((noreturn, format(printf, 3, 4))) static inline void fail(int status, int line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, NAME " (%s) line %d: ", client ? "client" : "server", line);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(status);
}

/* ---- the device ---- */

/* The device of that name, or the first if there is none. */
static inline struct ibv_context *open_device_named(const char *name)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_device **chosen = devices;
    while (chosen && *chosen && name && strcmp(ibv_get_device_name(*chosen), name) != 0)
        chosen++;
    SETUP(chosen && *chosen, "no RDMA device %s", name ? name : "");
    struct ibv_context *context = ibv_open_device(*chosen);
    SETUP(context, "ibv_open_device: %m");
    ibv_free_device_list(devices);
    return context;
}

/* ---- the control connection ---- */

static inline void tell(const void *data, size_t length)
{
    SETUP(send(control, data, length, MSG_NOSIGNAL) == (ssize_t)length, "the peer is gone");
}

static inline void hear(void *data, size_t length)
{
    SETUP(recv(control, data, length, MSG_WAITALL) == (ssize_t)length, "the peer is gone");
}

static inline void barrier(void)
{
    char token = 'x';
    tell(&token, 1);
    hear(&token, 1);
}

static inline void connect_control(const char *host)
{
    struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = host ? 0 : AI_PASSIVE }, *found;
    SETUP(getaddrinfo(host, PORT, &hints, &found) == 0, "cannot resolve %s", host);
    int s = socket(found->ai_family, SOCK_STREAM, 0), one = 1;
    SETUP(s >= 0, "socket: %m");
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (host) {
        SETUP(connect(s, found->ai_addr, found->ai_addrlen) == 0, "connect: %m");
        control = s;
    } else {
        SETUP(bind(s, found->ai_addr, found->ai_addrlen) == 0 && listen(s, 1) == 0, "listen: %m");
        control = accept(s, NULL, NULL);
        SETUP(control >= 0, "accept: %m");
        close(s);
    }
    freeaddrinfo(found);
}

/* ---- patterns ---- */

static inline uint64_t word_of(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 31)) * 0x94d049bb133111ebu;
    return z ^ (z >> 29);
}

static inline void fill(uint8_t *at, size_t length, uint64_t seed)
{
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = word_of(seed, i / 8);
        memcpy(at + i, &word, length - i < 8 ? length - i : 8);
    }
}

static inline void check(const uint8_t *at, size_t length, uint64_t seed, const char *what)
{
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = word_of(seed, i / 8);
        size_t part = length - i < 8 ? length - i : 8;
        CHECK(memcmp(at + i, &word, part) == 0, "%s of %zu bytes: wrong data at offset %zu", what, length, i);
    }
}

static inline struct ibv_wc completion(struct ibv_cq *cq, const char *what)
{
    struct ibv_wc wc;
    time_t deadline = time(NULL) + patience_s;
    int got;
    while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
        CHECK(time(NULL) < deadline, "%s: no completion within %d s", what, patience_s);
    CHECK(got == 1, "%s: ibv_poll_cq returned %d", what, got);
    return wc;
}
