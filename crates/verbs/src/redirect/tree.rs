//! The files that stand in for the kernel's, below the [runtime
//! directory](airdma_engine::runtime_dir):
//!
//! ```text
//! <network namespace>.sysfs/infiniband/airdma_eth0/ports/1/gids/0 ...
//!                           infiniband_verbs/uverbs2/ibdev ...
//!                           nodes/uverbs2 -> /dev/null
//!                           lock, new
//! ```
//!
//! All processes of a user in a network namespace share one tree (those with the loopback device,
//! `AIRDMA_LOOPBACK=1`, have their own). What an access needs is compared with what it should be,
//! and put right, before the access is led there, so addresses that come and go are seen as in the
//! kernel's files. A file is replaced as a whole, never changed under a reader. When a tree is
//! made, those that were not used for long are removed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use airdma_engine::DeviceInfo;
use airdma_engine::runtime_dir::{Locked, directory, make_directory, network_namespace, open_file};

use super::{Folder, Place, node};
use crate::sysfs;

/// Brings what is at a place and below it up to date.
///
/// # Errors
/// When there is no directory to keep it in, or it cannot be written.
pub fn bring(place: &Place<'_>, devices: &[DeviceInfo]) -> io::Result<PathBuf> {
    let root = root()?;
    let folder = folder_name(place.folder);
    // A stopped process that holds the lock must not stop this one: the files are all but surely
    // right.
    if let Ok(lock) = open_file(&root.join(LOCK), true).and_then(Locked::new) {
        // The time of the last look; without it the tree is made again tomorrow, no more.
        let _ = lock.0.set_modified(SystemTime::now());
        let wanted = Node::directory([(folder.to_owned(), content(place.folder, devices))]);
        let mut parts = vec![folder];
        parts.extend(Some(place.name).filter(|name| !name.is_empty()));
        parts.extend(place.components().unwrap_or_default());
        put_part_right(&root, &parts, &wanted)?;
    }
    let mut led = root.join(folder);
    led.push(place.name);
    // The rest keeps its slash at the end, which tells the kernel that a directory is meant.
    led.as_mut_os_string().push(place.rest);
    Ok(led)
}

const LOCK: &str = "lock";
/// The file that is about to replace another.
const NEW: &str = "new";
const SUFFIX: &str = ".sysfs";
/// A tree that was used within this time stays.
const IN_USE: Duration = Duration::from_secs(60);
/// A tree that was not used for this long is removed.
const UNUSED_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Most trees that stay: tests and containers make a network namespace each.
const TREES_MAX: usize = 16;

fn folder_name(folder: Folder) -> &'static str {
    match folder {
        Folder::Devices => "infiniband",
        Folder::Verbs => "infiniband_verbs",
        Folder::Nodes => "nodes",
    }
}

/// A file, a symbolic link or a directory, as it should be.
#[derive(Debug, PartialEq, Eq)]
enum Node {
    File(String),
    Link(PathBuf),
    Directory(BTreeMap<String, Node>),
}

impl Node {
    fn directory(children: impl IntoIterator<Item = (String, Node)>) -> Node {
        Node::Directory(children.into_iter().collect())
    }

    /// A directory of files with these paths and texts.
    fn of_files(entries: impl IntoIterator<Item = sysfs::Entry>) -> Node {
        let mut children = BTreeMap::<String, Node>::new();
        let mut folders = BTreeMap::<String, Vec<sysfs::Entry>>::new();
        for (path, text) in entries {
            match path.split_once('/') {
                Some((folder, rest)) => {
                    let inside = folders.entry(folder.to_owned()).or_default();
                    inside.push((rest.to_owned(), text));
                }
                None => {
                    children.insert(path, Node::File(text + "\n"));
                }
            }
        }
        children.extend(
            folders
                .into_iter()
                .map(|(name, inside)| (name, Node::of_files(inside))),
        );
        Node::Directory(children)
    }

    /// This node with another child, if it is a directory.
    fn with(mut self, name: &str, child: Node) -> Node {
        if let Node::Directory(children) = &mut self {
            children.insert(name.to_owned(), child);
        }
        self
    }
}

/// The content of a folder: the kernel's own entries, and airdma's.
fn content(folder: Folder, devices: &[DeviceInfo]) -> Node {
    let kernels = kernels_names(folder).into_iter().map(|name| {
        let target = Path::new(folder.path()).join(&name);
        (name, Node::Link(target))
    });
    let version = || Node::File(format!("{}\n", sysfs::VERBS_ABI_VERSION));
    let ours = devices.iter().map(|info| match folder {
        Folder::Devices => {
            let files = Node::of_files(sysfs::device_files(info));
            (info.name.clone(), files.with("device", parent(info)))
        }
        Folder::Verbs => {
            let files = Node::of_files(sysfs::verbs_files(info));
            (node(info), files.with("device", parent(info)))
        }
        Folder::Nodes => (node(info), Node::Link("/dev/null".into())),
    });
    let all = Node::directory(kernels.chain(ours));
    match folder {
        Folder::Verbs => all.with("abi_version", version()),
        Folder::Devices | Folder::Nodes => all,
    }
}

/// The kernel's own entries of a folder. The dot keeps the path from being led to the tree.
fn kernels_names(folder: Folder) -> Vec<String> {
    let path = folder.path().replacen('/', "/./", 1);
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// `device`: the directory of the hardware below the interface where it has one with all that
/// programs read there, so they see where it is in the machine; files of ours otherwise.
fn parent(info: &DeviceInfo) -> Node {
    let hardware = hardware(info);
    if let Some(path) = &hardware
        && path.join("numa_node").exists()
        && path.join("net").join(&info.interface).exists()
    {
        return Node::Link(path.clone());
    }
    // A virtio interface, for one: the PCI device above it knows.
    let above = hardware.as_deref().and_then(Path::parent);
    let numa_node = above.and_then(|path| fs::read_to_string(path.join("numa_node")).ok());
    Node::of_files(sysfs::parent_files(
        info,
        numa_node.and_then(|text| text.trim().parse().ok()),
    ))
}

/// The directory of the hardware below an interface.
fn hardware(info: &DeviceInfo) -> Option<PathBuf> {
    let interface = Path::new("/sys/class/net").join(&info.interface);
    // The /sys that we see may be that of another network namespace, with another interface of this
    // name.
    let says = |file: &str| fs::read_to_string(interface.join(file)).ok();
    let mac: Vec<_> = info.mac.iter().map(|byte| format!("{byte:02x}")).collect();
    let is_it = says("ifindex")?.trim() == info.interface_index.to_string()
        && says("address")?.trim() == mac.join(":");
    is_it.then(|| interface.join("device").canonicalize().ok())?
}

/// The tree of this network namespace; made if need be.
fn root() -> io::Result<PathBuf> {
    let directory = directory()?;
    let loopback = std::env::var_os("AIRDMA_LOOPBACK").is_some_and(|value| value == "1");
    let kind = if loopback { "-lo" } else { "" };
    let root = directory.join(format!("{}{kind}{SUFFIX}", network_namespace()?));
    if !root.is_dir() {
        remove_unused(&directory);
    }
    make_directory(&root)?;
    Ok(root)
}

/// Removes the trees that are not used any more.
fn remove_unused(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    let unused_for = |path: &Path| {
        let used = fs::metadata(path.join(LOCK)).and_then(|metadata| metadata.modified());
        used.ok().and_then(|used| used.elapsed().ok())
    };
    let mut trees: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension() == Some(OsStr::new(&SUFFIX[1..])))
        .filter_map(|path| Some((unused_for(&path)?, path)))
        .collect();
    trees.sort();
    for (rank, (age, path)) in trees.into_iter().enumerate() {
        if age > UNUSED_MAX || rank >= TREES_MAX && age > IN_USE {
            // Another process may be removing it too.
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Puts right what is at the end of a path below `root`, where `wanted` is what should be in
/// `root`.
fn put_part_right(root: &Path, parts: &[&str], wanted: &Node) -> io::Result<()> {
    let mut at = root.to_owned();
    let mut wanted = wanted;
    for (index, part) in parts.iter().enumerate() {
        // A path through a file or out of the tree ends here, and the kernel tells the caller.
        let Node::Directory(children) = wanted else {
            return put_right(root, &at, wanted);
        };
        if index > 0 {
            make_plain_directory(&at)?;
        }
        at.push(part);
        match children.get(*part) {
            Some(child) => wanted = child,
            None => return remove(&at),
        }
    }
    put_right(root, &at, wanted)
}

fn put_right(root: &Path, at: &Path, wanted: &Node) -> io::Result<()> {
    match wanted {
        Node::File(text) => {
            let is_file = fs::symlink_metadata(at).is_ok_and(|metadata| metadata.is_file());
            if is_file && fs::read(at).is_ok_and(|found| found == text.as_bytes()) {
                return Ok(());
            }
            let new = root.join(NEW);
            remove(&new)?;
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o444);
            options.open(&new)?.write_all(text.as_bytes())?;
            replace(&new, at)
        }
        Node::Link(target) => {
            if fs::read_link(at).is_ok_and(|found| found == *target) {
                return Ok(());
            }
            let new = root.join(NEW);
            remove(&new)?;
            symlink(target, &new)?;
            replace(&new, at)
        }
        Node::Directory(children) => {
            make_plain_directory(at)?;
            for entry in fs::read_dir(at)? {
                let name = entry?.file_name();
                if !name
                    .to_str()
                    .is_some_and(|name| children.contains_key(name))
                {
                    remove(&at.join(name))?;
                }
            }
            children
                .iter()
                .try_for_each(|(name, child)| put_right(root, &at.join(name), child))
        }
    }
}

fn make_plain_directory(at: &Path) -> io::Result<()> {
    if fs::symlink_metadata(at).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    remove(at)?;
    DirBuilder::new().mode(0o755).create(at)
}

fn replace(new: &Path, at: &Path) -> io::Result<()> {
    if fs::symlink_metadata(at).is_ok_and(|metadata| metadata.is_dir()) {
        remove(at)?;
    }
    fs::rename(new, at)
}

/// Removes whatever is there, if anything.
fn remove(at: &Path) -> io::Result<()> {
    let result = match fs::symlink_metadata(at) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(at),
        Ok(_) => fs::remove_file(at),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of this test's own.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("airdma-test-{}-tree-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            make_directory(&path).unwrap();
            Directory(path)
        }

        fn read(&self, file: &str) -> Option<String> {
            fs::read_to_string(self.0.join(file)).ok()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    fn files(entries: &[(&str, &str)]) -> Node {
        let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Node::of_files(entries.iter().map(owned))
    }

    #[test]
    fn a_directory_becomes_what_it_should_be() {
        let root = Directory::new("becomes");
        let at = root.0.join("x");
        let first = files(&[("a", "1"), ("b/c", "2"), ("b/d", "3"), ("gone/e", "4")]);
        put_right(&root.0, &at, &first).unwrap();
        assert_eq!(root.read("x/b/d").unwrap(), "3\n");
        let second =
            files(&[("a/now/deep", "1"), ("b", "5")]).with("l", Node::Link("/dev/null".into()));
        put_right(&root.0, &at, &second).unwrap();
        assert_eq!(root.read("x/a/now/deep").unwrap(), "1\n");
        assert_eq!(root.read("x/b").unwrap(), "5\n");
        assert_eq!(root.read("x/l").unwrap(), "");
        assert!(!at.join("gone").exists());
        put_right(&root.0, &at, &first).unwrap();
        assert_eq!(root.read("x/a").unwrap(), "1\n");
    }

    #[test]
    fn only_the_part_that_is_asked_for_is_put_right() {
        let root = Directory::new("part");
        let wanted = files(&[("f/a", "1"), ("f/b/c", "2"), ("f/b/d", "3")]);
        put_part_right(&root.0, &["f", "b", "c"], &wanted).unwrap();
        assert_eq!(root.read("f/b/c").unwrap(), "2\n");
        assert_eq!((root.read("f/b/d"), root.read("f/a")), (None, None));
        fs::write(root.0.join("f/stale"), "").unwrap();
        put_part_right(&root.0, &["f", "stale"], &wanted).unwrap();
        assert!(!root.0.join("f/stale").exists());
        put_part_right(&root.0, &["f", "a", "below"], &wanted).unwrap();
        assert_eq!(root.read("f/a").unwrap(), "1\n");
    }

    #[test]
    fn links_in_the_way_are_replaced_not_followed() {
        let root = Directory::new("links");
        let victim = root.0.join("victim");
        fs::write(&victim, "mine").unwrap();
        symlink(&victim, root.0.join("file")).unwrap();
        put_right(&root.0, &root.0.join("file"), &Node::File("x".into())).unwrap();
        symlink(&root.0, root.0.join("folder")).unwrap();
        put_right(&root.0, &root.0.join("folder"), &files(&[])).unwrap();
        assert_eq!(root.read("victim").unwrap(), "mine");
        assert_eq!(root.read("file").unwrap(), "x");
    }

    #[test]
    fn trees_of_long_ago_are_removed() {
        let parent = Directory::new("old");
        for (name, age) in [
            ("1.sysfs", 2 * UNUSED_MAX),
            ("2.sysfs", UNUSED_MAX / 2),
            ("3.other", 2 * UNUSED_MAX),
        ] {
            let tree = parent.0.join(name);
            make_directory(&tree).unwrap();
            let lock = open_file(&tree.join(LOCK), true).unwrap();
            lock.set_modified(SystemTime::now() - age).unwrap();
        }
        remove_unused(&parent.0);
        let left = |name: &str| parent.0.join(name).exists();
        assert!(!left("1.sysfs") && left("2.sysfs") && left("3.other"));
    }

    #[test]
    fn of_many_trees_the_latest_stay_and_those_in_use() {
        let parent = Directory::new("many");
        let make = |name: String, age: Duration| {
            let tree = parent.0.join(name);
            make_directory(&tree).unwrap();
            let lock = open_file(&tree.join(LOCK), true).unwrap();
            lock.set_modified(SystemTime::now() - age).unwrap();
        };
        for number in 0..2 * TREES_MAX {
            make(
                format!("old{number}.sysfs"),
                2 * IN_USE + Duration::from_secs(number as u64),
            );
            make(format!("new{number}.sysfs"), IN_USE / 2);
        }
        remove_unused(&parent.0);
        let left = |prefix: &str| {
            let names = fs::read_dir(&parent.0)
                .unwrap()
                .map(|entry| entry.unwrap().file_name());
            names
                .filter(|name| name.to_str().unwrap().starts_with(prefix))
                .count()
        };
        assert_eq!((left("old"), left("new")), (0, 2 * TREES_MAX));
        for number in 0..2 * TREES_MAX {
            fs::remove_dir_all(parent.0.join(format!("new{number}.sysfs"))).unwrap();
            make(
                format!("old{number}.sysfs"),
                2 * IN_USE + Duration::from_secs(number as u64),
            );
        }
        remove_unused(&parent.0);
        assert_eq!(left("old"), TREES_MAX);
        assert!(parent.0.join("old0.sysfs").exists());
    }
}
