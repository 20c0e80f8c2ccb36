//! Unix sockets between processes of one user, at paths of any length.
//!
//! A socket's address holds at most 107 bytes. A longer path is reached through a descriptor of its folder, so that a
//! socket can always be in its own folder, which may be private. The system reports the user of the peer: a listener serves
//! only its own user and root, and a client can require that the listener belongs to its own user.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};

/// The size of a socket's address without the final zero.
const MAX_ADDRESS_BYTES: usize = 107;
const ROOT: u32 = 0;

/// The users whose listener a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// For a socket that an operator has configured.
    Anyone,
    /// Only the user of this process.
    ThisUser,
}

pub async fn connect(path: &Path, peer: Peer) -> io::Result<UnixStream> {
    let address = Address::from_path(path)?;
    let stream = UnixStream::connect(&address.path).await?;
    let user = stream.peer_cred()?.uid();
    if peer == Peer::ThisUser && user != this_user() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the process behind {} belongs to another user ({user})", path.display()),
        ));
    }
    Ok(stream)
}

/// Whether this is a socket on which no process listens.
pub fn is_stale(path: &Path) -> bool {
    if !is_socket(path) {
        return false;
    }
    let connected = Address::from_path(path).and_then(|address| std::os::unix::net::UnixStream::connect(&address.path));
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Accepts connections of this user and of root.
pub struct Listener {
    socket: UnixListener,
    has_refused: AtomicBool,
}

impl Listener {
    /// Replaces a socket that another process has left, but no other file.
    pub fn bind(path: &Path) -> io::Result<Self> {
        if is_socket(path) {
            fs::remove_file(path)?;
        }
        let socket = UnixListener::bind(Address::from_path(path)?.path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        Ok(Self { socket, has_refused: AtomicBool::new(false) })
    }

    pub async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.socket.accept().await?;
            let user = stream.peer_cred()?.uid();
            if may_connect(user, this_user()) {
                return Ok(stream);
            }
            if !self.has_refused.swap(true, Ordering::Relaxed) {
                tracing::warn!(user, "refused a connection from another user's process");
            }
        }
    }
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

fn may_connect(user: u32, this_user: u32) -> bool {
    user == this_user || user == ROOT
}

fn this_user() -> u32 {
    geteuid().as_raw()
}

/// A path that fits into a socket's address.
struct Address {
    path: PathBuf,
    /// Must stay open while the path is used.
    _folder: Option<OwnedFd>,
}

impl Address {
    fn from_path(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= MAX_ADDRESS_BYTES {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let folder = open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
        Ok(Self { path, _folder: Some(folder) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    use super::*;

    const ANOTHER_USER: u32 = 65534;

    /// A folder that every user may use, with a path of at least `bytes` bytes.
    fn folder(bytes: usize) -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        fs::set_permissions(outer.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let mut inner = outer.path().to_owned();
        while inner.as_os_str().len() < bytes {
            let missing = bytes - inner.as_os_str().len();
            inner.push("f".repeat(missing.saturating_sub(1).clamp(1, 60)));
        }
        fs::create_dir_all(&inner).unwrap();
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o777)).unwrap();
        (outer, inner)
    }

    /// Runs Python as another user, as the peer of a socket.
    fn as_another_user(script: &str, path: &Path) -> Child {
        let mut command = Command::new("python3");
        command.args(["-c", script]).arg(path).uid(ANOTHER_USER).gid(ANOTHER_USER).stdin(Stdio::piped());
        command.current_dir("/").spawn().unwrap()
    }

    #[tokio::test]
    async fn sockets_work_at_paths_of_any_length() {
        for bytes in [20, 90, 100, 101, 106, 107, 108, 120, 300, 1_000] {
            let (_outer, folder) = folder(bytes);
            let path = folder.join("s");
            let listener = Listener::bind(&path).unwrap();
            assert!(fs::symlink_metadata(&path).unwrap().file_type().is_socket(), "{bytes}");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let (accepted, connected) = tokio::join!(listener.accept(), connect(&path, Peer::ThisUser));
            assert!(accepted.is_ok() && connected.is_ok(), "{bytes}: {connected:?}");
            assert!(!is_stale(&path));
            drop(listener);
            assert!(is_stale(&path));
            let _again = Listener::bind(&path).unwrap();
            assert!(!is_stale(&path));
        }
    }

    #[tokio::test]
    async fn only_a_socket_is_replaced() {
        let (_outer, folder) = folder(20);
        let (path, precious) = (folder.join("s"), folder.join("precious"));
        fs::write(&precious, "a letter").unwrap();
        fs::copy(&precious, &path).unwrap();
        assert!(Listener::bind(&path).is_err());
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        assert!(Listener::bind(&path).is_err());
        assert_eq!(fs::read_to_string(&precious).unwrap(), "a letter");
        assert!(!is_stale(&precious) && !is_stale(&folder.join("nothing")));
    }

    #[test]
    fn a_listener_serves_its_user_and_root() {
        for (user, listener, served) in
            [(1000, 1000, true), (0, 1000, true), (1001, 1000, false), (65534, 0, false), (0, 0, true)]
        {
            assert_eq!(may_connect(user, listener), served, "{user} at {listener}'s");
        }
    }

    #[tokio::test]
    #[ignore = "runs a process as another user, which only root may do; `tools/test` runs it where possible"]
    async fn another_users_process_is_neither_trusted_nor_served() {
        let (_outer, folder) = folder(120);
        let theirs = folder.join("theirs");
        let listen = "import os, socket, sys; os.chdir(os.path.dirname(sys.argv[1])); os.umask(0); \
            s = socket.socket(socket.AF_UNIX); s.bind('theirs'); s.listen(); sys.stdin.read()";
        let mut listening = as_another_user(listen, &theirs);
        while is_stale(&theirs) || !theirs.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(connect(&theirs, Peer::Anyone).await.is_ok());
        let refused = connect(&theirs, Peer::ThisUser).await.unwrap_err();
        assert!(refused.to_string().contains("65534"), "{refused}");
        drop(listening.stdin.take());
        listening.wait().unwrap();

        // Even if the file's permissions allow every user.
        let ours = folder.join("ours");
        let listener = Listener::bind(&ours).unwrap();
        fs::set_permissions(&ours, fs::Permissions::from_mode(0o777)).unwrap();
        let call = "import os, socket, sys; os.chdir(os.path.dirname(sys.argv[1])); \
            s = socket.socket(socket.AF_UNIX); s.connect('ours'); sys.exit(len(s.recv(1)))";
        let mut calling = as_another_user(call, &ours);
        let accept = async { drop(listener.accept().await) };
        let end = async {
            while calling.try_wait().unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            () = accept => panic!("a connection of another user was accepted"),
            () = end => {}
        }
        assert_eq!(calling.wait().unwrap().code(), Some(0), "it reads the end of the stream without a byte");
        let (accepted, connected) = tokio::join!(listener.accept(), connect(&ours, Peer::ThisUser));
        assert!(accepted.is_ok() && connected.is_ok());
    }
}
