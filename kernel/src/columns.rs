//! Events of a batch become columns in Arrow's layout; see `tailrace.spark.columns`, which makes arrays of the buffers.

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arrow::{Buffers, TOO_LARGE, array_of, bits, offsets};
use crate::bson::{self, elements};
use crate::error::{KernelError, Result};
use crate::event::{Event, Value};
use crate::keystring;
use crate::spelling::{Names, Writer};
use crate::styles::ExtendedJson;
use crate::text::utf8;

/// What a column holds.
#[derive(Clone, Copy)]
enum Content {
    Token,
    /// Microseconds, as Spark counts them.
    ClusterTime,
    /// All 64 bits.
    ExactClusterTime,
    WallTime,
    Operation,
    Database,
    Collection,
    Text(Part),
    Document(Part),
    Raw,
    /// The `_id` as a KeyString.
    Key,
    /// What did not fit; whatever does not is left to the reference.
    Mismatches,
}

#[derive(Clone, Copy)]
enum Part {
    DocumentKey,
    FullDocument,
    BeforeChange,
    UpdateDescription,
}

impl Content {
    /// By the column's name and type in Spark; None for one that is made by the reference.
    fn of(column: &str) -> Option<Self> {
        Some(match column {
            "token:string" => Content::Token,
            "cluster_time:timestamp" => Content::ClusterTime,
            "cluster_time:bigint" => Content::ExactClusterTime,
            "wall_time:timestamp" => Content::WallTime,
            "op:string" => Content::Operation,
            "db:string" => Content::Database,
            "coll:string" => Content::Collection,
            "document_key:string" => Content::Text(Part::DocumentKey),
            "full_document:string" => Content::Text(Part::FullDocument),
            "full_document_before:string" => Content::Text(Part::BeforeChange),
            "update_description:string" => Content::Text(Part::UpdateDescription),
            "document_key:binary" => Content::Document(Part::DocumentKey),
            "full_document:binary" => Content::Document(Part::FullDocument),
            "full_document_before:binary" => Content::Document(Part::BeforeChange),
            "update_description:binary" => Content::Document(Part::UpdateDescription),
            "raw:binary" => Content::Raw,
            "_key:binary" => Content::Key,
            "_mismatches:string" => Content::Mismatches,
            _ => return None,
        })
    }

    fn is_number(self) -> bool {
        matches!(self, Content::ClusterTime | Content::ExactClusterTime | Content::WallTime)
    }
}

impl Part {
    fn field(self) -> &'static [u8] {
        match self {
            Part::DocumentKey => b"documentKey",
            Part::FullDocument => b"fullDocument",
            Part::BeforeChange => b"fullDocumentBeforeChange",
            Part::UpdateDescription => b"updateDescription",
        }
    }

    fn of<'e>(self, event: &Event<'e>) -> Option<&'e [u8]> {
        let value: Option<Value<'e>> = match self {
            Part::DocumentKey => event.key,
            Part::FullDocument => event.full_document,
            Part::BeforeChange => event.before,
            Part::UpdateDescription => event.update,
        };
        Event::document(value)
    }
}

/// A column while it grows.
struct Column {
    content: Content,
    data: Vec<u8>,
    /// Where each value ends; none for numbers, which have one size.
    ends: Vec<i32>,
    is_valid: Vec<bool>,
}

impl Column {
    fn new(content: Content) -> Self {
        Column { content, data: Vec::new(), ends: Vec::new(), is_valid: Vec::new() }
    }

    /// Add the value of an event.
    fn add(&mut self, event: &Event<'_>, names: &mut Names) -> Result<()> {
        let is_valid = match self.content {
            Content::Token => self.text(utf8(event.token)?),
            Content::ClusterTime => self.number(Some((event.time()? >> 32) as i64 * 1_000_000)),
            Content::ExactClusterTime => self.number(Some(i64::try_from(event.time()?).map_err(|_| TOO_LARGE)?)),
            Content::WallTime => match event.wall_ms()? {
                None => self.number(None),
                Some(wall) => self.number(Some(wall.checked_mul(1_000).ok_or(TOO_LARGE)?)),
            },
            Content::Operation => self.text(event.operation),
            Content::Database => event.database.is_some_and(|name| self.text(name)),
            Content::Collection => event.collection.is_some_and(|name| self.text(name)),
            Content::Text(part) => match part.of(event) {
                None => false,
                Some(document) => {
                    Writer { style: ExtendedJson::<false>, out: &mut self.data, names }.document(document)?;
                    true
                }
            },
            Content::Document(part) => part.of(event).is_some_and(|document| self.bytes(document)),
            Content::Raw => self.bytes(event.raw),
            Content::Key => match Part::DocumentKey.of(event).map(|key| bson::find(key, b"_id")).transpose()? {
                Some(Some(id)) => {
                    keystring::encode_value(id.kind, id.value, &mut self.data)?;
                    true
                }
                _ => false,
            },
            Content::Mismatches => false,
        };
        if !self.content.is_number() {
            self.ends.push(i32::try_from(self.data.len()).map_err(|_| TOO_LARGE)?);
        }
        self.is_valid.push(is_valid);
        Ok(())
    }

    fn text(&mut self, text: &str) -> bool {
        self.bytes(text.as_bytes())
    }

    fn bytes(&mut self, bytes: &[u8]) -> bool {
        self.data.extend_from_slice(bytes);
        true
    }

    fn number(&mut self, number: Option<i64>) -> bool {
        self.data.extend_from_slice(&number.unwrap_or(0).to_ne_bytes());
        number.is_some()
    }

    /// Drop what was added behind so many rows.
    fn truncate(&mut self, rows: usize) {
        self.is_valid.truncate(rows);
        if self.content.is_number() {
            self.data.truncate(8 * rows);
        } else {
            self.ends.truncate(rows);
            self.data.truncate(self.ends.last().map_or(0, |&end| end as usize));
        }
    }

    fn buffers<'py>(&self, py: Python<'py>) -> Buffers<'py> {
        let is_valid = self.is_valid.contains(&false).then(|| bits(py, self.is_valid.iter().copied()));
        let ends = (!self.content.is_number()).then(|| offsets(py, &self.ends));
        (is_valid, ends, PyBytes::new(py, &self.data))
    }
}

/// Makes the columns of one schema.
#[pyclass(frozen, module = "tailrace_kernel")]
pub struct EventColumns(Vec<Content>);

#[pymethods]
impl EventColumns {
    /// Columns are named with their type in Spark, like `op:string`; KernelError: one is made by the reference.
    #[new]
    fn new(columns: Vec<String>) -> PyResult<Self> {
        let contents = columns.iter().map(|name| Content::of(name)).collect::<Option<Vec<_>>>();
        contents.map(EventColumns).ok_or_else(|| KernelError::new_err("a column is made by the reference"))
    }

    /// Give the buffers of each column, for as many rows as there are events that are not declined, and the places of
    /// the events that are.
    fn batch<'py>(&self, py: Python<'py>, events: Vec<Bound<'py, PyBytes>>) -> (Vec<Buffers<'py>>, Vec<usize>) {
        let slices: Vec<&[u8]> = events.iter().map(|event| event.as_bytes()).collect();
        let (columns, declined) = py.detach(|| self.fill(&slices, |_| Ok(())));
        (columns.iter().map(|column| column.buffers(py)).collect(), declined)
    }

    /// Give the same for an array of Arrow whose values nobody has looked at yet: each byte of them is.
    fn unread<'py>(&self, py: Python<'py>, data: &[u8], ends: &[u8]) -> PyResult<(Vec<Buffers<'py>>, Vec<usize>)> {
        let events = array_of(data, ends)?;
        let mut reader = Reader { is_text: self.texts(), text: Vec::new(), names: Names::default() };
        let (columns, declined) = py.detach(|| self.fill(&events, |event| reader.read(event)));
        Ok((columns.iter().map(|column| column.buffers(py)).collect(), declined))
    }
}

impl EventColumns {
    /// The fields of an event that become text whole.
    fn texts(&self) -> Vec<&'static [u8]> {
        let part = |content: &Content| match content {
            Content::Text(part) => Some(part.field()),
            _ => None,
        };
        self.0.iter().filter_map(part).collect()
    }

    fn fill(&self, events: &[&[u8]], mut check: impl FnMut(&[u8]) -> Result<()>) -> (Vec<Column>, Vec<usize>) {
        let mut columns: Vec<Column> = self.0.iter().map(|&content| Column::new(content)).collect();
        let (mut declined, mut names, mut rows) = (Vec::new(), Names::default(), 0);
        for (place, raw) in events.iter().enumerate() {
            let added = Event::parse(raw)
                .and_then(|event| check(raw).map(|()| event))
                .and_then(|event| columns.iter_mut().try_for_each(|column| column.add(&event, &mut names)));
            match added {
                Ok(()) => rows += 1,
                Err(_) => {
                    columns.iter_mut().for_each(|column| column.truncate(rows));
                    names.forget();
                    declined.push(place);
                }
            }
        }
        (columns, declined)
    }
}

/// Reads what no column makes text of: only bytes that are exactly what Python would decode pass.
struct Reader {
    /// The fields that are read anyway.
    is_text: Vec<&'static [u8]>,
    text: Vec<u8>,
    names: Names,
}

impl Reader {
    fn read(&mut self, event: &[u8]) -> Result<()> {
        for element in elements(event)? {
            let element = element?;
            if element.kind == bson::DOCUMENT && self.is_text.contains(&element.name) {
                continue;
            }
            utf8(element.name)?;
            self.text.clear();
            self.names.forget();
            Writer { style: ExtendedJson::<false>, out: &mut self.text, names: &mut self.names }
                .value(element.kind, element.value)?;
        }
        Ok(())
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<EventColumns>()
}
