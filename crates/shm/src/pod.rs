//! Plain old data: types that may be copied into and out of shared memory.

pub(crate) mod sealed {
    /// Restricts [`super::Pod`] to the types of this crate.
    pub trait Sealed {}
}

/// A fixed layout of plain integers that two processes agree on.
///
/// # Safety
///
/// The type is `#[repr(C)]`, every bit pattern is a value of it, it has no padding bytes, its size
/// is a multiple of 8 and its alignment at most 8.
pub unsafe trait Pod: Copy + Send + Sync + 'static + sealed::Sealed {}

/// Implements [`Pod`] and asserts what a compiler can check.
///
/// That is: no padding (the sizes of the fields add up), whole words, alignment.
macro_rules! impl_pod {
    ($type:ident { $($field:ident : $field_type:ty),+ $(,)? }) => {
        const _: () = {
            assert!(size_of::<$type>() == 0 $(+ size_of::<$field_type>())+, "padding bytes");
            assert!(size_of::<$type>() % 8 == 0, "not whole words");
            assert!(align_of::<$type>() <= 8, "aligned beyond a word");
            // Names every field with its type, so that the list above cannot drift from the struct.
            const fn _fields(value: $type) {
                $(let _: $field_type = value.$field;)+
            }
        };
        impl $crate::pod::sealed::Sealed for $type {}
        // SAFETY: the fields are integers and arrays of integers (any bit pattern is valid), the
        // struct is `repr(C)`, and the assertions above rule out padding, partial words and larger
        // alignment.
        unsafe impl $crate::pod::Pod for $type {}
    };
}
pub(crate) use impl_pod;
