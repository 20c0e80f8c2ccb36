//! The release archive, and the image that is made of it alone, run like a container: with its own read-only root, without
//! capabilities, as an ordinary user.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use testbed::{Connection, Output, Request, Response, chat_body, free_port};

use crate::ADRIATICUM;

const USER: u32 = 65532;

#[test]
#[ignore = "needs root; `tools/test` runs it then"]
fn the_image_answers_from_a_read_only_root_as_an_ordinary_user() {
    let folder = tempfile::tempdir().unwrap();
    let image = Image::made_in(folder.path());
    let container = Container::new(&image, folder);

    let key = container.run_ok(&["keys", "create", "test"]);
    let serving = container.serve();
    let health = image.strings("/Healthcheck/Test");
    ADRIATICUM
        .wait_for("the health check of the image", || (container.output(&health[1..]).code == Some(0)).then_some(()));
    let answer = ADRIATICUM.wait_for("an answer", || {
        let response = container.ask(key.trim_end());
        (response.status == 200).then_some(response)
    });
    assert!(!answer.completion().content.is_empty());
    serving.assert_has_no_privileges();
}

/// What the archive's folder and the image hold.
struct Image {
    root: PathBuf,
    config: Value,
}

impl Image {
    fn made_in(folder: &Path) -> Self {
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools");
        let [public, secret] = ["minisign.pub", "minisign.key"].map(|name| folder.join(name));
        run(Command::new("minisign").args(["-G", "-W", "-p"]).arg(&public).arg("-s").arg(&secret));
        let mut release = Command::new(tools.join("release"));
        run(release.args(["--binary", ADRIATICUM.binary(), "--to"]).arg(folder).arg("--sign").arg(&secret));
        let verify = "minisign -V -p minisign.pub -m SHA256SUMS && sha256sum --check SHA256SUMS";
        run(Command::new("sh").args(["-c", verify]).current_dir(folder));
        fs::write(folder.join("SHA256SUMS"), "").unwrap();
        let forged = Command::new("sh").args(["-c", verify]).current_dir(folder).output().unwrap();
        assert!(!forged.status.success(), "a changed checksum has no valid signature");
        let archive = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let archive = archive.filter(|path| path.extension().is_some_and(|end| end == "gz")).last().unwrap();
        let file = folder.join("image.tar");
        run(Command::new(tools.join("image")).arg(archive).arg(&file));

        let (unpacked, root) = (folder.join("image"), folder.join("root"));
        unpack(&file, &unpacked);
        let read = |name: &str| serde_json::from_slice::<Value>(&fs::read(unpacked.join(name)).unwrap()).unwrap();
        let manifest = read("manifest.json");
        for layer in manifest[0]["Layers"].as_array().unwrap() {
            unpack(&unpacked.join(layer.as_str().unwrap()), &root);
        }
        let config = read(manifest[0]["Config"].as_str().unwrap())["config"].take();
        Self { root, config }
    }

    fn strings(&self, pointer: &str) -> Vec<String> {
        let list = self.config.pointer(pointer).unwrap().as_array().unwrap();
        list.iter().map(|text| text.as_str().unwrap().to_owned()).collect()
    }
}

/// Runs the image's program as a container engine would.
struct Container<'a> {
    image: &'a Image,
    api: SocketAddr,
    settings: Vec<String>,
    folder: TempDir,
}

impl<'a> Container<'a> {
    fn new(image: &'a Image, folder: TempDir) -> Self {
        assert_eq!(image.config["User"], format!("{USER}:{USER}"));
        // Container engines create the mount points.
        for place in ["proc", "dev"] {
            fs::create_dir(image.root.join(place)).unwrap();
        }
        let data = folder.path().join("volume");
        fs::create_dir(&data).unwrap();
        fs::copy(ADRIATICUM.default_model(), data.join("model.gguf")).unwrap();
        for path in [&data, &data.join("model.gguf")] {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
        // The default ports of this machine may be in use.
        let [api, console, ops] = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let settings = [("API", api), ("CONSOLE", console), ("OPS", ops)];
        let settings = settings.map(|(part, address)| format!("ADRIATICUM_{part}_LISTEN={address}"));
        let settings = image.strings("/Env").into_iter().chain(settings).collect();
        Self { image, api, settings, folder }
    }

    fn command(&self, command: &[String]) -> Command {
        const SCRIPT: &str = "set -e
            root=$1 volume=$2; shift 2
            mount --bind $root $root
            mount --bind $volume $root/data
            mount --rbind /proc $root/proc
            mount --rbind /dev $root/dev
            mount -o remount,bind,ro $root
            exec setpriv --no-new-privs --bounding-set=-all,+setuid,+setgid,+sys_chroot \
                chroot --userspec=65532:65532 --groups= $root \"$@\"";
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]);
        unshare.arg(&self.image.root).arg(self.folder.path().join("volume"));
        unshare.args(command).env_clear();
        // The shell finds its programs by the image's `PATH`.
        unshare.envs(self.settings.iter().filter_map(|setting| setting.split_once('=')));
        unshare
    }

    fn output(&self, command: &[String]) -> Output {
        Output::from_command(&mut self.command(command))
    }

    fn run_ok(&self, arguments: &[&str]) -> String {
        let command =
            self.image.strings("/Entrypoint").into_iter().chain(arguments.iter().map(|text| (*text).to_owned()));
        let output = self.output(&command.collect::<Vec<_>>());
        assert_eq!(output.code, Some(0), "{output:?}");
        output.stdout
    }

    fn serve(&self) -> Serving {
        let command = [self.image.strings("/Entrypoint"), self.image.strings("/Cmd")].concat();
        Serving(self.command(&command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn ask(&self, key: &str) -> Response {
        let request = Request::chat(key, chat_body("What is the capital of France?"));
        Connection::connect(self.api).with_timeout(ADRIATICUM.timeout()).send(request.bytes()).response()
    }
}

struct Serving(Child);

impl Serving {
    /// The service and its engine.
    fn assert_has_no_privileges(&self) {
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
        let statuses = all.filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
        let of_image = statuses.filter(|status| status.contains(&format!("Uid:\t{USER}\t{USER}\t{USER}\t{USER}")));
        let mut seen = 0;
        for status in of_image {
            for line in ["CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"] {
                assert!(status.contains(line), "{line}: {status}");
            }
            seen += 1;
        }
        assert!(seen >= 2, "a service and an engine run: {seen}");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn unpack(file: &Path, folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    run(Command::new("tar").args(["--extract", "--file"]).arg(file).arg("--directory").arg(folder));
}

fn run(command: &mut Command) {
    let output = Output::from_command(command);
    assert_eq!(output.code, Some(0), "{command:?}: {output:?}");
}
