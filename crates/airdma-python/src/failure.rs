//! Errors for Python: the classes of `airdma.errors`.

use airdma::{Blame, Error};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

static USAGE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static PEER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static NETWORK: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static HOST: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static CLOSED: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Loads the classes once; making an error then runs no Python code.
pub fn load(py: Python<'_>) -> PyResult<()> {
    for (class, name) in [
        (&USAGE, "UsageError"),
        (&PEER, "PeerError"),
        (&NETWORK, "NetworkError"),
        (&HOST, "HostError"),
        (&CLOSED, "ClosedError"),
    ] {
        class.import(py, "airdma.errors", name)?;
    }
    Ok(())
}

/// An error of the caller.
pub fn usage(py: Python<'_>, message: impl Into<String>) -> PyErr {
    raised(py, &USAGE, "UsageError", message.into())
}

/// An error of the crate, without the region, which the operation has got back.
pub fn from(py: Python<'_>, error: &Error) -> PyErr {
    let (class, name) = match error.blame() {
        _ if error.is_closed() => (&CLOSED, "ClosedError"),
        Blame::You => (&USAGE, "UsageError"),
        Blame::Peer => (&PEER, "PeerError"),
        Blame::Network => (&NETWORK, "NetworkError"),
        Blame::System => (&HOST, "HostError"),
    };
    raised(py, class, name, error.to_string())
}

/// An error of a stream.
pub fn of_stream(py: Python<'_>, error: airdma_stream::Error) -> PyErr {
    use airdma_stream::Error;
    let (class, name) = match &error {
        Error::Connection(error) => return from(py, error),
        Error::Protocol(_) | Error::NoAnswer => (&PEER, "PeerError"),
        Error::TooLong { .. } | Error::Invalid(_) | Error::NotOpen => (&USAGE, "UsageError"),
    };
    raised(py, class, name, error.to_string())
}

fn raised(py: Python<'_>, class: &PyOnceLock<Py<PyType>>, name: &str, message: String) -> PyErr {
    match class.import(py, "airdma.errors", name) {
        Ok(class) => PyErr::from_type(class.clone(), message),
        Err(error) => error,
    }
}
