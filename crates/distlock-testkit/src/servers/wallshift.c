/* Moves the wall clock of the process that preloads it.
 *
 * The file named by DISTLOCK_WALLSHIFT holds one signed 64-bit number of nanoseconds that is added
 * to every reading of the wall clock. It is mapped, so that a test moves the clock of a running
 * server by writing the file. The monotonic and the boot-time clock are left as they are.
 *
 * Waits until a moment of the wall clock count on the moved clock, too: a deadline that was read
 * from it would otherwise be over at once, or far away. A wait that is under way is not moved.
 *
 * The kernel is asked by its system call and not by the next library in line: looking that up
 * may itself want the time.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND INT64_C(1000000000)

static const int64_t nowhere = 0;
static const volatile int64_t *shift = &nowhere;

/* Whoever reads the clock before this ran reads the true one. */
__attribute__((constructor)) static void map_shift(void) {
    const char *path = getenv("DISTLOCK_WALLSHIFT");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) shift = page;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (failed || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t moved = at->tv_sec * SECOND + at->tv_nsec + *shift;
    at->tv_sec = moved / SECOND;
    at->tv_nsec = moved % SECOND;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return (time_t)-1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* Whether a condition was made for the monotonic clock: glibc keeps that here. */
static int is_monotonic(const pthread_cond_t *cond) { return (cond->__data.__wrefs & 2) != 0; }

int pthread_cond_clockwait(pthread_cond_t *restrict, pthread_mutex_t *restrict, clockid_t,
                           const struct timespec *restrict);

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    if (is_monotonic(cond)) return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, until);
    int64_t moved = until->tv_sec * SECOND + until->tv_nsec - *shift;
    struct timespec there = {.tv_sec = moved / SECOND, .tv_nsec = moved % SECOND};
    return pthread_cond_clockwait(cond, mutex, CLOCK_REALTIME, &there);
}
