//! Records as Debezium's MongoDB connector writes them (`tailrace.capture.formats.debezium`).

use crate::bson::{self, elements, find};
use crate::error::{Error, Result};
use crate::event::{Event, Value};
use crate::keys::Key;
use crate::spelling::{Names, Style, Writer};
use crate::styles::{Java, Silent, Unprintable};
use crate::text;

pub struct Debezium {
    pub version: String,
    pub server_name: String,
    pub unprintable: Unprintable,
}

/// Writes one event; the texts inside the envelope are made in `inner` and then quoted.
pub struct Envelope<'w> {
    pub rule: &'w Debezium,
    pub out: &'w mut Vec<u8>,
    pub inner: &'w mut Vec<u8>,
    pub names: &'w mut Names,
    /// Nanoseconds since 1970.
    pub now: i64,
}

impl Envelope<'_> {
    /// Write the key: `{"id": "..."}` with the `_id` as relaxed Extended JSON; a chosen field keeps its name.
    pub fn key(&mut self, key: &Key<'_>, field: Option<&str>) -> Result<()> {
        match *key {
            Key::Namespace => Err(Error::Declined("the event has no documentKey")),
            Key::Field(value) => {
                let field = field.unwrap_or("");
                if field.starts_with('$') {
                    return Err(Error::Declined("the key's field begins with a dollar"));
                }
                self.out.push(b'{');
                self.key_member(if field == "_id" { b"id" } else { field.as_bytes() }, value)?;
                self.out.push(b'}');
                Ok(())
            }
            Key::Document(document) => {
                self.check(document)?;
                self.out.push(b'{');
                if let Some(id) = find(document, b"_id")? {
                    self.key_member(b"id", (id.kind, id.value))?;
                } else {
                    for (number, element) in elements(document)?.enumerate() {
                        let element = element?;
                        if number > 0 {
                            self.out.push(b',');
                        }
                        self.key_member(element.name, (element.kind, element.value))?;
                    }
                }
                self.out.push(b'}');
                Ok(())
            }
        }
    }

    fn key_member(&mut self, name: &[u8], value: Value<'_>) -> Result<()> {
        text::quoted(self.out, name);
        self.out.push(b':');
        let style = Java::<false, false>(&self.rule.unprintable);
        self.quoted(style, value)
    }

    /// Write the value.
    pub fn value(&mut self, event: &Event<'_>, op: &str) -> Result<()> {
        self.out.extend_from_slice(b"{\"before\":");
        self.strict(event.before)?;
        self.out.extend_from_slice(b",\"after\":");
        self.strict(event.full_document)?;
        self.out.extend_from_slice(b",\"updateDescription\":");
        match Event::document(event.update) {
            Some(update) => self.update(update)?,
            None => self.out.extend_from_slice(b"null"),
        }
        self.out.extend_from_slice(b",\"source\":");
        self.source(event, op)?;
        self.out.extend_from_slice(b",\"op\":");
        text::quoted(self.out, op.as_bytes());
        self.number(",\"ts_ms\":", self.now.div_euclid(1_000_000));
        self.out.extend_from_slice(b",\"transaction\":null}");
        Ok(())
    }

    fn source(&mut self, event: &Event<'_>, op: &str) -> Result<()> {
        let is_read = op == "r";
        let (time, wall) = (event.time()?, event.wall_ms()?);
        let milliseconds = wall.unwrap_or((time >> 32) as i64 * 1000);
        let nanoseconds = match is_read {
            true => self.now,
            false => milliseconds.checked_mul(1_000_000).ok_or(Error::Declined("a date is too far away"))?,
        };
        self.out.extend_from_slice(b"{\"version\":");
        text::quoted(self.out, self.rule.version.as_bytes());
        self.out.extend_from_slice(b",\"connector\":\"mongodb\",\"name\":");
        text::quoted(self.out, self.rule.server_name.as_bytes());
        self.number(",\"ts_ms\":", nanoseconds.div_euclid(1_000_000));
        self.out.extend_from_slice(if is_read { b",\"snapshot\":\"true\"" } else { b",\"snapshot\":\"false\"" });
        self.out.extend_from_slice(b",\"db\":");
        self.jackson(event.database.ok_or(Error::Declined("the event has no database"))?.as_bytes())?;
        self.number(",\"sequence\":null,\"ts_us\":", nanoseconds.div_euclid(1000));
        self.number(",\"ts_ns\":", nanoseconds);
        self.out.extend_from_slice(b",\"collection\":");
        self.jackson(event.collection.ok_or(Error::Declined("the event has no collection"))?.as_bytes())?;
        self.number(",\"ord\":", if is_read { -1 } else { (time & 0xFFFF_FFFF) as i64 });
        self.out.extend_from_slice(b",\"lsid\":");
        self.strict(event.session)?;
        match event.transaction {
            None => self.out.extend_from_slice(b",\"txnNumber\":null"),
            Some((bson::INT64, value)) => self.number(",\"txnNumber\":", bson::int64(value)?),
            Some(_) => return Err(Error::Declined("the number of the transaction is no int64")),
        }
        match wall {
            None => self.out.extend_from_slice(b",\"wallTime\":null"),
            Some(wall) => self.number(",\"wallTime\":", wall),
        }
        self.out.push(b'}');
        Ok(())
    }

    fn update(&mut self, update: &[u8]) -> Result<()> {
        self.check(update)?;
        self.out.extend_from_slice(b"{\"removedFields\":");
        let mut count = 0;
        for element in self.array(update, b"removedFields")? {
            let element = element?;
            if element.kind != bson::STRING {
                return Err(Error::Declined("the name of a removed field is not a text"));
            }
            self.out.push(if count == 0 { b'[' } else { b',' });
            self.jackson(bson::string(element.value)?)?;
            count += 1;
        }
        self.out.extend_from_slice(if count == 0 { b"null" } else { b"]" });
        self.out.extend_from_slice(b",\"updatedFields\":");
        match find(update, b"updatedFields")? {
            None => self.out.extend_from_slice(b"\"{}\""),
            Some(element) if element.kind == bson::DOCUMENT => {
                self.quoted(Java::<false, true>(&self.rule.unprintable), (element.kind, element.value))?;
            }
            Some(_) => return Err(Error::Declined("updatedFields is not a document")),
        }
        if self.array(update, b"truncatedArrays")?.next().is_some() {
            return Err(Error::Declined("an array was truncated"));
        }
        self.out.extend_from_slice(b",\"truncatedArrays\":null}");
        Ok(())
    }

    fn array<'d>(&self, update: &'d [u8], name: &[u8]) -> Result<bson::Elements<'d>> {
        match find(update, name)? {
            None => elements(b"\x05\0\0\0\0"),
            Some(element) if element.kind == bson::ARRAY => elements(element.value),
            Some(_) => Err(Error::Declined("a part of the update is not an array")),
        }
    }

    /// Write a document as a string of strict Extended JSON; null for everything that is none.
    fn strict(&mut self, value: Option<Value<'_>>) -> Result<()> {
        match Event::document(value) {
            None => self.out.extend_from_slice(b"null"),
            Some(document) => {
                self.quoted(Java::<true, false>(&self.rule.unprintable), (bson::DOCUMENT, document))?;
            }
        }
        Ok(())
    }

    fn quoted<S: Style>(&mut self, style: S, (kind, value): Value<'_>) -> Result<()> {
        self.inner.clear();
        Writer { style, out: self.inner, names: self.names }.value(kind, value)?;
        text::quoted(self.out, self.inner);
        Ok(())
    }

    /// Write a name of the envelope itself; Jackson escapes some characters otherwise, and those are declined.
    fn jackson(&mut self, name: &[u8]) -> Result<()> {
        if text::utf8(name)?.chars().any(|character| !(' '..='\u{FFFF}').contains(&character)) {
            return Err(Error::Declined("a name has characters that Jackson escapes"));
        }
        text::quoted(self.out, name);
        Ok(())
    }

    fn number(&mut self, before: &str, number: i64) {
        self.out.extend_from_slice(before.as_bytes());
        text::integer(self.out, number);
    }

    /// Make sure that a document is exact.
    fn check(&mut self, document: &[u8]) -> Result<()> {
        self.inner.clear();
        Writer { style: Silent, out: self.inner, names: self.names }.document(document)
    }
}
