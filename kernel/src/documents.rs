//! Documents become the columns of a mirror, in Arrow's layout; see `tailrace.warehouse.columns.encoding`, which says what fits.
//!
//! A document with anything that fits no column is declined as a whole, and so is one whose bytes Python reads as
//! something else (a field that is there twice, a deprecated type).

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arrow::{Buffers, TOO_LARGE, array_of, bits, offsets, rows_of};
use crate::bson::{self, elements};
use crate::decimal;
use crate::error::{Error, KernelError, Result};
use crate::text::{hex, utf8};

const MISFIT: Error = Error::Declined("a value fits no column");
const TWICE: Error = Error::Declined("a field is there twice");
/// The years 1 to 9999, in milliseconds.
const FIRST_MS: i64 = -62_135_596_800_000;
const LAST_MS: i64 = 253_402_300_799_999;
const EXACT_IN_DOUBLE: i64 = 1 << 53;
const UUID: u8 = 4;

/// What a column holds; those of documents and arrays are in columns below it.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Bool,
    Int,
    Long,
    Double,
    Decimal,
    String,
    ObjectId,
    Date,
    Uuid,
    Binary,
    Document,
    Array,
}

impl Kind {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => Kind::Bool,
            "int" => Kind::Int,
            "long" => Kind::Long,
            "double" => Kind::Double,
            "decimal" => Kind::Decimal,
            "string" => Kind::String,
            "objectId" => Kind::ObjectId,
            "date" => Kind::Date,
            "uuid" => Kind::Uuid,
            "binary" => Kind::Binary,
            "document" => Kind::Document,
            "array" => Kind::Array,
            _ => return None,
        })
    }

    /// The bytes of each value; None where each has its own length, or none of its own.
    fn width(self) -> Option<usize> {
        match self {
            Kind::Bool => Some(1),
            Kind::Int => Some(4),
            Kind::Long | Kind::Double | Kind::Date => Some(8),
            Kind::Decimal => Some(16),
            _ => None,
        }
    }

    fn has_ends(self) -> bool {
        self.width().is_none() && self != Kind::Document
    }
}

/// A column while it grows.
#[derive(Clone)]
struct Column {
    name: Vec<u8>,
    kind: Kind,
    is_valid: Vec<bool>,
    data: Vec<u8>,
    ends: Vec<i32>,
    /// The fields of a document, or the elements of an array.
    below: Vec<Column>,
}

/// A column as Python names it: its name, its kind and the columns below it.
#[derive(FromPyObject)]
struct Named(String, String, Vec<Named>);

impl Column {
    fn of(named: &Named) -> Option<Self> {
        let below = named.2.iter().map(Column::of).collect::<Option<Vec<_>>>()?;
        let kind = Kind::of(&named.1)?;
        let name = named.0.as_bytes().to_vec();
        Some(Column { name, kind, is_valid: Vec::new(), data: Vec::new(), ends: Vec::new(), below })
    }

    fn rows(&self) -> usize {
        self.is_valid.len()
    }

    fn add(&mut self, kind: u8, value: &[u8]) -> Result<()> {
        match (self.kind, kind) {
            (Kind::Bool, bson::BOOL) => match value {
                [0] | [1] => self.data.push(value[0]),
                _ => return Err(MISFIT),
            },
            (Kind::Int, bson::INT32) => self.data.extend_from_slice(value),
            (Kind::Long, bson::INT64) => self.data.extend_from_slice(value),
            (Kind::Long, bson::INT32) => self.data.extend_from_slice(&i64::from(bson::int32(value)?).to_le_bytes()),
            (Kind::Double, bson::DOUBLE) => self.data.extend_from_slice(value),
            (Kind::Double, bson::INT32) => self.data.extend_from_slice(&f64::from(bson::int32(value)?).to_le_bytes()),
            (Kind::Double, bson::INT64) => {
                let number = bson::int64(value)?;
                if !(-EXACT_IN_DOUBLE..=EXACT_IN_DOUBLE).contains(&number) {
                    return Err(MISFIT);
                }
                self.data.extend_from_slice(&(number as f64).to_le_bytes());
            }
            (Kind::Decimal, bson::INT32) => self.decimal(bson::int32(value)?.into(), 0)?,
            (Kind::Decimal, bson::INT64) => self.decimal(bson::int64(value)?.into(), 0)?,
            (Kind::Decimal, bson::DECIMAL128) => {
                let (is_negative, coefficient, exponent) = decimal::parts(value)?;
                let number = coefficient as i128; // of 34 digits at most
                self.decimal(if is_negative { -number } else { number }, exponent)?;
            }
            (Kind::String, bson::STRING) => {
                let text = utf8(bson::string(value)?)?;
                self.data.extend_from_slice(text.as_bytes());
            }
            (Kind::ObjectId, bson::OBJECT_ID) => hex(&mut self.data, value),
            (Kind::Date, bson::DATE) => {
                let milliseconds = bson::int64(value)?;
                if !(FIRST_MS..=LAST_MS).contains(&milliseconds) {
                    return Err(MISFIT);
                }
                self.data.extend_from_slice(&(milliseconds * 1_000).to_le_bytes());
            }
            (Kind::Uuid, bson::BINARY) => match bson::binary(value)? {
                (UUID, payload) if payload.len() == 16 => {
                    for (number, part) in [(0, 4), (4, 6), (6, 8), (8, 10), (10, 16)].into_iter().enumerate() {
                        if number > 0 {
                            self.data.push(b'-');
                        }
                        hex(&mut self.data, &payload[part.0..part.1]);
                    }
                }
                _ => return Err(MISFIT),
            },
            (Kind::Binary, bson::BINARY) => match bson::binary(value)? {
                (0, payload) => self.data.extend_from_slice(payload),
                _ => return Err(MISFIT),
            },
            (Kind::Document, bson::DOCUMENT) => return self.document(value),
            (Kind::Array, bson::ARRAY) => {
                for element in elements(value)? {
                    let element = element?;
                    match element.kind {
                        bson::NULL => self.below[0].null(),
                        kind => self.below[0].add(kind, element.value)?,
                    }
                }
            }
            _ => return Err(MISFIT),
        }
        self.end()?;
        self.is_valid.push(true);
        Ok(())
    }

    fn document(&mut self, document: &[u8]) -> Result<()> {
        let row = self.rows();
        let mut next = 0;
        for element in elements(document)? {
            let element = element?;
            let Some(place) = self.place(element.name, next) else {
                // A document with `$ref` is a reference to Python, whatever its value is.
                if element.kind != bson::NULL || element.name.first() == Some(&b'$') {
                    return Err(MISFIT);
                }
                utf8(element.name)?;
                continue;
            };
            let column = &mut self.below[place];
            if column.rows() > row {
                return Err(TWICE);
            }
            if element.kind != bson::NULL {
                column.add(element.kind, element.value)?;
            }
            next = place + 1;
        }
        self.below.iter_mut().filter(|column| column.rows() == row).for_each(Column::null);
        self.is_valid.push(true);
        Ok(())
    }

    /// Find a field: documents of one collection have theirs in one order mostly.
    fn place(&self, name: &[u8], next: usize) -> Option<usize> {
        if self.below.get(next).is_some_and(|column| column.name == name) {
            return Some(next);
        }
        self.below.iter().position(|column| column.name == name)
    }

    /// Add what is exact as a decimal of 18 places and 38 digits.
    fn decimal(&mut self, coefficient: i128, exponent: i64) -> Result<()> {
        let places = exponent + 18;
        let power = 10_i128.checked_pow(places.unsigned_abs().try_into().map_err(|_| MISFIT)?);
        let number = match power {
            _ if coefficient == 0 => 0,
            Some(power) if places >= 0 => coefficient.checked_mul(power).ok_or(MISFIT)?,
            Some(power) if coefficient % power == 0 => coefficient / power,
            _ => return Err(MISFIT),
        };
        if number.unsigned_abs() >= 10_u128.pow(38) {
            return Err(MISFIT);
        }
        self.data.extend_from_slice(&number.to_le_bytes());
        Ok(())
    }

    fn null(&mut self) {
        match self.kind.width() {
            Some(width) => self.data.resize(self.data.len() + width, 0),
            None if self.kind == Kind::Document => self.below.iter_mut().for_each(Column::null),
            None => self.ends.push(self.ends.last().copied().unwrap_or(0)),
        }
        self.is_valid.push(false);
    }

    fn end(&mut self) -> Result<()> {
        if self.kind.has_ends() {
            let length = if self.kind == Kind::Array { self.below[0].rows() } else { self.data.len() };
            self.ends.push(i32::try_from(length).map_err(|_| TOO_LARGE)?);
        }
        Ok(())
    }

    /// Drop what was added behind so many rows.
    fn truncate(&mut self, rows: usize) {
        self.is_valid.truncate(rows);
        self.ends.truncate(rows);
        let end = self.ends.last().map_or(0, |&end| end as usize);
        match (self.kind, self.kind.width()) {
            (_, Some(width)) => self.data.truncate(width * rows),
            (Kind::Document, _) => self.below.iter_mut().for_each(|column| column.truncate(rows)),
            (Kind::Array, _) => self.below[0].truncate(end),
            _ => self.data.truncate(end),
        }
    }

    /// Give the buffers of the column, then those of each below it, which have another number of rows in arrays.
    fn collect<'py>(&self, py: Python<'py>, into: &mut Vec<(usize, Buffers<'py>)>) {
        let ends = self.kind.has_ends().then(|| offsets(py, &self.ends));
        let data = match self.kind {
            Kind::Bool => bits(py, self.data.iter().map(|&value| value == 1)),
            _ => PyBytes::new(py, &self.data),
        };
        let is_valid = self.is_valid.contains(&false).then(|| bits(py, self.is_valid.iter().copied()));
        into.push((self.rows(), (is_valid, ends, data)));
        self.below.iter().for_each(|column| column.collect(py, into));
    }
}

/// Makes the columns of one mirror.
#[pyclass(frozen, module = "tailrace_kernel")]
pub struct DocumentColumns(Column);

type Made<'py> = (Buffers<'py>, Vec<(usize, Buffers<'py>)>, Vec<usize>);

#[pymethods]
impl DocumentColumns {
    /// A column is a name, a kind and the columns below it; KernelError: there is a kind that the reference knows alone.
    #[new]
    fn new(columns: Vec<Named>) -> PyResult<Self> {
        let top = Named(String::new(), "document".to_owned(), columns);
        Column::of(&top).map(DocumentColumns).ok_or_else(|| KernelError::new_err("a kind of column is not known"))
    }

    /// Take the documents (`fullDocument`) of some events, which are an array of Arrow, in the order of `rows`.
    ///
    /// Gives the documents themselves, the columns (each with its number of rows and its buffers, every column before
    /// those below it), and which of `rows` were declined and are in none of them.
    fn batch<'py>(&self, py: Python<'py>, data: &[u8], ends: &[u8], rows: &[u8]) -> PyResult<Made<'py>> {
        let events = array_of(data, ends)?;
        let chosen = rows_of(rows, events.len())?;
        let (documents, columns, declined) = py.detach(|| self.fill(&events, &chosen));
        let mut made = Vec::new();
        columns.below.iter().for_each(|column| column.collect(py, &mut made));
        let documents = (None, Some(offsets(py, &documents.ends)), PyBytes::new(py, &documents.data));
        Ok((documents, made, declined))
    }
}

impl DocumentColumns {
    fn fill(&self, events: &[&[u8]], chosen: &[usize]) -> (Column, Column, Vec<usize>) {
        let mut columns = self.0.clone();
        let named = Named(String::new(), "binary".to_owned(), Vec::new());
        let mut documents = Column::of(&named).expect("a kind");
        let mut declined = Vec::new();
        for (place, &row) in chosen.iter().enumerate() {
            let rows = columns.rows();
            if take(events[row], &mut columns, &mut documents).is_err() {
                columns.truncate(rows);
                documents.truncate(rows);
                declined.push(place);
            }
        }
        (documents, columns, declined)
    }
}

fn take(event: &[u8], columns: &mut Column, documents: &mut Column) -> Result<()> {
    match bson::find(event, b"fullDocument")? {
        Some(found) if found.kind == bson::DOCUMENT => {
            columns.document(found.value)?;
            documents.data.extend_from_slice(found.value);
            documents.end()?;
            documents.is_valid.push(true);
            Ok(())
        }
        _ => Err(Error::Declined("the event has no document")),
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<DocumentColumns>()
}
