/*
 * Records what a process does to the files of one directory, for the power-cut test.
 *
 * Loaded with LD_PRELOAD. Every call that changes something under $POWERCUT_DIR is carried out and
 * then described in $POWERCUT_TRACE; replay.rs reads that trace and computes what a disk may hold
 * after the power fails. A killed process cannot show a missing fsync, because the page cache
 * survives it; the trace can.
 *
 * How it works, and why so:
 *  - The real call is made as a raw system call, not through dlsym(RTLD_NEXT): nothing to look up,
 *    and no way to come back into this library.
 *  - One lock is held over the real call and its record, so the order of the records is the order
 *    of the changes. Syncs are the exception: they leave a record where they begin and one where
 *    they end and run unlocked in between, because other threads do write during a sync, and what
 *    they write then is not covered by it.
 *  - Files are known by inode, not by descriptor or path: dup, fcntl, inherited descriptors and
 *    files renamed while open need no care at all. A number that is never used again stands for
 *    each inode, since the file system gives an inode away again after unlink.
 *  - What could change a file behind our back is refused (copy_file_range and friends: callers
 *    fall back to read and write) or recorded as 'X', which makes the replay fail loudly.
 *  - Only the process that was started with the variables is recorded: a forked child is let
 *    through, and one that executes something does not get this library.
 *
 * Not seen: stdio streams, io_uring, and stores through a mapping made before (replay.rs compares
 * the finished directory with the trace to catch these).
 *
 * Files named *-shm are left out (SQLite rebuilds them), and what is written to the file `acks` at
 * the top is recorded as acknowledgements: it belongs to the client, not to the disk.
 *
 * A record, integers in the machine's byte order:
 *   u8 kind, u64 id, u64 dir, u64 off, u32 name length, u32 data length, name, data
 *
 *   C create file id as dir/name           M make directory id as dir/name
 *   L link file id as dir/name             U remove dir/name
 *   R rename id from dir/name to off/data
 *   W write data to id at off              T set the length of id to off
 *   F make id at least off long
 *   s sync number off of id begins         S sync number off of id is complete
 *   A everything so far is on the disk     K acknowledgement data
 *   X something this library cannot follow: data says what
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* its inline wrappers would collide with the definitions below */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef __LP64__
#error "the raw system calls below pass 64-bit offsets in one register"
#endif

enum { UNKNOWN = 0, ACKS = 1, ROOT = 2 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace_fd = -1;
static pid_t owner;
static uint64_t next_id = ROOT;
static uint64_t next_sync = 1;

/* ---- inode -> number ---------------------------------------------------------------------- */

struct known {
    dev_t dev;
    ino_t ino;
    uint64_t id;
    struct known *next;
};
static struct known *buckets[4096];

static struct known *find(const struct stat *st) {
    struct known *k = buckets[st->st_ino % 4096];
    while (k && (k->ino != st->st_ino || k->dev != st->st_dev)) k = k->next;
    return k;
}

static uint64_t id_of(const struct stat *st) {
    struct known *k = find(st);
    return k ? k->id : UNKNOWN;
}

static void learn(const struct stat *st, uint64_t id) {
    struct known *k = find(st);
    if (!k) {
        k = malloc(sizeof *k);
        if (!k) abort();
        k->dev = st->st_dev;
        k->ino = st->st_ino;
        k->next = buckets[st->st_ino % 4096];
        buckets[st->st_ino % 4096] = k;
    }
    k->id = id;
}

static uint64_t id_of_fd(int fd) {
    struct stat st;
    return fstat(fd, &st) == 0 ? id_of(&st) : UNKNOWN;
}

/* ---- records ------------------------------------------------------------------------------ */

static void emit_all(const void *p, size_t n) {
    const char *c = p;
    while (n > 0) {
        ssize_t w = syscall(SYS_write, trace_fd, c, n);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) abort(); /* half a trace must not be taken for a whole one */
        c += w;
        n -= (size_t)w;
    }
}

static void emit_iov(char kind, uint64_t id, uint64_t dir, uint64_t off, const char *name,
                     const struct iovec *iov, int n, size_t data_len) {
    unsigned char head[33];
    uint32_t name_len = (uint32_t)strlen(name), len32 = (uint32_t)data_len;
    head[0] = (unsigned char)kind;
    memcpy(head + 1, &id, 8);
    memcpy(head + 9, &dir, 8);
    memcpy(head + 17, &off, 8);
    memcpy(head + 25, &name_len, 4);
    memcpy(head + 29, &len32, 4);
    emit_all(head, sizeof head);
    emit_all(name, name_len);
    for (int i = 0; i < n && data_len > 0; i++) {
        size_t part = iov[i].iov_len < data_len ? iov[i].iov_len : data_len;
        emit_all(iov[i].iov_base, part);
        data_len -= part;
    }
}

static void emit(char kind, uint64_t id, uint64_t dir, uint64_t off, const char *name,
                 const void *data, size_t len) {
    struct iovec one = {(void *)data, len};
    emit_iov(kind, id, dir, off, name, &one, 1, len);
}

static void cannot_follow(const char *what) { emit('X', 0, 0, 0, "", what, strlen(what)); }

/* ---- entering and leaving ----------------------------------------------------------------- */

/* The pid is compared because a child between fork (or vfork) and exec runs this code too, perhaps
 * with a copy of the lock that nobody will ever release. */
static int enter(void) {
    if (trace_fd < 0 || getpid() != owner) return 0;
    pthread_mutex_lock(&lock);
    return 1;
}

static void leave(int err) {
    pthread_mutex_unlock(&lock);
    errno = err;
}

/* ---- names -------------------------------------------------------------------------------- */

struct place {
    uint64_t dir; /* UNKNOWN: not under the recorded directory */
    char name[NAME_MAX + 1];
};

/* The directory an entry lies in, and its name there. Looked up before the real call. */
static struct place locate(int dirfd, const char *path) {
    struct place at = {UNKNOWN, ""};
    char parent[PATH_MAX];
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/') len--;
    size_t cut = len;
    while (cut > 0 && path[cut - 1] != '/') cut--;
    if (len == 0 || len - cut > NAME_MAX || cut >= sizeof parent - 1) return at;
    memcpy(at.name, path + cut, len - cut);
    at.name[len - cut] = 0;
    if (cut == 0) {
        strcpy(parent, ".");
    } else {
        memcpy(parent, path, cut);
        parent[cut] = 0;
    }
    struct stat st;
    if (fstatat(dirfd, parent, &st, 0) == 0) at.dir = id_of(&st);
    return at;
}

static int is_acks(const struct place *at) {
    return at->dir == ROOT && strcmp(at->name, "acks") == 0;
}

static int ignored(const struct place *at) {
    size_t n = strlen(at->name);
    return at->dir == UNKNOWN || is_acks(at) || (n >= 4 && strcmp(at->name + n - 4, "-shm") == 0);
}

/* ---- starting ----------------------------------------------------------------------------- */

/* What is there already counts as durable: it is recorded like new, followed by an 'A'. */
static void record_present(int dirfd, uint64_t dir) {
    DIR *d = fdopendir(dirfd);
    if (!d) abort();
    struct dirent *e;
    while ((e = readdir(d))) {
        struct stat st;
        struct place at = {dir, ""};
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        strcpy(at.name, e->d_name);
        if (fstatat(dirfd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) abort();
        if (is_acks(&at)) {
            learn(&st, ACKS);
            continue;
        }
        if (ignored(&at)) continue;
        int seen = id_of(&st) != UNKNOWN; /* a second hard link */
        uint64_t id = seen ? id_of(&st) : ++next_id;
        learn(&st, id);
        if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) {
            cannot_follow("neither a file nor a directory");
            continue;
        }
        emit(S_ISDIR(st.st_mode) ? 'M' : seen ? 'L' : 'C', id, dir, 0, at.name, "", 0);
        if (seen) continue;
        int fd = (int)syscall(SYS_openat, dirfd, e->d_name, O_RDONLY | O_CLOEXEC, 0);
        if (fd < 0) abort();
        if (S_ISDIR(st.st_mode)) {
            record_present(fd, id);
            continue;
        }
        char buf[65536];
        ssize_t n;
        for (uint64_t off = 0; (n = read(fd, buf, sizeof buf)) > 0; off += (uint64_t)n)
            emit('W', id, 0, off, "", buf, (size_t)n);
        close(fd);
    }
    closedir(d);
}

__attribute__((constructor)) static void start(void) {
    const char *dir = getenv("POWERCUT_DIR"), *trace = getenv("POWERCUT_TRACE");
    if (!dir || !trace) return;
    int root = (int)syscall(SYS_openat, AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, trace,
                          O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    struct stat st;
    if (root < 0 || fd < 0 || fstat(root, &st) != 0) {
        static const char msg[] = "powercut: POWERCUT_DIR or a fresh POWERCUT_TRACE missing\n";
        (void)!syscall(SYS_write, 2, msg, sizeof msg - 1);
        abort();
    }
    trace_fd = fd;
    owner = getpid();
    learn(&st, ROOT);
    record_present(root, ROOT);
    emit('A', 0, 0, 0, "", "", 0);
    unsetenv("LD_PRELOAD");
    unsetenv("POWERCUT_TRACE");
}

/* ---- open --------------------------------------------------------------------------------- */

static int open_common(int dirfd, const char *path, int flags, mode_t mode) {
    if (!enter()) return (int)syscall(SYS_openat, dirfd, path, flags, mode);
    struct stat st;
    struct place at = locate(dirfd, path);
    int fresh = (flags & O_CREAT) && fstatat(dirfd, path, &st, 0) != 0 && errno == ENOENT;
    int fd = (int)syscall(SYS_openat, dirfd, path, flags, mode);
    int err = errno;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        if ((flags & O_TMPFILE) == O_TMPFILE) {
            struct stat in;
            if (fstatat(dirfd, path, &in, 0) == 0 && id_of(&in) != UNKNOWN)
                cannot_follow("O_TMPFILE");
        } else if (fresh && is_acks(&at)) {
            learn(&st, ACKS);
        } else if (fresh && ignored(&at)) {
            learn(&st, UNKNOWN); /* the inode may have been one of ours in a former life */
        } else if (fresh) {
            learn(&st, ++next_id);
            emit('C', next_id, at.dir, 0, at.name, "", 0);
        } else if (id_of(&st) == UNKNOWN) {
            if (!ignored(&at)) cannot_follow("a file made by somebody else");
        } else if ((flags & O_TRUNC) && id_of(&st) != ACKS) {
            emit('T', id_of(&st), 0, 0, "", "", 0);
        }
    }
    leave(err);
    return fd;
}

static int needs_mode(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

#define OPEN_BODY(DIRFD)                                     \
    mode_t mode = 0;                                         \
    if (needs_mode(flags)) {                                 \
        va_list ap;                                          \
        va_start(ap, flags);                                 \
        mode = (mode_t)va_arg(ap, int);                      \
        va_end(ap);                                          \
    }                                                        \
    return open_common(DIRFD, path, flags, mode);

int open(const char *path, int flags, ...) { OPEN_BODY(AT_FDCWD) }
int open64(const char *path, int flags, ...) { OPEN_BODY(AT_FDCWD) }
int openat(int dirfd, const char *path, int flags, ...) { OPEN_BODY(dirfd) }
int openat64(int dirfd, const char *path, int flags, ...) { OPEN_BODY(dirfd) }
int creat(const char *path, mode_t mode) {
    return open_common(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char *path, mode_t mode) { return creat(path, mode); }
/* What open() becomes in a library that was built with _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags) { return open_common(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_common(AT_FDCWD, path, flags, 0); }
int __openat_2(int dirfd, const char *path, int flags) {
    return open_common(dirfd, path, flags, 0);
}
int __openat64_2(int dirfd, const char *path, int flags) {
    return open_common(dirfd, path, flags, 0);
}

/* ---- write -------------------------------------------------------------------------------- */

/* Every kind of write ends up here: positioned or not (at < 0), from one buffer or several. */
static ssize_t write_common(int fd, const struct iovec *iov, int n, off_t at, int vectored) {
    int on = enter();
    ssize_t done;
    if (at < 0)
        done = vectored ? syscall(SYS_writev, fd, iov, n)
                        : syscall(SYS_write, fd, iov->iov_base, iov->iov_len);
    else
        done = vectored ? syscall(SYS_pwritev, fd, iov, n, at, 0L)
                        : syscall(SYS_pwrite64, fd, iov->iov_base, iov->iov_len, at);
    if (!on) return done;
    int err = errno;
    uint64_t id = done > 0 ? id_of_fd(fd) : UNKNOWN;
    if (id == ACKS) {
        emit_iov('K', 0, 0, 0, "", iov, n, (size_t)done);
    } else if (id != UNKNOWN) {
        int flags = fcntl(fd, F_GETFL);
        struct stat st;
        if (at >= 0 && (flags & O_APPEND) && fstat(fd, &st) == 0)
            at = st.st_size - done; /* Linux appends whatever offset pwrite is given */
        else if (at < 0)
            at = lseek(fd, 0, SEEK_CUR) - done;
        emit_iov('W', id, 0, (uint64_t)at, "", iov, n, (size_t)done);
        if (flags & O_DSYNC) { /* a part of O_SYNC too */
            emit('s', id, 0, next_sync, "", "", 0);
            emit('S', id, 0, next_sync++, "", "", 0);
        }
    }
    leave(err);
    return done;
}

ssize_t write(int fd, const void *buf, size_t len) {
    struct iovec one = {(void *)buf, len};
    return write_common(fd, &one, 1, -1, 0);
}
ssize_t writev(int fd, const struct iovec *iov, int n) { return write_common(fd, iov, n, -1, 1); }

static ssize_t pwrite_common(int fd, const void *buf, size_t len, off_t at) {
    struct iovec one = {(void *)buf, len};
    if (at < 0) {
        errno = EINVAL;
        return -1;
    }
    return write_common(fd, &one, 1, at, 0);
}
ssize_t pwrite(int fd, const void *buf, size_t len, off_t at) {
    return pwrite_common(fd, buf, len, at);
}
ssize_t pwrite64(int fd, const void *buf, size_t len, off64_t at) {
    return pwrite_common(fd, buf, len, at);
}

static ssize_t pwritev_common(int fd, const struct iovec *iov, int n, off_t at) {
    if (at < 0) {
        errno = EINVAL;
        return -1;
    }
    return write_common(fd, iov, n, at, 1);
}
ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t at) {
    return pwritev_common(fd, iov, n, at);
}
ssize_t pwritev64(int fd, const struct iovec *iov, int n, off64_t at) {
    return pwritev_common(fd, iov, n, at);
}

/* ---- length ------------------------------------------------------------------------------- */

static void emit_size(char kind, uint64_t id, off_t len) {
    if (id > ACKS) emit(kind, id, 0, (uint64_t)len, "", "", 0);
}

static int ftruncate_common(int fd, off_t len) {
    int on = enter();
    int r = (int)syscall(SYS_ftruncate, fd, len);
    if (!on) return r;
    int err = errno;
    if (r == 0) emit_size('T', id_of_fd(fd), len);
    leave(err);
    return r;
}
int ftruncate(int fd, off_t len) { return ftruncate_common(fd, len); }
int ftruncate64(int fd, off64_t len) { return ftruncate_common(fd, len); }

static int truncate_common(const char *path, off_t len) {
    int on = enter();
    int r = (int)syscall(SYS_truncate, path, len);
    if (!on) return r;
    int err = errno;
    struct stat st;
    if (r == 0 && stat(path, &st) == 0) emit_size('T', id_of(&st), len);
    leave(err);
    return r;
}
int truncate(const char *path, off_t len) { return truncate_common(path, len); }
int truncate64(const char *path, off64_t len) { return truncate_common(path, len); }

static int fallocate_common(int fd, int mode, off_t off, off_t len) {
    int on = enter();
    int r = (int)syscall(SYS_fallocate, fd, mode, off, len);
    if (!on) return r;
    int err = errno;
    uint64_t id = r == 0 ? id_of_fd(fd) : UNKNOWN;
    if (mode == 0)
        emit_size('F', id, off + len);
    else if (id > ACKS && mode != FALLOC_FL_KEEP_SIZE)
        cannot_follow("fallocate with a mode that changes data");
    leave(err);
    return r;
}
int fallocate(int fd, int mode, off_t off, off_t len) {
    return fallocate_common(fd, mode, off, len);
}
int fallocate64(int fd, int mode, off64_t off, off64_t len) {
    return fallocate_common(fd, mode, off, len);
}
static int posix_fallocate_common(int fd, off_t off, off_t len) {
    int before = errno;
    int r = fallocate_common(fd, 0, off, len) == 0 ? 0 : errno;
    errno = before;
    return r;
}
int posix_fallocate(int fd, off_t off, off_t len) { return posix_fallocate_common(fd, off, len); }
int posix_fallocate64(int fd, off64_t off, off64_t len) {
    return posix_fallocate_common(fd, off, len);
}

/* ---- sync --------------------------------------------------------------------------------- */

static int sync_common(long call, int fd) {
    uint64_t id = UNKNOWN, number = 0;
    if (enter()) {
        id = id_of_fd(fd);
        if (id > ACKS) {
            number = next_sync++;
            emit('s', id, 0, number, "", "", 0);
        }
        leave(errno);
    }
    int r = (int)syscall(call, fd);
    if (id > ACKS && r == 0 && enter()) {
        emit('S', id, 0, number, "", "", 0);
        leave(errno);
    }
    return r;
}
int fsync(int fd) { return sync_common(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_common(SYS_fdatasync, fd); }

int syncfs(int fd) {
    int on = enter();
    int r = (int)syscall(SYS_syncfs, fd);
    if (!on) return r;
    int err = errno;
    if (r == 0 && id_of_fd(fd) != UNKNOWN) emit('A', 0, 0, 0, "", "", 0);
    leave(err);
    return r;
}
void sync(void) {
    int on = enter();
    syscall(SYS_sync);
    if (!on) return;
    emit('A', 0, 0, 0, "", "", 0);
    leave(errno);
}

/* ---- directory entries -------------------------------------------------------------------- */

static int rename_common(int fromfd, const char *from, int tofd, const char *to, unsigned flags) {
    if (!enter()) return (int)syscall(SYS_renameat2, fromfd, from, tofd, to, flags);
    struct place a = locate(fromfd, from), b = locate(tofd, to);
    struct stat st, old;
    int there = fstatat(fromfd, from, &st, AT_SYMLINK_NOFOLLOW) == 0;
    /* Two links to the same file: the call does nothing, and says that it worked. */
    int same = there && fstatat(tofd, to, &old, AT_SYMLINK_NOFOLLOW) == 0 &&
               st.st_ino == old.st_ino && st.st_dev == old.st_dev;
    int r = (int)syscall(SYS_renameat2, fromfd, from, tofd, to, flags);
    int err = errno;
    if (r == 0 && there && !same) {
        if (flags & ~(unsigned)RENAME_NOREPLACE)
            cannot_follow("renameat2 with a flag");
        else if (!ignored(&a) && !ignored(&b))
            emit('R', id_of(&st), a.dir, b.dir, a.name, b.name, strlen(b.name));
        else if (!ignored(&a))
            emit('U', 0, a.dir, 0, a.name, "", 0);
        else if (!ignored(&b))
            cannot_follow("a file moved in from elsewhere");
    }
    leave(err);
    return r;
}
int rename(const char *from, const char *to) {
    return rename_common(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int fromfd, const char *from, int tofd, const char *to) {
    return rename_common(fromfd, from, tofd, to, 0);
}
int renameat2(int fromfd, const char *from, int tofd, const char *to, unsigned flags) {
    return rename_common(fromfd, from, tofd, to, flags);
}

static int unlink_common(int dirfd, const char *path, int flags) {
    if (!enter()) return (int)syscall(SYS_unlinkat, dirfd, path, flags);
    struct place at = locate(dirfd, path);
    int r = (int)syscall(SYS_unlinkat, dirfd, path, flags);
    int err = errno;
    if (r == 0 && !ignored(&at)) emit('U', 0, at.dir, 0, at.name, "", 0);
    leave(err);
    return r;
}
int unlink(const char *path) { return unlink_common(AT_FDCWD, path, 0); }
int unlinkat(int dirfd, const char *path, int flags) { return unlink_common(dirfd, path, flags); }
int rmdir(const char *path) { return unlink_common(AT_FDCWD, path, AT_REMOVEDIR); }

static int mkdir_common(int dirfd, const char *path, mode_t mode) {
    if (!enter()) return (int)syscall(SYS_mkdirat, dirfd, path, mode);
    struct place at = locate(dirfd, path);
    int r = (int)syscall(SYS_mkdirat, dirfd, path, mode);
    int err = errno;
    struct stat st;
    if (r == 0 && fstatat(dirfd, path, &st, 0) == 0) {
        learn(&st, at.dir == UNKNOWN ? UNKNOWN : ++next_id);
        if (at.dir != UNKNOWN) emit('M', next_id, at.dir, 0, at.name, "", 0);
    }
    leave(err);
    return r;
}
int mkdir(const char *path, mode_t mode) { return mkdir_common(AT_FDCWD, path, mode); }
int mkdirat(int dirfd, const char *path, mode_t mode) { return mkdir_common(dirfd, path, mode); }

static int link_common(int fromfd, const char *from, int tofd, const char *to, int flags) {
    if (!enter()) return (int)syscall(SYS_linkat, fromfd, from, tofd, to, flags);
    struct place at = locate(tofd, to);
    int r = (int)syscall(SYS_linkat, fromfd, from, tofd, to, flags);
    int err = errno;
    struct stat st;
    if (r == 0 && !ignored(&at)) {
        if (fstatat(tofd, to, &st, AT_SYMLINK_NOFOLLOW) == 0 && id_of(&st) > ACKS)
            emit('L', id_of(&st), at.dir, 0, at.name, "", 0);
        else
            cannot_follow("a file linked in from elsewhere");
    }
    leave(err);
    return r;
}
int link(const char *from, const char *to) {
    return link_common(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int linkat(int fromfd, const char *from, int tofd, const char *to, int flags) {
    return link_common(fromfd, from, tofd, to, flags);
}

static int symlink_common(const char *target, int dirfd, const char *path) {
    if (!enter()) return (int)syscall(SYS_symlinkat, target, dirfd, path);
    struct place at = locate(dirfd, path);
    int r = (int)syscall(SYS_symlinkat, target, dirfd, path);
    int err = errno;
    if (r == 0 && !ignored(&at)) cannot_follow("symlink");
    leave(err);
    return r;
}
int symlink(const char *target, const char *path) {
    return symlink_common(target, AT_FDCWD, path);
}
int symlinkat(const char *target, int dirfd, const char *path) {
    return symlink_common(target, dirfd, path);
}

/* ---- ways around -------------------------------------------------------------------------- */

/* "Not implemented" sends the standard library back to read and write, which are recorded. */
static int refused(int fd) {
    int known = UNKNOWN;
    if (enter()) {
        known = id_of_fd(fd) != UNKNOWN;
        leave(errno);
    }
    if (known) errno = ENOSYS;
    return known;
}

ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t len,
                        unsigned flags) {
    if (refused(out)) return -1;
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, len, flags);
}
ssize_t sendfile(int out, int in, off_t *at, size_t len) {
    if (refused(out)) return -1;
    return syscall(SYS_sendfile, out, in, at, len);
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t len) {
    if (refused(out)) return -1;
    return syscall(SYS_sendfile, out, in, at, len);
}
ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t len, unsigned flags) {
    if (refused(out)) return -1;
    return syscall(SYS_splice, in, in_at, out, out_at, len, flags);
}
ssize_t pwritev2(int fd, const struct iovec *iov, int n, off_t at, int flags) {
    if (refused(fd)) return -1;
    return syscall(SYS_pwritev2, fd, iov, n, at, 0L, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *iov, int n, off64_t at, int flags) {
    if (refused(fd)) return -1;
    return syscall(SYS_pwritev2, fd, iov, n, at, 0L, flags);
}

static void *mmap_common(void *addr, size_t len, int prot, int flags, int fd, off_t at) {
    if (fd >= 0 && (prot & PROT_WRITE) && (flags & MAP_SHARED) && enter()) {
        if (id_of_fd(fd) != UNKNOWN) cannot_follow("a shared writable mapping");
        leave(errno);
    }
    return (void *)syscall(SYS_mmap, addr, len, prot, flags, fd, at);
}
void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t at) {
    return mmap_common(addr, len, prot, flags, fd, at);
}
void *mmap64(void *addr, size_t len, int prot, int flags, int fd, off64_t at) {
    return mmap_common(addr, len, prot, flags, fd, at);
}
