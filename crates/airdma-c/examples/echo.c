/* An echo server that has one thread, any number of peers, and sleeps in epoll_wait alone.
 *
 *     echo 192.0.2.1 3       an interface's address or name; ends after that many peers
 */
#include "check.h"
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { BYTES = 4096 };

/* What one peer is about, or, without an endpoint, who comes next. */
typedef struct task {
    airdma_endpoint *endpoint;
    airdma_operation *operation;
    bool sends;
    int eventfd;
} task;

/* Goes on with what was begun: asks to be told when it is over. */
static void go_on(task *task, airdma_operation *operation)
{
    task->operation = operation;
    check(airdma_notify(operation, task->eventfd));
}

static task *begin(int epoll, airdma_endpoint *endpoint, airdma_operation *operation)
{
    task *made = calloc(1, sizeof *made);
    made->endpoint = endpoint;
    made->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = made};
    if (made->eventfd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, made->eventfd, &event) < 0) {
        perror("eventfd");
        exit(1);
    }
    go_on(made, operation);
    return made;
}

static void end(task *task)
{
    airdma_endpoint_free(task->endpoint);
    close(task->eventfd);
    free(task);
}

/* A message came, or the answer left. True while the peer is there. */
static bool serve(task *task, airdma_error *error, airdma_result *result)
{
    if (error != NULL) {
        if (!airdma_error_is_closed(error))
            fprintf(stderr, "%s\n", airdma_error_text(error));
        airdma_error_free(error);
        airdma_region_free(result->region);
        return false;
    }
    task->sends = !task->sends;
    if (task->sends)
        go_on(task, airdma_send(task->endpoint, &result->region, result->offset, result->length));
    else
        go_on(task, airdma_recv(task->endpoint, &result->region, 0, BYTES));
    return true;
}

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "usage: echo ADDRESS PEERS\n");
        return 2;
    }
    airdma_device *device;
    airdma_listener *listener;
    int epoll = epoll_create1(EPOLL_CLOEXEC), peers = atoi(arguments[2]);

    check(airdma_open(arguments[1], &device));
    check(airdma_listen(device, 7474, &listener));
    fprintf(stderr, "listening on %s, port 7474\n", arguments[1]);
    task *next = begin(epoll, NULL, airdma_accept(listener));

    while (peers > 0) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, -1) < 1)
            continue;
        task *task = event.data.ptr;
        eventfd_t told;
        eventfd_read(task->eventfd, &told);

        airdma_result result = {0};
        airdma_error *error = airdma_wait(&task->operation, 0, &result);
        if (error == NULL && task->operation != NULL) {
            go_on(task, task->operation);
        } else if (task != next) {
            if (!serve(task, error, &result)) {
                end(task);
                peers--;
            }
        } else {
            airdma_region *region;
            check(error);
            check(airdma_allocate(device, BYTES, &region));
            begin(epoll, result.endpoint, airdma_recv(result.endpoint, &region, 0, BYTES));
            go_on(next, airdma_accept(listener));
        }
    }

    airdma_give_up(next->operation);
    end(next);
    airdma_listener_free(listener);
    airdma_device_free(device);
    close(epoll);
    return 0;
}
