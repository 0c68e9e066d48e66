//! Views of memory that a Python object keeps: its buffer protocol (PEP 3118).

use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::c_int;

/// Address and length of the memory of a view.
pub type Bytes = (*mut u8, usize);

/// Answers `__getbuffer__` of `owner`: `begin` counts a view and returns its memory, which is
/// writable or not; `end` takes back the count where Python refuses the view.
///
/// # Safety
/// `view` is null, or what Python gave to `__getbuffer__` of `owner`, and the memory stays while
/// views are counted.
pub unsafe fn give(
    owner: &Bound<'_, PyAny>,
    (view, flags): (*mut ffi::Py_buffer, c_int),
    is_writable: bool,
    begin: impl FnOnce() -> PyResult<Bytes>,
    end: impl FnOnce(),
) -> PyResult<()> {
    // A caller that releases a refused view all the same must not release what was on its stack.
    // SAFETY: the caller's promise.
    if let Some(view) = unsafe { view.as_mut() } {
        view.obj = std::ptr::null_mut();
    }
    let (start, length) = begin()?;
    let (length, is_readonly) = (length as ffi::Py_ssize_t, c_int::from(!is_writable));
    let (owner, py, start) = (owner.as_ptr(), owner.py(), start.cast());
    // SAFETY: the caller's promise.
    if unsafe { ffi::PyBuffer_FillInfo(view, owner, start, length, is_readonly, flags) } == 0 {
        return Ok(());
    }
    let error = PyErr::fetch(py);
    end();
    Err(error)
}
