// A Postgres server that preloads this library obeys the two int64 in the file that SERVER_FAULTS names: its clock
// is as many seconds late as the first says, and its disk is full if the second is not 0. On a full disk no
// regular file can grow, except standard output and standard error, into which the server logs.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *faults;

__attribute__((constructor)) static void open_faults(void) {
	const char *path = getenv("SERVER_FAULTS");
	int fd = path ? open(path, O_RDONLY) : -1;
	if (fd < 0)
		return;
	void *p = mmap(NULL, 16, PROT_READ, MAP_SHARED, fd, 0);
	if (p != MAP_FAILED)
		faults = p;
	close(fd);
}

static int64_t seconds_late(void) { return faults ? faults[0] : 0; }

int clock_gettime(clockid_t id, struct timespec *t) {
	int result = syscall(SYS_clock_gettime, id, t);
	if (result == 0 && id == CLOCK_REALTIME)
		t->tv_sec -= seconds_late();
	return result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}

static int exceeds_disk(int fd, off_t end) {
	struct stat s;
	if (fd <= 2 || !faults || !faults[1] || fstat(fd, &s) != 0 || !S_ISREG(s.st_mode) || end <= s.st_size)
		return 0;
	errno = ENOSPC;
	return 1;
}

static off_t length(const struct iovec *v, int n) {
	off_t sum = 0;
	for (int i = 0; i < n; i++)
		sum += v[i].iov_len;
	return sum;
}

ssize_t write(int fd, const void *p, size_t n) {
	if (exceeds_disk(fd, lseek(fd, 0, SEEK_CUR) + (off_t)n))
		return -1;
	return syscall(SYS_write, fd, p, n);
}

ssize_t pwrite64(int fd, const void *p, size_t n, off64_t offset) { return exceeds_disk(fd, offset + (off_t)n) ? -1 : syscall(SYS_pwrite64, fd, p, n, offset); }
ssize_t pwrite(int fd, const void *p, size_t n, off_t offset) { return pwrite64(fd, p, n, offset); }

ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t offset) { return exceeds_disk(fd, offset + length(v, n)) ? -1 : syscall(SYS_pwritev, fd, v, n, offset, 0); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t offset) { return pwritev64(fd, v, n, offset); }

int posix_fallocate(int fd, off_t offset, off_t size) {
	if (exceeds_disk(fd, offset + size))
		return ENOSPC;
	return syscall(SYS_fallocate, fd, 0, offset, size) == 0 ? 0 : errno;
}
