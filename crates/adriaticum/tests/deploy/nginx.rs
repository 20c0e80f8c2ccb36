//! nginx, in front of replicas or of runtimes.

use std::fmt::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;
use testbed::free_port;

use crate::ADRIATICUM;
use crate::folder::deploy;

pub(crate) struct Nginx {
    process: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Nginx {
    /// With the configuration in `deploy/nginx`, in which only ports, certificates and replicas are changed.
    pub(crate) fn in_front_of(replicas: &[SocketAddr]) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let site = site_of_replicas(folder.path(), port, replicas);
        Self::start(folder, port, &site)
    }

    /// With few requests for each connection.
    pub(crate) fn in_front_of_runtimes(runtimes: &[SocketAddr]) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let servers: String = runtimes.iter().map(|address| format!("server {address};\n")).collect();
        let site = format!(
            "upstream runtimes {{\n{servers}keepalive 8;\n}}\n\
             server {{\nlisten 127.0.0.1:{port};\nkeepalive_requests 20;\nlocation / {{\nproxy_pass http://runtimes;\n\
             proxy_http_version 1.1;\nproxy_set_header Connection '';\n}}\n}}\n"
        );
        Self::start(folder, port, &site)
    }

    fn start(folder: TempDir, port: u16, site: &str) -> Self {
        let file = configure(folder.path(), site);
        // Debian installs it here, which may not be in `PATH`.
        let debian = Path::new("/usr/sbin/nginx");
        let mut command = Command::new(if debian.exists() { debian } else { Path::new("nginx") });
        command.arg("-p").arg(folder.path()).arg("-c").arg(file).arg("-e").arg(folder.path().join("error.log"));
        let test = command.arg("-t").output().expect("nginx, which `tools/prepare --tests` installs");
        assert!(test.status.success(), "{}", String::from_utf8_lossy(&test.stderr));
        let process = Command::new(command.get_program())
            .args(command.get_args().filter(|argument| *argument != "-t"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        ADRIATICUM.wait_for("nginx", || TcpStream::connect(address).ok());
        Self { process, address, folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// nginx's error log, for the message of a failed test.
    pub(crate) fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("error.log")).unwrap()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM also ends its workers.
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.process.wait();
    }
}

fn site_of_replicas(folder: &Path, port: u16, replicas: &[SocketAddr]) -> String {
    for host in ["api.example.com", "console.example.com"] {
        let (key, certificate) = (folder.join(format!("{host}.key")), folder.join(format!("{host}.crt")));
        let mut openssl = Command::new("openssl");
        openssl.args([
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        ]);
        openssl.arg("-subj").arg(format!("/CN={host}")).arg("-addext").arg(format!("subjectAltName=DNS:{host}"));
        openssl.arg("-keyout").arg(key).arg("-out").arg(certificate);
        assert!(openssl.stderr(Stdio::null()).status().unwrap().success());
    }
    let mut site = String::new();
    let mut replicas = replicas.iter();
    for line in std::fs::read_to_string(deploy().join("nginx/adriaticum.conf")).unwrap().lines() {
        let line = match line.trim_start().split([' ', ';']).collect::<Vec<_>>().as_slice() {
            ["listen", on, ..] if on.starts_with("[::]") => continue,
            ["listen", "80", ..] => line.replace("80", &format!("127.0.0.1:{}", free_port())),
            ["listen", "443", ..] => line.replace("443", &format!("127.0.0.1:{port}")),
            ["server", replica, ..] if replica.starts_with("replica-") => match replicas.next() {
                Some(address) => line.replace(replica, &address.to_string()),
                None => continue,
            },
            _ => line.replace("/etc/nginx/tls", folder.to_str().unwrap()),
        };
        writeln!(site, "{line}").unwrap();
    }
    assert_eq!(replicas.len(), 0, "more replicas than the example has");
    site
}

/// Writes a whole configuration; its path.
fn configure(folder: &Path, site: &str) -> std::path::PathBuf {
    let shown = folder.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = temporary.map(|what| format!("{what}_temp_path {shown}/{what};\n")).concat();
    let whole = format!(
        "daemon off;\nworker_processes 2;\npid {shown}/nginx.pid;\nevents {{}}\n\
         http {{\naccess_log off;\n{temporary}{site}}}\n"
    );
    std::fs::write(folder.join("nginx.conf"), whole).unwrap();
    folder.join("nginx.conf")
}
