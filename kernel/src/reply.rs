//! Cuts the documents out of a cursor's reply, and finds those that hold some bytes; see `tailrace.raw.documents`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::bson::{self, document_length};
use crate::error::{Error, Result};

/// Cut an array of documents, which begins at `start`, into its documents.
#[pyfunction]
fn slice_documents<'py>(py: Python<'py>, reply: &[u8], start: usize) -> PyResult<Bound<'py, PyList>> {
    let documents = documents(reply.get(start..).unwrap_or_default())?;
    PyList::new(py, documents.into_iter().map(|document| PyBytes::new(py, document)))
}

/// Give the places of the documents that hold the bytes of `needle` anywhere.
#[pyfunction]
fn documents_with(py: Python<'_>, documents: Vec<Bound<'_, PyBytes>>, needle: &[u8]) -> Vec<usize> {
    let slices: Vec<&[u8]> = documents.iter().map(|document| document.as_bytes()).collect();
    py.detach(|| {
        let finder = memchr::memmem::Finder::new(needle);
        (0..slices.len()).filter(|&place| finder.find(slices[place]).is_some()).collect()
    })
}

/// Elements up to the next power of ten have heads of the same size, so that nothing has to be searched.
fn documents(array: &[u8]) -> Result<Vec<&[u8]>> {
    let last = document_length(array)? - 1;
    let mut found = Vec::new();
    let (mut position, mut head, mut power) = (4, 3, 10);
    while position < last {
        let begin = position + head;
        let length = array.get(begin..).map_or(Ok(0), bson::int32)?;
        let end = usize::try_from(length).map_or(0, |length| begin + length);
        match array.get(begin..end) {
            Some(document) if begin < end && end <= last && array[position] == bson::DOCUMENT => found.push(document),
            _ => return Err(Error::Declined("a batch holds something else than documents")),
        }
        position = end;
        if found.len() == power {
            head += 1;
            power *= 10;
        }
    }
    Ok(found)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(slice_documents, module)?)?;
    module.add_function(wrap_pyfunction!(documents_with, module)?)
}
