//! Arrow's layout of arrays, as bytes: what Python hands over without a list of objects, and what it makes arrays of.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{Error, Result};

/// A bit for each value that is there, None when all are; the offsets, None where every value has one size; the data.
pub type Buffers<'py> = (Option<Bound<'py, PyBytes>>, Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>);

pub const TOO_LARGE: Error = Error::Declined("a value is too large for its column");
const NO_ARRAY: Error = Error::Declined("the buffers are none of an array");

/// Give the values of an array of binaries, by its data and its offsets of 32 bits.
pub fn array_of<'a>(data: &'a [u8], offsets: &[u8]) -> Result<Vec<&'a [u8]>> {
    let mut values = Vec::with_capacity(offsets.len() / 4);
    let mut begin = None;
    for offset in offsets.chunks_exact(4) {
        let end = i32::from_le_bytes(offset.try_into().map_err(|_| NO_ARRAY)?) as usize;
        if let Some(begin) = begin {
            values.push(data.get(begin..end).ok_or(NO_ARRAY)?);
        }
        begin = Some(end);
    }
    Ok(values)
}

/// Give numbers of 64 bits, all below a limit.
pub fn rows_of(rows: &[u8], limit: usize) -> Result<Vec<usize>> {
    let numbers = rows.chunks_exact(8).map(|row| {
        let number = i64::from_le_bytes(row.try_into().map_err(|_| NO_ARRAY)?);
        usize::try_from(number).ok().filter(|&number| number < limit).ok_or(NO_ARRAY)
    });
    numbers.collect()
}

/// Give the offsets of values that end at these places.
pub fn offsets<'py>(py: Python<'py>, ends: &[i32]) -> Bound<'py, PyBytes> {
    let mut bytes = Vec::with_capacity(4 * ends.len() + 4);
    bytes.extend_from_slice(&0_i32.to_ne_bytes());
    ends.iter().for_each(|end| bytes.extend_from_slice(&end.to_ne_bytes()));
    PyBytes::new(py, &bytes)
}

/// Give a bit for each flag.
pub fn bits<'py>(py: Python<'py>, flags: impl ExactSizeIterator<Item = bool>) -> Bound<'py, PyBytes> {
    let mut bytes = vec![0_u8; flags.len().div_ceil(8)];
    for (place, _) in flags.enumerate().filter(|(_, flag)| *flag) {
        bytes[place / 8] |= 1 << (place % 8);
    }
    PyBytes::new(py, &bytes)
}
