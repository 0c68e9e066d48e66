/*
 * The rsockets of librdmacm, rsocket(7). They are rdma-core's own code, which runs on the rdma_*
 * calls of the preload and is not in this library: no program gets an rsocket here, so no
 * descriptor is one. The names must all be there because programs are bound as a whole when they
 * start, and rping and ucmatose import rpoll without ever making an rsocket. rpoll and rselect
 * watch any descriptor, as rdma-core's do. librspreload goes on with a socket of the kernel when it
 * gets no rsocket.
 */
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

/* long: as wide as what any of them returns. */
#define REFUSES(name) long name(void) { errno = EOPNOTSUPP; return -1; }
#define NO_RSOCKET(name) long name(void) { errno = EBADF; return -1; }

REFUSES(rsocket)
NO_RSOCKET(raccept)
NO_RSOCKET(rbind)
NO_RSOCKET(rclose)
NO_RSOCKET(rconnect)
NO_RSOCKET(rfcntl)
NO_RSOCKET(rgetpeername)
NO_RSOCKET(rgetsockname)
NO_RSOCKET(rgetsockopt)
NO_RSOCKET(riomap)
NO_RSOCKET(riounmap)
NO_RSOCKET(riowrite)
NO_RSOCKET(rlisten)
NO_RSOCKET(rread)
NO_RSOCKET(rreadv)
NO_RSOCKET(rrecv)
NO_RSOCKET(rrecvfrom)
NO_RSOCKET(rrecvmsg)
NO_RSOCKET(rsend)
NO_RSOCKET(rsendmsg)
NO_RSOCKET(rsendto)
NO_RSOCKET(rsetsockopt)
NO_RSOCKET(rshutdown)
NO_RSOCKET(rwrite)
NO_RSOCKET(rwritev)

int rpoll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    return poll(fds, count, timeout_ms);
}

int rselect(int count, fd_set *readable, fd_set *writable, fd_set *exceptional, struct timeval *timeout)
{
    return select(count, readable, writable, exceptional, timeout);
}

int repoll_create(int flags)
{
    return epoll_create1(flags);
}

/* As rdma-core's: an error is the value of errno, not -1. */
int repoll_ctl(int set, int operation, int fd, struct epoll_event *event)
{
    return epoll_ctl(set, operation, fd, event) == 0 ? 0 : errno;
}

int repoll_wait(int set, struct epoll_event *events, int count, int timeout_ms)
{
    return epoll_wait(set, events, count, timeout_ms);
}
