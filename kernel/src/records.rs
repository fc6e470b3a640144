//! Events of a batch become records: key, value and headers in every format of capture.

use std::ops::Range;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

use crate::bson;
use crate::debezium::{Debezium, Envelope};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::flat;
use crate::keys::{Key, find_key};
use crate::spelling::{Names, Style, Writer};
use crate::styles::{ExtendedJson, Unprintable};
use crate::text;

enum Format {
    Json,
    Canonical,
    Bson,
    Flat(Vec<String>),
    Debezium(Debezium),
}

/// A format with its options; it remembers nothing of the events it has seen.
#[pyclass(frozen, module = "tailrace_kernel")]
pub struct RecordFormat {
    format: Format,
    key_field: Option<String>,
    tombstones: bool,
    /// `Record`, and what makes one of a tuple.
    record: Py<PyAny>,
    new: Py<PyAny>,
}

/// A record whose bytes are in the buffer of its batch.
struct Made<'e> {
    event: Event<'e>,
    key: Range<usize>,
    /// None where it is the event itself.
    value: Option<Range<usize>>,
    is_key_missing: bool,
}

/// What became of an event.
enum Outcome<'e> {
    Record(Box<Made<'e>>),
    Nothing,
    Declined,
}

#[pymethods]
impl RecordFormat {
    #[new]
    #[pyo3(signature = (name, record, *, key_field, tombstones, fields, version, server_name, unprintable))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        name: &str,
        record: Bound<'_, PyAny>,
        key_field: Option<String>,
        tombstones: bool,
        fields: Vec<String>,
        version: String,
        server_name: String,
        unprintable: Vec<(u32, u32)>,
    ) -> PyResult<Self> {
        let format = match name {
            "json" => Format::Json,
            "canonical" => Format::Canonical,
            "bson" => Format::Bson,
            "flat" => Format::Flat(fields),
            "debezium" => {
                Format::Debezium(Debezium { version, server_name, unprintable: Unprintable::new(&unprintable) })
            }
            _ => return Err(PyValueError::new_err(format!("there is no format {name}"))),
        };
        let new = record.py().get_type::<PyTuple>().getattr("__new__")?.unbind();
        Ok(RecordFormat { format, key_field, tombstones, record: record.unbind(), new })
    }

    /// Make the records of events, in order. In the place of an event that the kernel declines stands the event; the
    /// second value says how many those are. `now` is the time in nanoseconds.
    fn records<'py>(
        &self,
        py: Python<'py>,
        events: Vec<Bound<'py, PyBytes>>,
        looks_up: bool,
        now: i64,
    ) -> PyResult<(Bound<'py, PyList>, usize)> {
        let slices: Vec<&[u8]> = events.iter().map(|event| event.as_bytes()).collect();
        let (out, outcomes) = py.detach(|| self.convert_all(&slices, now));
        let mut objects = Objects::new(py, self, &out, looks_up);
        let mut declined = 0;
        let list = PyList::empty(py);
        for (event, outcome) in events.iter().zip(outcomes) {
            match outcome {
                Outcome::Nothing => {}
                Outcome::Declined => {
                    declined += 1;
                    list.append(event)?;
                }
                Outcome::Record(made) => objects.append(&list, event, &made)?,
            }
        }
        Ok((list, declined))
    }
}

impl RecordFormat {
    fn convert_all<'e>(&self, events: &[&'e [u8]], now: i64) -> (Vec<u8>, Vec<Outcome<'e>>) {
        let mut out = Vec::with_capacity(events.iter().map(|event| event.len() * 5 / 4).sum());
        let (mut inner, mut names) = (Vec::new(), Names::default());
        let outcomes = events
            .iter()
            .map(|event| {
                let begin = out.len();
                self.convert(event, &mut out, &mut inner, &mut names, now).unwrap_or_else(|_| {
                    out.truncate(begin);
                    names.forget();
                    Outcome::Declined
                })
            })
            .collect();
        (out, outcomes)
    }

    fn convert<'e>(
        &self,
        raw: &'e [u8],
        out: &mut Vec<u8>,
        inner: &mut Vec<u8>,
        names: &mut Names,
        now: i64,
    ) -> Result<Outcome<'e>> {
        match &self.format {
            Format::Json => self.whole(ExtendedJson::<false>, raw, out, names),
            Format::Canonical => self.whole(ExtendedJson::<true>, raw, out, names),
            Format::Bson => self.bson(Event::parse(raw)?, out),
            Format::Flat(fields) => {
                let event = Event::parse(raw)?;
                let begin = out.len();
                flat::write(&event, fields, out, names)?;
                let middle = out.len();
                let key = find_key(&event, self.key_field.as_deref(), false)?;
                self.key_text(ExtendedJson::<false>, &event, &key, out, names)?;
                Ok(self.made(event, key, middle..out.len(), Some(begin..middle)))
            }
            Format::Debezium(rule) => {
                let event = Event::parse(raw)?;
                let (Some(op), Some(_)) = (event.op_code(), Event::document(event.key)) else {
                    return Ok(Outcome::Nothing);
                };
                let key = find_key(&event, self.key_field.as_deref(), true)?;
                let begin = out.len();
                let mut envelope = Envelope { rule, out, inner, names, now };
                envelope.key(&key, self.key_field.as_deref())?;
                let middle = envelope.out.len();
                envelope.value(&event, op)?;
                let end = out.len();
                Ok(self.made(event, key, begin..middle, Some(middle..end)))
            }
        }
    }

    /// Write the whole event; the text of the documentKey inside is the key, too.
    fn whole<'e, S: Style>(
        &self,
        style: S,
        raw: &'e [u8],
        out: &mut Vec<u8>,
        names: &mut Names,
    ) -> Result<Outcome<'e>> {
        let mut event = Event { raw, ..Event::default() };
        let mut document_key = 0..0;
        let begin = out.len();
        let mut writer = Writer { style, out, names };
        writer.members(raw, 0, |element, place| {
            if element.name == b"documentKey" {
                document_key = place;
            }
            event.take(element)
        })?;
        event.check()?;
        let value = begin..writer.out.len();
        let key = find_key(&event, self.key_field.as_deref(), false)?;
        let place = match key {
            Key::Document(_) => document_key,
            _ => {
                let Writer { style, out, names } = writer;
                self.key_text(style, &event, &key, out, names)?;
                value.end..out.len()
            }
        };
        Ok(self.made(event, key, place, Some(value)))
    }

    fn key_text<S: Style>(
        &self,
        style: S,
        event: &Event<'_>,
        key: &Key<'_>,
        out: &mut Vec<u8>,
        names: &mut Names,
    ) -> Result<()> {
        let mut writer = Writer { style, out, names };
        let (name, (kind, value)) = match *key {
            Key::Document(document) => return writer.document(document),
            Key::Field(value) => (self.key_field.as_deref().unwrap_or(""), value),
            Key::Namespace => ("ns", event.ns.unwrap_or((bson::NULL, &[]))),
        };
        writer.out.push(b'{');
        writer.name(name.as_bytes())?;
        writer.value(kind, value)?;
        writer.out.push(b'}');
        Ok(())
    }

    /// Take the event as it is; the key is a BSON document.
    fn bson<'e>(&self, event: Event<'e>, out: &mut Vec<u8>) -> Result<Outcome<'e>> {
        let key = find_key(&event, self.key_field.as_deref(), true)?;
        let begin = out.len();
        match key {
            Key::Document(document) => out.extend_from_slice(document),
            Key::Field(value) => document_of(out, self.key_field.as_deref().unwrap_or(""), value)?,
            Key::Namespace => document_of(out, "ns", event.ns.unwrap_or((bson::NULL, &[])))?,
        }
        Ok(self.made(event, key, begin..out.len(), None))
    }

    fn made<'e>(
        &self,
        event: Event<'e>,
        key: Key<'e>,
        place: Range<usize>,
        value: Option<Range<usize>>,
    ) -> Outcome<'e> {
        let is_key_missing = self.key_field.is_some() && !matches!(key, Key::Field(_));
        Outcome::Record(Box::new(Made { event, key: place, value, is_key_missing }))
    }
}

/// Write a BSON document with one field.
fn document_of(out: &mut Vec<u8>, name: &str, (kind, value): (u8, &[u8])) -> Result<()> {
    let length = i32::try_from(name.len() + value.len() + 7).map_err(|_| Error::Declined("a key is too large"))?;
    out.extend_from_slice(&length.to_le_bytes());
    out.push(kind);
    out.extend_from_slice(name.as_bytes());
    out.push(0);
    out.extend_from_slice(value);
    out.push(0);
    Ok(())
}

/// Makes Python's objects; those that many records of a batch share are made once.
struct Objects<'a, 'py> {
    py: Python<'py>,
    format: &'a RecordFormat,
    out: &'a [u8],
    looks_up: bool,
    schema: Option<Bound<'py, PyTuple>>,
    /// The namespace and operation of the record before, with their objects.
    namespace: Option<(Option<&'a str>, Option<&'a str>, Bound<'py, PyString>)>,
    operation: Option<(&'a str, Bound<'py, PyString>, Bound<'py, PyTuple>)>,
    text: Vec<u8>,
}

impl<'a, 'py> Objects<'a, 'py> {
    fn new(py: Python<'py>, format: &'a RecordFormat, out: &'a [u8], looks_up: bool) -> Self {
        Objects { py, format, out, looks_up, schema: None, namespace: None, operation: None, text: Vec::new() }
    }

    fn append(&mut self, list: &Bound<'py, PyList>, raw: &Bound<'py, PyBytes>, made: &Made<'a>) -> PyResult<()> {
        let headers = self.headers(made)?;
        let key = PyBytes::new(self.py, &self.out[made.key.clone()]);
        let namespace = self.namespace(&made.event);
        let operation = self.operation(made.event.operation)?.0;
        let value = match &made.value {
            Some(place) => PyBytes::new(self.py, &self.out[place.clone()]),
            None => raw.clone(),
        };
        let record = |value: Bound<'py, PyAny>| {
            let fields = (&key, value, &headers, &namespace, &operation, raw).into_pyobject(self.py)?;
            self.format.new.bind(self.py).call1((&self.format.record, fields))
        };
        list.append(record(value.into_any())?)?;
        if self.format.tombstones && made.event.operation == "delete" {
            list.append(record(self.py.None().into_bound(self.py))?)?;
        }
        Ok(())
    }

    fn headers(&mut self, made: &Made<'a>) -> PyResult<Bound<'py, PyList>> {
        let py = self.py;
        let event = &made.event;
        self.text.clear();
        text::natural(&mut self.text, event.token_time >> 32);
        self.text.push(b':');
        text::natural(&mut self.text, event.token_time & 0xFFFF_FFFF);
        let token = (intern!(py, "token"), PyBytes::new(py, event.token)).into_pyobject(py)?;
        let time = (intern!(py, "clusterTime"), PyBytes::new(py, &self.text)).into_pyobject(py)?;
        let operation = self.operation(event.operation)?.1;
        if self.schema.is_none() {
            self.schema = Some((intern!(py, "schemaVersion"), PyBytes::new(py, b"1")).into_pyobject(py)?);
        }
        let headers = PyList::new(py, [Some(token), Some(time), Some(operation), self.schema.clone()])?;
        if event.operation == "update" {
            headers.append((intern!(py, "image"), PyBytes::new(py, self.image(event))))?;
        }
        if event.is_recovered {
            headers.append((intern!(py, "recovered"), PyBytes::new(py, b"true")))?;
        }
        if made.is_key_missing {
            headers.append((intern!(py, "key"), PyBytes::new(py, b"documentKey")))?;
        }
        Ok(headers)
    }

    /// Say what an update tells of its document.
    fn image(&self, event: &Event<'_>) -> &'static [u8] {
        match event.full_document {
            None => b"delta",
            Some((bson::NULL, _)) => b"missing",
            Some(_) if self.looks_up || event.is_image_fetched => b"lookup",
            Some(_) => b"post",
        }
    }

    fn operation(&mut self, name: &'a str) -> PyResult<(Bound<'py, PyString>, Bound<'py, PyTuple>)> {
        if let Some((known, text, header)) = &self.operation
            && *known == name
        {
            return Ok((text.clone(), header.clone()));
        }
        let text = PyString::new(self.py, name);
        let header =
            (intern!(self.py, "operationType"), PyBytes::new(self.py, name.as_bytes())).into_pyobject(self.py)?;
        self.operation = Some((name, text.clone(), header.clone()));
        Ok((text, header))
    }

    fn namespace(&mut self, event: &Event<'a>) -> Bound<'py, PyString> {
        if let Some((database, collection, text)) = &self.namespace
            && *database == event.database
            && *collection == event.collection
        {
            return text.clone();
        }
        let mut name = event.database.unwrap_or("").to_owned();
        if let Some(collection) = event.collection {
            name.push('.');
            name.push_str(collection);
        }
        let text = PyString::new(self.py, &name);
        self.namespace = Some((event.database, event.collection, text.clone()));
        text
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RecordFormat>()
}
