//! Objects that are loaded, and their functions, found in their symbol tables (System V ABI,
//! chapter 5; the hash table is GNU's).
//!
//! This finds functions that cannot be looked up by `dlsym(3)`, because `dlsym` is interposed
//! itself. It calls nothing, not even `dl_iterate_phdr(3)`: ThreadSanitizer interposes that, and
//! asks `dlsym` before it works. It allocates nothing and takes no lock: the caller may be an
//! allocator.

use std::arch::asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr;

/// The part of `struct r_debug` (`link.h`) that a debugger reads.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const Object,
}

/// An object of the program's own namespace, which stays loaded if the program was linked with it.
///
/// Objects are listed in the order in which names are looked up.
#[repr(C)]
pub struct Object {
    base: usize,
    path: *const c_char,
    dynamic: *const Dynamic,
    next: *const Object,
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

unsafe extern "C" {
    static _r_debug: Debug;
}

/// All objects.
fn all() -> impl Iterator<Item = &'static Object> {
    // SAFETY: the loader writes it before any code of this library runs, and adds objects at the
    // end only.
    let first = unsafe { _r_debug.first.as_ref() };
    // SAFETY: as above.
    std::iter::successors(first, |object| unsafe { object.next.as_ref() })
}

/// The C library's function of a name. Before glibc 2.34 it may be in libdl.
pub fn in_c_library(name: &CStr) -> Option<*mut c_void> {
    all()
        .filter(|object| object.is_c_library())
        .find_map(|object| object.function(name))
}

/// The function of the next object behind this one: the C library's, or that of a library that
/// interposes it too.
pub fn next(name: &CStr) -> Option<*mut c_void> {
    let mut next = None;
    for object in all().skip_while(|object| !object.is_this()).skip(1) {
        next = next.or_else(|| object.function(name));
        if object.is_c_library() && next.is_some() {
            return next;
        }
    }
    // An object behind the C library was opened later, and may be local to the program that opened
    // it.
    in_c_library(name)
}

/// The object that holds this code.
pub fn this() -> Option<&'static Object> {
    all().find(|object| object.is_this())
}

/// The object that begins at an address.
pub fn at(base: *mut c_void) -> Option<&'static Object> {
    all().find(|object| object.base == base.addr())
}

impl Object {
    /// The last part of an object's path or soname.
    pub fn file_name(path: &CStr) -> &[u8] {
        let path = path.to_bytes();
        path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
    }

    /// Its first address.
    pub fn base(&self) -> usize {
        self.base
    }

    /// The name by which other objects are linked with it.
    pub fn soname(&self) -> Option<&CStr> {
        let (tables, soname) = (self.tables()?, self.value(DT_SONAME)?);
        // SAFETY: the table of a loaded object is whole.
        Some(unsafe { CStr::from_ptr(tables.strings.add(soname)) })
    }

    /// Its function of that name.
    pub fn function(&self, name: &CStr) -> Option<*mut c_void> {
        // SAFETY: the object is loaded.
        unsafe { self.tables()?.find(name) }
    }

    fn is_this(&self) -> bool {
        let ours: usize;
        // SAFETY: the instruction only computes an address that the linker filled in.
        unsafe { asm!("lea {}, [rip + _DYNAMIC]", out(reg) ours, options(nomem, nostack)) };
        self.dynamic.addr() == ours
    }

    fn is_c_library(&self) -> bool {
        if self.path.is_null() {
            return false;
        }
        // SAFETY: the loader's string.
        let path = unsafe { CStr::from_ptr(self.path) };
        let name = Object::file_name(path);
        name.starts_with(b"libc.so.") || name.starts_with(b"libdl.so.")
    }

    /// A value of its dynamic section.
    fn value(&self, tag: i64) -> Option<usize> {
        let mut entry = self.dynamic;
        if entry.is_null() {
            return None;
        }
        // SAFETY: the section ends with a zero tag.
        unsafe {
            while (*entry).tag != 0 {
                if (*entry).tag == tag {
                    return Some((*entry).value);
                }
                entry = entry.add(1);
            }
        }
        None
    }

    fn tables(&self) -> Option<Tables> {
        // glibc has turned offsets into addresses.
        let address = |tag| self.value(tag).filter(|value| *value > self.base);
        Some(Tables {
            base: self.base,
            symbols: ptr::with_exposed_provenance(address(DT_SYMTAB)?),
            strings: ptr::with_exposed_provenance(address(DT_STRTAB)?),
            hashes: ptr::with_exposed_provenance(address(DT_GNU_HASH)?),
        })
    }
}

/// The addresses of an object's symbol tables.
struct Tables {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    hashes: *const u32,
}

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

impl Tables {
    /// # Safety
    /// The object stays loaded.
    unsafe fn find(&self, name: &CStr) -> Option<*mut c_void> {
        // Number of buckets, first symbol that is hashed, words of the Bloom filter (8 bytes each),
        // its shift; filter, buckets, chains.
        const HEADER_WORDS: usize = 4;
        let wanted = hash(name);
        // SAFETY: the tables of a loaded object are whole: a bucket leads to a chain, which ends
        // with an odd hash.
        unsafe {
            let word = |at: usize| self.hashes.add(at).read();
            let (buckets, first, filter) = (word(0), word(1), word(2) as usize * 2);
            let bucket_at = HEADER_WORDS + filter;
            let mut number = word(bucket_at + wanted.checked_rem(buckets)? as usize);
            if number < first {
                return None;
            }
            loop {
                let chained = word(bucket_at + buckets as usize + (number - first) as usize);
                if chained | 1 == wanted | 1 {
                    let symbol = &*self.symbols.add(number as usize);
                    let is_it = CStr::from_ptr(self.strings.add(symbol.st_name as usize)) == name;
                    if is_it && symbol.st_shndx != 0 && symbol.st_info & 0xf == STT_FUNC {
                        let address = self.base + usize::try_from(symbol.st_value).ok()?;
                        return Some(ptr::with_exposed_provenance_mut(address));
                    }
                }
                if chained & 1 != 0 {
                    return None;
                }
                number += 1;
            }
        }
    }
}

const STT_FUNC: u8 = 2;
const _: () = assert!(
    size_of::<libc::Elf64_Sym>() == 24
        && offset_of!(Dynamic, value) == 8
        && offset_of!(Object, next) == 24
);

/// GNU's hash of a name: `h * 33 + c`, from 5381.
fn hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
    })
}
