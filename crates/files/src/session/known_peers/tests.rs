use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A directory that is removed with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = beside(&std::env::temp_dir().join("airdma-known"));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("known_peers")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

const DESK: PublicKey = PublicKey([1; 32]);
const PHONE: PublicKey = PublicKey([2; 32]);

fn receiver(key: PublicKey, name: &str) -> Pin {
    Pin::new(key, Role::Receiver, Place::Anywhere, name)
}

fn at(network: &str) -> Place {
    Place::Network(NetworkName::new(network).unwrap())
}

#[test]
fn peers_are_known_again_under_names_that_cannot_add_lines() {
    let folder = Folder::new();
    let path = folder.file();
    let mut peers = KnownPeers::load(&path).unwrap();
    assert_eq!(peers.pins().count(), 0);
    peers.pin(receiver(DESK, "desk in the hall"), true);
    let third = PublicKey([3; 32]);
    let evil = format!("x\n{third} receiver - desk");
    peers.pin(receiver(PHONE, &evil), true);
    peers.save(&path).unwrap();
    let mut loaded = KnownPeers::load(&path).unwrap();
    assert!(loaded.pins().eq(peers.pins()));
    assert_eq!(
        loaded.name(&DESK, &[Role::Receiver]),
        Some("desk in the hall")
    );
    assert!(!loaded.knows(&third, Role::Receiver));
    let named = |peers: &KnownPeers, name| peers.keys(Role::Receiver, &Place::Anywhere, name);
    assert_eq!(named(&loaded, "Desk in the Hall"), [DESK]);
    loaded.forget(&DESK);
    loaded.save(&path).unwrap();
    assert_eq!(
        named(&KnownPeers::load(&path).unwrap(), "desk in the hall"),
        []
    );
}

#[test]
fn who_sent_is_no_receiver_and_an_address_is_none_elsewhere() {
    let mut peers = KnownPeers::default();
    let address = "192.168.1.5";
    peers.pin(
        Pin::new(PHONE, Role::Sender, Place::Anywhere, address),
        false,
    );
    peers.pin(Pin::new(DESK, Role::Receiver, at("home"), address), true);
    assert!(peers.knows(&PHONE, Role::Sender) && !peers.knows(&PHONE, Role::Receiver));
    assert!(peers.knows(&DESK, Role::Receiver) && !peers.knows(&DESK, Role::Sender));
    let keys = |place| peers.keys(Role::Receiver, &place, address);
    assert_eq!(keys(at("home")), [DESK]);
    assert_eq!(keys(at("cafe")), []);
    assert_eq!(keys(Place::Anywhere), []);
    assert_eq!(peers.name(&PHONE, &[Role::Receiver]), None);
}

#[test]
fn a_peer_may_have_many_names_and_a_name_is_reassigned() {
    let mut peers = KnownPeers::default();
    assert_eq!(peers.pin(receiver(DESK, "desk"), true), []);
    assert_eq!(peers.pin(receiver(DESK, "Anna"), true), []);
    assert_eq!(peers.pin(receiver(DESK, "anna"), true), [], "the same one");
    assert_eq!(peers.pin(receiver(PHONE, "ANNA"), true), [DESK]);
    let keys = |name| peers.keys(Role::Receiver, &Place::Anywhere, name);
    assert_eq!(keys("desk"), [DESK]);
    assert_eq!(keys("anna"), [PHONE]);
    peers.pin(receiver(DESK, "anna"), false);
    let keys = |name| peers.keys(Role::Receiver, &Place::Anywhere, name);
    assert_eq!(keys("anna"), [DESK, PHONE]);
}

#[test]
fn lines_that_say_nothing_are_told_kept_and_lock_nobody_out() {
    let good = receiver(DESK, "desk").to_string();
    let former = format!("{PHONE} phone");
    let text = format!("# mine\n{former}\n\n{good}\nno key\n{DESK} receiver a\u{e9} x\n");
    let bytes = [text.as_bytes(), b"\xff\n"].concat();
    let peers = KnownPeers::parse(&bytes);
    assert_eq!(peers.pins().count(), 1);
    assert_eq!(peers.bad_lines().collect::<Vec<_>>(), [2, 5, 6, 7]);
    let written = peers.to_bytes();
    for kept in ["# mine\n", &former, &good, "no key\n"] {
        assert!(String::from_utf8_lossy(&written).contains(kept), "{kept}");
    }
    assert_eq!(KnownPeers::parse(&written).to_bytes(), written);
}

#[test]
fn a_file_that_others_may_write_is_refused() {
    let folder = Folder::new();
    let path = folder.file();
    let refused = |words: &str| {
        let error = KnownPeers::load(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains(words), "{error}");
    };
    let mut peers = KnownPeers::default();
    peers.pin(receiver(DESK, "desk"), true);
    peers.save(&path).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o600);
    for mode in [0o620, 0o602, 0o666] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        refused("other users may write it");
    }
    let elsewhere = folder.0.join("elsewhere");
    std::fs::rename(&path, &elsewhere).unwrap();
    std::fs::set_permissions(&elsewhere, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
    refused("symbolic link");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused("not a regular file");
    std::fs::remove_dir(&path).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    refused("not a regular file");
}

#[test]
fn an_overlong_file_is_neither_read_nor_written() {
    let folder = Folder::new();
    let path = folder.file();
    let file = File::create(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = KnownPeers::load(&path).unwrap_err();
    assert!(error.to_string().contains("more than"), "{error}");
    let mut peers = KnownPeers::parse(&vec![b'#'; KNOWN_PEERS_BYTES_MAX as usize - 1]);
    peers.pin(receiver(DESK, "desk"), true);
    let error = peers.save(&path).unwrap_err();
    assert!(error.to_string().contains("full"), "{error}");
}
