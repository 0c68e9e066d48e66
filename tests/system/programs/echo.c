/* A plain TCP program that knows nothing of RDMA: an echo server and its client, which compares
 * what comes back. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORT = 7007, LENGTH = 4000000, CHUNK = 30000 };

static int fail(const char *what)
{
    perror(what);
    return 1;
}

static int serve(const struct sockaddr_in *address)
{
    static char buffer[CHUNK];
    int one = 1;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (const struct sockaddr *)address, sizeof *address) || listen(listener, 4))
        return fail("listen");
    int peer = accept(listener, NULL, NULL);
    if (peer < 0)
        return fail("accept");
    for (;;) {
        ssize_t got = recv(peer, buffer, sizeof buffer, 0);
        if (got < 0)
            return fail("recv");
        if (got == 0)
            break;
        for (ssize_t done = 0; done < got;) {
            ssize_t sent = send(peer, buffer + done, got - done, 0);
            if (sent <= 0)
                return fail("send");
            done += sent;
        }
    }
    close(peer);
    close(listener);
    return 0;
}

static int call(const struct sockaddr_in *address)
{
    static uint8_t data[LENGTH], back[LENGTH];
    uint32_t state = 1;
    for (size_t i = 0; i < LENGTH; i++) {
        state = state * 1664525 + 1013904223;
        data[i] = state >> 24;
    }
    int one = 1;
    int server = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(server, (const struct sockaddr *)address, sizeof *address))
        return fail("connect");
    if (setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one))
        return fail("setsockopt");
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    if (getpeername(server, (struct sockaddr *)&peer, &length) || peer.sin_addr.s_addr != address->sin_addr.s_addr)
        return fail("getpeername");
    size_t sent = 0, received = 0;
    while (received < LENGTH) {
        /* Not more in flight than fits into the buffers of both ends, or both would wait to
         * send. */
        int may_send = sent < LENGTH && sent - received < CHUNK;
        struct pollfd ready = {.fd = server, .events = POLLIN | (may_send ? POLLOUT : 0)};
        if (poll(&ready, 1, 5000) <= 0)
            return fail("poll");
        if (ready.revents & POLLIN) {
            ssize_t got = recv(server, back + received, LENGTH - received, 0);
            if (got <= 0)
                return fail("recv");
            received += got;
        } else if (ready.revents & POLLOUT) {
            size_t next = 1 + sent % CHUNK;
            ssize_t put = send(server, data + sent, next < LENGTH - sent ? next : LENGTH - sent, 0);
            if (put <= 0)
                return fail("send");
            sent += put;
        } else {
            fprintf(stderr, "poll says %x after %zu bytes\n", ready.revents, received);
            return 1;
        }
    }
    if (memcmp(data, back, LENGTH))
        return fail("what came back differs");
    close(server);
    printf("%zu bytes came back\n", received);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1)
        return 2;
    return strcmp(argv[1], "serve") ? call(&address) : serve(&address);
}
