//! The wall clock of a server, moved by the test: `docker/clock_shim.c`, loaded into its process.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicI64, Ordering},
};

/// Compiles the shim that moves clocks; `None` where there is no compiler.
pub fn build_shim(dir: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("docker/clock_shim.c");
    let shim = dir.join("clock_shim.so");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&shim).arg(source);
    let status = cc.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success()).then_some(shim)
}

/// The file by which the shim moves a server's wall clock.
#[derive(Debug)]
pub struct WallClock {
    path: PathBuf,
    file: File,
    offset_ms: AtomicI64,
}

impl WallClock {
    /// A clock that is right, and a file for it.
    #[track_caller]
    pub fn create(path: PathBuf) -> Self {
        fs::write(&path, 0_i64.to_ne_bytes()).expect("a clock's file");
        let file = File::options().write(true).open(&path).expect("a clock's file");
        Self { path, file, offset_ms: AtomicI64::new(0) }
    }

    /// Where the shim reads it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves it at once, forwards or back.
    #[track_caller]
    pub fn jump(&self, ms: i64) {
        let offset = self.offset_ms.fetch_add(ms, Ordering::Relaxed).saturating_add(ms);
        self.file.write_all_at(&offset.to_ne_bytes(), 0).expect("a clock's file");
    }
}
