//! A field policy applied to events: see `tailrace.policy`, which says what the rules of a collection mean.
//!
//! Python makes a machine of the rules and hands over its tables; here events are rewritten by them. What is left to the
//! reference: events whose key changes, because that is part of their token, descriptions of DDL, and what is unusual.

use std::collections::HashMap;

use hmac::{Hmac, Mac};
use memchr::memmem::Finder;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use sha2::Sha256;

use crate::bson::{self, Element, elements};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::keystring;
use crate::text::utf8;
use crate::writer::Writer;

const MAX_DEPTH: usize = 100;
const ENCRYPTED: u8 = 6;
/// The documents of an event whose fields the rules are about.
const DOCUMENTS: [&[u8]; 3] = [b"fullDocument", b"fullDocumentBeforeChange", b"documentKey"];
const HEX: &[u8; 16] = b"0123456789abcdef";
const UNUSUAL: Error = Error::Declined("an event that the reference looks at");

#[derive(Clone, Copy, PartialEq)]
enum Action {
    None,
    Drop,
    Mask,
    Hash,
    Truncate(usize),
}

/// What the rules say of a field.
#[derive(Clone, Copy)]
struct State {
    action: Action,
    is_kept: bool,
    is_untouched: bool,
    may_contain_kept: bool,
}

impl State {
    /// Whether the field is there for those outside, in whatever shape.
    fn is_shown(&self) -> bool {
        self.action != Action::Drop && (self.is_kept || self.may_contain_kept)
    }
}

/// The rules of a collection: for each state and name the state of a field of that name.
struct Machine {
    /// The names that rules spell out, in order: their numbers count from 1 on, and 0 is any other.
    names: Vec<Vec<u8>>,
    /// A bit for each length that such a name has, up to 63: most fields are told apart by it.
    lengths: u64,
    /// Names without which nothing happens to an event; None: something may happen to any.
    ends: Option<Vec<Finder<'static>>>,
    states: Vec<State>,
    fields: Vec<u32>,
    positions: Vec<u32>,
}

/// A state as Python gives it: its action and the length that this leaves, and the three flags.
type GivenState = (u8, usize, bool, bool, bool);

impl Machine {
    fn new(
        names: Vec<Vec<u8>>,
        ends: Option<Vec<Vec<u8>>>,
        states: Vec<GivenState>,
        fields: Vec<u32>,
        positions: Vec<u32>,
    ) -> Option<Machine> {
        let size = states.len() * (names.len() + 1);
        let is_whole = |table: &[u32]| table.len() == size && table.iter().all(|&to| (to as usize) < states.len());
        if states.is_empty() || !names.is_sorted() || !is_whole(&fields) || !is_whole(&positions) {
            return None;
        }
        let states = states.into_iter().map(|(action, length, is_kept, is_untouched, may_contain_kept)| {
            let action = match action {
                0 => Action::None,
                1 => Action::Truncate(length),
                2 => Action::Hash,
                3 => Action::Mask,
                _ => Action::Drop,
            };
            State { action, is_kept, is_untouched, may_contain_kept }
        });
        let states = states.collect();
        let lengths = names.iter().fold(0, |bits, name| bits | length_bit(name));
        let ends = ends.map(|ends| ends.iter().map(|end| Finder::new(end).into_owned()).collect());
        Some(Machine { names, lengths, ends, states, fields, positions })
    }

    fn state(&self, number: usize) -> &State {
        &self.states[number]
    }

    fn step(&self, table: &[u32], from: usize, name: &[u8]) -> usize {
        let is_possible = self.lengths & length_bit(name) != 0;
        let place = if is_possible { self.names.binary_search_by(|known| known.as_slice().cmp(name)) } else { Err(0) };
        let number = place.map_or(0, |place| place + 1);
        table[from * (self.names.len() + 1) + number] as usize
    }

    /// The state of a field of a document; a name with dots is a path, in which a number may be a position or a name.
    /// Where the two readings differ the reference decides.
    fn field(&self, from: usize, name: &[u8]) -> Result<usize> {
        if memchr::memchr(b'.', name).is_none() {
            return Ok(self.step(&self.fields, from, name));
        }
        let (mut state, mut by_name) = (from, from);
        for part in name.split(|&byte| byte == b'.') {
            let is_position = state != from && !part.is_empty() && part.iter().all(u8::is_ascii_digit);
            state = self.step(if is_position { &self.positions } else { &self.fields }, state, part);
            by_name = self.step(&self.fields, by_name, part);
        }
        if state == by_name { Ok(state) } else { Err(UNUSUAL) }
    }

    /// The state of an element of an array.
    fn position(&self, from: usize, index: &[u8]) -> Result<usize> {
        match memchr::memchr(b'.', index) {
            None => Ok(self.step(&self.positions, from, index)),
            Some(_) => Err(UNUSUAL),
        }
    }

    fn may_touch(&self, raw: &[u8]) -> bool {
        let Some(ends) = &self.ends else { return true };
        ends.iter().any(|end| end.find(raw).is_some())
    }
}

/// Lengths from 63 on share a bit.
fn length_bit(name: &[u8]) -> u64 {
    1 << name.len().min(63)
}

/// What is known of a collection.
enum Known {
    Untouched,
    Ruled(Machine),
    /// Its rules have too many states.
    Left,
}

/// A policy with what it has learned of collections.
#[pyclass(module = "tailrace_kernel")]
pub struct Policy {
    /// Holds the key of the hashes.
    mac: Option<Hmac<Sha256>>,
    known: HashMap<String, Known>,
}

enum Outcome {
    Same,
    Changed(usize),
    Unknown,
}

#[pymethods]
impl Policy {
    #[new]
    fn new(key: Option<&[u8]>) -> Self {
        Policy { mac: key.and_then(|key| Hmac::new_from_slice(key).ok()), known: HashMap::new() }
    }

    /// Learn that nothing happens to the fields of a collection, or that the reference looks at its events.
    fn learn(&mut self, namespace: String, is_untouched: bool) {
        self.known.insert(namespace, if is_untouched { Known::Untouched } else { Known::Left });
    }

    /// Learn the rules of a collection: names, then by state and name (another, then each of the names) where to go on.
    fn learn_rules(
        &mut self,
        namespace: String,
        names: Vec<Vec<u8>>,
        ends: Option<Vec<Vec<u8>>>,
        states: Vec<GivenState>,
        fields: Vec<u32>,
        positions: Vec<u32>,
    ) -> PyResult<()> {
        let machine = Machine::new(names, ends, states, fields, positions);
        let machine = machine.ok_or_else(|| PyValueError::new_err("the tables of the rules do not fit together"))?;
        self.known.insert(namespace, Known::Ruled(machine));
        Ok(())
    }

    fn forget(&mut self) {
        self.known.clear();
    }

    /// Apply the rules to events from `start` on: the events as they may leave, the places among them of those that the
    /// reference has to look at, and where it stopped because a collection has to be learned, else the end.
    fn events<'py>(
        &self,
        py: Python<'py>,
        events: Vec<Bound<'py, PyBytes>>,
        start: usize,
    ) -> PyResult<(Bound<'py, PyList>, Vec<usize>, usize)> {
        let slices: Vec<&[u8]> = events.iter().skip(start).map(|event| event.as_bytes()).collect();
        let (bytes, outcomes) = py.detach(|| self.apply(&slices));
        let (list, mut declined, mut begin) = (PyList::empty(py), Vec::new(), 0);
        for (place, outcome) in outcomes.into_iter().enumerate() {
            let event = &events[start + place];
            match outcome {
                Ok(Outcome::Same) => list.append(event)?,
                Ok(Outcome::Changed(end)) => {
                    list.append(PyBytes::new(py, &bytes[begin..end]))?;
                    begin = end;
                }
                Ok(Outcome::Unknown) => return Ok((list, declined, start + place)),
                Err(_) => {
                    declined.push(place);
                    list.append(event)?;
                }
            }
        }
        let end = events.len();
        Ok((list, declined, end))
    }
}

impl Policy {
    fn apply(&self, events: &[&[u8]]) -> (Vec<u8>, Vec<Result<Outcome>>) {
        let mut rewriter = Rewriter { out: Writer::default(), mac: self.mac.as_ref(), scratch: Vec::new() };
        rewriter.out.bytes.reserve(events.iter().map(|event| event.len()).sum());
        let mut outcomes = Vec::with_capacity(events.len());
        let mut last = None;
        for event in events {
            let begin = rewriter.out.bytes.len();
            let outcome = self.event(event, &mut last, &mut rewriter);
            if !matches!(outcome, Ok(Outcome::Changed(_))) {
                rewriter.out.truncate(begin);
            }
            let is_unknown = matches!(outcome, Ok(Outcome::Unknown));
            outcomes.push(outcome);
            if is_unknown {
                break;
            }
        }
        (rewriter.out.bytes, outcomes)
    }

    fn event<'e>(
        &'e self,
        raw: &'e [u8],
        last: &mut Option<(&'e str, Option<&'e str>, &'e Known)>,
        rewriter: &mut Rewriter<'_>,
    ) -> Result<Outcome> {
        let event = Event::parse(raw)?;
        let database = event.database.filter(|name| !name.is_empty() || event.collection.is_some()).ok_or(UNUSUAL)?;
        let known = match *last {
            Some((before, collection, known)) if before == database && collection == event.collection => known,
            _ => {
                let namespace = event.collection.map_or(database.to_owned(), |name| [database, ".", name].concat());
                let Some(known) = self.known.get(&namespace) else { return Ok(Outcome::Unknown) };
                *last = Some((database, event.collection, known));
                known
            }
        };
        let machine = match known {
            Known::Untouched => return Ok(Outcome::Same),
            Known::Left => return Err(UNUSUAL),
            Known::Ruled(machine) => machine,
        };
        if event.is_description {
            return Err(UNUSUAL);
        }
        if !machine.may_touch(raw) || event.is_recovered {
            return Ok(Outcome::Same);
        }
        if let Some(key) = Event::document(event.key) {
            let begin = rewriter.out.bytes.len();
            rewriter.document(machine, 0, key, 0)?;
            if rewriter.out.bytes[begin..] != *key {
                return Err(UNUSUAL); // the key is in the token, too
            }
            rewriter.out.truncate(begin);
        }
        let begin = rewriter.out.bytes.len();
        rewriter.event(machine, raw)?;
        if rewriter.out.bytes[begin..] == *raw {
            return Ok(Outcome::Same);
        }
        Ok(Outcome::Changed(rewriter.out.bytes.len()))
    }
}

/// Writes events anew.
struct Rewriter<'k> {
    out: Writer,
    mac: Option<&'k Hmac<Sha256>>,
    scratch: Vec<u8>,
}

impl Rewriter<'_> {
    fn event(&mut self, machine: &Machine, raw: &[u8]) -> Result<()> {
        let whole = self.out.open();
        let mut copied = 4;
        for element in elements(raw)? {
            let Element { kind, name, value, start, end } = element?;
            let is_delta = name == b"updateDescription";
            if kind != bson::DOCUMENT || !(is_delta || DOCUMENTS.contains(&name)) {
                continue;
            }
            self.out.raw(&raw[copied..start]);
            self.out.head(kind, name);
            if is_delta {
                self.update(machine, value)?
            } else {
                self.document(machine, 0, value, 0)?
            }
            copied = end;
        }
        self.out.raw(&raw[copied..raw.len() - 1]);
        self.out.close_document(whole);
        Ok(())
    }

    /// Apply the rules to a delta: the names of its fields are paths.
    fn update(&mut self, machine: &Machine, description: &[u8]) -> Result<()> {
        let whole = self.out.open();
        for element in elements(description)? {
            let Element { kind, name, value, .. } = element?;
            self.out.head(kind, name);
            match (name, kind) {
                (b"updatedFields", bson::DOCUMENT) => self.document(machine, 0, value, 0)?,
                (b"disambiguatedPaths", bson::DOCUMENT) => self.paths(machine, value)?,
                (b"removedFields" | b"truncatedArrays", bson::ARRAY) => self.named(machine, value)?,
                _ => self.out.raw(value),
            }
        }
        self.out.close_document(whole);
        Ok(())
    }

    /// Keep those fields, whose names are paths, that are shown.
    fn paths(&mut self, machine: &Machine, document: &[u8]) -> Result<()> {
        let whole = self.out.open();
        for element in elements(document)? {
            let Element { kind, name, value, .. } = element?;
            if machine.state(machine.field(0, name)?).is_shown() {
                self.out.element(kind, name, value);
            }
        }
        self.out.close_document(whole);
        Ok(())
    }

    /// Keep those of an array of paths, or of documents that name one in `field`, that are shown; count them anew.
    fn named(&mut self, machine: &Machine, array: &[u8]) -> Result<()> {
        let whole = self.out.open();
        let mut count = 0_usize;
        for element in elements(array)? {
            let Element { kind, value, .. } = element?;
            let path = match kind {
                bson::DOCUMENT => bson::find(value, b"field")?.map(|field| (field.kind, field.value)),
                _ => Some((kind, value)),
            };
            let is_shown = match path {
                Some((bson::STRING, text)) => machine.state(machine.field(0, bson::string(text)?)?).is_shown(),
                _ => true,
            };
            if is_shown {
                self.out.element(kind, count.to_string().as_bytes(), value);
                count += 1;
            }
        }
        self.out.close_document(whole);
        Ok(())
    }

    fn document(&mut self, machine: &Machine, from: usize, document: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(UNUSUAL);
        }
        let whole = self.out.open();
        let mut copied = 4;
        for element in elements(document)? {
            let element = element?;
            let state = machine.field(from, element.name)?;
            if !machine.state(state).is_untouched {
                self.out.raw(&document[copied..element.start]);
                self.value(machine, state, &element, depth)?;
                copied = element.end;
            }
        }
        self.out.raw(&document[copied..document.len() - 1]);
        self.out.close_document(whole);
        Ok(())
    }

    /// Apply the rules to the elements of an array; a dropped one becomes null: the others keep their positions.
    fn array(&mut self, machine: &Machine, from: usize, array: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(UNUSUAL);
        }
        let whole = self.out.open();
        for element in elements(array)? {
            let element = element?;
            if !self.value(machine, machine.position(from, element.name)?, &element, depth)? {
                self.out.head(bson::NULL, element.name);
            }
        }
        self.out.close_document(whole);
        Ok(())
    }

    /// Write what stands in the place of an element; false when nothing does.
    fn value(&mut self, machine: &Machine, number: usize, element: &Element<'_>, depth: usize) -> Result<bool> {
        let state = machine.state(number);
        let &Element { kind, name, value, .. } = element;
        if state.is_untouched {
            self.out.element(kind, name, value);
            return Ok(true);
        }
        let is_nested = matches!(kind, bson::DOCUMENT | bson::ARRAY);
        if state.action == Action::Drop || !(state.is_kept || is_nested && state.may_contain_kept) {
            return Ok(false);
        }
        match kind {
            bson::DOCUMENT => {
                self.out.head(kind, name);
                self.document(machine, number, value, depth + 1)?;
            }
            bson::ARRAY => {
                self.out.head(kind, name);
                self.array(machine, number, value, depth + 1)?;
            }
            bson::NULL | bson::UNDEFINED | bson::MIN_KEY | bson::MAX_KEY => self.out.element(kind, name, value),
            bson::BINARY if bson::binary(value)?.0 == ENCRYPTED => self.out.element(kind, name, value),
            _ => self.change(state.action, kind, name, value)?,
        }
        Ok(true)
    }

    fn change(&mut self, action: Action, kind: u8, name: &[u8], value: &[u8]) -> Result<()> {
        match action {
            Action::None | Action::Drop => self.out.element(kind, name, value),
            Action::Hash => {
                let digest = self.digest(kind, value)?;
                self.out.head(bson::STRING, name);
                self.string(&digest);
            }
            Action::Mask => {
                self.out.head(kind, name);
                self.mask(kind, value)?;
            }
            Action::Truncate(length) => {
                self.out.head(kind, name);
                match kind {
                    bson::STRING | bson::SYMBOL | bson::CODE => {
                        let text = utf8(bson::string(value)?)?;
                        let end = text.char_indices().nth(length).map_or(text.len(), |(end, _)| end);
                        self.string(&text.as_bytes()[..end]);
                    }
                    bson::BINARY => match bson::binary(value)? {
                        (_, data) if data.len() > length => self.binary(0, &data[..length]),
                        _ => self.out.raw(value),
                    },
                    _ => self.out.raw(value),
                }
            }
        }
        Ok(())
    }

    /// Write a value of the type that says nothing.
    fn mask(&mut self, kind: u8, value: &[u8]) -> Result<()> {
        match kind {
            bson::STRING | bson::SYMBOL => self.string(b"***"),
            bson::CODE => self.string(b""),
            bson::BINARY => {
                let subtype = bson::binary(value)?.0;
                self.binary(
                    subtype,
                    match subtype {
                        2 => &[0; 4],
                        3..=5 => &[0; 16],
                        9 => &[3, 0],
                        _ => &[],
                    },
                );
            }
            bson::REGEX => self.out.raw(&[0; 2]),
            bson::DB_POINTER => {
                self.string(b"");
                self.out.raw(&[0; 12]);
            }
            bson::CODE_WITH_SCOPE => self.out.raw(b"\x0e\0\0\0\x01\0\0\0\0\x05\0\0\0\0"),
            bson::DECIMAL128 => self.out.raw(b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x40\x30"),
            _ => self.out.bytes.resize(self.out.bytes.len() + value.len(), 0),
        }
        Ok(())
    }

    /// Give the HMAC-SHA-256 of a value's KeyString, which equal values have in common, as hexadecimal digits.
    fn digest(&mut self, kind: u8, value: &[u8]) -> Result<[u8; 64]> {
        self.scratch.clear();
        keystring::encode_value(kind, value, &mut self.scratch)?;
        let mut mac = self.mac.ok_or(UNUSUAL)?.clone();
        mac.update(&self.scratch);
        let mut digits = [0; 64];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(mac.finalize().into_bytes()) {
            pair.copy_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        Ok(digits)
    }

    fn string(&mut self, text: &[u8]) {
        self.out.raw(&(text.len() as u32 + 1).to_le_bytes());
        self.out.raw(text);
        self.out.bytes.push(0);
    }

    fn binary(&mut self, subtype: u8, data: &[u8]) {
        self.out.raw(&(data.len() as u32).to_le_bytes());
        self.out.bytes.push(subtype);
        self.out.raw(data);
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Policy>()
}
