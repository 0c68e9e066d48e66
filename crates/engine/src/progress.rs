//! Running a worker: the lock that polling threads and the progress thread pass on, sleeping and
//! waking.

pub(crate) mod eventfd;
pub(crate) mod poll_set;
pub(crate) mod progress_thread;
pub(crate) mod slice;
pub(crate) mod wait;
pub(crate) mod watcher;
pub(crate) mod worker_lock;
