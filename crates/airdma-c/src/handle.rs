//! Checks of pointers from C, as far as possible: null is an error, not a crash.

use crate::failure::Failure;
use std::ffi::{CStr, c_char};

/// # Safety
/// Null, or a handle that is alive for `'a`.
pub unsafe fn borrow<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// # Safety
/// Null, or a handle that is alive for `'a`, and not used otherwise meanwhile.
pub unsafe fn borrow_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_mut() }.ok_or_else(|| null(what))
}

/// Takes the handle out of the caller's variable, which is null from then on.
///
/// # Safety
/// Null, or a variable that holds null or a handle of this library.
pub unsafe fn take<T>(variable: *mut *mut T, what: &str) -> Result<Box<T>, Failure> {
    // SAFETY: the caller's promise.
    let held = unsafe { variable.as_mut() }.ok_or_else(|| null(what))?;
    if held.is_null() {
        return Err(null(what));
    }
    let handle = std::mem::replace(held, std::ptr::null_mut());
    // SAFETY: handles come from `Box::into_raw`, and this one has no other owner: the variable held
    // it.
    Ok(unsafe { Box::from_raw(handle) })
}

/// Sets the caller's variable to null before a call does anything else.
///
/// # Safety
/// Null, or a variable of the caller.
pub unsafe fn vacate<T>(variable: *mut *mut T) -> Result<(), Failure> {
    // SAFETY: the caller's promise; the old value is not read.
    let place = unsafe { variable.as_mut() }.ok_or_else(|| null(PLACE))?;
    *place = std::ptr::null_mut();
    Ok(())
}

/// Puts a new handle into the caller's variable.
///
/// # Safety
/// Null, or a variable of the caller's.
pub unsafe fn give<T>(variable: *mut *mut T, value: T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let place = unsafe { variable.as_mut() }.ok_or_else(|| null(PLACE))?;
    *place = Box::into_raw(Box::new(value));
    Ok(())
}

/// Frees a handle, unless it is null.
///
/// # Safety
/// Null, or a handle of this library that is not used any more.
pub unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: handles come from `Box::into_raw`; the caller's promise.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// # Safety
/// Null, or a string with its end.
pub unsafe fn text<'a>(string: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if string.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller's promise.
    let string = unsafe { CStr::from_ptr(string) };
    let wrong = |_| Failure::you(&format!("the {what} is no UTF-8 text"));
    string.to_str().map_err(wrong)
}

/// Name of a call's result parameter.
pub const PLACE: &str = "place for the result";

fn null(what: &str) -> Failure {
    Failure::you(&format!(
        "no {what}: the pointer is NULL; was it given away, freed, or never made?"
    ))
}
