//! Events of a batch become records: key, value and headers in every format of capture.

use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::avro;
use crate::bson;
use crate::buffers::Buffers;
use crate::cloud_events;
use crate::debezium::{Debezium, Envelope};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::flat;
use crate::json_schema;
use crate::keys::{Key, find_key};
use crate::policy::Policy;
use crate::record_batch::{Builder, Made, RecordBatch, Source};
use crate::schemas::Schemas;
use crate::spelling::{Names, Style, Writer};
use crate::styles::{ExtendedJson, Unprintable};

enum Format {
    Json,
    Canonical,
    Bson,
    Flat(Vec<String>),
    Debezium(Debezium),
    /// With what `source` begins with.
    CloudEvents(String),
    Avro(Schemas),
    JsonSchema(Schemas),
}

/// A format with its options; it remembers nothing of the events it has seen, but for the schemas that it is given.
#[pyclass(frozen, module = "tailrace_kernel")]
pub struct RecordFormat {
    format: Format,
    key_field: Option<String>,
    tombstones: bool,
    /// `Record`, and what makes one of a tuple.
    record: Py<PyAny>,
    new: Py<PyAny>,
    buffers: Arc<Buffers>,
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
            "cloudevents" => Format::CloudEvents(server_name),
            "avro" => Format::Avro(Schemas::default()),
            "jsonschema" => Format::JsonSchema(Schemas::default()),
            _ => return Err(PyValueError::new_err(format!("there is no format {name}"))),
        };
        let new = record.py().get_type::<PyTuple>().getattr("__new__")?.unbind();
        Ok(RecordFormat { format, key_field, tombstones, record: record.unbind(), new, buffers: Arc::default() })
    }

    /// Take the schema of a namespace (`DocumentSchema.plan()`) and the id that the registry gave it.
    fn learn(&self, namespace: String, id: u32, plan: &Bound<'_, PyAny>) -> PyResult<()> {
        match &self.format {
            Format::Avro(schemas) | Format::JsonSchema(schemas) => schemas.learn(namespace, id, plan),
            _ => Err(PyValueError::new_err("this format has no schemas")),
        }
    }

    /// Make the records of events, in order, after a policy was applied to them; `now` is the time in nanoseconds.
    #[pyo3(signature = (events, looks_up, now, policy=None))]
    fn batch(
        &self,
        py: Python<'_>,
        events: Vec<Bound<'_, PyBytes>>,
        looks_up: bool,
        now: i64,
        policy: Option<&Bound<'_, Policy>>,
    ) -> RecordBatch {
        let slices: Vec<&[u8]> = events.iter().map(|event| event.as_bytes()).collect();
        let policy = policy.map(|policy| policy.get());
        let built = py.detach(|| self.convert_all(&slices, policy, looks_up, now));
        RecordBatch::new(events, built, self.record.clone_ref(py), self.new.clone_ref(py), self.buffers.clone())
    }
}

impl RecordFormat {
    fn convert_all(&self, events: &[&[u8]], policy: Option<&Policy>, looks_up: bool, now: i64) -> Builder {
        let content_type = matches!(self.format, Format::CloudEvents(_)).then_some(cloud_events::CONTENT_TYPE);
        let mut built = Builder::new(events.len(), self.buffers.take(), content_type);
        built.out.reserve(events.iter().map(|event| event.len() * 7 / 4).sum());
        let known = policy.map(Policy::known);
        let mut governor =
            policy.zip(known.as_ref()).map(|(policy, known)| policy.governor(known, self.buffers.take()));
        let (mut inner, mut names) = (Vec::new(), Names::default());
        for (number, given) in events.iter().enumerate() {
            let begin = built.out.len();
            let changed = governor.as_mut().map_or(Ok(None), |governor| governor.event(given));
            let (source, event) = match (changed, &governor) {
                (Ok(Some(place)), Some(governor)) => (Source::Governed(place.clone()), &governor.bytes()[place]),
                (Ok(_), _) => (Source::Given(number), *given),
                (Err(_), _) => {
                    built.decline(number);
                    continue;
                }
            };
            match self.convert(event, &mut built.out, &mut inner, &mut names, now) {
                Ok(Some(made)) => built.add(source, made, looks_up, self.tombstones),
                Ok(None) => {}
                Err(_) => {
                    built.out.truncate(begin);
                    names.forget();
                    built.decline(number);
                }
            }
        }
        if let Some(governor) = governor {
            (built.governed, built.unknown) = governor.finish();
        }
        built
    }

    fn convert<'e>(
        &self,
        raw: &'e [u8],
        out: &mut Vec<u8>,
        inner: &mut Vec<u8>,
        names: &mut Names,
        now: i64,
    ) -> Result<Option<Made<'e>>> {
        match &self.format {
            Format::Json => self.whole(ExtendedJson::<false>, raw, out, names),
            Format::Canonical => self.whole(ExtendedJson::<true>, raw, out, names),
            Format::Bson => self.bson(Event::parse(raw)?, out),
            Format::Flat(fields) => {
                let begin = out.len();
                let event = Event::parse(raw)?;
                flat::write(&event, fields, out, names)?;
                self.keyed(event, begin, out, names)
            }
            Format::Avro(schemas) => {
                let begin = out.len();
                let event = avro::write(schemas, raw, out, inner, names)?;
                self.keyed(event, begin, out, names)
            }
            Format::JsonSchema(schemas) => {
                let begin = out.len();
                let event = json_schema::write(schemas, raw, out, inner, names)?;
                self.keyed(event, begin, out, names)
            }
            Format::CloudEvents(source) => {
                inner.clear();
                let Some(made) = self.whole(ExtendedJson::<false>, raw, inner, names)? else { return Ok(None) };
                let begin = out.len();
                let data = made.value.map_or(&[][..], |place| &inner[place]);
                cloud_events::write(source, &made.event, &inner[made.key.clone()], data, out, names)?;
                let middle = out.len();
                out.extend_from_slice(&inner[made.key]);
                Ok(Some(Made { key: middle..out.len(), value: Some(begin..middle), ..made }))
            }
            Format::Debezium(rule) => {
                let event = Event::parse(raw)?;
                let (Some(op), Some(_)) = (event.op_code(), Event::document(event.key)) else {
                    return Ok(None);
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

    /// Write the key behind the value that began at `begin`, as relaxed Extended JSON.
    fn keyed<'e>(
        &self,
        event: Event<'e>,
        begin: usize,
        out: &mut Vec<u8>,
        names: &mut Names,
    ) -> Result<Option<Made<'e>>> {
        let middle = out.len();
        let key = find_key(&event, self.key_field.as_deref(), false)?;
        self.key_text(ExtendedJson::<false>, &event, &key, out, names)?;
        Ok(self.made(event, key, middle..out.len(), Some(begin..middle)))
    }

    /// Write the whole event; the text of the documentKey inside is the key, too.
    fn whole<'e, S: Style>(
        &self,
        style: S,
        raw: &'e [u8],
        out: &mut Vec<u8>,
        names: &mut Names,
    ) -> Result<Option<Made<'e>>> {
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
    fn bson<'e>(&self, event: Event<'e>, out: &mut Vec<u8>) -> Result<Option<Made<'e>>> {
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
    ) -> Option<Made<'e>> {
        let is_key_missing = self.key_field.is_some() && !matches!(key, Key::Field(_));
        Some(Made { event, key: place, value, is_key_missing })
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

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RecordFormat>()
}
