//! The schemas of collections, as `tailrace.capture.formats.document_schema` derives and the registry knows them.
//!
//! An event for which its schema has no place is declined: the reference lets the schema grow, and has it known here.
//! What is not exact (`spelling`) is declined too.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use pyo3::prelude::*;

use crate::bson::{self, elements};
use crate::error::{Error, Result};
use crate::event::{Event, Value};
use crate::spelling::{Names, Writer};
use crate::styles::Silent;
use crate::text::{self, utf8};

pub const NO_PLACE: Error = Error::Declined("the schema has no place for a value");

/// The newest schema of each namespace.
#[derive(Default)]
pub struct Schemas(RwLock<HashMap<Vec<u8>, Schema>>);

pub struct Schema {
    id: u32,
    pub documents: Record,
}

/// The fields of a document, in the schema's order.
pub struct Record {
    pub fields: Vec<Field>,
    places: HashMap<Vec<u8>, usize>,
}

pub struct Field {
    name: Vec<u8>,
    /// The name as JSON has it, with the colon.
    pub member: Vec<u8>,
    pub union: Union,
}

/// The branches of a union as Avro writes them, a byte each; 0, which is null's, where there is none.
#[derive(Default)]
pub struct Union {
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

/// Where a value goes to.
pub enum Branch<'s> {
    Record(u8, &'s Record),
    Array(u8, &'s Union),
    /// A branch for values of its type.
    Own(u8),
    /// The branch of strings, as canonical Extended JSON.
    Text(u8),
}

impl Schemas {
    /// Take the schema of a namespace: `DocumentSchema.plan()`.
    pub fn learn(&self, namespace: String, id: u32, plan: &Bound<'_, PyAny>) -> PyResult<()> {
        let schema = Schema { id, documents: Record::of(plan)? };
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(namespace.into_bytes(), schema);
        Ok(())
    }

    pub fn known(&self) -> RwLockReadGuard<'_, HashMap<Vec<u8>, Schema>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event whose parts are to be written under a schema.
pub struct Enveloped<'e> {
    pub event: Event<'e>,
    pub description: Option<Value<'e>>,
}

impl<'e> Enveloped<'e> {
    /// Find the fields of an event, and see to it that those which are not written are exact.
    pub fn parse(raw: &'e [u8], inner: &mut Vec<u8>, names: &mut Names) -> Result<Self> {
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
        Ok(Enveloped { event, description })
    }

    /// The documents before and after.
    pub fn images(&self) -> [Option<Value<'e>>; 2] {
        [self.event.before, self.event.full_document]
    }

    /// What is written as Extended JSON.
    pub fn rest(&self) -> [Option<Value<'e>>; 3] {
        [self.event.key, self.event.update, self.description]
    }

    /// Begin a value as Confluent's serializers do, under the schema of the namespace, whose name is left in `inner`.
    pub fn begin<'s>(
        &self,
        known: &'s HashMap<Vec<u8>, Schema>,
        out: &mut Vec<u8>,
        inner: &mut Vec<u8>,
    ) -> Result<&'s Record> {
        inner.clear();
        inner.extend_from_slice(self.event.database.ok_or(Error::Declined("there is no namespace"))?.as_bytes());
        if let Some(collection) = self.event.collection {
            inner.push(b'.');
            inner.extend_from_slice(collection.as_bytes());
        }
        let schema = known.get(&**inner).ok_or(Error::Declined("the schema is not known yet"))?;
        out.push(0);
        out.extend_from_slice(&schema.id.to_be_bytes());
        Ok(&schema.documents)
    }
}

impl Record {
    fn of(plan: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut fields: Vec<Field> = Vec::new();
        for item in plan.try_iter()? {
            let (name, union): (String, Bound<'_, PyAny>) = item?.extract()?;
            let mut member = Vec::with_capacity(name.len() + 3);
            text::quoted(&mut member, name.as_bytes());
            member.push(b':');
            fields.push(Field { name: name.into_bytes(), member, union: Union::of(&union)? });
        }
        let places = fields.iter().enumerate().map(|(place, field)| (field.name.clone(), place)).collect();
        Ok(Record { fields, places })
    }

    /// Find a field; documents mostly have theirs in the schema's order.
    pub fn place(&self, name: &[u8], next: usize) -> Option<usize> {
        match self.fields.get(next) {
            Some(expected) if expected.name == name => Some(next),
            _ => self.places.get(name).copied(),
        }
    }
}

impl Union {
    /// Find the branch of a value. Dates beside longs, longs beside dates, and dates that consumers cannot read are text.
    pub fn branch(&self, kind: u8, value: &[u8]) -> Result<Branch<'_>> {
        let own = match kind {
            bson::DOCUMENT => {
                return self.record.as_ref().map(|(branch, record)| Branch::Record(*branch, record)).ok_or(NO_PLACE);
            }
            bson::ARRAY => {
                return self.array.as_ref().map(|(branch, items)| Branch::Array(*branch, items)).ok_or(NO_PLACE);
            }
            bson::BOOL => self.boolean,
            bson::INT32 => self.int,
            bson::INT64 if self.date == 0 => self.long,
            bson::DATE if self.long == 0 && text::has_text(bson::int64(value)?) => self.date,
            bson::DOUBLE => self.double,
            bson::BINARY => self.bytes,
            bson::STRING | bson::OBJECT_ID | bson::DECIMAL128 => self.string,
            _ => return if self.string == 0 { Err(NO_PLACE) } else { Ok(Branch::Text(self.string)) },
        };
        if own == 0 { Err(NO_PLACE) } else { Ok(Branch::Own(own)) }
    }

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
