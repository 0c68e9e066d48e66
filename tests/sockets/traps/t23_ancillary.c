/* What comes beside the data: packet information, TOS, TTL, time, segments, errors; multicast. */
#include "../trap.h"

#include <linux/errqueue.h>
#include <linux/udp.h>
#include <net/if.h>

static char data[70000];
static char control[512];

static void set(int fd, int level, int name, int value)
{
    if (setsockopt(fd, level, name, &value, sizeof value) < 0) say("option %d of %d: %s", name, level, error_name(errno));
}

static void beside(struct msghdr *message)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
        int number = 0;
        char text[64];
        memcpy(&number, CMSG_DATA(header), header->cmsg_len >= CMSG_LEN(4) ? 4 : 1);
        if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo *about = (void *)CMSG_DATA(header);
            char name[IF_NAMESIZE] = "?";
            if_indextoname((unsigned)about->ipi_ifindex, name);
            say("  PKTINFO %s at %s", inet_ntop(AF_INET, &about->ipi_addr, text, sizeof text), name);
        } else if (header->cmsg_level == IPPROTO_IPV6 && header->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo *about = (void *)CMSG_DATA(header);
            say("  PKTINFO %s, an interface: %d", inet_ntop(AF_INET6, &about->ipi6_addr, text, sizeof text),
                about->ipi6_ifindex > 0);
        } else if (header->cmsg_level == IPPROTO_IP && header->cmsg_type == IP_RECVERR) {
            struct sock_extended_err *error = (void *)CMSG_DATA(header);
            say("  RECVERR %s origin %d type %d code %d", error_name((int)error->ee_errno), error->ee_origin,
                error->ee_type, error->ee_code);
        } else if (header->cmsg_level == SOL_SOCKET) {
            struct timespec *time = (void *)CMSG_DATA(header);
            say("  socket's %d, a time: %d", header->cmsg_type, time->tv_sec > 1000000000);
        } else {
            say("  level %d type %d: %d", header->cmsg_level, header->cmsg_type, number);
        }
    }
}

static void received(const char *what, int fd, int flags, size_t room, size_t bytes)
{
    struct sockaddr_storage from = {0};
    struct iovec part = {data, bytes};
    struct msghdr message = {&from, sizeof from, &part, 1, control, room, 0};
    wait_mask(fd, flags & MSG_ERRQUEUE ? POLLERR : POLLIN, POLLIN);
    ssize_t got = recvmsg(fd, &message, flags | MSG_DONTWAIT);
    int error = errno;
    say("%s: %zd %s from %s, flags %#x", what, got, got < 0 ? error_name(error) : "", name_of(&from), message.msg_flags);
    if (got >= 0) beside(&message);
}

void server(void)
{
    int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    struct sockaddr_in any = address_of("0.0.0.0", port);
    MUST(bind(fd, (struct sockaddr *)&any, sizeof any));
    set(fd, IPPROTO_IP, IP_PKTINFO, 1);
    set(fd, IPPROTO_IP, IP_RECVTOS, 1);
    set(fd, IPPROTO_IP, IP_RECVTTL, 1);
    int six = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
    struct sockaddr_in6 any6 = address6_of("::", port + 1);
    set(six, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    set(six, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    set(six, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
    MUST(bind(six, (struct sockaddr *)&any6, sizeof any6));
    tell("bound");
    received("plain", fd, 0, sizeof control, sizeof data);
    received("marked", fd, 0, sizeof control, sizeof data);
    received("no room beside", fd, 0, 8, sizeof data);
    set(fd, IPPROTO_IP, IP_PKTINFO, 0);
    set(fd, IPPROTO_IP, IP_RECVTOS, 0);
    set(fd, IPPROTO_IP, IP_RECVTTL, 0);
    set(fd, SOL_SOCKET, SO_TIMESTAMPNS, 1);
    received("with its time", fd, 0, sizeof control, sizeof data);
    set(fd, SOL_SOCKET, SO_TIMESTAMPNS, 0);
    received("IPv6", six, 0, sizeof control, sizeof data);
    received("IPv4 at an IPv6 socket", six, 0, sizeof control, sizeof data);
    for (int turn = 0; turn < 3; turn++) received("segment", fd, 0, sizeof control, sizeof data);
    struct mmsghdr many[4] = {0};
    static char each[4][16];
    struct iovec parts[4];
    for (int turn = 0; turn < 4; turn++) {
        parts[turn] = (struct iovec){each[turn], 15};
        many[turn].msg_hdr.msg_iov = &parts[turn];
        many[turn].msg_hdr.msg_iovlen = 1;
    }
    hear("many");
    TRY(recvmmsg(fd, many, 3, 0, NULL));
    TRY(recvmmsg(fd, many + 3, 1, MSG_DONTWAIT, NULL));
    say("%s %u, %s %u, %s %u", each[0], many[0].msg_len, each[1], many[1].msg_len, each[2], many[2].msg_len);
    struct ip_mreqn group = {.imr_address.s_addr = address_of(own, 0).sin_addr.s_addr};
    inet_pton(AF_INET, "239.7.7.7", &group.imr_multiaddr);
    TRY(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group));
    TRY(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group));
    tell("joined");
    received("multicast", fd, 0, sizeof control, sizeof data);
    hear("looped");
    TRY(setsockopt(fd, IPPROTO_IP, IP_DROP_MEMBERSHIP, &group, sizeof group));

    int connection = joined_server();
    set(connection, IPPROTO_TCP, TCP_INQ, 1);
    hear("hundred");
    int waiting = 0;
    for (int64_t until = now_ms() + WAIT_MS; waiting < 100 && now_ms() < until; usleep(500))
        MUST(ioctl(connection, FIONREAD, &waiting));
    received("TCP_INQ", connection, 0, sizeof control, 30);
    hear("over");
}

static ssize_t with(int fd, const struct sockaddr_in *to, const void *what, size_t bytes, int level, int type, int value, size_t size)
{
    struct iovec part = {(void *)what, bytes};
    memset(control, 0, sizeof control);
    struct msghdr message = {(void *)to, sizeof *to, &part, 1, control, CMSG_SPACE(size), 0};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = level;
    header->cmsg_type = type;
    header->cmsg_len = CMSG_LEN(size);
    memcpy(CMSG_DATA(header), &value, size);
    return sendmsg(fd, &message, 0);
}

void client(void)
{
    int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0)), six = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
    struct sockaddr_in me = address_of(own, port + 2), to = address_of(peer, port), to_six = address_of(peer, port + 1);
    MUST(bind(fd, (struct sockaddr *)&me, sizeof me));
    struct sockaddr_in6 six_at = address6_of(peer6, port + 1);
    hear("bound");
    TRY(sendto(fd, "plain", 5, 0, (struct sockaddr *)&to, sizeof to));
    set(fd, IPPROTO_IP, IP_TTL, 9);
    TRY(with(fd, &to, "marked", 6, IPPROTO_IP, IP_TOS, 0x48, sizeof(int)));
    TRY(sendto(fd, "no room", 7, 0, (struct sockaddr *)&to, sizeof to));
    TRY(sendto(fd, "time", 4, 0, (struct sockaddr *)&to, sizeof to));
    TRY(sendto(six, "six", 3, 0, (struct sockaddr *)&six_at, sizeof six_at));
    TRY(sendto(fd, "four", 4, 0, (struct sockaddr *)&to_six, sizeof to_six));
    TRY(with(fd, &to, data, 2500, IPPROTO_UDP, UDP_SEGMENT, 1000, sizeof(uint16_t)));
    TRY(with(fd, &to, data, 2500, IPPROTO_UDP, UDP_SEGMENT, 70000, sizeof(int)));
    TRY(with(fd, &to, "odd", 3, 99, 99, 0, sizeof(int)));
    struct iovec parts[3] = {{"a", 1}, {"bb", 2}, {"ccc", 3}};
    struct mmsghdr many[3] = {0};
    for (int turn = 0; turn < 3; turn++) many[turn].msg_hdr = (struct msghdr){&to, sizeof to, &parts[turn], 1, NULL, 0, 0};
    TRY(sendmmsg(fd, many, 3, 0));
    say("%u %u %u", many[0].msg_len, many[1].msg_len, many[2].msg_len);
    tell("many");
    hear("joined");
    struct sockaddr_in group = address_of("239.7.7.7", port), all = address_of("255.255.255.255", port);
    struct in_addr through = address_of(own, 0).sin_addr;
    TRY(setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &through, sizeof through));
    TRY(sendto(fd, "to all of them", 14, 0, (struct sockaddr *)&group, sizeof group));
    int loop = -1, ttl = -1;
    socklen_t length = sizeof loop;
    TRY(getsockopt(fd, IPPROTO_IP, IP_MULTICAST_LOOP, &loop, &length));
    TRY(getsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &ttl, &length));
    say("loop %d, TTL %d", loop, ttl);
    TRY(sendto(fd, "x", 1, 0, (struct sockaddr *)&all, sizeof all));
    tell("looped");

    set(fd, IPPROTO_IP, IP_RECVERR, 1);
    struct sockaddr_in closed = address_of(peer, port + 9);
    /* The kernel limits how often it says that a port is closed. */
    for (int64_t until = now_ms() + WAIT_MS; now_ms() < until;) {
        struct pollfd on = {fd, 0, 0};
        MUST(sendto(fd, "x", 1, 0, (struct sockaddr *)&closed, sizeof closed));
        if (poll(&on, 1, 100) > 0) break;
    }
    received("the error", fd, MSG_ERRQUEUE, sizeof control, sizeof data);
    TRY(recv(fd, data, 1, MSG_ERRQUEUE));

    int connection = joined_client();
    send_pattern(connection, 0, 100);
    tell("hundred");
    tell("over");
    char byte;
    TRY(recv(connection, &byte, 1, 0));
}
