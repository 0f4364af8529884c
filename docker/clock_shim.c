/* Moves the wall clock of one process, for tests of what a clock jump does to a lock.
 *
 * Preloaded (LD_PRELOAD), it adds the milliseconds in the file that QUORUMLOCK_CLOCK names to what the
 * process reads from CLOCK_REALTIME, gettimeofday and time. The file holds one signed 64-bit number in
 * the machine's byte order and is mapped, so that whoever writes to it moves the clock at once.
 * Monotonic clocks, sleeping and timers are left alone. Without the variable, or if the file cannot be
 * mapped, every clock is the system's.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000LL
#define NS_PER_MS 1000000LL

static const _Atomic int64_t *offset_ms;

__attribute__((constructor)) static void map_offset(void)
{
    const char *path = getenv("QUORUMLOCK_CLOCK");
    if (path == NULL) {
        return;
    }
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return;
    }
    struct stat facts;
    /* Reading beyond the end of a mapped file would kill the process. */
    if (fstat(file, &facts) == 0 && facts.st_size >= (off_t)sizeof *offset_ms) {
        void *mapped = mmap(NULL, sizeof *offset_ms, PROT_READ, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) {
            offset_ms = mapped;
        }
    }
    close(file);
}

/* The system call, and not the C library's function: looking that up may allocate, and an allocator
 * that reads the clock when it starts (jemalloc) would come back here. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (failed || !is_wall || offset_ms == NULL) {
        return failed;
    }
    int64_t moved = now->tv_sec * NS_PER_S + now->tv_nsec + *offset_ms * NS_PER_MS;
    now->tv_sec = moved / NS_PER_S;
    now->tv_nsec = moved % NS_PER_S;
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec wall;
    int failed = clock_gettime(CLOCK_REALTIME, &wall);
    if (!failed) {
        now->tv_sec = wall.tv_sec;
        now->tv_usec = wall.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *now)
{
    struct timespec wall;
    if (clock_gettime(CLOCK_REALTIME, &wall)) {
        return (time_t)-1;
    }
    if (now != NULL) {
        *now = wall.tv_sec;
    }
    return wall.tv_sec;
}
