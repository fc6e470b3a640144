//! The records of a batch, kept as bytes: an object of Python is made for a record that somebody looks at.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::bson;
use crate::buffers::Buffers;
use crate::error::KernelError;
use crate::event::Event;
use crate::text;

/// What a format has made of an event; its bytes are in the buffer of the batch.
pub struct Made<'e> {
    pub event: Event<'e>,
    pub key: Range<usize>,
    /// None where it is the event itself.
    pub value: Option<Range<usize>>,
    pub is_key_missing: bool,
}

enum Value {
    Buffer(Range<usize>),
    /// The event as it is.
    Event,
    Tombstone,
}

/// Where the event of a record is.
#[derive(Clone)]
pub enum Source {
    /// Its number among those that were given.
    Given(usize),
    /// Its place among those that a policy has changed.
    Governed(Range<usize>),
}

/// A record: where its bytes are, and what its headers say.
struct Stored {
    event: Source,
    /// Its operation and namespace.
    kind: usize,
    key: Range<usize>,
    value: Value,
    token: Range<usize>,
    token_time: u64,
    image: Option<&'static str>,
    is_recovered: bool,
    is_key_missing: bool,
}

enum Item {
    Record(Stored),
    /// The number of an event that is left to the reference.
    Declined(usize),
}

/// How many records have this operation and namespace.
pub struct Kind {
    operation: String,
    pub namespace: String,
    count: usize,
}

impl Kind {
    fn is_of(&self, event: &Event<'_>) -> bool {
        let name = self.namespace.as_str();
        self.operation == event.operation
            && match (event.database.unwrap_or(""), event.collection) {
                (database, None) => name == database,
                (database, Some(collection)) => {
                    name.strip_prefix(database).and_then(|rest| rest.strip_prefix('.')) == Some(collection)
                }
            }
    }
}

/// How many bytes records have; an event counts for each of its records.
#[derive(Default, Clone, Copy)]
struct Sizes {
    keys: usize,
    values: usize,
    events: usize,
    /// The key, value and token of the largest record.
    largest: usize,
}

/// Collects what becomes of events, in order.
#[derive(Default)]
pub struct Builder {
    /// Keys, values and tokens.
    pub out: Vec<u8>,
    /// The events that a policy has changed, one behind the other.
    pub governed: Vec<u8>,
    /// Namespaces whose rules the policy has to learn first; their events are left to the reference.
    pub unknown: BTreeSet<String>,
    items: Vec<Item>,
    kinds: Vec<Kind>,
    numbers: HashMap<(String, String), usize>,
    latest: usize,
    declined: usize,
    sizes: Sizes,
    /// Whether the value of a record is its event.
    has_whole_events: bool,
    /// What the header `content-type` of each record with a value says, if it has one.
    content_type: Option<&'static str>,
}

impl Builder {
    /// Write to the end of `out`.
    pub fn new(events: usize, out: Vec<u8>, content_type: Option<&'static str>) -> Self {
        Builder { out, items: Vec::with_capacity(events), content_type, ..Builder::default() }
    }

    pub fn decline(&mut self, event: usize) {
        self.declined += 1;
        self.items.push(Item::Declined(event));
    }

    pub fn add(&mut self, source: Source, made: Made<'_>, looks_up: bool, tombstones: bool) {
        let event = &made.event;
        let kind = self.kind_of(event);
        let token = self.out.len();
        self.out.extend_from_slice(event.token);
        let record = |value| {
            Item::Record(Stored {
                event: source.clone(),
                kind,
                key: made.key.clone(),
                value,
                token: token..token + event.token.len(),
                token_time: event.token_time,
                image: (event.operation == "update").then(|| image(event, looks_up)),
                is_recovered: event.is_recovered,
                is_key_missing: made.is_key_missing,
            })
        };
        self.items.push(record(made.value.clone().map_or(Value::Event, Value::Buffer)));
        self.has_whole_events |= made.value.is_none();
        let value = made.value.as_ref().map_or(event.raw.len(), Range::len);
        self.sizes.values += value;
        self.sizes.largest = self.sizes.largest.max(made.key.len() + value + event.token.len());
        let mut count = 1;
        if tombstones && event.operation == "delete" {
            self.items.push(record(Value::Tombstone));
            count += 1;
        }
        self.kinds[kind].count += count;
        self.sizes.keys += count * made.key.len();
        self.sizes.events += count * event.raw.len();
    }

    /// Neighbours are often of one kind.
    fn kind_of(&mut self, event: &Event<'_>) -> usize {
        if !self.kinds.get(self.latest).is_some_and(|kind| kind.is_of(event)) {
            let mut namespace = event.database.unwrap_or("").to_owned();
            if let Some(collection) = event.collection {
                namespace.push('.');
                namespace.push_str(collection);
            }
            let operation = event.operation.to_owned();
            let next = self.kinds.len();
            self.latest = *self.numbers.entry((operation.clone(), namespace.clone())).or_insert(next);
            if self.latest == next {
                self.kinds.push(Kind { operation, namespace, count: 0 });
            }
        }
        self.latest
    }
}

/// What an update tells of its document.
fn image(event: &Event<'_>, looks_up: bool) -> &'static str {
    match event.full_document {
        None => "delta",
        Some((bson::NULL, _)) => "missing",
        Some(_) if looks_up || event.is_image_fetched => "lookup",
        Some(_) => "post",
    }
}

/// A record as the library of Kafka takes it.
pub struct View<'b> {
    pub kind: usize,
    pub key: &'b [u8],
    pub value: Option<&'b [u8]>,
    token: &'b [u8],
    stored: &'b Stored,
    operation: &'b str,
    content_type: Option<&'static str>,
}

impl View<'_> {
    /// Call with each header; `text` is used again and again.
    pub fn headers<E>(
        &self,
        text: &mut Vec<u8>,
        mut take: impl FnMut(&'static str, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        text.clear();
        text::natural(text, self.stored.token_time >> 32);
        text.push(b':');
        text::natural(text, self.stored.token_time & 0xFFFF_FFFF);
        take("token", self.token)?;
        take("clusterTime", text)?;
        take("operationType", self.operation.as_bytes())?;
        take("schemaVersion", b"1")?;
        if let Some(image) = self.stored.image {
            take("image", image.as_bytes())?;
        }
        if self.stored.is_recovered {
            take("recovered", b"true")?;
        }
        if self.stored.is_key_missing {
            take("key", b"documentKey")?;
        }
        if let (Some(content_type), Some(_)) = (self.content_type, self.value) {
            take("content-type", content_type.as_bytes())?;
        }
        Ok(())
    }
}

/// The records of a batch of events, which it keeps.
#[pyclass(frozen, module = "tailrace_kernel")]
pub struct RecordBatch {
    events: Vec<Py<PyBytes>>,
    governed: Vec<u8>,
    out: Vec<u8>,
    items: Vec<Item>,
    pub kinds: Vec<Kind>,
    sizes: Sizes,
    has_whole_events: bool,
    content_type: Option<&'static str>,
    /// How many events are left to the reference.
    #[pyo3(get)]
    pub declined: usize,
    /// Namespaces of events that are left to the reference because the policy has to learn their rules.
    #[pyo3(get)]
    unknown: BTreeSet<String>,
    /// `Record`, and what makes one of a tuple.
    record: Py<PyAny>,
    new: Py<PyAny>,
    /// Where its buffers go to.
    buffers: Arc<Buffers>,
}

impl Drop for RecordBatch {
    fn drop(&mut self) {
        self.buffers.give_back(std::mem::take(&mut self.out));
        self.buffers.give_back(std::mem::take(&mut self.governed));
    }
}

#[pymethods]
impl RecordBatch {
    pub fn __len__(&self) -> usize {
        self.items.len()
    }

    /// Make all records, in order; in the place of an event that is left to the reference stands the event.
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut objects = Objects::new(py, self);
        let list = PyList::empty(py);
        for item in &self.items {
            list.append(objects.item(item)?)?;
        }
        Ok(list)
    }

    /// Make one record.
    fn __getitem__<'py>(&self, py: Python<'py>, place: usize) -> PyResult<Bound<'py, PyAny>> {
        let item = self.items.get(place).ok_or_else(|| PyIndexError::new_err("there is no such record"))?;
        Objects::new(py, self).item(item)
    }

    /// Count the records by operation and namespace.
    fn kinds<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = PyDict::new(py);
        for kind in &self.kinds {
            counts.set_item((&kind.operation, &kind.namespace), kind.count)?;
        }
        Ok(counts)
    }

    /// How many bytes keys, values and events have; an event counts for each of its records. And how many the largest
    /// record has of key, value and token, which are all that can be large of it.
    fn sizes(&self) -> (usize, usize, usize, usize) {
        (self.sizes.keys, self.sizes.values, self.sizes.events, self.sizes.largest)
    }
}

impl RecordBatch {
    pub fn new(
        events: Vec<Bound<'_, PyBytes>>,
        built: Builder,
        record: Py<PyAny>,
        new: Py<PyAny>,
        buffers: Arc<Buffers>,
    ) -> Self {
        let Builder { out, governed, unknown, items, kinds, declined, sizes, has_whole_events, content_type, .. } =
            built;
        RecordBatch {
            events: events.into_iter().map(Bound::unbind).collect(),
            governed,
            out,
            items,
            kinds,
            sizes,
            has_whole_events,
            content_type,
            declined,
            unknown,
            record,
            new,
            buffers,
        }
    }

    /// Give the bytes of all records for a time in which the interpreter may do something else: bytes of Python never
    /// change, and the batch keeps them.
    pub fn views<'b>(&'b self, py: Python<'b>) -> PyResult<Views<'b>> {
        if self.declined > 0 {
            return Err(KernelError::new_err("an event of the batch is left to the reference"));
        }
        let events = match self.has_whole_events {
            true => self.events.iter().map(|event| event.as_bytes(py)).collect(),
            false => Vec::new(),
        };
        Ok(Views { batch: self, events })
    }

    fn view_of<'b>(&'b self, stored: &'b Stored, given: impl FnOnce(usize) -> &'b [u8]) -> View<'b> {
        View {
            kind: stored.kind,
            key: &self.out[stored.key.clone()],
            value: match &stored.value {
                Value::Buffer(place) => Some(&self.out[place.clone()]),
                Value::Event => Some(match &stored.event {
                    Source::Given(number) => given(*number),
                    Source::Governed(place) => &self.governed[place.clone()],
                }),
                Value::Tombstone => None,
            },
            token: &self.out[stored.token.clone()],
            stored,
            operation: &self.kinds[stored.kind].operation,
            content_type: self.content_type,
        }
    }
}

/// The records of a batch, to be read without the interpreter.
pub struct Views<'b> {
    batch: &'b RecordBatch,
    /// Empty where no record needs them.
    events: Vec<&'b [u8]>,
}

impl<'b> Views<'b> {
    pub fn iter(&self) -> impl Iterator<Item = View<'b>> {
        self.batch.items.iter().filter_map(|item| match item {
            Item::Record(stored) => Some(self.batch.view_of(stored, |number| self.events[number])),
            Item::Declined(_) => None, // there are none in a batch that has views
        })
    }
}

/// Makes Python's objects; those that records of one kind share are made once.
struct Objects<'b, 'py> {
    py: Python<'py>,
    batch: &'b RecordBatch,
    kinds: Vec<Option<(Bound<'py, PyString>, Bound<'py, PyString>)>>,
    text: Vec<u8>,
}

impl<'b, 'py> Objects<'b, 'py> {
    fn new(py: Python<'py>, batch: &'b RecordBatch) -> Self {
        Objects { py, batch, kinds: vec![None; batch.kinds.len()], text: Vec::new() }
    }

    fn item(&mut self, item: &Item) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        let stored = match item {
            Item::Declined(number) => return Ok(self.batch.events[*number].bind(py).clone().into_any()),
            Item::Record(stored) => stored,
        };
        let event = match &stored.event {
            Source::Given(number) => self.batch.events[*number].bind(py).clone(),
            Source::Governed(place) => PyBytes::new(py, &self.batch.governed[place.clone()]),
        };
        let view = self.batch.view_of(stored, |number| self.batch.events[number].as_bytes(py));
        let headers = PyList::empty(py);
        view.headers(&mut self.text, |name, value| {
            let name = match name {
                "token" => intern!(py, "token"),
                "clusterTime" => intern!(py, "clusterTime"),
                "operationType" => intern!(py, "operationType"),
                "schemaVersion" => intern!(py, "schemaVersion"),
                _ => &PyString::intern(py, name),
            };
            headers.append((name, PyBytes::new(py, value)))
        })?;
        let value = match &stored.value {
            Value::Event => event.clone().into_any(),
            _ => view.value.map(|value| PyBytes::new(py, value)).into_pyobject(py)?,
        };
        let kind = &self.batch.kinds[stored.kind];
        let (operation, namespace) = self.kinds[stored.kind]
            .get_or_insert_with(|| (PyString::new(py, &kind.operation), PyString::new(py, &kind.namespace)));
        let fields = (PyBytes::new(py, view.key), value, headers, &*namespace, &*operation, event);
        let fields: Bound<'py, PyTuple> = fields.into_pyobject(py)?;
        self.batch.new.bind(py).call1((&self.batch.record, fields))
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RecordBatch>()
}
