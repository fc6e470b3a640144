//! Why the kernel did not do something, and how Python hears of it.

use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

create_exception!(
    tailrace_kernel,
    KernelError,
    PyValueError,
    "The kernel does not do this; the reference does it, or says what is wrong."
);

/// A batch goes on after an error of one of its items: most callers answer with a mark in the place of that item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes are not BSON.
    Malformed { what: &'static str, offset: usize },
    /// It is left to the reference.
    Declined(&'static str),
}

pub type Result<T> = std::result::Result<T, Error>;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Error::Malformed { what, offset } => write!(f, "{what} (offset {offset})"),
            Error::Declined(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for PyErr {
    fn from(error: Error) -> PyErr {
        KernelError::new_err(error.to_string())
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("KernelError", module.py().get_type::<KernelError>())
}
