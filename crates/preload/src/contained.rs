//! The boundary between Rust and C.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a C function. A panic does not unwind into C: `panicked` answers in its place.
///
/// The body keeps its state behind locks that recover from poisoning: the C caller observes a
/// half-done call through its error only.
#[inline]
pub fn contained<R>(body: impl FnOnce() -> R, panicked: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| panicked())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_answered_in_place_of_the_body() {
        assert_eq!(contained(|| 1, || 2), 1);
        // The default hook prints the panic.
        assert_eq!(contained(|| panic!("on purpose"), || 2), 2);
    }
}
