/* A socket is the lowest free descriptor and a socket to every call that asks. */
#include "../trap.h"

static void describe(const char *what, int fd)
{
    struct stat about;
    char path[64], link[64] = {0};
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    MUST(fstat(fd, &about));
    say("%s is %d, a socket: %d", what, fd, S_ISSOCK(about.st_mode));
    say("%s links to socket: %d", what, readlink(path, link, sizeof link - 1) > 8 && strncmp(link, "socket:[", 8) == 0);
    char number[32];
    snprintf(number, sizeof number, "[%llu]", (unsigned long long)about.st_ino);
    say("%s has the inode that fstat says: %d", what, strstr(link, number) != NULL);
    say("below FD_SETSIZE: %d", fd < FD_SETSIZE);
    TRY(isatty(fd) ? 0 : -1);
    say("status flags %#x, descriptor flags %#x", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD));
    char byte;
    TRY(lseek(fd, 0, SEEK_CUR));
    TRY(pread(fd, &byte, 1, 0));
    TRY(pwrite(fd, "x", 1, 0));
    TRY(ftruncate(fd, 0));
}

static void talk(int connection)
{
    describe("the connection", connection);
    send_pattern(connection, 0, 3000);
    say("received %zu", check_pattern(connection, 0, 3000));
    describe("the connection in use", connection);
    meet("talked");
}

void server(void)
{
    int plain = TRY(socket(AF_INET, SOCK_STREAM, 0));
    int with_flags = TRY(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
    int datagrams = TRY(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    int six = TRY(socket(AF_INET6, SOCK_STREAM, 0));
    describe("plain", plain);
    describe("with flags", with_flags);
    describe("datagrams", datagrams);
    describe("IPv6", six);
    TRY(close(with_flags));
    TRY(socket(AF_INET, SOCK_STREAM, 0));
    TRY(close(plain));
    int pipes[2];
    TRY(pipe(pipes));
    say("the pipe is %d %d", pipes[0], pipes[1]);
    int at = listener();
    tell("listening");
    int connection = TRY(accept4(at, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    talk(connection);
    TRY(close(connection));
    TRY(close(connection));
    tell("again");
    connection = TRY(accept(at, NULL, NULL));
    talk(connection);
    TRY(close(at));
    TRY(open("/dev/null", O_RDONLY));
    TRY(socket(AF_INET, SOCK_STREAM, 99));
    TRY(socket(99, SOCK_STREAM, 0));
    TRY(socket(AF_INET, 99, 0));
}

void client(void)
{
    hear("listening");
    int connection = dial();
    talk(connection);
    hear("again");
    int second = dial();
    TRY(close(connection));
    talk(second);
    TRY(socket(AF_INET, SOCK_DGRAM, 0));
}
