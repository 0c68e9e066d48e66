/* A descriptor that is passed keeps the connection in flight, and works where it arrives. */
#include "../trap.h"

enum { PART = 5000 };

static int pass(int through, int fd, int flags)
{
    char byte = 'x', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return (int)sendmsg(through, &message, flags);
}

static int taken(int through, int flags)
{
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(through, &message, flags) < 0) return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (header && header->cmsg_type == SCM_RIGHTS) memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

void server(void)
{
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    int connection = joined_server();
    say("before: %zu", check_pattern(connection, 0, PART));
    pid_t child = MUST(fork());
    if (child == 0) {
        MUST(close(connection));
        MUST(close(pair[0]));
        hear("in flight");
        int fd = TRY(taken(pair[1], MSG_CMSG_CLOEXEC));
        say("descriptor flags %d", fcntl(fd, F_GETFD));
        say("in the child: %zu", check_pattern(fd, PART, PART));
        send_pattern(fd, 0, PART);
        hear("over");
        _exit(0);
    }
    MUST(close(pair[1]));
    TRY(pass(pair[0], connection, 0));
    TRY(close(connection));
    tell("closed here");
    say_end("child", child);

    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    connection = joined_server();
    TRY(pass(pair[0], connection, 0));
    TRY(close(connection));
    tell("closed here");
    hear("in flight");
    connection = TRY(taken(pair[1], 0));
    say("in the same process: %zu", check_pattern(connection, 0, PART));
    send_pattern(connection, 0, PART);
    TRY(pass(pair[0], connection, 0));
    TRY(close(connection));
    tell("dropped");
    TRY(close(pair[0]));
    TRY(close(pair[1]));
    hear("over");
}

void client(void)
{
    int connection = joined_client();
    send_pattern(connection, 0, PART);
    hear("closed here");
    struct pollfd on = {connection, POLLIN | POLLRDHUP, 0};
    TRY(poll(&on, 1, QUIET_MS));
    tell("in flight");
    send_pattern(connection, PART, PART);
    say("from the child: %zu", check_pattern(connection, 0, PART));
    TRY(poll(&on, 1, QUIET_MS));
    tell("over");
    say("ends: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));

    connection = joined_client();
    hear("closed here");
    send_pattern(connection, 0, PART);
    tell("in flight");
    say("from the same process: %zu", check_pattern(connection, 0, PART));
    hear("dropped");
    say("closed with the descriptor in flight: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    tell("over");
}
