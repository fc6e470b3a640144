//! A field policy applied to events: see `tailrace.policy`, which says what the rules of a collection mean.
//!
//! Python makes a machine of the rules and hands over its tables; here events are rewritten by them. What is left to the
//! reference: events whose key changes, because that is part of their token, descriptions of DDL, and what is unusual.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

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
const DELTA: &[u8] = b"updateDescription";
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
pub struct Machine {
    /// The names that rules spell out, with their numbers, by `hash`: these count from 1 on, and 0 is any other. Most
    /// fields are told apart by their hash alone.
    numbers: Vec<Vec<(Vec<u8>, usize)>>,
    /// How many numbers there are.
    width: usize,
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
        let width = names.len() + 1;
        let size = states.len() * width;
        let is_whole = |table: &[u32]| table.len() == size && table.iter().all(|&to| (to as usize) < states.len());
        if states.is_empty() || !is_whole(&fields) || !is_whole(&positions) {
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
        let mut numbers = vec![Vec::new(); HASHES];
        for (place, name) in names.into_iter().enumerate() {
            numbers[hash(&name)].push((name, place + 1));
        }
        let ends = ends.map(|ends| ends.iter().map(|end| Finder::new(end).into_owned()).collect());
        Some(Machine { numbers, width, ends, states, fields, positions })
    }

    fn state(&self, number: usize) -> &State {
        &self.states[number]
    }

    #[inline]
    fn step(&self, table: &[u32], from: usize, name: &[u8]) -> usize {
        let known = self.numbers[hash(name)].iter().find(|(known, _)| known == name);
        table[from * self.width + known.map_or(0, |&(_, number)| number)] as usize
    }

    /// The state of a field of a document; a name with dots is a path.
    #[inline]
    fn field(&self, from: usize, name: &[u8]) -> Result<usize> {
        if has_dot(name) { self.path(from, name) } else { Ok(self.step(&self.fields, from, name)) }
    }

    /// The state that a path leads to, in which a number may be a position or a name. Where the two readings differ the
    /// reference decides.
    fn path(&self, from: usize, name: &[u8]) -> Result<usize> {
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
        if has_dot(index) { Err(UNUSUAL) } else { Ok(self.step(&self.positions, from, index)) }
    }

    /// Whether something may happen to a document.
    fn may_touch(&self, document: &[u8]) -> bool {
        let Some(ends) = &self.ends else { return true };
        ends.iter().any(|end| end.find(document).is_some())
    }

    /// Whether nothing happens to the fields of a document, as far as their names say.
    fn leaves_alone(&self, document: &[u8]) -> Result<bool> {
        for element in elements(document)? {
            if !self.state(self.field(0, element?.name)?).is_untouched {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Names are short: eight bytes at a time find a dot sooner than a search.
#[inline]
fn has_dot(name: &[u8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let has = |bytes: &[u8; 8]| {
        let word = u64::from_le_bytes(*bytes) ^ (ONES * b'.' as u64);
        word.wrapping_sub(ONES) & !word & (ONES << 7) != 0
    };
    match name.last_chunk::<8>() {
        Some(last) => has(last) || name.chunks_exact(8).any(|chunk| chunk.first_chunk().is_some_and(has)),
        None => name.contains(&b'.'),
    }
}

const HASHES: usize = 256;

/// A number by the length of a name and its first and last bytes.
#[inline]
fn hash(name: &[u8]) -> usize {
    let [first, last] = [name.first(), name.last()].map(|byte| usize::from(*byte.unwrap_or(&0)));
    (name.len() + 7 * first + 31 * last) % HASHES
}

/// What is known of a collection.
pub enum Known {
    Untouched,
    Ruled(Machine),
    /// Its rules have too many states.
    Left,
}

/// What is known of collections, by namespace.
pub type Collections = HashMap<String, Known>;

/// A policy with what it has learned of collections.
#[pyclass(frozen, module = "tailrace_kernel")]
pub struct Policy {
    /// Holds the key of the hashes.
    mac: Option<Hmac<Sha256>>,
    known: RwLock<Collections>,
}

#[pymethods]
impl Policy {
    #[new]
    fn new(key: Option<&[u8]>) -> Self {
        Policy { mac: key.and_then(|key| Hmac::new_from_slice(key).ok()), known: RwLock::default() }
    }

    /// Learn that nothing happens to the fields of a collection, or that the reference looks at its events.
    fn learn(&self, namespace: String, is_untouched: bool) {
        self.insert(namespace, if is_untouched { Known::Untouched } else { Known::Left });
    }

    /// Learn the rules of a collection: names, then by state and name (another, then each of the names) where to go on.
    fn learn_rules(
        &self,
        namespace: String,
        names: Vec<Vec<u8>>,
        ends: Option<Vec<Vec<u8>>>,
        states: Vec<GivenState>,
        fields: Vec<u32>,
        positions: Vec<u32>,
    ) -> PyResult<()> {
        let machine = Machine::new(names, ends, states, fields, positions);
        let machine = machine.ok_or_else(|| PyValueError::new_err("the tables of the rules do not fit together"))?;
        self.insert(namespace, Known::Ruled(machine));
        Ok(())
    }

    fn forget(&self) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Apply the rules to events: the events as they may leave, the places among them of those that the reference has to
    /// look at, and the namespaces of those for which a collection has to be learned first.
    fn events<'py>(
        &self,
        py: Python<'py>,
        events: Vec<Bound<'py, PyBytes>>,
    ) -> PyResult<(Bound<'py, PyList>, Vec<usize>, BTreeSet<String>)> {
        let slices: Vec<&[u8]> = events.iter().map(|event| event.as_bytes()).collect();
        let (places, bytes, unknown) = py.detach(|| {
            let known = self.known();
            let mut governor = self.governor(&known, Vec::new());
            let places: Vec<_> = slices.iter().map(|event| governor.event(event)).collect();
            let (bytes, unknown) = governor.finish();
            (places, bytes, unknown)
        });
        let (list, mut declined) = (PyList::empty(py), Vec::new());
        for (number, (event, place)) in events.iter().zip(places).enumerate() {
            match place {
                Ok(Some(place)) => list.append(PyBytes::new(py, &bytes[place]))?,
                Ok(None) => list.append(event)?,
                Err(_) => {
                    declined.push(number);
                    list.append(event)?;
                }
            }
        }
        Ok((list, declined, unknown))
    }
}

impl Policy {
    fn insert(&self, namespace: String, known: Known) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).insert(namespace, known);
    }

    pub fn known(&self) -> RwLockReadGuard<'_, Collections> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Give what applies the rules to events and writes those that change to the end of `bytes`.
    pub fn governor<'p>(&'p self, known: &'p Collections, bytes: Vec<u8>) -> Governor<'p> {
        let rewriter = Rewriter { out: Writer { bytes }, mac: self.mac.as_ref(), scratch: Vec::new() };
        Governor { known, rewriter, latest: None, unknown: BTreeSet::new() }
    }
}

/// Applies a policy to one event after another.
pub struct Governor<'p> {
    known: &'p Collections,
    rewriter: Rewriter<'p>,
    /// `ns` of the event before: neighbours are often of one collection.
    latest: Option<(Vec<u8>, &'p Known)>,
    /// Namespaces whose rules have to be learned first; their events are left to the reference.
    unknown: BTreeSet<String>,
}

impl<'p> Governor<'p> {
    /// The events that were changed, one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.rewriter.out.bytes
    }

    pub fn finish(self) -> (Vec<u8>, BTreeSet<String>) {
        (self.rewriter.out.bytes, self.unknown)
    }

    /// Apply the rules to an event; give where the changed one is in the buffer, None when it is as it was.
    pub fn event(&mut self, raw: &[u8]) -> Result<Option<Range<usize>>> {
        let begin = self.rewriter.out.bytes.len();
        let is_changed = self.rewrite(raw);
        if matches!(is_changed, Ok(true)) {
            return Ok(Some(begin..self.rewriter.out.bytes.len()));
        }
        self.rewriter.out.truncate(begin);
        is_changed.map(|_| None)
    }

    fn rewrite(&mut self, raw: &[u8]) -> Result<bool> {
        let event = Outline::of(raw)?;
        let machine = match self.collection(event.ns)? {
            Known::Untouched => return Ok(false),
            Known::Left => return Err(UNUSUAL),
            Known::Ruled(machine) => machine,
        };
        if event.is_description {
            return Err(UNUSUAL);
        }
        if event.is_recovered {
            return Ok(false);
        }
        let begin = self.rewriter.out.bytes.len();
        if let Some(key) = event.key
            && !machine.leaves_alone(key)?
        {
            self.rewriter.document(machine, 0, key, 0)?;
            if self.rewriter.out.bytes[begin..] != *key {
                return Err(UNUSUAL); // the key is in the token, too
            }
            self.rewriter.out.truncate(begin);
        }
        if !event.documents.iter().flatten().any(|document| machine.may_touch(document.value)) {
            return Ok(false);
        }
        self.rewriter.event(machine, raw, &event)?;
        Ok(self.rewriter.out.bytes[begin..] != *raw)
    }

    fn collection(&mut self, ns: &[u8]) -> Result<&'p Known> {
        if let Some((latest, known)) = &self.latest
            && latest == ns
        {
            return Ok(known);
        }
        let mut event = Event::default();
        event.take_namespace((bson::DOCUMENT, ns))?;
        let database = event.database.filter(|name| !name.is_empty() || event.collection.is_some()).ok_or(UNUSUAL)?;
        let namespace = event.collection.map_or(database.to_owned(), |name| [database, ".", name].concat());
        let Some(known) = self.known.get(&namespace) else {
            self.unknown.insert(namespace);
            return Err(UNUSUAL);
        };
        self.latest = Some((ns.to_vec(), known));
        Ok(known)
    }
}

/// Where in an event is what the rules are about. Whoever makes records of it looks at the rest.
#[derive(Default)]
struct Outline<'e> {
    ns: &'e [u8],
    key: Option<&'e [u8]>,
    /// Its images and its delta, in their order.
    documents: [Option<Element<'e>>; 3],
    is_description: bool,
    is_recovered: bool,
}

impl<'e> Outline<'e> {
    fn of(raw: &'e [u8]) -> Result<Self> {
        let (mut event, mut token, mut count) = (Outline::default(), None, 0);
        for element in elements(raw)? {
            let element = element?;
            match element.name {
                b"_id" if element.kind == bson::DOCUMENT && token.is_none() => token = Some(element.value),
                b"ns" if element.kind == bson::DOCUMENT && event.ns.is_empty() => event.ns = element.value,
                b"documentKey" if element.kind == bson::DOCUMENT && event.key.is_none() => {
                    event.key = Some(element.value);
                }
                b"_id" | b"ns" | b"documentKey" => return Err(UNUSUAL),
                b"fullDocument" | b"fullDocumentBeforeChange" | DELTA if element.kind == bson::DOCUMENT => {
                    *event.documents.get_mut(count).ok_or(UNUSUAL)? = Some(element);
                    count += 1;
                }
                b"operationDescription" | b"stateBeforeChange" => event.is_description = true,
                b"recovered" => event.is_recovered = true,
                _ => {}
            }
        }
        if token.is_none() || event.ns.is_empty() { Err(UNUSUAL) } else { Ok(event) }
    }
}

/// Writes events anew.
struct Rewriter<'k> {
    out: Writer,
    mac: Option<&'k Hmac<Sha256>>,
    scratch: Vec<u8>,
}

impl Rewriter<'_> {
    /// Write an event with its documents under the rules.
    fn event(&mut self, machine: &Machine, raw: &[u8], event: &Outline<'_>) -> Result<()> {
        let whole = self.out.open();
        let mut copied = 4;
        for &Element { kind, name, value, start, end } in event.documents.iter().flatten() {
            self.out.raw(&raw[copied..start]);
            self.out.head(kind, name);
            if name == DELTA {
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
        let mut copied = 4;
        for element in elements(array)? {
            let element = element?;
            let state = machine.position(from, element.name)?;
            if !machine.state(state).is_untouched {
                self.out.raw(&array[copied..element.start]);
                if !self.value(machine, state, &element, depth)? {
                    self.out.head(bson::NULL, element.name);
                }
                copied = element.end;
            }
        }
        self.out.raw(&array[copied..array.len() - 1]);
        self.out.close_document(whole);
        Ok(())
    }

    /// Write what stands in the place of an element; false when nothing does.
    fn value(&mut self, machine: &Machine, number: usize, element: &Element<'_>, depth: usize) -> Result<bool> {
        let state = machine.state(number);
        let &Element { kind, name, value, .. } = element;
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
                        let text = bson::string(value)?;
                        self.string(&text[..end_of(utf8(text)?, length)]);
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

/// Where so many characters of a text end; most texts are ASCII, or shorter.
fn end_of(text: &str, length: usize) -> usize {
    match text.as_bytes().get(..length) {
        None => text.len(),
        Some(begin) if begin.is_ascii() => length,
        Some(_) => text.char_indices().nth(length).map_or(text.len(), |(end, _)| end),
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Policy>()
}
