//! Makes the events of inserts, updates and deletes; see `tailrace.engine.transform` and `tailrace.engine.tokens`.

use std::collections::HashMap;

use crate::bson;
use crate::engine_entry::Entry;
use crate::engine_update::{Description, is_replacement};
use crate::error::{Error, Result};
use crate::keystring::{self, TypeBits};
use crate::writer::Writer;

pub const INSERT: usize = 0;
pub const UPDATE: usize = 1;
pub const REPLACE: usize = 2;
pub const DELETE: usize = 3;
/// By the numbers above; a namespace's `wanted` has a bit for each.
pub const TYPES: [&str; 4] = ["insert", "update", "replace", "delete"];

const UNUSUAL: Error = Error::Declined("an entry that the reference looks at");
/// The two digits of each byte.
const HEX: [[u8; 2]; 256] = hex_digits();

const fn hex_digits() -> [[u8; 2]; 256] {
    let digits = b"0123456789ABCDEF";
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    table
}

/// The form that events have in one stream.
pub struct Form {
    /// Of the tokens: 1 or 2.
    pub version: u8,
    pub has_wall_time: bool,
    pub shows_uuid: bool,
    pub shows_migrations: bool,
    pub shows_raw_updates: bool,
    pub disambiguates: bool,
    /// Whether an insert without a key of its own has `_id` alone as its key.
    pub logs_keys: bool,
    /// Up to this time tokens may be of another version.
    pub declined_until: u64,
    pub prefilter: Option<Prefilter>,
}

/// A condition that an entry's bytes must meet for its event to pass the user's filter: see `engine.prefilter`.
pub struct Prefilter {
    pub name: Vec<u8>,
    /// The type and the first bytes of values that will do; none: any value will.
    pub values: Vec<(u8, Vec<u8>)>,
}

/// What is known of a namespace.
pub struct Namespace {
    pub is_watched: bool,
    /// Which types of events the user's filter may let pass; None: all of it is left to the reference.
    pub wanted: Option<u8>,
    /// The element `ns` of its events.
    pub element: Vec<u8>,
}

/// What is known besides the entries themselves.
#[derive(Default)]
pub struct Known {
    pub numbers: HashMap<Vec<u8>, usize>,
    pub namespaces: Vec<Namespace>,
    pub shard_keys: HashMap<[u8; 16], Vec<Vec<u8>>>,
}

/// What becomes of an entry.
pub enum Outcome {
    /// No event of the stream.
    Dropped,
    /// An event: its namespace's number, its type and its time. Its bytes are in the writer.
    Made(usize, usize, u64),
    /// Its namespace, or the shard key of its collection, has to be learned first.
    Unknown,
}

/// Makes events one behind the other into one buffer.
pub struct Maker<'a> {
    form: &'a Form,
    known: &'a Known,
    pub out: Writer,
    description: Description,
    token: Vec<u8>,
    bits: TypeBits,
    key: Writer,
    latest: Option<(&'a [u8], usize)>,
}

impl<'a> Maker<'a> {
    pub fn new(form: &'a Form, known: &'a Known, buffer: Vec<u8>) -> Maker<'a> {
        Maker {
            form,
            known,
            out: Writer { bytes: buffer },
            description: Description::disambiguating(form.disambiguates),
            token: Vec::new(),
            bits: TypeBits::default(),
            key: Writer::default(),
            latest: None,
        }
    }

    /// Make the event of an entry; after an error nothing of it is left.
    pub fn event(&mut self, entry: &'a [u8]) -> Result<Outcome> {
        let start = self.out.bytes.len();
        let outcome = self.outcome(Entry::read(entry)?);
        if !matches!(outcome, Ok(Outcome::Made(..))) {
            self.out.truncate(start);
        }
        outcome
    }

    fn outcome(&mut self, entry: Entry<'a>) -> Result<Outcome> {
        match entry.op {
            b'i' | b'u' | b'd' => {}
            b'n' if entry.o2.is_none() => return Ok(Outcome::Dropped),
            _ => return Err(UNUSUAL),
        }
        let Some(number) = self.number_of(entry.namespace) else { return Ok(Outcome::Unknown) };
        let namespace = &self.known.namespaces[number];
        let wanted = namespace.wanted.ok_or(UNUSUAL)?;
        if !namespace.is_watched || (entry.from_migrate && !self.form.shows_migrations) {
            return Ok(Outcome::Dropped);
        }
        let (Some(o), Some(uuid)) = (entry.o, entry.uuid) else { return Err(UNUSUAL) };
        if entry.time <= self.form.declined_until {
            return Err(UNUSUAL);
        }
        let (kind, has_key) = match (entry.op, entry.o2) {
            (b'i', None) => match self.make_key(o, uuid)? {
                true => (INSERT, false),
                false => return Ok(Outcome::Unknown),
            },
            (b'i', Some(_)) => (INSERT, true),
            (b'd', _) => (DELETE, false),
            (_, Some(_)) if is_replacement(o)? => (REPLACE, true),
            (_, Some(_)) => (UPDATE, true),
            (_, None) => return Err(UNUSUAL),
        };
        if wanted & 1 << kind == 0 {
            return Ok(Outcome::Dropped);
        }
        let own_key = std::mem::take(&mut self.key.bytes);
        let key = match entry.o2 {
            Some(second) if has_key => second,
            _ if kind == INSERT => &own_key,
            _ => o,
        };
        let made = self.write(&entry, namespace, kind, uuid, o, key);
        self.key.bytes = own_key;
        made?;
        if self.form.prefilter.as_ref().is_some_and(|filter| !filter.may_pass(o, entry.o2)) {
            return Ok(Outcome::Dropped);
        }
        Ok(Outcome::Made(number, kind, entry.time))
    }

    fn number_of(&mut self, namespace: &'a [u8]) -> Option<usize> {
        match self.latest {
            Some((latest, number)) if latest == namespace => Some(number),
            _ => {
                let number = *self.known.numbers.get(namespace)?;
                self.latest = Some((namespace, number));
                Some(number)
            }
        }
    }

    /// Make the key of an insert that was logged without one; false when the shard key is not known.
    fn make_key(&mut self, document: &[u8], uuid: &[u8; 16]) -> Result<bool> {
        let paths: &[Vec<u8>] = match self.known.shard_keys.get(uuid) {
            Some(paths) => paths,
            None if self.form.logs_keys => &[],
            None => return Ok(false),
        };
        self.key.truncate(0);
        let whole = self.key.open();
        let id = [b"_id".to_vec()];
        let has_id = paths.contains(&id[0]);
        for path in paths.iter().chain(if has_id { &[][..] } else { &id[..] }) {
            if let Some((kind, value)) = find_path(document, path)? {
                self.key.element(kind, path, value);
            }
        }
        self.key.close_document(whole);
        Ok(true)
    }

    fn write(
        &mut self,
        entry: &Entry<'_>,
        namespace: &Namespace,
        kind: usize,
        uuid: &[u8; 16],
        o: &[u8],
        key: &[u8],
    ) -> Result<()> {
        let event = self.out.open();
        self.make_token(entry.time, kind, uuid, key)?;
        self.write_token();
        let name = TYPES[kind].as_bytes();
        self.out.head(bson::STRING, b"operationType");
        self.out.raw(&(name.len() as u32 + 1).to_le_bytes());
        self.out.raw(name);
        self.out.raw(b"\0\x11clusterTime\0");
        self.out.raw(&entry.time.to_le_bytes());
        if self.form.shows_uuid {
            self.out.raw(b"\x05collectionUUID\0\x10\0\0\0\x04");
            self.out.raw(uuid);
        }
        if let (true, Some(wall)) = (self.form.has_wall_time, entry.wall) {
            self.out.element(bson::DATE, b"wallTime", wall);
        }
        if kind == INSERT || kind == REPLACE {
            self.out.element(bson::DOCUMENT, b"fullDocument", o);
        }
        self.out.raw(&namespace.element);
        self.out.element(bson::DOCUMENT, b"documentKey", key);
        if kind == UPDATE && self.form.shows_raw_updates {
            self.out.element(bson::DOCUMENT, b"rawUpdateDescription", o);
        } else if kind == UPDATE {
            self.description.write(o, &mut self.out)?;
        }
        self.out.close_document(event);
        Ok(())
    }

    /// Make the KeyString of the event's token.
    fn make_token(&mut self, time: u64, kind: usize, uuid: &[u8; 16], key: &[u8]) -> Result<()> {
        let token = &mut self.token;
        token.clear();
        self.bits.clear();
        token.push(0x82);
        token.extend_from_slice(&time.to_be_bytes());
        token.extend_from_slice(if self.form.version == 1 { b"\x2b\x02" } else { b"\x2b\x04" });
        token.extend_from_slice(b"\x2c\x01\x00\x29\x6e\x5a\x10\x04");
        token.extend_from_slice(uuid);
        token.push(0x46);
        self.bits.push(b"000000");
        if self.form.version == 1 {
            keystring::encode_body(key, token, &mut self.bits)?;
        } else {
            token.extend_from_slice(b"\x3coperationType\0\x3c");
            token.extend_from_slice(TYPES[kind].as_bytes());
            token.extend_from_slice(b"\0\x46documentKey\0\x46");
            self.bits.push(b"0");
            keystring::encode_body(key, token, &mut self.bits)?;
            token.push(0);
        }
        token.push(0x04);
        Ok(())
    }

    /// Write the token as the event's `_id`.
    fn write_token(&mut self) {
        let whole = self.out.open_document(b"_id");
        self.out.head(bson::STRING, b"_data");
        self.out.raw(&(2 * self.token.len() as u32 + 1).to_le_bytes());
        let begin = self.out.bytes.len();
        self.out.bytes.resize(begin + 2 * self.token.len() + 1, 0);
        for (pair, byte) in self.out.bytes[begin..].chunks_exact_mut(2).zip(&self.token) {
            pair.copy_from_slice(&HEX[usize::from(*byte)]);
        }
        let packed = self.bits.packed();
        if !packed.is_empty() {
            self.out.head(bson::BINARY, b"_typeBits");
            self.out.raw(&(packed.len() as u32).to_le_bytes());
            self.out.bytes.push(0);
            self.out.raw(&packed);
        }
        self.out.close_document(whole);
    }
}

/// Follow a dotted path through documents and arrays.
fn find_path<'b>(document: &'b [u8], path: &[u8]) -> Result<Option<(u8, &'b [u8])>> {
    let mut found = (bson::DOCUMENT, document);
    for name in path.split(|&byte| byte == b'.') {
        if !matches!(found.0, bson::DOCUMENT | bson::ARRAY) {
            return Ok(None);
        }
        match bson::find(found.1, name)? {
            Some(element) => found = (element.kind, element.value),
            None => return Ok(None),
        }
    }
    Ok(Some(found))
}

impl Prefilter {
    fn may_pass(&self, o: &[u8], o2: Option<&[u8]>) -> bool {
        self.is_in(o) || o2.is_some_and(|second| self.is_in(second))
    }

    /// Look for an element of the name, and one of the values, anywhere.
    fn is_in(&self, bytes: &[u8]) -> bool {
        memchr::memmem::find_iter(bytes, &self.name).any(|at| {
            let behind = &bytes[at + self.name.len()..];
            let [0, value @ ..] = behind else { return false };
            let kind = at.checked_sub(1).map_or(0, |before| bytes[before]);
            self.values.is_empty() || self.values.iter().any(|(type_, data)| *type_ == kind && value.starts_with(data))
        })
    }
}
