//! Events as Avro, under the schemas that `tailrace.capture.formats.avro` derives and registers.
//!
//! An event for which its schema has no place is declined: the reference lets the schema grow, and has it known here.
//! What is not exact (`spelling`) is declined too.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use pyo3::prelude::*;

use crate::bson::{self, elements};
use crate::error::{Error, Result};
use crate::event::{Event, Value};
use crate::spelling::{MAX_DEPTH, Names, Writer, boolean, exact_binary, is_number};
use crate::styles::{ExtendedJson, Silent};
use crate::text::{self, utf8};

const ABSENT: Value<'static> = (0, &[]);
const NO_PLACE: Error = Error::Declined("the schema has no place for a value");

/// The newest schema of each namespace.
#[derive(Default)]
pub struct Schemas(RwLock<HashMap<String, Schema>>);

struct Schema {
    id: u32,
    documents: Record,
}

/// The fields of a document, in the schema's order.
struct Record {
    fields: Vec<(Vec<u8>, Union)>,
    places: HashMap<Vec<u8>, usize>,
}

/// The branches of a union as Avro writes them, a byte each; 0, which is null's, where there is none.
#[derive(Default)]
struct Union {
    boolean: u8,
    int: u8,
    long: u8,
    double: u8,
    string: u8,
    bytes: u8,
    date: u8,
    record: Option<(u8, Record)>,
    array: Option<(u8, Box<Union>)>,
}

impl Schemas {
    /// Take the schema of a namespace: `DocumentSchema.plan()`.
    pub fn learn(&self, namespace: String, id: u32, plan: &Bound<'_, PyAny>) -> PyResult<()> {
        let schema = Schema { id, documents: Record::of(plan)? };
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(namespace, schema);
        Ok(())
    }

    /// Write the value of an event: the envelope.
    pub fn write<'e>(
        &self,
        raw: &'e [u8],
        out: &mut Vec<u8>,
        inner: &mut Vec<u8>,
        names: &mut Names,
    ) -> Result<Event<'e>> {
        let (event, description) = parts(raw, inner, names)?;
        inner.clear();
        inner.extend_from_slice(event.database.ok_or(Error::Declined("there is no namespace"))?.as_bytes());
        if let Some(collection) = event.collection {
            inner.push(b'.');
            inner.extend_from_slice(collection.as_bytes());
        }
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let schema = known.get(utf8(inner)?).ok_or(Error::Declined("the schema is not known yet"))?;
        out.push(0);
        out.extend_from_slice(&schema.id.to_be_bytes());
        bytes(out, event.operation.as_bytes());
        bytes(out, inner);
        long(out, event.token_time as i64);
        let mut writer = AvroWriter { out, inner, names, slots: Vec::new() };
        for image in [event.before, event.full_document] {
            writer.image(&schema.documents, image)?;
        }
        for part in [event.key, event.update, description] {
            writer.part(part)?;
        }
        Ok(event)
    }
}

/// Find the fields of an event, and see to it that those which are not written are exact.
fn parts<'e>(raw: &'e [u8], inner: &mut Vec<u8>, names: &mut Names) -> Result<(Event<'e>, Option<Value<'e>>)> {
    let mut event = Event { raw, ..Event::default() };
    let mut description = None;
    let begin = names.begin();
    for element in elements(raw)? {
        let element = element?;
        names.add(begin, element.name)?;
        match element.name {
            b"fullDocument" | b"fullDocumentBeforeChange" | b"documentKey" | b"updateDescription" => {}
            b"operationDescription" => description = Some((element.kind, element.value)),
            name if name.first() == Some(&b'$') => return Err(Error::Declined("a name begins with a dollar")),
            name => {
                utf8(name)?;
                inner.clear();
                Writer { style: Silent, out: inner, names }.value(element.kind, element.value)?;
            }
        }
        event.take(element)?;
    }
    names.end(begin)?;
    event.check()?;
    Ok((event, description))
}

struct AvroWriter<'w, 'e> {
    out: &'w mut Vec<u8>,
    inner: &'w mut Vec<u8>,
    names: &'w mut Names,
    /// The values of the documents that are being written, in the order of their schemas.
    slots: Vec<Value<'e>>,
}

impl<'e> AvroWriter<'_, 'e> {
    fn image(&mut self, schema: &Record, image: Option<Value<'e>>) -> Result<()> {
        match image {
            None | Some((bson::NULL, _)) => self.out.push(0),
            Some((bson::DOCUMENT, document)) => {
                self.out.push(2);
                self.record(schema, document, 0)?;
            }
            Some(_) => return Err(Error::Declined("an image is not a document")),
        }
        Ok(())
    }

    /// Write a part of the event as canonical Extended JSON.
    fn part(&mut self, part: Option<Value<'e>>) -> Result<()> {
        match part {
            None | Some((bson::NULL, _)) => self.out.push(0),
            Some((kind, value)) => {
                self.out.push(2);
                self.canonical(kind, value)?;
            }
        }
        Ok(())
    }

    fn canonical(&mut self, kind: u8, value: &[u8]) -> Result<()> {
        self.inner.clear();
        Writer { style: ExtendedJson::<true>, out: self.inner, names: self.names }.value(kind, value)?;
        bytes(self.out, self.inner);
        Ok(())
    }

    fn record(&mut self, schema: &Record, document: &'e [u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::Declined("documents are nested too deep"));
        }
        let base = self.slots.len();
        self.slots.resize(base + schema.fields.len(), ABSENT);
        let mut next = 0;
        for element in elements(document)? {
            let element = element?;
            if element.name.first() == Some(&b'$') {
                return Err(Error::Declined("a name begins with a dollar"));
            }
            let place = schema.place(element.name, next).ok_or(NO_PLACE)?;
            let slot = &mut self.slots[base + place];
            if slot.0 != ABSENT.0 {
                return Err(Error::Declined("a field is there twice"));
            }
            *slot = (element.kind, element.value);
            next = place + 1;
        }
        for (place, (_, union)) in schema.fields.iter().enumerate() {
            let (kind, value) = self.slots[base + place];
            if kind == ABSENT.0 {
                self.out.push(0);
            } else {
                self.value(union, kind, value, depth)?;
            }
        }
        self.slots.truncate(base);
        Ok(())
    }

    fn array(&mut self, items: &Union, array: &'e [u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::Declined("arrays are nested too deep"));
        }
        let count = elements(array)?.count();
        if count > 0 {
            long(self.out, count as i64);
        }
        for (number, element) in elements(array)?.enumerate() {
            let element = element?;
            if !is_number(element.name, number) {
                return Err(Error::Declined("an array has other names than its places"));
            }
            self.value(items, element.kind, element.value, depth)?;
        }
        self.out.push(0);
        Ok(())
    }

    /// Write a value: its branch, then itself. Dates beside longs, and longs beside dates, are strings.
    fn value(&mut self, union: &Union, kind: u8, value: &'e [u8], depth: usize) -> Result<()> {
        match kind {
            bson::NULL => self.out.push(0),
            bson::BOOL => {
                self.branch(union.boolean)?;
                self.out.push(boolean(value)?.into());
            }
            bson::INT32 => {
                self.branch(union.int)?;
                long(self.out, bson::int32(value)?.into());
            }
            bson::INT64 if union.date == 0 => {
                self.branch(union.long)?;
                long(self.out, bson::int64(value)?);
            }
            bson::DATE if union.long == 0 => {
                self.branch(union.date)?;
                long(self.out, bson::int64(value)?);
            }
            bson::DOUBLE => {
                if bson::double(value)?.is_nan() {
                    return Err(Error::Declined("a NaN has many forms"));
                }
                self.branch(union.double)?;
                self.out.extend_from_slice(value);
            }
            bson::STRING => {
                self.branch(union.string)?;
                bytes(self.out, utf8(bson::string(value)?)?.as_bytes());
            }
            bson::BINARY => {
                self.branch(union.bytes)?;
                bytes(self.out, exact_binary(value)?.1);
            }
            bson::OBJECT_ID => {
                self.branch(union.string)?;
                long(self.out, 2 * value.len() as i64);
                text::hex(self.out, value);
            }
            bson::DECIMAL128 => {
                self.branch(union.string)?;
                self.inner.clear();
                crate::decimal::write(self.inner, value)?;
                bytes(self.out, self.inner);
            }
            bson::DOCUMENT => {
                let (branch, record) = union.record.as_ref().ok_or(NO_PLACE)?;
                self.out.push(*branch);
                self.record(record, value, depth + 1)?;
            }
            bson::ARRAY => {
                let (branch, items) = union.array.as_ref().ok_or(NO_PLACE)?;
                self.out.push(*branch);
                self.array(items, value, depth + 1)?;
            }
            _ => {
                self.branch(union.string)?;
                self.canonical(kind, value)?;
            }
        }
        Ok(())
    }

    fn branch(&mut self, branch: u8) -> Result<()> {
        if branch == 0 {
            return Err(NO_PLACE);
        }
        self.out.push(branch);
        Ok(())
    }
}

/// Write an int or a long: zigzag, seven bits a byte.
fn long(out: &mut Vec<u8>, number: i64) {
    let mut left = ((number << 1) ^ (number >> 63)) as u64;
    while left > 0x7F {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Write bytes, or a text, behind their length.
fn bytes(out: &mut Vec<u8>, content: &[u8]) {
    long(out, content.len() as i64);
    out.extend_from_slice(content);
}

impl Record {
    fn of(plan: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut fields = Vec::new();
        for item in plan.try_iter()? {
            let (name, union): (String, Bound<'_, PyAny>) = item?.extract()?;
            fields.push((name.into_bytes(), Union::of(&union)?));
        }
        let places = fields.iter().enumerate().map(|(place, (name, _))| (name.clone(), place)).collect();
        Ok(Record { fields, places })
    }

    /// Find a field; documents mostly have theirs in the schema's order.
    fn place(&self, name: &[u8], next: usize) -> Option<usize> {
        match self.fields.get(next) {
            Some((expected, _)) if expected == name => Some(next),
            _ => self.places.get(name).copied(),
        }
    }
}

impl Union {
    fn of(plan: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (kinds, record, items): (Vec<String>, Bound<'_, PyAny>, Bound<'_, PyAny>) = plan.extract()?;
        let mut made = Union::default();
        for (number, kind) in kinds.iter().enumerate() {
            let branch = 2 * (number as u8 + 1);
            match kind.as_str() {
                "boolean" => made.boolean = branch,
                "int" => made.int = branch,
                "long" => (made.int, made.long) = (branch, branch),
                "double" => made.double = branch,
                "string" => made.string = branch,
                "bytes" => made.bytes = branch,
                "date" => made.date = branch,
                "record" => made.record = Some((branch, Record::of(&record)?)),
                _ => made.array = Some((branch, Box::new(Union::of(&items)?))),
            }
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longs_are_zigzag() {
        for (number, expected) in [(0, &[0][..]), (-1, &[1]), (1, &[2]), (-64, &[127]), (64, &[128, 1])] {
            let mut out = Vec::new();
            long(&mut out, number);
            assert_eq!(out, expected);
        }
        for number in [i64::MIN, i64::MAX] {
            let mut out = Vec::new();
            long(&mut out, number);
            assert_eq!(out.len(), 10);
        }
    }
}
