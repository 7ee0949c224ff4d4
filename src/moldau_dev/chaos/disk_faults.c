/* A disk that fails, fills, slows down or hangs: preloaded into a broker, on any file below MOLDAU_FAULTY_FOLDER.
 *
 * The first int of the file MOLDAU_DISK_FAULT, which is mapped, selects the fault; the second is a delay in ms. Both may
 * change at any time. Files are recognized when they are opened, so that calls on sockets and pipes cost one comparison.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum fault { NONE, FAIL_WRITES, FULL, FAIL_READS, SLOW, HANG, READ_ONLY };

#define FDS_MAX 65536
static volatile int32_t *control;
static const char *folder;
static size_t folder_length;
static volatile unsigned char is_faulty[FDS_MAX];

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("MOLDAU_DISK_FAULT");
    folder = getenv("MOLDAU_FAULTY_FOLDER");
    if (path == NULL || folder == NULL) return;
    folder_length = strlen(folder);
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int fd = real_open(path, O_RDONLY);
    if (fd < 0) return;
    void *mapped = mmap(NULL, 2 * sizeof(int32_t), PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) control = mapped;
    close(fd);
}

static enum fault current(void) { return control == NULL ? NONE : (enum fault)control[0]; }

static void pause_ms(int64_t ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

/* Return 0, or the errno with which a write fails now. Waits as long as the disk hangs. */
static int write_error(void) {
    switch (current()) {
    case FAIL_WRITES: return EIO;
    case FULL: return ENOSPC;
    case READ_ONLY: return EROFS;
    case SLOW: pause_ms(control[1]); return 0;
    case HANG:
        while (current() == HANG) pause_ms(20);
        return 0;
    default: return 0;
    }
}

static int is_watched(int fd) { return fd >= 0 && fd < FDS_MAX && is_faulty[fd]; }

static int starts_in_folder(int at, const char *path) {
    char real[PATH_MAX], link[64];
    if (folder == NULL || control == NULL) return 0;
    if (path[0] == '/') return strncmp(path, folder, folder_length) == 0;
    if (at == AT_FDCWD) return getcwd(real, sizeof real) != NULL && strncmp(real, folder, folder_length) == 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    ssize_t length = readlink(link, real, sizeof real - 1);
    return length > 0 && (real[length] = 0, strncmp(real, folder, folder_length) == 0);
}

#define REAL(name) static __typeof__(name) *real; if (real == NULL) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define OPEN_BODY(at, call)                                                                     \
    mode_t mode = 0;                                                                            \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                                      \
        va_list rest;                                                                           \
        va_start(rest, flags);                                                                  \
        mode = va_arg(rest, mode_t);                                                            \
        va_end(rest);                                                                           \
    }                                                                                           \
    int is_inside = starts_in_folder(at, path);                                                 \
    int error = is_inside && (flags & O_CREAT) ? write_error() : 0;                             \
    if (error) { errno = error; return -1; }                                                    \
    int fd = call;                                                                              \
    if (fd >= 0 && fd < FDS_MAX) is_faulty[fd] = (unsigned char)is_inside;                      \
    return fd

int open(const char *path, int flags, ...) { REAL(open); OPEN_BODY(AT_FDCWD, real(path, flags, mode)); }
int open64(const char *path, int flags, ...) { REAL(open64); OPEN_BODY(AT_FDCWD, real(path, flags, mode)); }
int openat(int at, const char *path, int flags, ...) { REAL(openat); OPEN_BODY(at, real(at, path, flags, mode)); }
int openat64(int at, const char *path, int flags, ...) { REAL(openat64); OPEN_BODY(at, real(at, path, flags, mode)); }

int close(int fd) {
    REAL(close);
    if (fd >= 0 && fd < FDS_MAX) is_faulty[fd] = 0;
    return real(fd);
}

#define WRITER(type, name, parameters, arguments)                                               \
    type name parameters {                                                                      \
        REAL(name);                                                                             \
        int error = is_watched(fd) ? write_error() : 0;                                         \
        if (error) { errno = error; return -1; }                                                \
        return real arguments;                                                                  \
    }

WRITER(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size))
WRITER(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRITER(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRITER(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
WRITER(ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
WRITER(ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
WRITER(int, ftruncate, (int fd, off_t size), (fd, size))
WRITER(int, ftruncate64, (int fd, off64_t size), (fd, size))

/* A full disk still syncs what it has. */
#define SYNC(name)                                                                              \
    int name(int fd) {                                                                          \
        REAL(name);                                                                             \
        int error = is_watched(fd) && current() != FULL ? write_error() : 0;                    \
        if (error) { errno = error; return -1; }                                                \
        return real(fd);                                                                        \
    }

SYNC(fsync)
SYNC(fdatasync)

#define READER(name, parameters, arguments, source)                                             \
    ssize_t name parameters {                                                                   \
        REAL(name);                                                                             \
        if (is_watched(source) && current() == FAIL_READS) { errno = EIO; return -1; }          \
        return real arguments;                                                                  \
    }

READER(read, (int fd, void *data, size_t size), (fd, data, size), fd)
READER(pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at), fd)
READER(pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at), fd)
READER(preadv, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at), fd)
READER(preadv64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at), fd)
READER(preadv2, (int fd, const struct iovec *parts, int count, off_t at, int flags), (fd, parts, count, at, flags), fd)
READER(preadv64v2, (int fd, const struct iovec *parts, int count, off64_t at, int flags), (fd, parts, count, at, flags), fd)
READER(sendfile, (int out, int in, off_t *at, size_t size), (out, in, at, size), in)
READER(sendfile64, (int out, int in, off64_t *at, size_t size), (out, in, at, size), in)
