/*
 * The functions of the C library that the preload stands before behave as without it: they do not
 * allocate where the C library's do not, keep errno, pass arguments on, and work in a signal
 * handler and after fork.
 */
#define _GNU_SOURCE
#include "common.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVICE "/sys/class/infiniband/airdma_lo"

static unsigned allocations;

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);

void *malloc(size_t size)
{
	allocations++;
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	allocations++;
	return __libc_calloc(count, size);
}

static void unrelated(void)
{
	char buffer[PATH_MAX];
	struct stat status;
	struct statx extended;
	int fd = open("/dev/null", O_RDONLY);

	CHECK(fd >= 0 && close(fd) == 0);
	fd = openat(AT_FDCWD, "/dev/null", O_RDONLY);
	CHECK(fd >= 0 && close(fd) == 0);
	CHECK(open("/nonexistent/file", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(stat("/dev/null", &status) == 0 && S_ISCHR(status.st_mode));
	CHECK(lstat("/dev/null", &status) == 0 && fstatat(AT_FDCWD, "/dev/null", &status, 0) == 0);
	CHECK(statx(AT_FDCWD, "/dev/null", 0, STATX_TYPE, &extended) == 0);
	CHECK(access("/dev/null", R_OK) == 0 && faccessat(AT_FDCWD, "/dev/null", R_OK, 0) == 0);
	CHECK(readlink("/proc/self/cwd", buffer, sizeof buffer) > 0);
	CHECK(readlinkat(AT_FDCWD, "/dev/null", buffer, sizeof buffer) == -1 && errno == EINVAL);
	CHECK(chdir("/") == 0 && stat("dev/null", &status) == 0);
}

static void on_signal(int number)
{
	(void)number;
	unrelated();
}

int main(void)
{
	/* Not even the first call, which looks for the C library's function. */
	unrelated();
	CHECK(allocations == 0);
	signal(SIGUSR1, on_signal);
	raise(SIGUSR1);
	CHECK(allocations == 0);

	/* The mode of a new file is passed on. */
	char name[] = "/tmp/airdma-files-XXXXXX";
	struct stat status;
	CHECK(mkdtemp(name) && chdir(name) == 0);
	umask(0);
	int fd = open("made", O_CREAT | O_WRONLY, 0640);
	CHECK(fd >= 0 && close(fd) == 0);
	CHECK(stat("made", &status) == 0 && (status.st_mode & 0777) == 0640);
	fd = openat(AT_FDCWD, "too", O_CREAT | O_WRONLY, 0604);
	CHECK(fd >= 0 && close(fd) == 0);
	CHECK(stat("too", &status) == 0 && (status.st_mode & 0777) == 0604);
	CHECK(unlink("made") == 0 && unlink("too") == 0 && chdir("/") == 0 && rmdir(name) == 0);

	/* Ours: found, errno left alone on success and set on failure. */
	errno = EXDEV;
	CHECK(stat(DEVICE, &status) == 0 && S_ISDIR(status.st_mode) && errno == EXDEV);
	CHECK(access(DEVICE "/node_guid", R_OK) == 0 && errno == EXDEV);
	CHECK(access(DEVICE "/nothing", R_OK) == -1 && errno == ENOENT);
	CHECK(open(DEVICE "/made", O_CREAT | O_WRONLY, 0600) == -1);

	/* The names of older C libraries. */
	int (*old_stat)(int, const char *, struct stat *) = dlsym(RTLD_DEFAULT, "__xstat");
	CHECK(old_stat && old_stat(1, DEVICE, &status) == 0 && S_ISDIR(status.st_mode));

	/* A NULL path is the C library's to refuse. */
	const char *volatile nowhere = NULL;
	CHECK(access(nowhere, R_OK) == -1 && errno == EFAULT);

	char *real = realpath(DEVICE "/device", NULL);
	CHECK(real && access(real, R_OK) == 0);
	free(real);
	/* They are counted. */
	CHECK(allocations > 0);

	struct dirent **entries;
	int count = scandir("/sys/class/infiniband", &entries, NULL, alphasort);
	CHECK(count >= 3);
	while (count--)
		free(entries[count]);
	free(entries);

	/* A child after fork. */
	pid_t child = fork();
	if (child == 0) {
		FILE *file = fopen(DEVICE "/node_type", "r");
		char text[16];
		_exit(!(file && fgets(text, sizeof text, file) && !strcmp(text, "1: CA\n")));
	}
	int how;
	CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
	puts("ok");
	return 0;
}
