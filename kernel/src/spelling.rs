//! BSON as text, straight from the bytes: one walk, and a `Style` for each spelling.
//!
//! The walk declines every document that is not exact: one that pymongo would not give back byte by byte when it has
//! decoded it (a field that is there twice, a deprecated type, another order of regular expression options), and one
//! with a field whose name begins with a dollar, which may be read as a value of Extended JSON.

use crate::bson::{self, elements};
use crate::error::{Error, Result};
use crate::text::{self, utf8};

/// Servers refuse documents deeper than 180; orjson writes up to 254 levels.
pub const MAX_DEPTH: usize = 200;
const OLD_BINARY: u8 = 2;
const OLD_UUID: u8 = 3;
const UUID: u8 = 4;
const LAST: u8 = 255;

/// How values are written. The names between dollars and quotes are those of Extended JSON.
pub trait Style {
    const COLON: &'static [u8];
    const COMMA: &'static [u8];

    fn string(&self, out: &mut Vec<u8>, text: &str) {
        text::quoted(out, text.as_bytes());
    }

    /// Write a text whose bytes nobody has looked at yet; one that is not UTF-8 is left to the reference.
    #[inline]
    fn unchecked_string(&self, out: &mut Vec<u8>, text: &[u8]) -> Result<()> {
        if text::is_plain(text) {
            self.quoted_by(out, |out| out.extend_from_slice(text));
        } else {
            self.string(out, utf8(text)?);
        }
        Ok(())
    }

    fn int32(&self, out: &mut Vec<u8>, number: i32) {
        text::integer(out, number.into());
    }

    fn int64(&self, out: &mut Vec<u8>, number: i64) {
        text::integer(out, number);
    }

    fn double(&self, out: &mut Vec<u8>, number: f64) -> Result<()>;
    fn date(&self, out: &mut Vec<u8>, milliseconds: i64) -> Result<()>;
    fn regex(&self, out: &mut Vec<u8>, pattern: &str, options: &str) -> Result<()>;

    fn binary(&self, out: &mut Vec<u8>, subtype: u8, payload: &[u8]) {
        self.open(out, "$binary");
        self.open(out, "base64");
        self.quoted_by(out, |out| text::base64(out, payload));
        out.extend_from_slice(Self::COMMA);
        self.member(out, "subType");
        self.quoted_by(out, |out| out.extend_from_slice(&text::hex_byte(subtype)));
        out.extend_from_slice(b"}}");
    }

    fn object_id(&self, out: &mut Vec<u8>, id: &[u8]) {
        self.open(out, "$oid");
        self.quoted_by(out, |out| text::hex(out, id));
        out.push(b'}');
    }

    fn timestamp(&self, out: &mut Vec<u8>, time: u64) {
        self.open(out, "$timestamp");
        self.open(out, "t");
        text::natural(out, time >> 32);
        out.extend_from_slice(Self::COMMA);
        self.member(out, "i");
        text::natural(out, time & 0xFFFF_FFFF);
        out.extend_from_slice(b"}}");
    }

    fn decimal(&self, out: &mut Vec<u8>, value: &[u8]) -> Result<()> {
        self.open(out, "$numberDecimal");
        out.push(b'"');
        crate::decimal::write(out, value)?;
        out.extend_from_slice(b"\"}");
        Ok(())
    }

    fn code(&self, out: &mut Vec<u8>, code: &str) {
        self.open(out, "$code");
        self.string(out, code);
        out.push(b'}');
    }

    /// Write what stands before the scope of code with a scope; a brace follows it.
    fn code_before_scope(&self, out: &mut Vec<u8>, code: &str) -> Result<()> {
        self.open(out, "$code");
        self.string(out, code);
        out.extend_from_slice(Self::COMMA);
        self.member(out, "$scope");
        Ok(())
    }

    /// Write `$minKey` or `$maxKey`.
    fn limit(&self, out: &mut Vec<u8>, name: &str) -> Result<()> {
        self.open(out, name);
        out.extend_from_slice(b"1}");
        Ok(())
    }

    fn open(&self, out: &mut Vec<u8>, name: &str) {
        out.push(b'{');
        self.member(out, name);
    }

    fn member(&self, out: &mut Vec<u8>, name: &str) {
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.push(b'"');
        out.extend_from_slice(Self::COLON);
    }

    fn quoted_by(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        out.push(b'"');
        write(out);
        out.push(b'"');
    }
}

/// The names of the documents that a walk is inside of, to notice one that is there twice.
///
/// They are kept as hashes. Two names with one hash make an event decline that the kernel could do, and nothing else.
#[derive(Default)]
pub struct Names(Vec<u64>);

impl Names {
    /// As long as there are few, each is compared with those before it.
    const FEW: usize = 24;

    pub fn begin(&self) -> usize {
        self.0.len()
    }

    pub fn forget(&mut self) {
        self.0.clear();
    }

    pub fn add(&mut self, begin: usize, name: &[u8]) -> Result<()> {
        let hash = hash(name);
        let known = &self.0[begin..];
        if known.len() < Self::FEW && known.contains(&hash) {
            return Err(Error::Declined("a field is there twice"));
        }
        self.0.push(hash);
        Ok(())
    }

    pub fn end(&mut self, begin: usize) -> Result<()> {
        let known = &mut self.0[begin..];
        if known.len() > Self::FEW {
            known.sort_unstable();
            if known.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(Error::Declined("a field is there twice"));
            }
        }
        self.0.truncate(begin);
        Ok(())
    }

    /// See to it that no field of a document is there twice.
    pub fn differ(&mut self, document: &[u8]) -> Result<()> {
        let begin = self.begin();
        for element in elements(document)? {
            self.add(begin, element?.name)?;
        }
        self.end(begin)
    }
}

fn hash(name: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut hash = name.len() as u64;
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut chunks = name.chunks_exact(8);
    for chunk in &mut chunks {
        mix(chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    }
    mix(chunks.remainder().iter().fold(0, |word, &byte| word << 8 | u64::from(byte)));
    hash
}

/// Writes values of one style to the end of `out`.
pub struct Writer<'w, S> {
    pub style: S,
    pub out: &'w mut Vec<u8>,
    pub names: &'w mut Names,
}

impl<S: Style> Writer<'_, S> {
    pub fn document(&mut self, document: &[u8]) -> Result<()> {
        self.document_at(document, 0)
    }

    pub fn value(&mut self, kind: u8, value: &[u8]) -> Result<()> {
        self.value_at(kind, value, 0)
    }

    /// Write the name of a field and what stands between it and its value.
    pub fn name(&mut self, name: &[u8]) -> Result<()> {
        self.style.unchecked_string(self.out, name)?;
        self.out.extend_from_slice(S::COLON);
        Ok(())
    }

    /// Write the elements of a document, and let `seen` know of each where its value is in the text.
    pub fn members<'d>(
        &mut self,
        document: &'d [u8],
        depth: usize,
        mut seen: impl FnMut(bson::Element<'d>, std::ops::Range<usize>) -> Result<()>,
    ) -> Result<()> {
        self.out.push(b'{');
        let begin = self.names.begin();
        for (number, element) in elements(document)?.enumerate() {
            let element = element?;
            if element.name.first() == Some(&b'$') {
                return Err(Error::Declined("a name begins with a dollar"));
            }
            self.names.add(begin, element.name)?;
            if number > 0 {
                self.out.extend_from_slice(S::COMMA);
            }
            self.name(element.name)?;
            let start = self.out.len();
            self.value_at(element.kind, element.value, depth)?;
            seen(element, start..self.out.len())?;
        }
        self.names.end(begin)?;
        self.out.push(b'}');
        Ok(())
    }

    fn document_at(&mut self, document: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::Declined("documents are nested too deep"));
        }
        self.members(document, depth, |_, _| Ok(()))
    }

    fn array(&mut self, array: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::Declined("arrays are nested too deep"));
        }
        self.out.push(b'[');
        for (number, element) in elements(array)?.enumerate() {
            let element = element?;
            if !is_number(element.name, number) {
                return Err(Error::Declined("an array has other names than its places"));
            }
            if number > 0 {
                self.out.extend_from_slice(S::COMMA);
            }
            self.value_at(element.kind, element.value, depth)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn value_at(&mut self, kind: u8, value: &[u8], depth: usize) -> Result<()> {
        let out = &mut *self.out;
        match kind {
            bson::DOUBLE => self.style.double(out, bson::double(value)?)?,
            bson::STRING => self.style.unchecked_string(out, bson::string(value)?)?,
            bson::DOCUMENT => self.document_at(value, depth + 1)?,
            bson::ARRAY => self.array(value, depth + 1)?,
            bson::BINARY => {
                let (subtype, payload) = exact_binary(value)?;
                self.style.binary(out, subtype, payload);
            }
            bson::OBJECT_ID => self.style.object_id(out, value),
            bson::BOOL => out.extend_from_slice(if boolean(value)? { b"true" } else { b"false" }),
            bson::DATE => self.style.date(out, bson::int64(value)?)?,
            bson::NULL => out.extend_from_slice(b"null"),
            bson::REGEX => {
                let (pattern, options) = exact_regex(value)?;
                self.style.regex(out, pattern, options)?;
            }
            bson::CODE => self.style.code(out, utf8(bson::string(value)?)?),
            bson::CODE_WITH_SCOPE => {
                let (code, scope) = code_and_scope(value)?;
                self.style.code_before_scope(out, code)?;
                self.document_at(scope, depth + 1)?;
                self.out.push(b'}');
            }
            bson::INT32 => self.style.int32(out, bson::int32(value)?),
            bson::TIMESTAMP => self.style.timestamp(out, bson::timestamp(value)?),
            bson::INT64 => self.style.int64(out, bson::int64(value)?),
            bson::DECIMAL128 => self.style.decimal(out, value)?,
            bson::MIN_KEY => self.style.limit(out, "$minKey")?,
            bson::MAX_KEY => self.style.limit(out, "$maxKey")?,
            _ => return Err(Error::Declined("a value is of a deprecated type")),
        }
        Ok(())
    }
}

/// Whether a name is a number in decimal digits.
pub fn is_number(name: &[u8], number: usize) -> bool {
    if number < 10 {
        return name == [b'0' + number as u8];
    }
    let mut digits = Vec::with_capacity(20);
    text::natural(&mut digits, number as u64);
    name == digits
}

pub fn boolean(value: &[u8]) -> Result<bool> {
    match value {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err(Error::Declined("a boolean is neither 0 nor 1")),
    }
}

/// Give the subtype and content of a binary: one of subtype 2 has a second length, a UUID 16 bytes.
pub fn exact_binary(value: &[u8]) -> Result<(u8, &[u8])> {
    let (subtype, payload) = bson::binary(value)?;
    match subtype {
        OLD_BINARY => match payload.split_first_chunk::<4>() {
            Some((length, content)) if i32::from_le_bytes(*length) as usize == content.len() => Ok((subtype, content)),
            _ => Err(Error::Declined("a binary has two lengths that differ")),
        },
        LAST => Err(Error::Declined("pymongo cannot write this subtype")),
        OLD_UUID | UUID if payload.len() != 16 => Err(Error::Declined("a UUID has not 16 bytes")),
        _ => Ok((subtype, payload)),
    }
}

fn exact_regex(value: &[u8]) -> Result<(&str, &str)> {
    let end = memchr::memchr(0, value).ok_or(Error::Declined("a pattern has no end"))?;
    let options = utf8(&value[end + 1..value.len() - 1])?;
    let is_known = options.bytes().all(|letter| b"ilmsux".contains(&letter));
    if !is_known || !options.bytes().is_sorted_by(|one, next| one < next) {
        return Err(Error::Declined("a regular expression has unusual options"));
    }
    Ok((utf8(&value[..end])?, options))
}

fn code_and_scope(value: &[u8]) -> Result<(&str, &[u8])> {
    let inside = &value[4..];
    let size = bson::value_size(bson::STRING, inside)?;
    if size > inside.len() {
        return Err(Error::Declined("code does not fit"));
    }
    let (code, scope) = inside.split_at(size);
    Ok((utf8(bson::string(code)?)?, scope))
}
