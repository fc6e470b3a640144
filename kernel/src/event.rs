//! A change event in place: where its fields are, and what every record says of it in its headers.

use crate::bson::{self, Element, elements};
use crate::error::{Error, Result};
use crate::text::utf8;

/// A value in place: its type and its bytes.
pub type Value<'e> = (u8, &'e [u8]);

/// The fields of an event that records are made of; the same as `tailrace.event.ChangeEvent` sees.
#[derive(Default)]
pub struct Event<'e> {
    pub raw: &'e [u8],
    /// The hexadecimal digits of the resume token.
    pub token: &'e [u8],
    /// The cluster time in the token: seconds in the upper half.
    pub token_time: u64,
    pub operation: &'e str,
    pub database: Option<&'e str>,
    pub collection: Option<&'e str>,
    pub cluster_time: Option<Value<'e>>,
    pub wall_time: Option<Value<'e>>,
    pub full_document: Option<Value<'e>>,
    pub before: Option<Value<'e>>,
    pub key: Option<Value<'e>>,
    pub ns: Option<Value<'e>>,
    pub update: Option<Value<'e>>,
    pub session: Option<Value<'e>>,
    pub transaction: Option<Value<'e>>,
    pub is_recovered: bool,
    pub is_image_fetched: bool,
    /// Whether it describes a change of a collection or its indexes (DDL).
    pub is_description: bool,
}

impl<'e> Event<'e> {
    /// Walk the fields of an event.
    pub fn parse(raw: &'e [u8]) -> Result<Self> {
        let mut event = Event { raw, ..Event::default() };
        for element in elements(raw)? {
            event.take(element?)?;
        }
        event.check()?;
        Ok(event)
    }

    /// Take a field; one that is there twice is left to the reference.
    pub fn take(&mut self, element: Element<'e>) -> Result<()> {
        let value = (element.kind, element.value);
        let place = match element.name {
            b"_id" => return self.take_token(value),
            b"operationType" => return self.take_operation(value),
            b"ns" => {
                self.take_namespace(value)?;
                &mut self.ns
            }
            b"clusterTime" => &mut self.cluster_time,
            b"wallTime" => &mut self.wall_time,
            b"fullDocument" => &mut self.full_document,
            b"fullDocumentBeforeChange" => &mut self.before,
            b"documentKey" => &mut self.key,
            b"updateDescription" => &mut self.update,
            b"lsid" => &mut self.session,
            b"txnNumber" => &mut self.transaction,
            b"recovered" => {
                self.is_recovered = true;
                return Ok(());
            }
            b"imageFetched" => {
                self.is_image_fetched = true;
                return Ok(());
            }
            b"operationDescription" | b"stateBeforeChange" => {
                self.is_description = true;
                return Ok(());
            }
            _ => return Ok(()),
        };
        match place.replace(value) {
            None => Ok(()),
            Some(_) => Err(Error::Declined("a field of the event is there twice")),
        }
    }

    /// Make sure that the event has what the headers of its record need.
    pub fn check(&self) -> Result<()> {
        if self.token.is_empty() || self.operation.is_empty() || self.operation == "rename" {
            return Err(Error::Declined("the event has no token or no operation, or is a rename"));
        }
        Ok(())
    }

    /// Give a field, if it is a document.
    pub fn document(value: Option<Value<'e>>) -> Option<&'e [u8]> {
        value.filter(|&(kind, _)| kind == bson::DOCUMENT).map(|(_, document)| document)
    }

    /// Milliseconds since 1970; servers before 6.0 send none.
    pub fn wall_ms(&self) -> Result<Option<i64>> {
        match self.wall_time {
            Some((bson::DATE, value)) => bson::int64(value).map(Some),
            _ => Ok(None),
        }
    }

    /// `clusterTime`; for an event without it that of the token.
    pub fn time(&self) -> Result<u64> {
        match self.cluster_time {
            Some((bson::TIMESTAMP, value)) => bson::timestamp(value),
            _ => Ok(self.token_time),
        }
    }

    /// The one-letter operation of flat records and Debezium's.
    pub fn op_code(&self) -> Option<&'static str> {
        match self.operation {
            "insert" => Some("c"),
            "update" | "replace" => Some("u"),
            "delete" => Some("d"),
            "read" => Some("r"),
            _ => None,
        }
    }

    fn take_token(&mut self, (kind, token): Value<'e>) -> Result<()> {
        if kind != bson::DOCUMENT || !self.token.is_empty() {
            return Err(Error::Declined("the event has no token, or two"));
        }
        let first = elements(token)?.next().transpose()?;
        match first {
            Some(Element { kind: bson::STRING, name: b"_data", value, .. }) => self.token = bson::string(value)?,
            _ => return Err(Error::Declined("the token is not a text")),
        }
        let digits = self.token.get(2..18).ok_or(Error::Declined("the token is too short"))?;
        if !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(Error::Declined("the token begins with no cluster time"));
        }
        self.token_time = u64::from_str_radix(utf8(digits)?, 16).map_err(|_| Error::Declined("no cluster time"))?;
        Ok(())
    }

    fn take_operation(&mut self, (kind, value): Value<'e>) -> Result<()> {
        if kind != bson::STRING || !self.operation.is_empty() {
            return Err(Error::Declined("the operation is not a text, or there twice"));
        }
        self.operation = utf8(bson::string(value)?)?;
        Ok(())
    }

    /// Take `ns`, which names a database or a collection and nothing else.
    pub fn take_namespace(&mut self, (kind, ns): Value<'e>) -> Result<()> {
        if kind != bson::DOCUMENT {
            return Err(Error::Declined("the namespace is not a document"));
        }
        for element in elements(ns)? {
            let element = element?;
            let place = match element.name {
                b"db" => &mut self.database,
                b"coll" => &mut self.collection,
                _ => return Err(Error::Declined("the namespace has other fields")),
            };
            if element.kind != bson::STRING || place.is_some() {
                return Err(Error::Declined("a part of the namespace is not a text, or there twice"));
            }
            *place = Some(utf8(bson::string(element.value)?)?);
        }
        if self.database.is_none() {
            return Err(Error::Declined("the namespace has no database"));
        }
        Ok(())
    }
}
