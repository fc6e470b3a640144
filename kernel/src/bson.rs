//! Raw BSON, walked in place: nothing is copied, every length is checked, every walk moves forward and so ends.
//!
//! The same rules as `tailrace.raw.bson_bytes`, which see.

use crate::error::{Error, Result};

pub const DOUBLE: u8 = 0x01;
pub const STRING: u8 = 0x02;
pub const DOCUMENT: u8 = 0x03;
pub const ARRAY: u8 = 0x04;
pub const BINARY: u8 = 0x05;
pub const UNDEFINED: u8 = 0x06;
pub const OBJECT_ID: u8 = 0x07;
pub const BOOL: u8 = 0x08;
pub const DATE: u8 = 0x09;
pub const NULL: u8 = 0x0A;
pub const REGEX: u8 = 0x0B;
pub const DB_POINTER: u8 = 0x0C;
pub const CODE: u8 = 0x0D;
pub const SYMBOL: u8 = 0x0E;
pub const CODE_WITH_SCOPE: u8 = 0x0F;
pub const INT32: u8 = 0x10;
pub const TIMESTAMP: u8 = 0x11;
pub const INT64: u8 = 0x12;
pub const DECIMAL128: u8 = 0x13;
pub const MAX_KEY: u8 = 0x7F;
pub const MIN_KEY: u8 = 0xFF;

/// A named value in place.
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    pub kind: u8,
    pub name: &'a [u8],
    /// The bytes after the name.
    pub value: &'a [u8],
    /// Where the element begins (its type byte), counted from the document's first byte.
    pub start: usize,
    /// Where the element ends.
    pub end: usize,
}

/// The elements of one level of a document or array.
#[derive(Clone)]
pub struct Elements<'a> {
    doc: &'a [u8],
    pos: usize,
}

/// Walk a document that takes up all of `doc`.
pub fn elements(doc: &[u8]) -> Result<Elements<'_>> {
    if document_length(doc)? != doc.len() {
        return Err(malformed("bytes follow the document", 0));
    }
    Ok(Elements { doc, pos: 4 })
}

/// Give the length of the document that `bytes` begins with; its last byte is there and is zero.
pub fn document_length(bytes: &[u8]) -> Result<usize> {
    let length = length_at(bytes, 0)?;
    if length < 5 || length > bytes.len() {
        return Err(malformed("a document cannot have such a length here", 0));
    }
    if bytes[length - 1] != 0 {
        return Err(malformed("the document does not end in a zero byte", length - 1));
    }
    Ok(length)
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>>;

    #[inline(always)] // what it gives is larger than what it does
    fn next(&mut self) -> Option<Self::Item> {
        let last = self.doc.len() - 1;
        if self.pos >= last {
            return None;
        }
        let found = element_at(&self.doc[..last], self.pos);
        self.pos = found.map_or(last, |element| element.end);
        Some(found)
    }
}

#[inline(always)]
fn element_at(body: &[u8], pos: usize) -> Result<Element<'_>> {
    let kind = body[pos];
    let name = pos + 1;
    let begin = name + zero_in(&body[name..]).ok_or(malformed("a name has no end", name))? + 1;
    let value = &body[begin..];
    let size = match SIZES[usize::from(kind)] {
        OWN_RULE => value_size(kind, value).map_err(|error| error.moved(begin))?,
        fixed => usize::from(fixed),
    };
    let value = value.get(..size).ok_or(malformed("a value does not fit", begin))?;
    Ok(Element { kind, name: &body[name..begin - 1], value, start: pos, end: begin + size })
}

/// Find the first zero byte. Most names are short: eight bytes at a time find their end sooner than a vectorised search.
#[inline]
fn zero_in(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut at = 0;
    while at < NEAR {
        let Some(eight) = bytes[at..].first_chunk::<8>() else {
            return bytes[at..].iter().position(|&byte| byte == 0).map(|found| at + found);
        };
        let word = u64::from_le_bytes(*eight);
        // The lowest bit that is left is that of the first zero byte; higher ones may be wrong.
        let zeros = word.wrapping_sub(ONES) & !word & (ONES << 7);
        if zeros != 0 {
            return Some(at + zeros.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    memchr::memchr(0, &bytes[at..]).map(|found| at + found)
}

/// Names beyond this are searched for their end by vectors.
const NEAR: usize = 24;

/// The size of the values of each type that has one.
const SIZES: [u8; 256] = sizes();
const OWN_RULE: u8 = 0xFF;

const fn sizes() -> [u8; 256] {
    let mut table = [OWN_RULE; 256];
    let fixed = [(DOUBLE, 8), (DATE, 8), (TIMESTAMP, 8), (INT64, 8), (INT32, 4), (BOOL, 1), (NULL, 0), (OBJECT_ID, 12)];
    let mut place = 0;
    while place < fixed.len() {
        table[fixed[place].0 as usize] = fixed[place].1;
        place += 1;
    }
    table
}

/// Give the size of the value of type `kind` that `bytes` begins with; it may be larger than what is there.
pub fn value_size(kind: u8, bytes: &[u8]) -> Result<usize> {
    Ok(match kind {
        DOUBLE | DATE | TIMESTAMP | INT64 => 8,
        INT32 => 4,
        BOOL => 1,
        OBJECT_ID => 12,
        DECIMAL128 => 16,
        NULL | UNDEFINED | MIN_KEY | MAX_KEY => 0,
        STRING | CODE | SYMBOL => prefixed(bytes, 4, 1)?,
        BINARY => prefixed(bytes, 5, 0)?,
        DOCUMENT | ARRAY => prefixed(bytes, 0, 5)?,
        CODE_WITH_SCOPE => prefixed(bytes, 0, 14)?,
        REGEX => {
            let pattern = cstring_size(bytes)?;
            pattern + cstring_size(&bytes[pattern..])?
        }
        DB_POINTER => prefixed(bytes, 4, 1)? + 12,
        _ => return Err(malformed("there is no such type", 0)),
    })
}

fn prefixed(bytes: &[u8], uncounted: usize, least: usize) -> Result<usize> {
    let length = length_at(bytes, 0)?;
    if length < least {
        return Err(malformed("a value cannot have such a length", 0));
    }
    Ok(length + uncounted)
}

fn cstring_size(bytes: &[u8]) -> Result<usize> {
    memchr::memchr(0, bytes).map(|zero| zero + 1).ok_or(malformed("a pattern has no end", 0))
}

/// Read a length; a negative one is malformed.
fn length_at(bytes: &[u8], pos: usize) -> Result<usize> {
    let length = int32(bytes.get(pos..).ok_or(malformed("a length is missing", pos))?)?;
    usize::try_from(length).map_err(|_| malformed("a length is negative", pos))
}

/// Find the first element called `name` at the top level.
pub fn find<'a>(doc: &'a [u8], name: &[u8]) -> Result<Option<Element<'a>>> {
    for element in elements(doc)? {
        let element = element?;
        if element.name == name {
            return Ok(Some(element));
        }
    }
    Ok(None)
}

/// Read the text of a string, code or symbol value: it ends in a zero byte. It may not be UTF-8.
pub fn string(value: &[u8]) -> Result<&[u8]> {
    match value {
        [_, _, _, _, text @ .., 0] => Ok(text),
        _ => Err(malformed("a string does not end in a zero byte", 0)),
    }
}

/// Read the subtype and payload of a binary value.
pub fn binary(value: &[u8]) -> Result<(u8, &[u8])> {
    match value {
        [_, _, _, _, subtype, payload @ ..] => Ok((*subtype, payload)),
        _ => Err(malformed("a binary has no subtype", 0)),
    }
}

pub fn int32(value: &[u8]) -> Result<i32> {
    Ok(i32::from_le_bytes(first(value)?))
}

pub fn int64(value: &[u8]) -> Result<i64> {
    Ok(i64::from_le_bytes(first(value)?))
}

pub fn double(value: &[u8]) -> Result<f64> {
    Ok(f64::from_le_bytes(first(value)?))
}

/// Read a timestamp as one number: seconds in the upper half, the increment in the lower.
pub fn timestamp(value: &[u8]) -> Result<u64> {
    Ok(u64::from_le_bytes(first(value)?))
}

fn first<const N: usize>(value: &[u8]) -> Result<[u8; N]> {
    match value.first_chunk::<N>() {
        Some(bytes) => Ok(*bytes),
        None => Err(malformed("a value does not fit", 0)),
    }
}

fn malformed(what: &'static str, offset: usize) -> Error {
    Error::Malformed { what, offset }
}

impl Error {
    /// The same error, of bytes that begin `by` further on.
    pub fn moved(self, by: usize) -> Error {
        match self {
            Error::Malformed { what, offset } => Error::Malformed { what, offset: offset + by },
            declined @ Error::Declined(_) => declined,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_in_order() {
        let doc = b"\x11\0\0\0\x10a\0\x01\0\0\0\x0ab\0\x08c\0\x01\0";
        let doc = [&(doc.len() as i32).to_le_bytes()[..], &doc[4..]].concat();
        let names: Vec<_> = elements(&doc).unwrap().map(|element| element.unwrap().name.to_vec()).collect();
        assert_eq!(names, [b"a", b"b", b"c"]);
    }

    #[test]
    fn a_length_beyond_the_end_is_malformed() {
        let doc = b"\x0c\0\0\0\x10a\0\x01\0\0\0\0";
        assert!(elements(doc).unwrap().all(|element| element.is_ok()));
        let cut = b"\x0b\0\0\0\x10a\0\x01\0\0\0";
        assert!(elements(cut).unwrap().any(|element| element.is_err()));
    }

    #[test]
    fn names_of_all_lengths_end_at_their_zero() {
        for length in 0..80_usize {
            for behind in 0..20_usize {
                let bytes = [vec![0x80; length], vec![0], vec![1; behind]].concat();
                assert_eq!(zero_in(&bytes), Some(length));
                assert_eq!(zero_in(&bytes[..length]), None);
                assert_eq!(zero_in(&[vec![1; length], vec![0; behind + 1]].concat()), Some(length));
            }
        }
    }

    #[test]
    fn any_bytes_end() {
        for length in 0..64_usize {
            for seed in 0..=255_u8 {
                let mut bytes: Vec<u8> = (0..length).map(|i| seed.wrapping_mul(i as u8).wrapping_add(seed)).collect();
                if length >= 5 {
                    bytes[..4].copy_from_slice(&(length as i32).to_le_bytes());
                    bytes[length - 1] = 0;
                }
                if let Ok(walk) = elements(&bytes) {
                    assert!(walk.count() <= length);
                }
            }
        }
    }
}
