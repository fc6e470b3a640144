//! Cuts the documents out of a cursor's reply, and finds those that hold some bytes; see `tailrace.raw.documents`.

use std::ops::Range;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice};

use crate::bson::{self, document_length};
use crate::error::{Error, Result};

/// Cut an array of documents, which begins at `start`, into its documents.
#[pyfunction]
fn slice_documents<'py>(py: Python<'py>, reply: &[u8], start: usize) -> PyResult<Bound<'py, PyList>> {
    let array = reply.get(start..).unwrap_or_default();
    let places = documents(array)?;
    PyList::new(py, places.into_iter().map(|place| PyBytes::new(py, &array[place])))
}

/// The documents of an array that begins at `start` of a reply, left where they are: a sequence of `bytes`, made for who
/// looks at them.
#[pyclass(frozen, sequence, module = "tailrace_kernel")]
pub struct Documents {
    reply: Py<PyBytes>,
    start: usize,
    places: Vec<Range<usize>>,
}

#[pymethods]
impl Documents {
    #[new]
    fn new(reply: Bound<'_, PyBytes>, start: usize) -> PyResult<Self> {
        let places = documents(reply.as_bytes().get(start..).unwrap_or_default())?;
        Ok(Documents { reply: reply.unbind(), start, places })
    }

    fn __len__(&self) -> usize {
        self.places.len()
    }

    /// Give one document, or a list of those of a slice.
    fn __getitem__<'py>(&self, py: Python<'py>, at: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let array = self.array(py);
        let document = |place: isize| PyBytes::new(py, &array[self.places[place as usize].clone()]);
        let count = isize::try_from(self.places.len())?;
        if let Ok(slice) = at.cast::<PySlice>() {
            let chosen = slice.indices(count)?;
            let places = (0..chosen.slicelength as isize).map(|step| chosen.start + step * chosen.step);
            return Ok(PyList::new(py, places.map(document).collect::<Vec<_>>())?.into_any());
        }
        let at: isize = at.extract()?;
        let place = if at < 0 { at + count } else { at };
        match (0..count).contains(&place) {
            true => Ok(document(place).into_any()),
            false => Err(PyIndexError::new_err("there is no such document")),
        }
    }
}

impl Documents {
    /// The bytes of each document; those of Python never change, and this object keeps them.
    pub fn slices<'b>(&'b self, py: Python<'b>) -> Vec<&'b [u8]> {
        let array = self.array(py);
        self.places.iter().map(|place| &array[place.clone()]).collect()
    }

    fn array<'b>(&'b self, py: Python<'b>) -> &'b [u8] {
        self.reply.as_bytes(py).get(self.start..).unwrap_or_default()
    }
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
fn documents(array: &[u8]) -> Result<Vec<Range<usize>>> {
    let last = document_length(array)? - 1;
    let mut found = Vec::new();
    let (mut position, mut head, mut power) = (4, 3, 10);
    while position < last {
        let begin = position + head;
        let length = array.get(begin..).map_or(Ok(0), bson::int32)?;
        let end = usize::try_from(length).map_or(0, |length| begin + length);
        if !(begin < end && end <= last && array[position] == bson::DOCUMENT) {
            return Err(Error::Declined("a batch holds something else than documents"));
        }
        found.push(begin..end);
        position = end;
        if found.len() == power {
            head += 1;
            power *= 10;
        }
    }
    Ok(found)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Documents>()?;
    module.add_function(wrap_pyfunction!(slice_documents, module)?)?;
    module.add_function(wrap_pyfunction!(documents_with, module)?)
}
