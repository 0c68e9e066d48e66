/* A socket without CLOEXEC lives on in a new image; a vfork child changes only its own table. */
#include <spawn.h>

#include "../trap.h"

enum { PART = 5000, AT = 40 };

static void hand_to_image(bool with_environment)
{
    int connection = joined_server(), closed = joined_server();
    say("before: %zu", check_pattern(connection, 0, PART));
    send_pattern(connection, 0, PART);
    MUST(dup2(connection, AT));
    MUST(close(connection));
    MUST(fcntl(closed, F_SETFD, FD_CLOEXEC));
    pid_t child = MUST(fork());
    if (child == 0) start_again(with_environment ? "environment" : "none", with_environment);
    MUST(close(AT));
    MUST(close(closed));
    say_end("image", child);
}

void again(const char *what)
{
    (void)what;
    struct stat about;
    MUST(fstat(AT, &about));
    say("the inherited one is a socket: %d", S_ISSOCK(about.st_mode));
    say("after: %zu", check_pattern(AT, PART, PART));
    send_pattern(AT, PART, PART);
    hear("got it");
    TRY(close(AT));
}

static void vforked(void)
{
    int connection = joined_server();
    pid_t child = vfork();
    if (child == 0) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, connection);
        close(connection);
        _exit(0);
    }
    say_end("vfork child", child);
    send_pattern(connection, 0, PART);
    say("after vfork: %zu", check_pattern(connection, 0, PART));
    child = vfork();
    if (child == 0) {
        dup2(connection, 0);
        dup2(connection, 1);
        execl("/bin/cat", "cat", (char *)NULL);
        _exit(9);
    }
    MUST(close(connection));
    tell("cat is there");
    say_end("cat", child);
}

static void spawned(void)
{
    int connection = joined_server();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, connection, 0);
    posix_spawn_file_actions_adddup2(&actions, connection, 1);
    char *argv[] = {"cat", NULL};
    extern char **environ;
    pid_t child;
    TRY(posix_spawn(&child, "/bin/cat", &actions, NULL, argv, environ));
    MUST(close(connection));
    tell("cat is there");
    say_end("cat", child);
}

void server(void)
{
    hand_to_image(true);
    hand_to_image(false);
    vforked();
    spawned();
}

static void with_image(void)
{
    int connection = joined_client(), closed = joined_client();
    send_pattern(connection, 0, PART);
    say("before: %zu", check_pattern(connection, 0, PART));
    say("CLOEXEC: %s", mask_name(wait_mask(closed, POLLRDHUP, POLLIN | POLLRDHUP)));
    send_pattern(connection, PART, PART);
    say("after: %zu", check_pattern(connection, PART, PART));
    struct pollfd on = {connection, POLLIN | POLLRDHUP, 0};
    TRY(poll(&on, 1, QUIET_MS));
    tell("got it");
    say("ends: %s", mask_name(wait_mask(connection, POLLRDHUP, POLLIN | POLLRDHUP)));
    MUST(close(connection));
    MUST(close(closed));
}

static void with_cat(int connection)
{
    hear("cat is there");
    send_pattern(connection, 0, PART);
    say("echo: %zu", check_pattern(connection, 0, PART));
    TRY(shutdown(connection, SHUT_WR));
    char byte;
    TRY(recv(connection, &byte, 1, 0));
    MUST(close(connection));
}

void client(void)
{
    with_image();
    with_image();
    int connection = joined_client();
    say("before cat: %zu", check_pattern(connection, 0, PART));
    send_pattern(connection, 0, PART);
    with_cat(connection);
    with_cat(joined_client());
}
