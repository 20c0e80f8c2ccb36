//! A clock that is wrong, and can jump while a program runs. A small library, preloaded into the program, shifts the
//! time of day by the number of seconds in a file. The monotonic clock is not changed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

const DAY_SECONDS: i64 = 86_400;
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *shift;
static int (*unshifted)(clockid_t, struct timespec *);

__attribute__((constructor)) static void prepare(void) {
    const char *path = getenv("SHIFTED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) shift = mapped;
    if (file >= 0) close(file);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    if (!unshifted) unshifted = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = unshifted(id, at);
    if (result == 0 && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *shift;
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"#;

pub struct ShiftedClock {
    /// Eight bytes: the seconds by which it is ahead.
    shift: File,
    folder: TempDir,
}

impl ShiftedClock {
    /// The environment variables that name the library for the program, and the file for the library.
    pub(crate) const VARIABLES: [&str; 2] = ["LD_PRELOAD", "SHIFTED_CLOCK"];

    /// A clock that is `days` ahead; behind if negative.
    pub fn new(days: i64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("clock.c");
        std::fs::write(&source, SOURCE).unwrap();
        let shift = File::create_new(folder.path().join("shift")).unwrap();
        let clock = Self { shift, folder };
        clock.set_days(days);
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(clock.library()).arg(&source).arg("-ldl");
        assert!(compile.status().unwrap().success(), "{compile:?}");
        clock
    }

    /// Takes effect in running programs, too.
    pub fn set_days(&self, days: i64) {
        self.shift.write_all_at(&(days * DAY_SECONDS).to_ne_bytes(), 0).unwrap();
    }

    pub(crate) fn environment(&self) -> [(String, String); 2] {
        let [library, file] = [self.library(), self.folder.path().join("shift")];
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        [(Self::VARIABLES[0].into(), text(library)), (Self::VARIABLES[1].into(), text(file))]
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("clock.so")
    }
}
