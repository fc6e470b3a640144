//! Events as Avro, under the schemas that `tailrace.capture.formats.avro` derives and registers.

use crate::bson::{self, elements};
use crate::error::{Error, Result};
use crate::event::{Event, Value};
use crate::schemas::{Branch, Enveloped, NO_PLACE, Record, Schemas, Union};
use crate::spelling::{MAX_DEPTH, Names, Writer, boolean, exact_binary, is_number};
use crate::styles::ExtendedJson;
use crate::text::{self, utf8};

const ABSENT: Value<'static> = (0, &[]);

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
    bytes(out, found.event.operation.as_bytes());
    bytes(out, inner);
    long(out, found.event.token_time as i64);
    let mut writer = AvroWriter { out, inner, names, slots: Vec::new() };
    for image in found.images() {
        writer.image(schema, image)?;
    }
    for part in found.rest() {
        writer.part(part)?;
    }
    Ok(found.event)
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
        for (place, field) in schema.fields.iter().enumerate() {
            let (kind, value) = self.slots[base + place];
            if kind == ABSENT.0 {
                self.out.push(0);
            } else {
                self.value(&field.union, kind, value, depth)?;
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

    /// Write a value: its branch, then itself.
    fn value(&mut self, union: &Union, kind: u8, value: &'e [u8], depth: usize) -> Result<()> {
        if kind == bson::NULL {
            self.out.push(0);
            return Ok(());
        }
        match union.branch(kind, value)? {
            Branch::Record(branch, record) => {
                self.out.push(branch);
                self.record(record, value, depth + 1)
            }
            Branch::Array(branch, items) => {
                self.out.push(branch);
                self.array(items, value, depth + 1)
            }
            Branch::Text(branch) => {
                self.out.push(branch);
                self.canonical(kind, value)
            }
            Branch::Own(branch) => {
                self.out.push(branch);
                self.scalar(kind, value)
            }
        }
    }

    fn scalar(&mut self, kind: u8, value: &[u8]) -> Result<()> {
        match kind {
            bson::BOOL => self.out.push(boolean(value)?.into()),
            bson::INT32 => long(self.out, bson::int32(value)?.into()),
            bson::INT64 | bson::DATE => long(self.out, bson::int64(value)?),
            bson::DOUBLE if bson::double(value)?.is_nan() => return Err(Error::Declined("a NaN has many forms")),
            bson::DOUBLE => self.out.extend_from_slice(value),
            bson::STRING => bytes(self.out, utf8(bson::string(value)?)?.as_bytes()),
            bson::BINARY => bytes(self.out, exact_binary(value)?.1),
            bson::OBJECT_ID => {
                long(self.out, 2 * value.len() as i64);
                text::hex(self.out, value);
            }
            bson::DECIMAL128 => {
                self.inner.clear();
                crate::decimal::write(self.inner, value)?;
                bytes(self.out, self.inner);
            }
            _ => return Err(NO_PLACE),
        }
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
