//! The program that a command starts: its file, its interpreter, and whether the loader will honour
//! `LD_PRELOAD`.

use std::env;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::elf::{Elf, Machine};

/// The program of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file of the command, then its interpreters; the loader sees the last one.
    pub files: Vec<PathBuf>,
    /// The last file; `None` if it is not readable.
    pub elf: Option<Elf>,
    /// Why the preload will not be in it.
    pub deaf: Option<Deaf>,
}

/// Why a preload does not reach a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deaf {
    /// It has no loader.
    Static,
    /// It is for another processor.
    Foreign,
    /// It is linked with another C library than airdma's.
    OtherLibc,
    /// It changes user or group when it starts.
    SetId,
    /// It gains capabilities when it starts.
    Capabilities,
}

impl Program {
    /// Finds the program of a command, in `PATH` if it has no slash.
    ///
    /// # Errors
    /// With a message: `NotFound`; `PermissionDenied` if it is not executable; those of reading.
    pub fn find(command: &OsStr) -> io::Result<Program> {
        let mut files = vec![resolve(command)?];
        while let Some(next) = interpreter(&files[files.len() - 1]) {
            let next = resolve(&next).map_err(|error| {
                let message = format!("{}: interpreter {error}", files[files.len() - 1].display());
                io::Error::new(error.kind(), message)
            })?;
            files.push(next);
            if files.len() > SCRIPTS_MAX {
                break;
            }
        }
        let last = &files[files.len() - 1];
        let elf = Elf::read(last).ok().flatten();
        let deaf = deaf(last, elf.as_ref())?;
        Ok(Program { files, elf, deaf })
    }

    /// The file that the loader sees.
    pub fn last(&self) -> &Path {
        &self.files[self.files.len() - 1]
    }

    /// Whether a preload ends the program, and with it whatever it was meant for: musl's loader
    /// starts nothing with a library of glibc's.
    pub fn ends_by_preload(&self) -> bool {
        self.deaf == Some(Deaf::OtherLibc)
    }

    /// Name of the command.
    pub fn name(&self) -> &OsStr {
        self.files[0].file_name().unwrap_or_default()
    }
}

/// The file of a command.
fn resolve(command: &OsStr) -> io::Result<PathBuf> {
    let shown = command.to_string_lossy();
    if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        return match fs::metadata(&path) {
            Ok(metadata) if is_executable(&metadata) => Ok(path),
            Ok(_) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!("{shown}: not an executable file (chmod +x)"),
            )),
            Err(error) => Err(io::Error::new(error.kind(), format!("{shown}: {error}"))),
        };
    }
    let path = env::var_os("PATH").unwrap_or_else(|| PATH_DEFAULT.into());
    let found = env::split_paths(&path)
        .map(|folder| folder.join(command))
        .find(|file| fs::metadata(file).is_ok_and(|metadata| is_executable(&metadata)));
    found.ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("{shown}: not found in PATH"),
        )
    })
}

fn is_executable(metadata: &fs::Metadata) -> bool {
    metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
}

/// The interpreter of a file that is not an ELF file.
///
/// It is named by the first line; behind `env`, the program that env starts; the shell if there is
/// none, as in execvp(3).
fn interpreter(path: &Path) -> Option<std::ffi::OsString> {
    let mut head = Vec::new();
    let file = File::open(path).ok()?;
    file.take(HEAD_LEN).read_to_end(&mut head).ok()?;
    if head.starts_with(b"\x7fELF") {
        return None;
    }
    let Some(rest) = head.strip_prefix(b"#!") else {
        return Some("/bin/sh".into());
    };
    let line = rest.split(|byte| *byte == b'\n').next()?;
    let mut words = line
        .split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let first = words.next()?;
    if Path::new(first).file_name() == Some(OsStr::new("env")) {
        let plain =
            |word: &&OsStr| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'=');
        if let Some(started) = words.find(plain) {
            return Some(started.to_owned());
        }
    }
    Some(first.to_owned())
}

/// Whether the loader of a program ignores the preload, or there is none.
fn deaf(path: &Path, elf: Option<&Elf>) -> io::Result<Option<Deaf>> {
    if let Some(elf) = elf {
        if Machine::ours()? != elf.machine {
            return Ok(Some(Deaf::Foreign));
        }
        match &elf.interpreter {
            None => return Ok(Some(Deaf::Static)),
            Some(loader) if loader.contains("ld-musl") => return Ok(Some(Deaf::OtherLibc)),
            Some(_) => {}
        }
    }
    let metadata = fs::metadata(path)?;
    let mode = metadata.mode();
    // SAFETY: these have no arguments and cannot fail.
    let (user, group) = unsafe { (libc::getuid(), libc::getgid()) };
    let other_user = mode & libc::S_ISUID != 0 && metadata.uid() != user;
    let other_group =
        mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0 && metadata.gid() != group;
    // Root has all capabilities in any case.
    let capable = user != 0 && has_capabilities(path);
    if !(other_user || other_group || capable) || are_ignored(path) {
        return Ok(None);
    }
    Ok(Some(if capable {
        Deaf::Capabilities
    } else {
        Deaf::SetId
    }))
}

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: NUL-terminated strings; without a buffer only the length is returned.
    unsafe {
        libc::getxattr(
            path.as_ptr(),
            c"security.capability".as_ptr(),
            std::ptr::null_mut(),
            0,
        ) > 0
    }
}

/// Whether the kernel ignores setuid bits and capabilities of this file: by mount option, or by
/// prctl(2).
fn are_ignored(path: &Path) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if status.lines().any(|line| line == "NoNewPrivs:\t1") {
        return true;
    }
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let mut volume = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a NUL-terminated string; the struct is filled if the result is 0.
    unsafe {
        libc::statvfs(path.as_ptr(), volume.as_mut_ptr()) == 0
            && volume.assume_init().f_flag & libc::ST_NOSUID != 0
    }
}

/// Most nested scripts, as in the kernel.
const SCRIPTS_MAX: usize = 5;
const HEAD_LEN: u64 = 256;
const PATH_DEFAULT: &str = "/bin:/usr/bin";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = env::temp_dir().join(format!("airdma-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn file(&self, name: &str, text: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_program_is_found_in_path_and_a_script_has_its_interpreter() {
        let shell = Program::find(OsStr::new("sh")).unwrap();
        assert_eq!((shell.files.len(), shell.deaf), (1, None));
        assert_eq!(shell.name(), "sh");
        let folder = Folder::new("program-script");
        for (name, line) in [
            ("plain", "#!/bin/sh -e"),
            ("env", "#!/usr/bin/env -S A=b sh"),
            ("none", ""),
        ] {
            let script = folder.file(name, format!("{line}\necho\n").as_bytes(), 0o755);
            let found = Program::find(script.as_os_str()).unwrap();
            assert_eq!(found.files.len(), 2, "{line}: {found:?}");
            assert_eq!(found.files[1].file_name().unwrap(), "sh");
            assert!(found.elf.unwrap().interpreter.is_some());
        }
    }

    #[test]
    fn what_cannot_be_started_is_an_error_of_its_kind() {
        let kind = |command: &OsStr| Program::find(command).unwrap_err().kind();
        assert_eq!(kind(OsStr::new("no-such-program")), io::ErrorKind::NotFound);
        let folder = Folder::new("program-error");
        let plain = folder.file("plain", b"", 0o644);
        assert_eq!(kind(plain.as_os_str()), io::ErrorKind::PermissionDenied);
        let script = folder.file("script", b"#!/nonexistent/shell\n", 0o755);
        assert_eq!(kind(script.as_os_str()), io::ErrorKind::NotFound);
        let looped = folder.0.join("loop");
        folder.file(
            "loop",
            format!("#!{}\n", looped.display()).as_bytes(),
            0o755,
        );
        assert!(Program::find(looped.as_os_str()).is_ok());
    }

    #[test]
    fn static_programs_and_other_processors_ignore_the_preload() {
        let folder = Folder::new("program-deaf");
        let mut bytes = fs::read("/proc/self/exe").unwrap();
        // Without program headers there is no loader.
        bytes[56..58].fill(0);
        let program = folder.file("static", &bytes[..4096], 0o755);
        let deaf = |path: &Path| Program::find(path.as_os_str()).unwrap().deaf;
        assert_eq!(deaf(&program), Some(Deaf::Static));
        bytes[18] ^= 0x55;
        let program = folder.file("foreign", &bytes[..4096], 0o755);
        assert_eq!(deaf(&program), Some(Deaf::Foreign));
    }

    #[test]
    fn a_program_that_becomes_somebody_else_is_deaf() {
        let folder = Folder::new("program-setid");
        let program = folder.file("program", b"", 0o755);
        fs::copy(fs::canonicalize("/bin/sh").unwrap(), &program).unwrap();
        let deaf = || Program::find(program.as_os_str()).unwrap().deaf;
        assert_eq!(deaf(), None);
        // Setuid to the same user changes nothing.
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(deaf(), None);
        if std::os::unix::fs::chown(&program, Some(12345), None).is_err() {
            eprintln!("skipped: only root gives files away");
            return;
        }
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        let expected = (!are_ignored(&program)).then_some(Deaf::SetId);
        assert_eq!(deaf(), expected);
    }
}
