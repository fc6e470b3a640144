//! KeyString: BSON values as bytes that compare as the values do; see `tailrace.token.keystring`.
//!
//! Version 1 of the server's format, all ascending. Decimals and code with scope are left to the reference.

use crate::bson::{self, elements};
use crate::error::{Error, Result};

/// Deeper documents are left to the reference, which follows them as far as it can.
const MAX_DEPTH: usize = 100;
const TOO_DEEP: Error = Error::Declined("a key is nested deep");

const LARGE: f64 = 9_223_372_036_854_775_808.0; // 2^63
/// From here to 1 a double leaves two bits free for the marker of decimals.
const TWO_MARKER_BITS: f64 = f64::from_bits((1023 - 255) << 52); // 2^-255
const SHIFT: f64 = f64::from_bits((1023 + 256) << 52); // 2^256

/// The bits beside a key, which say what its bytes leave out.
#[derive(Default)]
pub struct TypeBits {
    bytes: Vec<u8>,
    count: usize,
    has_one: bool,
}

impl TypeBits {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
        self.has_one = false;
    }

    /// Add bits, in the order in which the text names them.
    pub fn push(&mut self, bits: &[u8]) {
        for &bit in bits {
            if self.count.is_multiple_of(8) {
                self.bytes.push(0);
            }
            if bit == b'1' {
                self.has_one = true;
                if let Some(last) = self.bytes.last_mut() {
                    *last |= 1 << (self.count % 8);
                }
            }
            self.count += 1;
        }
    }

    /// Pack the bits; zeros alone pack to nothing.
    pub fn packed(&self) -> Vec<u8> {
        let size = self.bytes.len();
        if !self.has_one {
            Vec::new()
        } else if size == 1 && self.bytes[0] < 0x80 {
            self.bytes.clone()
        } else if size < 0x80 {
            [&[0x80 | size as u8], &self.bytes[..]].concat()
        } else {
            [&[0x80], &(size as u32).to_le_bytes()[..], &self.bytes[..]].concat()
        }
    }
}

/// Encode the fields of a document, without the byte that says that it is one.
pub fn encode_body(doc: &[u8], key: &mut Vec<u8>, bits: &mut TypeBits) -> Result<()> {
    body(doc, key, bits, 0)
}

/// Encode one value as a whole key, whose type bits nobody asks for.
pub fn encode_value(kind: u8, data: &[u8], key: &mut Vec<u8>) -> Result<()> {
    value(kind, data, key, &mut TypeBits::default(), 0)?;
    key.push(0x04);
    Ok(())
}

fn body(doc: &[u8], key: &mut Vec<u8>, bits: &mut TypeBits, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(TOO_DEEP);
    }
    for element in elements(doc)? {
        let element = element?;
        key.push(generic(element.kind)?);
        key.extend_from_slice(element.name);
        key.push(0);
        value(element.kind, element.value, key, bits, depth)?;
    }
    key.push(0);
    Ok(())
}

/// The byte before a field's name: documents order by type, then name, then value.
fn generic(kind: u8) -> Result<u8> {
    Ok(match kind {
        bson::MIN_KEY => 0x0A,
        bson::UNDEFINED => 0x0F,
        bson::NULL => 0x14,
        bson::DOUBLE | bson::INT32 | bson::INT64 => 0x1E,
        bson::STRING | bson::SYMBOL => 0x3C,
        bson::DOCUMENT => 0x46,
        bson::ARRAY => 0x50,
        bson::BINARY => 0x5A,
        bson::OBJECT_ID => 0x64,
        bson::BOOL => 0x6E,
        bson::DATE => 0x78,
        bson::TIMESTAMP => 0x82,
        bson::REGEX => 0x8C,
        bson::DB_POINTER => 0x96,
        bson::CODE => 0xA0,
        bson::MAX_KEY => 0xF0,
        _ => return Err(Error::Declined("a type that the reference encodes")),
    })
}

fn value(kind: u8, data: &[u8], key: &mut Vec<u8>, bits: &mut TypeBits, depth: usize) -> Result<()> {
    match kind {
        bson::INT32 => {
            bits.push(b"00");
            integer(i64::from(bson::int32(data)?), key);
        }
        bson::INT64 => {
            bits.push(b"01");
            integer(bson::int64(data)?, key);
        }
        bson::DOUBLE => {
            let number = bson::double(data)?;
            bits.push(if number == 0.0 && number.is_sign_negative() { b"11000" } else { b"10" });
            double(number, key);
        }
        bson::STRING | bson::SYMBOL => {
            bits.push(if kind == bson::SYMBOL { b"1" } else { b"0" });
            text(0x3C, data, key);
        }
        bson::CODE => text(0xA0, data, key),
        bson::DOCUMENT => {
            key.push(0x46);
            body(data, key, bits, depth + 1)?;
        }
        bson::ARRAY => array(data, key, bits, depth + 1)?,
        bson::BOOL => key.push(if data == [0] { 0x6E } else { 0x6F }),
        _ => rare(kind, data, key)?,
    }
    Ok(())
}

fn array(data: &[u8], key: &mut Vec<u8>, bits: &mut TypeBits, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(TOO_DEEP);
    }
    key.push(0x50);
    for element in elements(data)? {
        let element = element?;
        value(element.kind, element.value, key, bits, depth)?;
    }
    key.push(0);
    Ok(())
}

fn rare(kind: u8, data: &[u8], key: &mut Vec<u8>) -> Result<()> {
    key.push(generic(kind)?);
    match kind {
        bson::BINARY => {
            let size = data.len().saturating_sub(5);
            if size < 0xFF {
                key.push(size as u8);
            } else {
                key.push(0xFF);
                key.extend_from_slice(&(size as u32).to_be_bytes());
            }
            key.extend_from_slice(data.get(4..).unwrap_or_default());
        }
        bson::DATE => key.extend_from_slice(&(bson::int64(data)? as u64 ^ 1 << 63).to_be_bytes()),
        bson::TIMESTAMP => key.extend(data.iter().rev()),
        bson::REGEX | bson::OBJECT_ID => key.extend_from_slice(data),
        bson::DB_POINTER => {
            let end = data.len().saturating_sub(13);
            let namespace = data.get(4..end).ok_or(Error::Declined("a pointer without a namespace"))?;
            key.extend_from_slice(&(namespace.len() as u32).to_be_bytes());
            key.extend_from_slice(namespace);
            key.extend_from_slice(&data[end + 1..]);
        }
        _ => {}
    }
    Ok(())
}

/// Write a text; a zero byte in it is followed by FF, so that a single one can close it.
fn text(head: u8, data: &[u8], key: &mut Vec<u8>) {
    key.push(head);
    for &byte in data.get(4..data.len().saturating_sub(1)).unwrap_or_default() {
        key.push(byte);
        if byte == 0 {
            key.push(0xFF);
        }
    }
    key.push(0);
}

/// Encode an integer of 64 bits.
pub fn integer(number: i64, key: &mut Vec<u8>) {
    match number {
        0 => key.push(0x29),
        i64::MIN => large(-LARGE, key),
        _ => magnitude(number.unsigned_abs() << 1, number < 0, key),
    }
}

/// Encode twice a magnitude; the lowest bit says whether a fraction follows.
fn magnitude(doubled: u64, negative: bool, key: &mut Vec<u8>) {
    let size = (64 - doubled.leading_zeros()).div_ceil(8) as usize;
    key.push(if negative { 0x28 - size as u8 } else { 0x2A + size as u8 });
    push_inverted(&doubled.to_be_bytes()[8 - size..], negative, key);
}

fn push_inverted(bytes: &[u8], negative: bool, key: &mut Vec<u8>) {
    let mask = if negative { 0xFF } else { 0 };
    key.extend(bytes.iter().map(|byte| byte ^ mask));
}

fn double(number: f64, key: &mut Vec<u8>) {
    let size = number.abs();
    if size >= LARGE {
        large(number, key);
    } else if size >= 1.0 {
        middle(size, number < 0.0, key);
    } else if size > 0.0 {
        small(number, key);
    } else {
        key.push(if number == 0.0 { 0x29 } else { 0x1E });
    }
}

/// Encode 1 to 2^63: an integer, or 8 bytes of integer part and fraction.
fn middle(number: f64, negative: bool, key: &mut Vec<u8>) {
    let integer = number as u64;
    if integer as f64 == number {
        return magnitude(integer << 1, negative, key);
    }
    // It has a fraction, so it is below 2^52 and there is room behind the integer part.
    let size = (64 - (integer << 1).leading_zeros()).div_ceil(8);
    let room = 8 * (8 - size);
    let scaled = (number * f64::from_bits((1023 + u64::from(room)) << 52)) as u64;
    let fixed_point = scaled + ((integer + 1) << room);
    key.push(if negative { 0x28 - size as u8 } else { 0x2A + size as u8 });
    push_inverted(&fixed_point.to_be_bytes(), negative, key);
}

/// Encode a magnitude between 0 and 1.
fn small(number: f64, key: &mut Vec<u8>) {
    let size = number.abs();
    let ordered =
        if size >= TWO_MARKER_BITS { size.to_bits() << 2 } else { ((size * SHIFT).to_bits() << 1) + (1 << 62) };
    key.push(if number < 0.0 { 0x28 } else { 0x2A });
    push_inverted(&ordered.to_be_bytes(), number < 0.0, key);
}

/// Encode a magnitude of 2^63 and more.
fn large(number: f64, key: &mut Vec<u8>) {
    // The top bit of such an exponent is always set, so it can be left out.
    let ordered = if number.is_infinite() { u64::MAX } else { (number.abs().to_bits() << 1) & (u64::MAX >> 1) };
    key.push(if number < 0.0 { 0x1F } else { 0x33 });
    push_inverted(&ordered.to_be_bytes(), number < 0.0, key);
}
