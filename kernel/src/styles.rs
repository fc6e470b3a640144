//! The spellings of records: Extended JSON, that of MongoDB's Java driver, and plain JSON.

use crate::error::{Error, Result};
use crate::spelling::Style;
use crate::text;

/// Extended JSON, version 2: relaxed, or canonical.
pub struct ExtendedJson<const CANONICAL: bool>;

impl<const CANONICAL: bool> ExtendedJson<CANONICAL> {
    fn named(&self, out: &mut Vec<u8>, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        self.open(out, name);
        self.quoted_by(out, write);
        out.push(b'}');
    }
}

impl<const CANONICAL: bool> Style for ExtendedJson<CANONICAL> {
    const COLON: &'static [u8] = b":";
    const COMMA: &'static [u8] = b",";

    fn int32(&self, out: &mut Vec<u8>, number: i32) {
        if CANONICAL {
            self.named(out, "$numberInt", |out| text::integer(out, number.into()));
        } else {
            text::integer(out, number.into());
        }
    }

    fn int64(&self, out: &mut Vec<u8>, number: i64) {
        if CANONICAL {
            self.named(out, "$numberLong", |out| text::integer(out, number));
        } else {
            text::integer(out, number);
        }
    }

    fn double(&self, out: &mut Vec<u8>, number: f64) -> Result<()> {
        if CANONICAL && number.is_nan() {
            return Err(Error::Declined("a NaN has many forms and one text"));
        }
        if !number.is_finite() {
            self.named(out, "$numberDouble", |out| out.extend_from_slice(non_finite(number)));
        } else if CANONICAL {
            self.named(out, "$numberDouble", |out| text::double_repr(out, number));
        } else {
            text::double(out, number);
        }
        Ok(())
    }

    fn date(&self, out: &mut Vec<u8>, milliseconds: i64) -> Result<()> {
        if !CANONICAL && (0..=text::LAST_YEAR_MS).contains(&milliseconds) {
            self.named(out, "$date", |out| text::date(out, milliseconds));
        } else {
            self.open(out, "$date");
            self.named(out, "$numberLong", |out| text::integer(out, milliseconds));
            out.push(b'}');
        }
        Ok(())
    }

    fn regex(&self, out: &mut Vec<u8>, pattern: &str, options: &str) -> Result<()> {
        self.open(out, "$regularExpression");
        self.open(out, "pattern");
        self.string(out, pattern);
        out.push(b',');
        self.member(out, "options");
        self.string(out, options);
        out.extend_from_slice(b"}}");
        Ok(())
    }
}

fn non_finite(number: f64) -> &'static [u8] {
    match (number.is_nan(), number.is_sign_negative()) {
        (true, _) => b"NaN",
        (false, true) => b"-Infinity",
        (false, false) => b"Infinity",
    }
}

/// Which characters of the first plane the Java driver escapes.
pub struct Unprintable(Vec<bool>);

impl Unprintable {
    const PLANE: usize = 0x10000;

    pub fn new(ranges: &[(u32, u32)]) -> Self {
        let mut table = vec![false; Self::PLANE];
        for &(first, last) in ranges {
            for code in first..=last.min(Self::PLANE as u32 - 1) {
                table[code as usize] = true;
            }
        }
        Unprintable(table)
    }

    fn has(&self, character: char) -> bool {
        *self.0.get(character as usize).unwrap_or(&true)
    }
}

/// Extended JSON of MongoDB's Java driver, as Debezium has it: `STRICT` in documents, else in keys and updates.
pub struct Java<'t, const STRICT: bool, const BLANKS: bool>(pub &'t Unprintable);

impl<const STRICT: bool, const BLANKS: bool> Style for Java<'_, STRICT, BLANKS> {
    const COLON: &'static [u8] = b": ";
    const COMMA: &'static [u8] = if BLANKS { b", " } else { b"," };

    fn string(&self, out: &mut Vec<u8>, text: &str) {
        if text.is_ascii() && !text.contains('\x7f') {
            text::quoted(out, text.as_bytes());
            return;
        }
        out.push(b'"');
        let mut begin = 0;
        for (place, character) in text.char_indices().filter(|&(_, character)| self.0.has(character)) {
            text::escaped(out, &text.as_bytes()[begin..place]);
            for unit in character.encode_utf16(&mut [0; 2]) {
                out.extend_from_slice(b"\\u");
                text::hex(out, &unit.to_be_bytes());
            }
            begin = place + character.len_utf8();
        }
        text::escaped(out, &text.as_bytes()[begin..]);
        out.push(b'"');
    }

    fn int64(&self, out: &mut Vec<u8>, number: i64) {
        if STRICT {
            self.open(out, "$numberLong");
            self.quoted_by(out, |out| text::integer(out, number));
            out.push(b'}');
        } else {
            text::integer(out, number);
        }
    }

    fn double(&self, out: &mut Vec<u8>, number: f64) -> Result<()> {
        if number.is_finite() {
            text::double_java(out, number);
        } else if STRICT {
            out.extend_from_slice(non_finite(number));
        } else {
            self.open(out, "$numberDouble");
            self.quoted_by(out, |out| out.extend_from_slice(non_finite(number)));
            out.push(b'}');
        }
        Ok(())
    }

    fn date(&self, out: &mut Vec<u8>, milliseconds: i64) -> Result<()> {
        self.open(out, "$date");
        if STRICT {
            text::integer(out, milliseconds);
        } else if (0..=text::LAST_YEAR_MS).contains(&milliseconds) {
            out.push(b'"');
            text::date(out, milliseconds);
            out.pop();
            if milliseconds % 1000 != 0 {
                while out.last() == Some(&b'0') {
                    out.pop();
                }
            }
            out.extend_from_slice(b"Z\"");
        } else {
            self.open(out, "$numberLong");
            self.quoted_by(out, |out| text::integer(out, milliseconds));
            out.push(b'}');
        }
        out.push(b'}');
        Ok(())
    }

    fn binary(&self, out: &mut Vec<u8>, subtype: u8, payload: &[u8]) {
        self.open(out, "$binary");
        if !STRICT {
            self.open(out, "base64");
        }
        self.quoted_by(out, |out| text::base64(out, payload));
        out.extend_from_slice(Self::COMMA);
        self.member(out, if STRICT { "$type" } else { "subType" });
        self.quoted_by(out, |out| out.extend_from_slice(&text::hex_byte(subtype)));
        out.extend_from_slice(if STRICT { b"}" } else { b"}}" });
    }

    fn regex(&self, out: &mut Vec<u8>, pattern: &str, options: &str) -> Result<()> {
        if !STRICT {
            self.open(out, "$regularExpression");
        }
        self.open(out, if STRICT { "$regex" } else { "pattern" });
        self.string(out, pattern);
        out.extend_from_slice(Self::COMMA);
        self.member(out, if STRICT { "$options" } else { "options" });
        self.string(out, options);
        out.extend_from_slice(if STRICT { b"}" } else { b"}}" });
        Ok(())
    }
}

/// JSON without the types of BSON, as flat records have it; what has no such form is declined.
pub struct Plain;

impl Style for Plain {
    const COLON: &'static [u8] = b":";
    const COMMA: &'static [u8] = b",";

    fn double(&self, out: &mut Vec<u8>, number: f64) -> Result<()> {
        if !number.is_finite() {
            return Err(Error::Declined("a number is not finite"));
        }
        text::double(out, number);
        Ok(())
    }

    fn date(&self, out: &mut Vec<u8>, milliseconds: i64) -> Result<()> {
        if !text::has_text(milliseconds) {
            return Err(Error::Declined("a date is outside the years 1 to 9999"));
        }
        self.quoted_by(out, |out| text::date(out, milliseconds));
        Ok(())
    }

    fn binary(&self, out: &mut Vec<u8>, _: u8, payload: &[u8]) {
        self.quoted_by(out, |out| text::base64(out, payload));
    }

    fn object_id(&self, out: &mut Vec<u8>, id: &[u8]) {
        self.quoted_by(out, |out| text::hex(out, id));
    }

    fn timestamp(&self, out: &mut Vec<u8>, time: u64) {
        text::natural(out, time);
    }

    fn decimal(&self, out: &mut Vec<u8>, value: &[u8]) -> Result<()> {
        out.push(b'"');
        crate::decimal::write(out, value)?;
        out.push(b'"');
        Ok(())
    }

    fn code(&self, out: &mut Vec<u8>, code: &str) {
        self.string(out, code);
    }

    fn code_before_scope(&self, _: &mut Vec<u8>, _: &str) -> Result<()> {
        Err(Error::Declined("code with a scope has no plain form"))
    }

    fn regex(&self, _: &mut Vec<u8>, _: &str, _: &str) -> Result<()> {
        Err(Error::Declined("a regular expression has no plain form"))
    }

    fn limit(&self, _: &mut Vec<u8>, _: &str) -> Result<()> {
        Err(Error::Declined("MinKey and MaxKey have no plain form"))
    }
}

/// Writes next to nothing: for a walk that only looks whether a document is exact.
pub struct Silent;

impl Style for Silent {
    const COLON: &'static [u8] = b"";
    const COMMA: &'static [u8] = b"";

    fn string(&self, _: &mut Vec<u8>, _: &str) {}

    fn unchecked_string(&self, _: &mut Vec<u8>, text: &[u8]) -> Result<()> {
        text::utf8(text).map(|_| ())
    }

    fn int32(&self, _: &mut Vec<u8>, _: i32) {}

    fn int64(&self, _: &mut Vec<u8>, _: i64) {}

    fn double(&self, _: &mut Vec<u8>, _: f64) -> Result<()> {
        Ok(())
    }

    fn date(&self, _: &mut Vec<u8>, _: i64) -> Result<()> {
        Ok(())
    }

    fn regex(&self, _: &mut Vec<u8>, _: &str, _: &str) -> Result<()> {
        Ok(())
    }

    fn binary(&self, _: &mut Vec<u8>, _: u8, _: &[u8]) {}

    fn object_id(&self, _: &mut Vec<u8>, _: &[u8]) {}

    fn timestamp(&self, _: &mut Vec<u8>, _: u64) {}

    fn decimal(&self, _: &mut Vec<u8>, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn limit(&self, _: &mut Vec<u8>, _: &str) -> Result<()> {
        Ok(())
    }
}
