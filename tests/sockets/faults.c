/* A preload that gets one trap wrong, FAULT=number, as shims have done. The trap of that number
   must then print something else. 26 to 28: faults of a stream's bytes. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define NEXT(name) ((__typeof__(&name))next(#name))

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

static bool fault(int number)
{
    static int chosen = -1;
    if (chosen < 0) {
        const char *text = getenv("FAULT");
        chosen = text ? atoi(text) : 0;
    }
    return chosen == number;
}

static bool is_stream(int fd)
{
    int type = 0;
    socklen_t length = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM;
}

/* 1: descriptors of its own numbers. */
EXPORT int socket(int family, int type, int protocol)
{
    int fd = NEXT(socket)(family, type, protocol);
    if (fd < 0 || !fault(1)) return fd;
    int high = fcntl(fd, F_DUPFD, 300);
    NEXT(close)(fd);
    return high;
}

EXPORT int connect(int fd, const struct sockaddr *to, socklen_t length)
{
    if (fault(2) && is_stream(fd)) {
        /* The choice of a transport gives the number to another socket. */
        int other = NEXT(socket)(to->sa_family, SOCK_STREAM | (fcntl(fd, F_GETFL) & O_NONBLOCK), 0);
        NEXT(dup2)(other, fd);
        NEXT(close)(other);
    }
    int connected = NEXT(connect)(fd, to, length);
    if (fault(12) && connected < 0 && errno == EALREADY) errno = EINPROGRESS;
    /* A greeting in the stream, which only another shim would take out. */
    if (fault(13) && connected == 0 && is_stream(fd)) NEXT(send)(fd, "", 1, MSG_NOSIGNAL);
    return connected;
}

EXPORT int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    struct epoll_event other;
    if (fault(3) && event) {
        other = *event;
        other.events &= ~(unsigned)EPOLLET;
        event = &other;
    }
    int done = NEXT(epoll_ctl)(epoll, operation, fd, event);
    if (fault(5) && done < 0 && errno == EEXIST) return 0;
    return done;
}

EXPORT int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
    int got = NEXT(epoll_wait)(epoll, events, most, timeout);
    for (int i = 0; fault(4) && i < got; i++) events[i].events &= ~(unsigned)EPOLLRDHUP;
    return got;
}

/* 6: the target of dup2 is kept open under another number. 8: exec closes sockets. */
EXPORT int dup2(int from, int to)
{
    if (fault(6) && from != to) fcntl(to, F_DUPFD, 400);
    int fd = NEXT(dup2)(from, to);
    if (fault(8) && fd >= 0 && is_stream(fd)) fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

static bool accepted[1024];

EXPORT int accept(int at, struct sockaddr *from, socklen_t *length)
{
    /* 30: the thread is not cancelled here, and ends by itself. */
    if (fault(30)) return -1;
    int fd = NEXT(accept)(at, from, length);
    if (fd >= 0 && fd < 1024) accepted[fd] = true;
    /* 14: as on BSD. */
    if (fault(14) && fd >= 0) fcntl(fd, F_SETFL, fcntl(at, F_GETFL));
    return fd;
}

EXPORT int close(int fd)
{
    struct linger hard = {1, 0};
    /* 7, 29: a close of one holder ends the connection of all; 11: it wakes a reader. */
    if ((fault(7) || fault(11) || fault(29)) && fd >= 0 && fd < 1024 && accepted[fd]) shutdown(fd, SHUT_RDWR);
    /* 19, 32, 34: what was not acknowledged is thrown away, and the peer gets an RST. */
    if (fault(19) || fault(32) || fault(34)) setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    if (fd >= 0 && fd < 1024) accepted[fd] = false;
    return NEXT(close)(fd);
}

/* 9: the descriptor is not passed. */
EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct msghdr without = *message;
    if (fault(9)) without.msg_control = NULL, without.msg_controllen = 0;
    return NEXT(sendmsg)(fd, &without, flags);
}

/* 10: descriptors stay open. */
EXPORT int close_range(unsigned first, unsigned last, int flags)
{
    return fault(10) ? 0 : NEXT(close_range)(first, last, flags);
}

EXPORT int bind(int fd, const struct sockaddr *name, socklen_t length)
{
    int done = NEXT(bind)(fd, name, length);
    /* 15: a name space of its own. */
    if (fault(15) && done < 0 && errno == EADDRINUSE) return 0;
    return done;
}

EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    /* 16: forgotten until the socket has a transport. */
    if (fault(16) && level == SOL_SOCKET && name == SO_REUSEPORT) return 0;
    /* 33: nothing is kept back. */
    if (fault(33) && level == IPPROTO_TCP && name == TCP_CORK) return 0;
    return NEXT(setsockopt)(fd, level, name, value, length);
}

static bool shut_for_reading[1024];

EXPORT int shutdown(int fd, int how)
{
    if (fd >= 0 && fd < 1024 && how == SHUT_RD) shut_for_reading[fd] = true;
    return NEXT(shutdown)(fd, how);
}

EXPORT ssize_t recv(int fd, void *data, size_t length, int flags)
{
    if (fault(17) && fd >= 0 && fd < 1024 && shut_for_reading[fd]) return 0;
    if (fault(20)) flags &= ~MSG_PEEK;
    ssize_t got;
    do got = NEXT(recv)(fd, data, length, flags);
    while (fault(21) && got < 0 && errno == EINTR);
    return got;
}

EXPORT ssize_t send(int fd, const void *data, size_t length, int flags)
{
    static int calls;
    if (length < 100 || !(fault(26) || fault(27) || fault(28)) || ++calls % 50 != 0) return NEXT(send)(fd, data, length, flags);
    /* 26: a byte is lost; 27: one comes twice; 28: two change places. */
    unsigned char *other = malloc(length + 1);
    memcpy(other, data, length);
    if (fault(27)) memcpy(other + 51, (const char *)data + 50, length - 50);
    if (fault(28)) other[50] = ((const unsigned char *)data)[51], other[51] = ((const unsigned char *)data)[50];
    size_t bytes = fault(26) ? length - 1 : fault(27) ? length + 1 : length;
    ssize_t sent = NEXT(send)(fd, other, bytes, flags);
    free(other);
    return sent == (ssize_t)bytes ? (ssize_t)length : sent;
}

EXPORT ssize_t write(int fd, const void *data, size_t length)
{
    /* 18: no SIGPIPE. */
    return fault(18) && is_stream(fd) ? NEXT(send)(fd, data, length, MSG_NOSIGNAL) : NEXT(write)(fd, data, length);
}

/* 22: an empty datagram is lost. */
EXPORT ssize_t sendto(int fd, const void *data, size_t length, int flags, const struct sockaddr *to, socklen_t bytes)
{
    if (fault(22) && length == 0) return 0;
    /* 31: the receiver gets what stands for a long one. */
    if (fault(31) && length > 1472 && length <= 65507) {
        ssize_t sent = NEXT(sendto)(fd, data, 32, flags, to, bytes);
        return sent < 0 ? sent : (ssize_t)length;
    }
    return NEXT(sendto)(fd, data, length, flags, to, bytes);
}

/* 23: nothing beside the data. */
EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
    if (fault(23)) message->msg_controllen = 0;
    ssize_t got = NEXT(recvmsg)(fd, message, flags);
    if (fault(23)) message->msg_flags &= ~MSG_CTRUNC;
    return got;
}

/* 24: what waits in a queue of its own is not counted. */
EXPORT int ioctl(int fd, unsigned long request, ...)
{
    va_list values;
    va_start(values, request);
    void *argument = va_arg(values, void *);
    va_end(values);
    int done = NEXT(ioctl)(fd, request, argument);
    if (fault(24) && done == 0 && request == FIONREAD) *(int *)argument = 0;
    return done;
}

/* 25: the file's position moves with an offset, too. */
EXPORT ssize_t sendfile(int to, int from, off_t *offset, size_t length)
{
    ssize_t sent = NEXT(sendfile)(to, from, offset, length);
    if (fault(25) && offset && sent > 0) lseek(from, sent, SEEK_CUR);
    return sent;
}

/* 40: a wait that asks again, and forgets that its question was overwritten. */
EXPORT int select(int count, fd_set *read, fd_set *write, fd_set *except, struct timeval *time)
{
    fd_set asked;
    if (!fault(40) || !read) return NEXT(select)(count, read, write, except, time);
    memcpy(&asked, read, sizeof asked);
    int found = NEXT(select)(count, read, write, except, time);
    if (found == 0) memcpy(read, &asked, sizeof asked);
    return found;
}
