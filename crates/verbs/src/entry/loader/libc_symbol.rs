//! A function of the C library, found in its table of symbols (System V ABI, chapter 5; the hash table is GNU's): for those that
//! cannot be asked for with `dlsym(3)`, because they are interposed themselves. Allocates nothing and holds no lock of ours:
//! an allocator may be the caller.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::ptr;

/// The function of that name in libc, or in libdl of a C library older than 2.34.
pub fn find(name: &CStr) -> Option<*mut c_void> {
    let mut search = Search {
        name,
        found: ptr::null_mut(),
    };
    // SAFETY: the callback has the type, and `search` lives until the call is over.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    (!search.found.is_null()).then_some(search.found)
}

struct Search<'a> {
    name: &'a CStr,
    found: *mut c_void,
}

unsafe extern "C" fn look(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: the loader's struct and name, and the caller's search.
    unsafe {
        let (info, search) = (&*info, &mut *search.cast::<Search<'_>>());
        if !is_c_library(info.dlpi_name) {
            return 0;
        }
        if let Some(tables) = Tables::of(info)
            && let Some(address) = tables.find(search.name)
        {
            search.found = address;
        }
        c_int::from(!search.found.is_null())
    }
}

/// # Safety
/// `path` is NULL or a string.
unsafe fn is_c_library(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name.starts_with(b"libc.so.") || name.starts_with(b"libdl.so.")
}

/// Where an object has its symbols.
struct Tables {
    base: usize,
    symbols: *const libc::Elf64_Sym,
    strings: *const c_char,
    hashes: *const u32,
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;

impl Tables {
    /// # Safety
    /// The loader's description of an object that stays loaded, as the C library does.
    unsafe fn of(info: &libc::dl_phdr_info) -> Option<Tables> {
        let base = usize::try_from(info.dlpi_addr).ok()?;
        let (mut symbols, mut strings, mut hashes) = (0, 0, 0);
        for number in 0..usize::from(info.dlpi_phnum) {
            // SAFETY: so many headers there are, and the dynamic section ends with a zero tag.
            unsafe {
                let header = &*info.dlpi_phdr.add(number);
                if header.p_type != libc::PT_DYNAMIC {
                    continue;
                }
                let mut entry: *const Dynamic =
                    ptr::with_exposed_provenance(base + usize::try_from(header.p_vaddr).ok()?);
                while (*entry).tag != 0 {
                    match (*entry).tag {
                        DT_SYMTAB => symbols = (*entry).value,
                        DT_STRTAB => strings = (*entry).value,
                        DT_GNU_HASH => hashes = (*entry).value,
                        _ => {}
                    }
                    entry = entry.add(1);
                }
            }
        }
        // glibc has turned offsets into addresses.
        let is_address = |value: usize| value > base;
        [symbols, strings, hashes]
            .into_iter()
            .all(is_address)
            .then(|| Tables {
                base,
                symbols: ptr::with_exposed_provenance(symbols),
                strings: ptr::with_exposed_provenance(strings),
                hashes: ptr::with_exposed_provenance(hashes),
            })
    }

    /// # Safety
    /// As [`Tables::of`].
    unsafe fn find(&self, name: &CStr) -> Option<*mut c_void> {
        // Number of buckets, first symbol that is hashed, words of the Bloom filter (8 bytes each), its shift; filter, buckets,
        // chains.
        const HEADER_WORDS: usize = 4;
        let wanted = hash(name);
        // SAFETY: the tables of a loaded object are whole: a bucket leads to a chain, which ends with an odd hash.
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
const _: () = assert!(size_of::<libc::Elf64_Sym>() == 24 && offset_of!(Dynamic, value) == 8);

/// GNU's: `h * 33 + c`, from 5381.
fn hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
    })
}
