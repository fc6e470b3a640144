//! Events as JSON under a schema (`tailrace.capture.formats.json_schema`): the fields of Avro's envelope.

use crate::bson::{self, elements};
use crate::error::{Error, Result};
use crate::event::{Event, Value};
use crate::schemas::{Branch, Enveloped, NO_PLACE, Record, Schemas, Union};
use crate::spelling::{MAX_DEPTH, Names, Writer, is_number};
use crate::styles::{ExtendedJson, Plain};
use crate::text;

/// Write the value of an event: the envelope.
pub fn write<'e>(
    schemas: &Schemas,
    raw: &'e [u8],
    out: &mut Vec<u8>,
    inner: &mut Vec<u8>,
    names: &mut Names,
) -> Result<Event<'e>> {
    let found = Enveloped::parse(raw, inner, names)?;
    let known = schemas.known();
    let schema = found.begin(&known, out, inner)?;
    out.extend_from_slice(b"{\"operationType\":");
    text::quoted(out, found.event.operation.as_bytes());
    out.extend_from_slice(b",\"ns\":");
    text::quoted(out, inner);
    out.extend_from_slice(b",\"clusterTime\":");
    text::natural(out, found.event.token_time);
    let mut writer = JsonWriter { out, inner, names };
    for (name, image) in [",\"before\":", ",\"after\":"].into_iter().zip(found.images()) {
        writer.out.extend_from_slice(name.as_bytes());
        writer.image(schema, image)?;
    }
    let names = [",\"documentKey\":", ",\"updateDescription\":", ",\"description\":"];
    for (name, part) in names.into_iter().zip(found.rest()) {
        writer.out.extend_from_slice(name.as_bytes());
        writer.part(part)?;
    }
    writer.out.push(b'}');
    Ok(found.event)
}

struct JsonWriter<'w> {
    out: &'w mut Vec<u8>,
    inner: &'w mut Vec<u8>,
    names: &'w mut Names,
}

impl JsonWriter<'_> {
    fn image(&mut self, schema: &Record, image: Option<Value<'_>>) -> Result<()> {
        match image {
            None | Some((bson::NULL, _)) => self.null(),
            Some((bson::DOCUMENT, document)) => self.record(schema, document, 0),
            Some(_) => Err(Error::Declined("an image is not a document")),
        }
    }

    fn part(&mut self, part: Option<Value<'_>>) -> Result<()> {
        match part {
            None | Some((bson::NULL, _)) => self.null(),
            Some((kind, value)) => self.canonical(kind, value),
        }
    }

    fn null(&mut self) -> Result<()> {
        self.out.extend_from_slice(b"null");
        Ok(())
    }

    /// Write a string that is canonical Extended JSON.
    fn canonical(&mut self, kind: u8, value: &[u8]) -> Result<()> {
        self.inner.clear();
        Writer { style: ExtendedJson::<true>, out: self.inner, names: self.names }.value(kind, value)?;
        text::quoted(self.out, self.inner);
        Ok(())
    }

    /// Write a document, its fields in its own order.
    fn record(&mut self, schema: &Record, document: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::Declined("documents are nested too deep"));
        }
        self.out.push(b'{');
        let (mut next, mut is_in_order) = (0, true);
        for (number, element) in elements(document)?.enumerate() {
            let element = element?;
            if element.name.first() == Some(&b'$') {
                return Err(Error::Declined("a name begins with a dollar"));
            }
            let place = schema.place(element.name, next).ok_or(NO_PLACE)?;
            is_in_order &= place >= next;
            next = place + 1;
            if number > 0 {
                self.out.push(b',');
            }
            let field = &schema.fields[place];
            self.out.extend_from_slice(&field.member);
            self.value(&field.union, element.kind, element.value, depth)?;
        }
        if !is_in_order {
            self.names.differ(document)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn array(&mut self, items: &Union, array: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::Declined("arrays are nested too deep"));
        }
        self.out.push(b'[');
        for (number, element) in elements(array)?.enumerate() {
            let element = element?;
            if !is_number(element.name, number) {
                return Err(Error::Declined("an array has other names than its places"));
            }
            if number > 0 {
                self.out.push(b',');
            }
            self.value(items, element.kind, element.value, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn value(&mut self, union: &Union, kind: u8, value: &[u8], depth: usize) -> Result<()> {
        if kind == bson::NULL {
            return self.null();
        }
        match union.branch(kind, value)? {
            Branch::Record(_, record) => self.record(record, value, depth + 1),
            Branch::Array(_, items) => self.array(items, value, depth + 1),
            Branch::Text(_) => self.canonical(kind, value),
            Branch::Own(_) => self.plain().value(kind, value),
        }
    }

    fn plain(&mut self) -> Writer<'_, Plain> {
        Writer { style: Plain, out: self.out, names: self.names }
    }
}
