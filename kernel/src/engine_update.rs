//! Updates as the oplog has them, and what an event says about them; see `tailrace.oplog.update_diff`.

use crate::bson::{self, elements};
use crate::error::{Error, Result};
use crate::writer::Writer;

const UNUSUAL: Error = Error::Declined("an update of another form");
/// Deeper deltas are left to the reference.
const MAX_DEPTH: usize = 100;
/// So are documents with more nested ones: each is compared with those before it.
const MAX_NESTED: usize = 200;
const MAX_POSITION: u32 = 16 * 1024 * 1024 / 3;

/// What an update changed, as elements; kept from one update to the next, so that nothing is allocated.
#[derive(Default)]
pub struct Description {
    updated: Vec<u8>,
    removed: Vec<u8>,
    truncated: Vec<u8>,
    removed_count: usize,
    truncated_count: usize,
    path: Vec<u8>,
    disambiguates: bool,
}

/// Whether `o` of an update is a whole document: only those have an `_id`.
pub fn is_replacement(update: &[u8]) -> Result<bool> {
    Ok(bson::find(update, b"_id")?.is_some())
}

impl Description {
    /// Describe names in a way that tells fields with dots from nested ones; such names are left to the reference.
    pub fn disambiguating(disambiguates: bool) -> Description {
        Description { disambiguates, ..Description::default() }
    }

    /// Write the `updateDescription` of an update's `o`.
    pub fn write(&mut self, update: &[u8], out: &mut Writer) -> Result<()> {
        self.updated.clear();
        self.removed.clear();
        self.truncated.clear();
        self.path.clear();
        self.removed_count = 0;
        self.truncated_count = 0;
        let delta = match delta(update)? {
            None => return self.write_modifiers(update, out),
            Some(delta) => delta,
        };
        self.document(delta, 0)?;
        let whole = out.open_document(b"updateDescription");
        out.document_of(bson::DOCUMENT, b"updatedFields", &self.updated);
        out.document_of(bson::ARRAY, b"removedFields", &self.removed);
        out.document_of(bson::ARRAY, b"truncatedArrays", &self.truncated);
        if self.disambiguates {
            out.document_of(bson::DOCUMENT, b"disambiguatedPaths", b"");
        }
        out.close_document(whole);
        Ok(())
    }

    /// Describe `$set` and `$unset`, as servers before 5.0 log them.
    fn write_modifiers(&mut self, update: &[u8], out: &mut Writer) -> Result<()> {
        let set = subdocument(update, b"$set")?;
        if let Some(unset) = subdocument(update, b"$unset")? {
            for element in elements(unset)? {
                self.remove(element?.name);
            }
        }
        let whole = out.open_document(b"updateDescription");
        out.element(bson::DOCUMENT, b"updatedFields", set.unwrap_or(EMPTY));
        out.document_of(bson::ARRAY, b"removedFields", &self.removed);
        out.close_document(whole);
        Ok(())
    }

    /// Collect what was deleted, updated and inserted in one document, then go into its nested deltas.
    fn document(&mut self, diff: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(UNUSUAL);
        }
        let (mut deleted, mut updated, mut inserted) = (None, None, None);
        let mut nested: Vec<(&[u8], &[u8])> = Vec::new();
        for section in elements(diff)? {
            let section = section?;
            let sections = match section.name {
                _ if section.kind != bson::DOCUMENT => return Err(UNUSUAL),
                b"d" => &mut deleted,
                b"u" => &mut updated,
                b"i" => &mut inserted,
                [b's', name @ ..] if nested.len() < MAX_NESTED && nested.iter().all(|(other, _)| other != &name) => {
                    nested.push((name, section.value));
                    continue;
                }
                _ => return Err(UNUSUAL),
            };
            if sections.replace(section.value).is_some() {
                return Err(UNUSUAL);
            }
        }
        let base = self.path.len();
        if let Some(fields) = deleted {
            for field in elements(fields)? {
                let name = field?.name;
                self.check(name)?;
                self.remove(name);
            }
        }
        for fields in [updated, inserted].into_iter().flatten() {
            for field in elements(fields)? {
                let field = field?;
                self.check(field.name)?;
                self.update(field.kind, field.name, field.value);
            }
        }
        for (name, delta) in nested {
            self.check(name)?;
            self.path.extend_from_slice(name);
            self.nested(delta, depth + 1)?;
            self.path.truncate(base);
        }
        Ok(())
    }

    fn nested(&mut self, delta: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(UNUSUAL);
        }
        if is_array_delta(delta)? {
            return self.array(delta, depth);
        }
        self.path.push(b'.');
        self.document(delta, depth)
    }

    fn array(&mut self, diff: &[u8], depth: usize) -> Result<()> {
        let base = self.path.len();
        for element in elements(diff)? {
            let element = element?;
            match element.name {
                b"a" => {}
                b"l" => self.truncate(element.kind, element.value),
                [b'u', digits @ ..] => {
                    let position = position(digits)?;
                    self.path.push(b'.');
                    self.update(element.kind, position, element.value);
                    self.path.truncate(base);
                }
                [b's', digits @ ..] if element.kind == bson::DOCUMENT => {
                    let position = position(digits)?;
                    self.path.push(b'.');
                    self.path.extend_from_slice(position);
                    self.nested(element.value, depth + 1)?;
                    self.path.truncate(base);
                }
                _ => return Err(UNUSUAL),
            }
        }
        Ok(())
    }

    /// Leave names to the reference that make a path ambiguous, where the event has to tell.
    fn check(&self, name: &[u8]) -> Result<()> {
        let is_ambiguous = name.contains(&b'.') || (!name.is_empty() && name.iter().all(u8::is_ascii_digit));
        if self.disambiguates && is_ambiguous { Err(UNUSUAL) } else { Ok(()) }
    }

    fn update(&mut self, kind: u8, name: &[u8], value: &[u8]) {
        self.updated.push(kind);
        self.updated.extend_from_slice(&self.path);
        self.updated.extend_from_slice(name);
        self.updated.push(0);
        self.updated.extend_from_slice(value);
    }

    fn remove(&mut self, name: &[u8]) {
        head(&mut self.removed, bson::STRING, self.removed_count);
        self.removed_count += 1;
        let size = (self.path.len() + name.len() + 1) as i32;
        self.removed.extend_from_slice(&size.to_le_bytes());
        self.removed.extend_from_slice(&self.path);
        self.removed.extend_from_slice(name);
        self.removed.push(0);
    }

    fn truncate(&mut self, kind: u8, length: &[u8]) {
        head(&mut self.truncated, bson::DOCUMENT, self.truncated_count);
        self.truncated_count += 1;
        let text = (self.path.len() + 1) as i32;
        let size = 4 + 7 + 4 + text + 9 + length.len() as i32 + 1;
        self.truncated.extend_from_slice(&size.to_le_bytes());
        self.truncated.extend_from_slice(b"\x02field\0");
        self.truncated.extend_from_slice(&text.to_le_bytes());
        self.truncated.extend_from_slice(&self.path);
        self.truncated.push(0);
        self.truncated.push(kind);
        self.truncated.extend_from_slice(b"newSize\0");
        self.truncated.extend_from_slice(length);
        self.truncated.push(0);
    }
}

const EMPTY: &[u8] = &[5, 0, 0, 0, 0];

/// Begin an element of an array.
fn head(out: &mut Vec<u8>, kind: u8, number: usize) {
    out.push(kind);
    out.extend_from_slice(number.to_string().as_bytes());
    out.push(0);
}

/// Give the delta of a `$v: 2` update, None for modifiers.
fn delta(update: &[u8]) -> Result<Option<&[u8]>> {
    let Some(version) = bson::find(update, b"$v")? else { return Ok(None) };
    let is_delta = match version.kind {
        bson::INT32 => bson::int32(version.value)? == 2,
        bson::INT64 => bson::int64(version.value)? == 2,
        bson::DOUBLE => bson::double(version.value)? == 2.0,
        _ => false,
    };
    if !is_delta {
        return Ok(None);
    }
    subdocument(update, b"diff")?.map(Some).ok_or(UNUSUAL)
}

fn subdocument<'a>(update: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>> {
    match bson::find(update, name)? {
        None => Ok(None),
        Some(found) if found.kind == bson::DOCUMENT => Ok(Some(found.value)),
        Some(_) => Err(UNUSUAL),
    }
}

/// An array's delta begins with `a: true`.
fn is_array_delta(diff: &[u8]) -> Result<bool> {
    match elements(diff)?.next() {
        None => Ok(false),
        Some(first) => first.map(|e| e.name == b"a" && e.kind == bson::BOOL && e.value == [1]),
    }
}

/// Check the digits of a position in an array: no sign, no leading zero.
fn position(digits: &[u8]) -> Result<&[u8]> {
    let is_plain = matches!(digits, [b'0'] | [b'1'..=b'9', ..]) && digits.len() <= 7;
    let mut number = 0;
    for &digit in digits {
        if !is_plain || !digit.is_ascii_digit() {
            return Err(UNUSUAL);
        }
        number = number * 10 + u32::from(digit - b'0');
    }
    if is_plain && number <= MAX_POSITION { Ok(digits) } else { Err(UNUSUAL) }
}
