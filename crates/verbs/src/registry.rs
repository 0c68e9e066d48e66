//! Objects that another context of this process may import by handle (`ibv_import_device(3)`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Objects of one kind by handle. Handles are never used twice, so what is gone is not found.
pub struct Registry<T> {
    objects: Mutex<BTreeMap<u32, Weak<T>>>,
}

impl<T> Registry<T> {
    /// An empty one.
    pub const fn new() -> Self {
        Registry {
            objects: Mutex::new(BTreeMap::new()),
        }
    }

    /// From now on `handle` stands for `object`.
    pub fn enter(&self, handle: u32, object: &Arc<T>) {
        self.lock().insert(handle, Arc::downgrade(object));
    }

    /// `handle` stands for nothing any more.
    pub fn leave(&self, handle: u32) {
        self.lock().remove(&handle);
    }

    /// Forgets the handles of objects that are gone.
    pub fn prune(&self) {
        self.lock().retain(|_, object| object.strong_count() > 0);
    }

    /// The object of a handle.
    pub fn find(&self, handle: u32) -> Option<Arc<T>> {
        self.lock().get(&handle)?.upgrade()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<T>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_finds_its_object_while_that_lives() {
        let registry = Registry::new();
        let object = Arc::new(5);
        registry.enter(1, &object);
        assert_eq!(registry.find(1), Some(Arc::clone(&object)));
        assert_eq!(registry.find(2), None);
        registry.leave(1);
        assert_eq!(registry.find(1), None);
        registry.enter(3, &object);
        drop(object);
        assert_eq!(registry.find(3), None);
        registry.prune();
        assert!(registry.lock().is_empty());
    }
}
