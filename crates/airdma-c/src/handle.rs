//! Pointers that C passes, checked as far as that is possible: null is a mistake that is told, not a crash.

use crate::failure::Failure;
use std::ffi::{CStr, c_char};

/// # Safety
/// Null, or a handle that is alive for `'a`.
pub unsafe fn borrow<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| null(what))
}

/// # Safety
/// Null, or a handle that is alive for `'a`, and used by nobody else meanwhile.
pub unsafe fn borrow_mut<'a, T>(handle: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { handle.as_mut() }.ok_or_else(|| null(what))
}

/// Takes what the caller's variable points to, which is null from now on.
///
/// # Safety
/// Null, or a variable that holds null or a handle of this library's.
pub unsafe fn take<T>(variable: *mut *mut T, what: &str) -> Result<Box<T>, Failure> {
    // SAFETY: the caller's promise.
    let held = unsafe { variable.as_mut() }.ok_or_else(|| null(what))?;
    if held.is_null() {
        return Err(null(what));
    }
    let handle = std::mem::replace(held, std::ptr::null_mut());
    // SAFETY: handles come from `Box::into_raw`, and this one is nobody else's: the variable was its place.
    Ok(unsafe { Box::from_raw(handle) })
}

/// Before a call does anything else: sets the caller's variable to null, which it stays unless the call has something to give.
///
/// # Safety
/// Null, or a variable of the caller's.
pub unsafe fn vacate<T>(variable: *mut *mut T) -> Result<(), Failure> {
    // SAFETY: the caller's promise; what it held, if anything, is not looked at.
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
/// Null, or a handle of this library's that is used no more.
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

/// What a call's result goes to.
pub const PLACE: &str = "place for the result";

fn null(what: &str) -> Failure {
    Failure::you(&format!(
        "no {what}: the pointer is NULL; was it given away, freed, or never made?"
    ))
}
